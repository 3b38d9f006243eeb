"""Speculation and turn completion: the hedged service does what the bare one does, when it does.

Each conversation is held twice, with Pipecat's own strategies and aggregators around a bare
service and around a hedged one, and everything that comes out is compared, times included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    EagerTranscriptionFrame,
    Frame,
    MetricsFrame,
    ProposedUserStartedSpeakingFrame,
    ProposedUserStoppedSpeakingFrame,
    TextFrame,
    TranscriptionFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.llm_service import FunctionCallParams, LLMService
from pipecat.turns.user_stop import ExternalUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import (
    EagerUserTurnStrategies,
    ExternalUserTurnStrategies,
    FilterIncompleteUserTurnStrategies,
    UserTurnStrategies,
)

from pipecat_hedge import HedgedLLMService, HedgePolicy
from pipecat_hedge.testing import Call, Error, Say, ScriptedLLMService, Step, Wait
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

ANSWER = [Wait(0.2), Say("Yes, "), Wait(0.05), Say("till nine.")]
END = 20.0

Event = Frame | float
"""What a speech-to-text service says; a number is a pause in seconds."""


def started() -> Frame:
    return ProposedUserStartedSpeakingFrame()


def stopped() -> Frame:
    return ProposedUserStoppedSpeakingFrame()


def eager(text: str = "are you open") -> Frame:
    return EagerTranscriptionFrame(text, "caller", "now")


def committed(text: str = "Are you open?") -> Frame:
    return TranscriptionFrame(text, "caller", "now", finalized=True)


async def conversation(
    llm: LLMService[Any],
    strategies: UserTurnStrategies,
    events: Sequence[Event],
    processors: Sequence[FrameProcessor] = (),
    *,
    before: Sequence[FrameProcessor] = (),
) -> tuple[list[tuple[float, str]], list[Any], list[str]]:
    """Everything that came out, the conversation as it was remembered, and the tools that ran."""
    ran: list[str] = []

    async def book_table(params: FunctionCallParams) -> None:
        ran.append(params.function_name)
        await params.result_callback("booked")

    tools = ToolsSchema([FunctionSchema("book_table", "Books.", {}, [], handler=book_table)])
    context = LLMContext(tools=tools)
    aggregators = LLMContextAggregatorPair(
        context, user_params=LLMUserAggregatorParams(user_turn_strategies=strategies)
    )
    async with Line(
        llm,
        before=[*before, aggregators.user()],
        processors=processors,
        after=[aggregators.assistant()],
    ) as line:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for event in events:
            if isinstance(event, Frame):
                await line.send(event)
            else:
                await asyncio.sleep(event)
        await asyncio.sleep(END + begun - loop.time())
        heard = [
            (round(at - begun, 6), told(frame))
            for at, frame in line.heard
            if not isinstance(frame, MetricsFrame)
        ]
    return heard, context.messages, ran


def told(frame: Frame) -> str:
    kind = type(frame).__name__
    return f"{kind} {frame.text!r}" if isinstance(frame, TextFrame) else kind


def bare(*scripts: Sequence[Step]) -> LLMService[Any]:
    return ScriptedLLMService(*scripts)


def hedged_first(*scripts: Sequence[Step]) -> LLMService[Any]:
    """The answer comes from the first of two that are asked at once; the second is too slow."""
    slow = ScriptedLLMService([Wait(3), Say("Too late.")])
    return HedgedLLMService([ScriptedLLMService(*scripts), slow], policy=HedgePolicy.race(2))


def hedged_second(*scripts: Sequence[Step]) -> LLMService[Any]:
    """The answer comes from the second."""
    slow = ScriptedLLMService([Wait(3), Say("Too late.")])
    return HedgedLLMService([slow, ScriptedLLMService(*scripts)], policy=HedgePolicy.race(2))


Make = Callable[..., LLMService[Any]]
# Not at multiples of 0.5 s: then Pipecat's own strategy looks whether a transcript has come, and in
# such an instant either may be first.
SPECULATIONS: dict[str, tuple[list[list[Step]], list[Event]]] = {
    "confirmed before the answer": (
        [ANSWER],
        [started(), 1.0, eager(), 0.1, stopped(), committed()],
    ),
    "confirmed when the answer is complete": (
        [ANSWER],
        [started(), 1.0, eager(), 0.6, stopped(), committed()],
    ),
    "confirmed in mid-answer": (
        [ANSWER],
        [started(), 1.0, eager(), 0.22, stopped(), committed()],
    ),
    "withdrawn, the caller goes on": (
        [[Wait(0.2), Say("Never heard.")], ANSWER],
        [
            *(started(), 1.0, eager("are you"), 0.1, EagerEndOfTurnCancelFrame(), 0.5),
            *(eager(), 0.1, stopped(), committed()),
        ],
    ),
    "the transcript turns out otherwise": (
        [[Wait(0.05), Say("Never heard.")], ANSWER],
        [started(), 1.0, eager("are you closed"), 0.1, stopped(), committed()],
    ),
    "never resolved": (
        [[Wait(0.2), Say("Never heard.")], ANSWER],
        [started(), 1.0, eager(), 7.0, stopped(), committed()],
    ),
    "wants a tool": (
        [[Wait(0.2), Call("book_table")], [Wait(0.2), Call("book_table")], ANSWER],
        [started(), 1.0, eager(), 0.4, stopped(), committed()],
    ),
}


def hedged_rescue(*scripts: Sequence[Step]) -> LLMService[Any]:
    """The answer comes from the second, because the first fails: no hedge is sent so early."""
    return HedgedLLMService([ScriptedLLMService([Error()]), ScriptedLLMService(*scripts)])


@pytest.mark.parametrize("hedged", [hedged_first, hedged_rescue])
@pytest.mark.parametrize("case", SPECULATIONS)
async def test_speculation(case: str, hedged: Make) -> None:
    """A provisional answer is held, released and discarded as with a bare service."""
    scripts, events = SPECULATIONS[case]
    expected = await conversation(bare(*scripts), EagerUserTurnStrategies(), events)
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
        [1.0, started(), 0.5, stopped(), committed("on Sunday?")],
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


@pytest.mark.parametrize("hedged", [hedged_first, hedged_second])
@pytest.mark.parametrize("case", COMPLETIONS)
async def test_turn_completion(case: str, hedged: Make) -> None:
    """The markers are read, and kept from the caller, as with a bare service."""
    answers, more = COMPLETIONS[case]
    # No stream ends with its last token: some rounds of the loop come between, and no time.
    scripts = [[*answer, *[Wait(0)] * 10] for answer in answers]
    events = [started(), 1.0, stopped(), committed(), *more]

    def strategies() -> UserTurnStrategies:
        external = ExternalUserTurnStrategies()
        return FilterIncompleteUserTurnStrategies(
            start=external.start, stop=[ExternalUserTurnStopStrategy()]
        )

    expected = await conversation(bare(*scripts), strategies(), events)
    assert await conversation(hedged(*scripts), strategies(), events) == expected
    heard, messages, _ = expected
    assert "till nine." in str(heard)
    assert "till nine." in str(messages)
    assert not any(marker in text for _, text in heard if "LLMText" in text for marker in "◐○")
