"""Speculating at the end of speech, with a recogniser whose final transcripts come later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pipecat.frames.frames import (
    Frame,
    InterimTranscriptionFrame,
    SpeechControlParamsFrame,
    StartFrame,
    STTMetadataFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.turns.user_stop import BaseUserTurnStopStrategy, SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import (
    UserTurnStrategies,
    default_user_turn_stop_strategies,
)

from pipecat_hedge import HedgedLLMService, HedgePolicy, TurnReport
from pipecat_hedge.testing import Call, Say, ScriptedLLMService, Step, Wait
from pipecat_hedge.voice import EagerStopStrategy
from tests.voice.test_turn_taking import conversation

pytestmark = pytest.mark.virtual_time

Event = Frame | float
ANSWER: list[Step] = [Wait(0.5), Say("Till nine.")]
MISSED: list[Step] = [Wait(0.5), Say("Never heard.")]
ON, OFF = VADUserStartedSpeakingFrame, VADUserStoppedSpeakingFrame


def interim(text: str = "are you open") -> Frame:
    return InterimTranscriptionFrame(text, "caller", "now")


def final(text: str = "Are you open?") -> Frame:
    return TranscriptionFrame(text, "caller", "now", finalized=True)


def ends() -> SpeechTimeoutUserTurnStopStrategy:
    return SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.0)


async def call(
    stop: BaseUserTurnStopStrategy, events: Sequence[Event], scripts: Sequence[list[Step]]
) -> tuple[float, list[TurnReport], list[Any], list[str]]:
    """When the answer was heard, the turns, the conversation, and the tools that ran."""
    reports: list[TurnReport] = []
    llm = HedgedLLMService([ScriptedLLMService(*scripts)], policy=HedgePolicy.fallback())

    @llm.event_handler("on_turn_report")
    async def on_turn_report(_: object, report: TurnReport) -> None:
        reports.append(report)

    metadata = STTMetadataFrame(service_name="stt", ttfs_p99_latency=1.2)
    heard, messages, ran = await conversation(
        llm, UserTurnStrategies(stop=[stop]), [metadata, *events]
    )
    assert "Never heard" not in str(heard) + str(messages)
    assert messages[-1] == {"role": "assistant", "content": "Till nine."}
    return next(at for at, what in heard if "Till nine" in what), reports, messages, ran


@pytest.mark.parametrize("final_secs", [0.2, 0.4, 1.0])
async def test_answer_begins_while_the_final_transcript_is_awaited(final_secs: float) -> None:
    events = [ON(), 0.9, interim(), 0.1, OFF(), final_secs, final()]
    usual, _, remembered, _ = await call(ends(), events, [ANSWER])
    eager, reports, messages, _ = await call(EagerStopStrategy(ends()), events, [ANSWER])
    assert usual == pytest.approx(1.0 + final_secs + 0.5)
    assert eager == pytest.approx(1.0 + max(final_secs, 0.5))
    assert messages == remembered
    assert [report.outcome for report in reports] == ["answered"]


PAUSED = [ON(), 0.9, interim("are you"), 0.1, OFF(), 0.3, ON(), 0.9, interim(), 0.1, OFF()]


@pytest.mark.parametrize(
    ("events", "withdrawn"),
    [
        pytest.param([*PAUSED, 0.4, final()], 1, id="the caller goes on after a pause"),
        pytest.param(
            [ON(), 0.9, interim("are you closed"), 0.1, OFF(), 0.4, final()], 1, id="misheard"
        ),
        pytest.param(
            [ON(), 0.9, interim("are you"), 0.1, OFF(), 0.1, interim(), 0.3, final()],
            1,
            id="the last word is recognised after the end of speech",
        ),
        pytest.param([ON(), 1.0, OFF(), 0.4, final()], 0, id="without interim transcripts"),
    ],
)
async def test_answer_to_another_transcript_is_never_heard(
    events: list[Event], withdrawn: int
) -> None:
    scripts = [*[MISSED] * withdrawn, ANSWER]
    usual, _, remembered, _ = await call(ends(), events, [ANSWER])
    eager, reports, messages, _ = await call(EagerStopStrategy(ends()), events, scripts)
    assert eager <= usual
    assert messages == remembered
    assert [r.outcome for r in reports] == [*["withdrawn"] * withdrawn, "answered"]


async def test_pauses_cost_three_speculations_at_most() -> None:
    events: list[Event] = []
    for words in range(1, 9):
        events += [ON(), 0.4, interim("and " * words), 0.1, OFF(), 0.05]
    events += [ON(), 0.4, interim(), 0.1, OFF(), 0.4, final()]
    _, reports, _, _ = await call(EagerStopStrategy(ends()), events, [*[MISSED] * 3, ANSWER])
    assert [report.outcome for report in reports] == [*["withdrawn"] * 3, "answered"]


async def test_pipecats_turn_analyser_ends_turns_by_default() -> None:
    """It states its parameters when the pipeline starts."""

    async def stated(stop: BaseUserTurnStopStrategy) -> list[tuple[type[Frame], Any]]:
        found: list[tuple[type[Frame], Any]] = []

        async def on_broadcast(_: object, frame: type[Frame], **fields: Any) -> None:
            found.append((frame, fields))

        stop.add_event_handler("on_broadcast_frame", on_broadcast)
        await stop.process_frame(StartFrame())
        return found

    usual = await stated(default_user_turn_stop_strategies()[0])
    assert [frame for frame, _ in usual] == [SpeechControlParamsFrame]
    assert await stated(EagerStopStrategy()) == usual
    assert await stated(EagerStopStrategy(ends())) == []


async def test_no_tool_runs_early() -> None:
    events = [ON(), 0.9, interim(), 0.1, OFF(), 1.0, final()]
    calls: list[Step] = [Wait(0.2), Call("book_table", {})]
    _, reports, _, ran = await call(EagerStopStrategy(ends()), events, [calls, calls, ANSWER])
    assert ran == ["book_table"]
    assert [r.outcome for r in reports] == ["withdrawn", "answered_with_tools", "answered"]
