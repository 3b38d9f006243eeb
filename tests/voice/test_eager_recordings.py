"""What speculating at the end of speech saves, and costs, with recorded callers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.turns.user_stop import BaseUserTurnStopStrategy, SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies

from pipecat_hedge import HedgedLLMService, HedgePolicy, TurnReport
from pipecat_hedge.retrieval import RetrievalProcessor
from pipecat_hedge.testing import Call as CallTool
from pipecat_hedge.testing import Say, ScriptedLLMService, Step, Wait
from pipecat_hedge.voice import EagerStopStrategy
from tests.retrieval.test_processor import Library
from tests.support.call import PhoneCall
from tests.support.recorded_calls import Event, RecordedCall, events, recorded_calls

ANSWER: list[Step] = [Wait(0.5), Say("Till nine.")]
CALLING: list[Step] = [Wait(0.1), CallTool("look_up")]


@pytest.fixture
def recorded() -> list[RecordedCall]:
    return recorded_calls()


@dataclass
class Heard:
    """What came of a call.

    Parameters:
        answer_secs: When the last answer was heard.
        asked: What the conversation says that the caller has asked.
        reports: The turns.
        tools: The tools that ran.
    """

    answer_secs: float
    asked: str
    reports: list[TurnReport]
    tools: list[str]


class Booking(ScriptedLLMService):
    """Calls a tool first, and answers when its result is there."""

    async def _play(self, script: Sequence[Step], context: LLMContext) -> None:
        has_result = any("tool_call_id" in str(message) for message in context.messages)
        await super()._play(script if has_result else CALLING, context)


async def hear(
    events: Sequence[Event],
    make: type[ScriptedLLMService] = ScriptedLLMService,
    *,
    is_eager: bool = False,
    retrieval_secs: float | None = None,
) -> Heard:
    stop: BaseUserTurnStopStrategy = SpeechTimeoutUserTurnStopStrategy()
    before: list[FrameProcessor] = []
    if retrieval_secs is not None:
        before.append(retrieval := RetrievalProcessor(Library(retrieval_secs)))
        if is_eager:
            stop = EagerStopStrategy(stop, is_ready=retrieval.is_ready_for)
    elif is_eager:
        stop = EagerStopStrategy(stop)
    llm = HedgedLLMService([make(ANSWER)], policy=HedgePolicy.fallback())
    async with PhoneCall(llm, strategies=UserTurnStrategies(stop=[stop]), before=before) as call:
        await call.play(*events)
        await call.end_at(20.0)
    asked = " ".join(m["content"] for m in call.messages if m["role"] == "user")
    answered_at = [at for at, what in call.heard if "Till nine" in what][-1]
    return Heard(answered_at, asked, call.line.reports, call.tools)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("final_secs", "retrieval_secs", "sooner_secs"),
    [(0.25, None, 0.4), (0.5, None, 0.4), (1.0, None, 0.4), (0.5, 0.3, 0.1), (1.0, 0.3, 0.4)],
)
async def test_recorded_callers_wait_less(
    recorded: list[RecordedCall],
    final_secs: float,
    retrieval_secs: float | None,
    sooner_secs: float,
) -> None:
    """Also with documents, without which no answer is begun."""
    saved: list[float] = []
    outcomes: list[str] = []
    for said, activity in recorded:
        told = events(said, activity, final_secs)
        usual = await hear(told, retrieval_secs=retrieval_secs)
        eager = await hear(told, is_eager=True, retrieval_secs=retrieval_secs)
        assert eager.asked == usual.asked
        saved.append(usual.answer_secs - eager.answer_secs)
        outcomes += [report.outcome for report in eager.reports]
    documents = "" if retrieval_secs is None else f", documents after {retrieval_secs:g} s"
    print(
        f"\nfinal transcript after {final_secs:.2f} s{documents}: the answer comes sooner by "
        f"{statistics.median(saved):.2f} s (median; {min(saved):.2f} to {max(saved):.2f}); of "
        f"{len(outcomes)} requests {outcomes.count('withdrawn')} are discarded"
    )
    assert min(saved) >= -1e-6
    assert statistics.median(saved) >= sooner_secs
    assert outcomes.count("withdrawn") <= 2 * outcomes.count("answered")


@pytest.mark.virtual_time
async def test_no_tool_runs_before_a_recorded_turn_has_ended(recorded: list[RecordedCall]) -> None:
    for said, activity in recorded:
        told = events(said, activity, 0.5)
        usual = await hear(told, Booking)
        eager = await hear(told, Booking, is_eager=True)
        assert eager.tools == usual.tools == ["look_up"]
        assert eager.answer_secs <= usual.answer_secs + 1e-6
