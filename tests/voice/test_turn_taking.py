"""Speculation and turn completion: the hedged service does what the bare one does, when it does.

Each conversation is held twice, with Pipecat's own strategies and aggregators around a bare
service and around a hedged one, and everything that comes out is compared, times included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pipecat.frames.frames import EagerEndOfTurnCancelFrame
from pipecat.services.llm_service import LLMService
from pipecat.turns.user_stop import ExternalUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import (
    EagerUserTurnStrategies,
    ExternalUserTurnStrategies,
    FilterIncompleteUserTurnStrategies,
    UserTurnStrategies,
)

from pipecat_hedge import HedgedLLMService, HedgePolicy
from pipecat_hedge.testing import Call, Error, Say, ScriptedLLMService, Step, Wait
from tests.support.call import STARTED, STOPPED, Event, PhoneCall, eager, words

pytestmark = pytest.mark.virtual_time

ANSWER = [Wait(0.2), Say("Yes, "), Wait(0.05), Say("till nine.")]


async def conversation(
    llm: LLMService[Any], strategies: UserTurnStrategies, events: Sequence[Event]
) -> tuple[list[tuple[float, str]], list[Any], list[str]]:
    """Everything that came out, the conversation as it was remembered, and the tools that ran."""
    async with PhoneCall(llm, strategies=strategies) as call:
        await call.play(*events)
        await call.end_at(20.0)
        return call.heard, call.messages, call.tools


def first(*scripts: Sequence[Step]) -> LLMService[Any]:
    """The answer comes from the first of two that are asked at once; the second is too slow."""
    slow = ScriptedLLMService([Wait(3), Say("Too late.")])
    return HedgedLLMService([ScriptedLLMService(*scripts), slow], policy=HedgePolicy.race(2))


def second(*scripts: Sequence[Step]) -> LLMService[Any]:
    """The answer comes from the second."""
    slow = ScriptedLLMService([Wait(3), Say("Too late.")])
    return HedgedLLMService([slow, ScriptedLLMService(*scripts)], policy=HedgePolicy.race(2))


def rescue(*scripts: Sequence[Step]) -> LLMService[Any]:
    """The answer comes from the second, because the first fails: no hedge is sent so early."""
    return HedgedLLMService([ScriptedLLMService([Error()]), ScriptedLLMService(*scripts)])


Make = Callable[..., LLMService[Any]]
# Not at multiples of 0.5 s: then Pipecat's own strategy looks whether a transcript has come, and in
# such an instant either may be first.
SPECULATIONS: dict[str, tuple[list[list[Step]], list[Event]]] = {
    "confirmed before the answer": (
        [ANSWER],
        [STARTED, 1.0, eager(), 0.1, STOPPED, words()],
    ),
    "confirmed when the answer is complete": (
        [ANSWER],
        [STARTED, 1.0, eager(), 0.6, STOPPED, words()],
    ),
    "confirmed in mid-answer": (
        [ANSWER],
        [STARTED, 1.0, eager(), 0.22, STOPPED, words()],
    ),
    "withdrawn, the caller goes on": (
        [[Wait(0.2), Say("Never heard.")], ANSWER],
        [
            *(STARTED, 1.0, eager("are you"), 0.1, EagerEndOfTurnCancelFrame(), 0.5),
            *(eager(), 0.1, STOPPED, words()),
        ],
    ),
    "the transcript turns out otherwise": (
        [[Wait(0.05), Say("Never heard.")], ANSWER],
        [STARTED, 1.0, eager("are you closed"), 0.1, STOPPED, words()],
    ),
    "never resolved": (
        [[Wait(0.2), Say("Never heard.")], ANSWER],
        [STARTED, 1.0, eager(), 7.0, STOPPED, words()],
    ),
    "wants a tool": (
        [[Wait(0.2), Call("look_up")], [Wait(0.2), Call("look_up")], ANSWER],
        [STARTED, 1.0, eager(), 0.4, STOPPED, words()],
    ),
}


@pytest.mark.parametrize("hedged", [first, rescue])
@pytest.mark.parametrize("case", SPECULATIONS)
async def test_speculation(case: str, hedged: Make) -> None:
    """A provisional answer is held, released and discarded as with a bare service."""
    scripts, events = SPECULATIONS[case]
    expected = await conversation(ScriptedLLMService(*scripts), EagerUserTurnStrategies(), events)
    assert await conversation(hedged(*scripts), EagerUserTurnStrategies(), events) == expected
    heard, messages, ran = expected
    assert "Never heard" not in str(heard) + str(messages)  # the comparison is of something
    assert "till nine." in str(heard)
    assert "till nine." in str(messages)
    assert len(ran) == (case == "wants a tool")


COMPLETIONS: dict[str, tuple[list[list[Step]], list[Event]]] = {
    "complete": ([[Wait(0.2), Say("●"), Say(" Yes, "), Say("till nine.")]], []),
    "complete in one piece": ([[Wait(0.2), Say("● Yes, till nine.")]], []),
    "incomplete, the caller goes on": (
        [[Wait(0.2), Say("◐")], [Wait(0.2), Say("● Yes, till nine.")]],
        [1.0, STARTED, 0.5, STOPPED, words("on Sunday?")],
    ),
    "incomplete, the caller is asked": (
        [[Wait(0.2), Say("◐")], [Wait(0.2), Say("● Open when? We are till nine.")]],
        [],
    ),
    "incomplete for long, the caller is asked": (
        [[Wait(0.2), Say("○")], [Wait(0.2), Say("● Take your time. We are till nine.")]],
        [],
    ),
    "no marker": ([[Wait(0.2), Say("Yes, "), Say("till nine.")]], []),
}


@pytest.mark.parametrize("hedged", [first, second])
@pytest.mark.parametrize("case", COMPLETIONS)
async def test_turn_completion(case: str, hedged: Make) -> None:
    """The markers are read, and kept from the caller, as with a bare service."""
    answers, more = COMPLETIONS[case]
    # No stream ends with its last token: some rounds of the loop come between, and no time.
    scripts = [[*answer, *[Wait(0)] * 10] for answer in answers]
    events: list[Event] = [0.1, STARTED, 1.0, STOPPED, words(), *more]

    def strategies() -> UserTurnStrategies:
        external = ExternalUserTurnStrategies()
        return FilterIncompleteUserTurnStrategies(
            start=external.start, stop=[ExternalUserTurnStopStrategy()]
        )

    expected = await conversation(ScriptedLLMService(*scripts), strategies(), events)
    assert await conversation(hedged(*scripts), strategies(), events) == expected
    heard, messages, _ = expected
    assert "till nine." in str(heard)
    assert "till nine." in str(messages)
    assert not any(marker in text for _, text in heard if "TTSText" in text for marker in "◐○")
