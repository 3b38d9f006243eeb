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
)
from pipecat.turns.user_stop import BaseUserTurnStopStrategy, SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import (
    UserTurnStrategies,
    default_user_turn_stop_strategies,
)

from pipecat_hedge import HedgedLLMService, HedgePolicy
from pipecat_hedge.testing import Call, Say, ScriptedLLMService, Step, Wait
from pipecat_hedge.voice import EagerStopStrategy
from tests.support.call import VAD_ON, Event, PhoneCall, vad_off, words

pytestmark = pytest.mark.virtual_time

ANSWER: list[Step] = [Wait(0.5), Say("Till nine.")]
MISSED: list[Step] = [Wait(0.5), Say("Never heard.")]


def interim(text: str = "are you open") -> Frame:
    return InterimTranscriptionFrame(text, "caller", "now")


def ends() -> SpeechTimeoutUserTurnStopStrategy:
    return SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.0)


async def call(
    stop: BaseUserTurnStopStrategy, events: Sequence[Event], scripts: Sequence[list[Step]]
) -> tuple[float, list[str], list[Any], list[str]]:
    """When the answer came, the turns' outcomes, the conversation, and the tools that ran."""
    llm = HedgedLLMService([ScriptedLLMService(*scripts)], policy=HedgePolicy.fallback())
    async with PhoneCall(llm, strategies=UserTurnStrategies(stop=[stop])) as call:
        await call.play(STTMetadataFrame(service_name="stt", ttfs_p99_latency=1.2), *events)
        await call.end_at(20.0)
    messages = call.messages
    assert "Never heard" not in str(call.heard) + str(messages)
    assert messages[-1] == {"role": "assistant", "content": "Till nine."}
    answered_at = next(at for at, what in call.heard if "Till nine" in what)
    return answered_at, [report.outcome for report in call.line.reports], messages, call.tools


@pytest.mark.parametrize("final_secs", [0.2, 0.4, 1.0])
async def test_answer_begins_while_the_final_transcript_is_awaited(final_secs: float) -> None:
    events = [VAD_ON, 0.9, interim(), 0.1, vad_off, final_secs, words()]
    usual, _, remembered, _ = await call(ends(), events, [ANSWER])
    eager, outcomes, messages, _ = await call(EagerStopStrategy(ends()), events, [ANSWER])
    assert usual == pytest.approx(1.0 + final_secs + 0.5)
    assert eager == pytest.approx(1.0 + max(final_secs, 0.5))
    assert messages == remembered
    assert outcomes == ["answered"]


PAUSED = [VAD_ON, 0.9, interim("are you"), 0.1, vad_off, 0.3, VAD_ON, 0.9, interim(), 0.1, vad_off]


@pytest.mark.parametrize(
    ("events", "withdrawn"),
    [
        pytest.param([*PAUSED, 0.4, words()], 1, id="the caller goes on after a pause"),
        pytest.param(
            [VAD_ON, 0.9, interim("are you closed"), 0.1, vad_off, 0.4, words()], 1, id="misheard"
        ),
        pytest.param(
            [VAD_ON, 0.9, interim("are you"), 0.1, vad_off, 0.1, interim(), 0.3, words()],
            1,
            id="the last word is recognised after the end of speech",
        ),
        pytest.param([VAD_ON, 1.0, vad_off, 0.4, words()], 0, id="without interim transcripts"),
    ],
)
async def test_answer_to_another_transcript_is_never_heard(
    events: list[Event], withdrawn: int
) -> None:
    scripts = [*[MISSED] * withdrawn, ANSWER]
    usual, _, remembered, _ = await call(ends(), events, [ANSWER])
    eager, outcomes, messages, _ = await call(EagerStopStrategy(ends()), events, scripts)
    assert eager <= usual
    assert messages == remembered
    assert outcomes == [*["withdrawn"] * withdrawn, "answered"]


async def test_pauses_cost_three_speculations_at_most() -> None:
    events: list[Event] = []
    for count in range(1, 9):
        events += [VAD_ON, 0.4, interim("and " * count), 0.1, vad_off, 0.05]
    events += [VAD_ON, 0.4, interim(), 0.1, vad_off, 0.4, words()]
    _, outcomes, _, _ = await call(EagerStopStrategy(ends()), events, [*[MISSED] * 3, ANSWER])
    assert outcomes == [*["withdrawn"] * 3, "answered"]


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
    events = [VAD_ON, 0.9, interim(), 0.1, vad_off, 1.0, words()]
    calls: list[Step] = [Wait(0.2), Call("look_up")]
    _, outcomes, _, ran = await call(EagerStopStrategy(ends()), events, [calls, calls, ANSWER])
    assert ran == ["look_up"]
    assert outcomes == ["withdrawn", "answered_with_tools", "answered"]
