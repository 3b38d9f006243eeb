"""Where the time of a turn went: each moment at its time, and a filler is no answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import (
    FunctionCallCancelFrame,
    FunctionCallFromLLM,
    FunctionCallInProgressFrame,
    FunctionCallResultFrame,
    FunctionCallResultProperties,
    FunctionCallsStartedFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseStartFrame,
    LLMUpdateSettingsFrame,
    OutputAudioRawFrame,
    StartFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.llm_service import FunctionCallParams, LLMService
from pipecat.services.settings import LLMSettings
from pipecat.services.tts_service import TextAggregationMode
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams

from pipecat_hedge import FillerProcessor, HedgedLLMService, HedgeError, HedgePolicy, Provider
from pipecat_hedge.testing import Call, Error, Say, ScriptedLLMService, Step, Wait
from pipecat_hedge.voice.answer_audio import AnswerAudio
from pipecat_hedge.voice.awaited_tools import AwaitedTools
from pipecat_hedge.voice.turn_latency import TurnLatencyObserver
from pipecat_hedge.voice.turn_timeline import TurnLatency
from tests.support.line import Line
from tests.voice.test_filler import RATE, Voice

pytestmark = pytest.mark.virtual_time

ANSWER: list[Step] = [
    Wait(0.4),
    Say("We are "),
    Wait(0.2),
    Say("open. "),
    Wait(0.1),
    Say("Till nine."),
]
AT_ITS_TIME = {
    "turn_end_secs": 0.3,
    "context_secs": 0.3,
    "first_token_secs": 0.7,
    "first_sentence_secs": 1.0,
    "first_tts_audio_secs": 1.1,
    "first_sound_secs": 1.1,
    "first_answer_secs": 1.1,
}
CHUNK = 0.04  # what the output sends at once


class Loudspeaker(BaseOutputTransport):
    """Plays in the loop's time."""

    def __init__(self) -> None:
        super().__init__(TransportParams(audio_out_enabled=True, audio_out_sample_rate=RATE))

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        await asyncio.sleep(frame.num_frames / frame.sample_rate)
        return True


class Phone:
    """A line with a voice, a loudspeaker and the observer."""

    def __init__(
        self,
        llm: LLMService[Any],
        *,
        fillers: bool = False,
        remembers: bool = False,
        voice: Voice | None = None,
        before: Sequence[FrameProcessor] = (),
        **options: Any,
    ):
        self.context = LLMContext()
        after = [LLMContextAggregatorPair(self.context).assistant()] if remembers else []
        self.told: list[TurnLatency] = []
        self.observer = TurnLatencyObserver(**options)
        self.observer.add_event_handler("on_turn_latency", self._tell)
        self.voice = voice or Voice(0.1)
        fill = [FillerProcessor(not_before_turn=1)] if fillers else []
        self.line = Line(
            llm,
            before=before,
            processors=[*fill, self.voice, Loudspeaker()],
            after=after,
            observers=[self.observer],
        )

    async def _tell(self, _: TurnLatencyObserver, turn: TurnLatency) -> None:
        self.told.append(turn)

    async def __aenter__(self) -> Phone:
        await self.line.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.line.__aexit__(*error)

    async def speak(self, *, with_vad: bool = True, context: LLMContext | None = None) -> None:
        """The caller speaks for a second; the turn ends 0.3 s after its last sound."""
        if with_vad:
            await self.line.send(VADUserStartedSpeakingFrame())
        await self.line.send(UserStartedSpeakingFrame())
        await asyncio.sleep(1.2)
        if with_vad:
            await self.line.send(VADUserStoppedSpeakingFrame(stop_secs=0.2))
        await asyncio.sleep(0.1)
        await self.line.send(UserStoppedSpeakingFrame())
        await self.line.send(LLMContextFrame(context or LLMContext()))

    async def answered(self, secs: float = 10.0) -> TurnLatency:
        await asyncio.sleep(secs)
        return self.told[-1]


def hedged(*scripts: list[Step]) -> HedgedLLMService:
    slow = ScriptedLLMService([Wait(30)], model="slow")
    return HedgedLLMService(
        [ScriptedLLMService(*scripts, model="gpt-4.1"), Provider("slow", slow, stall_secs=60)],
        policy=HedgePolicy.race(2),
    )


both = pytest.mark.parametrize("make", [hedged, ScriptedLLMService])


def rounded(turn: TurnLatency) -> dict[str, float | None]:
    names = (
        *("turn_end_secs", "context_secs", "first_token_secs", "first_sentence_secs"),
        *("first_tts_audio_secs", "first_sound_secs", "first_answer_secs"),
    )
    values = {name: getattr(turn, name) for name in names}
    return {name: None if v is None else round(v, 3) for name, v in values.items()}


@both
async def test_each_moment_at_its_time(make: Any, tmp_path: Path) -> None:
    """From the caller's silence on; a hedged service adds its race."""
    log = tmp_path / "turns.jsonl"
    async with Phone(make(ANSWER), log=log) as phone:
        await phone.speak()
        turn = await phone.answered()
    assert len(phone.told) == 1
    assert turn.anchor == "user_silence"
    assert rounded(turn) == AT_ITS_TIME
    assert turn.voice_to_voice_secs == pytest.approx(1.1)
    assert not turn.interrupted
    assert not turn.may_wait
    assert {"endpointing_wait", "speech_synthesis"} <= {c["key"] for c in turn.contributions}
    (written,) = (json.loads(line) for line in log.read_text().splitlines())
    assert written["first_answer_secs"] == pytest.approx(1.1)
    if make is hedged:
        (report,) = turn.reports
        assert [a.outcome for a in report.attempts] == ["won", "superseded"]
        assert report.committed_secs == pytest.approx(0.7)
        assert turn.asked_secs == pytest.approx((0.3,), abs=0.001)
        assert written["reports"][0]["attempts"][0]["provider"] == "scripted:gpt-4.1"
    else:
        assert turn.reports == ()


async def test_filler_is_a_sound_and_no_answer() -> None:
    """Though the bot speaks on without a break; an answer that waits for the filler is later."""
    slow: list[Step] = [Wait(2.5), Say("We are open.")]
    waits: list[Step] = [Wait(0.95), Say("We are open.")]
    async with Phone(hedged(*[slow] * 32, waits), fillers=True) as phone:
        for _ in range(32):
            await phone.speak()
            await phone.answered(20.0)
        phone.voice.audio_secs = 1.0
        await phone.speak()
        late = await phone.answered(20.0)
    assert len(phone.told) == 33
    turn = phone.told[-2]
    assert turn.reports[0].filler is not None
    assert turn.reports[0].filler.spoken_secs == pytest.approx(0.8, abs=0.01)
    for each in (turn, late):
        assert each.first_sound_secs == pytest.approx(0.3 + 0.8 + 0.1, abs=0.02)
    assert turn.first_answer_secs == pytest.approx(0.3 + 2.5 + 0.1, abs=0.02)
    assert turn.first_tts_audio_secs == pytest.approx(0.3 + 2.5 + 0.1, abs=0.02)
    assert turn.filler_end_secs == pytest.approx(1.2 + 0.1, abs=2 * CHUNK)
    assert late.first_tts_audio_secs == pytest.approx(0.3 + 0.95 + 0.1, abs=0.02)
    assert late.first_answer_secs == pytest.approx(1.2 + 1.0, abs=2 * CHUNK)


async def test_context_after_an_answer_begins_no_turn() -> None:
    """Pipecat's assistant aggregator sends it on; a bot that is run again does begin one."""
    async with Phone(hedged(ANSWER), remembers=True) as phone:
        for _ in range(2):
            await phone.speak(context=phone.context)
            await phone.answered()
        await phone.line.send(LLMContextFrame(phone.context))
        turn = await phone.answered()
    assert [told.turn for told in phone.told] == [1, 2, 3]
    assert [rounded(told) for told in phone.told[:2]] == [AT_ITS_TIME] * 2
    assert turn.anchor == "context"
    assert turn.first_answer_secs == pytest.approx(0.8)


async def test_greeting_without_the_llm_is_no_turns_sound() -> None:
    async with Phone(hedged(ANSWER)) as phone:
        for remembered in (True, False):
            await phone.line.send(TTSSpeakFrame("Hello.", append_to_context=remembered))
            await asyncio.sleep(3.0)
        await phone.speak()
        turn = await phone.answered()
    assert rounded(turn) == AT_ITS_TIME
    assert turn.filler_end_secs is None
    assert len(phone.told) == 1


@pytest.mark.parametrize("stops", [True, False])
async def test_cough_before_the_answer_does_not_count(stops: bool) -> None:
    async with Phone(hedged(ANSWER)) as phone:
        await phone.speak()
        await asyncio.sleep(0.1)
        await phone.line.send(VADUserStartedSpeakingFrame())
        await asyncio.sleep(0.25)
        if stops:
            await phone.line.send(VADUserStoppedSpeakingFrame(stop_secs=0.2))
        turn = await phone.answered()
        await phone.speak(with_vad=False)
        without = await phone.answered()
    assert rounded(turn) == AT_ITS_TIME
    assert turn.anchor == "user_silence"
    assert without.first_answer_secs is not None


async def test_interrupted_race_belongs_to_its_turn() -> None:
    async with Phone(hedged(ANSWER)) as phone:
        await phone.speak()
        await asyncio.sleep(0.5)
        await phone.line.send(VADUserStartedSpeakingFrame(), UserStartedSpeakingFrame())
        await phone.line.send(InterruptionFrame())
        turn = await phone.answered(0.5)
        await phone.speak()
        after = await phone.answered()
    assert (turn.anchor, turn.interrupted, after.interrupted) == ("user_silence", True, False)
    assert turn.first_answer_secs is None
    assert turn.context_secs == pytest.approx(0.3)
    assert turn.asked_secs == pytest.approx((0.3,), abs=0.001)
    assert [report.outcome for report in turn.reports] == ["interrupted"]
    assert [[r.turn for r in told.reports] for told in phone.told] == [[1], [2]]
    assert after.first_answer_secs == pytest.approx(1.1)


async def test_speech_after_a_failure_interrupts_nothing() -> None:
    llm = HedgedLLMService([ScriptedLLMService([Error("no")])], policy=HedgePolicy.fallback())
    async with Phone(llm) as phone:
        await phone.speak()
        await asyncio.sleep(2)
        await phone.speak()
        await phone.answered(1.0)
    assert [told.interrupted for told in phone.told] == [False, False]


async def test_turn_without_answer_may_wait_for_the_caller() -> None:
    """Where the LLM decides whether the caller has finished."""
    llm = HedgedLLMService([ScriptedLLMService([Wait(0.2), Say("○")])])
    async with Phone(llm) as phone:
        settings = LLMSettings(filter_incomplete_user_turns=True)
        await phone.line.send(LLMUpdateSettingsFrame(delta=settings))
        await phone.speak()
        await asyncio.sleep(2)
        await phone.line.interrupt()  # Pipecat's timer for the rest of it ends
    (turn,) = phone.told
    assert turn.may_wait
    assert turn.first_answer_secs is None


async def test_unheard_turn_is_reported_at_the_end() -> None:
    async with Phone(ScriptedLLMService([Wait(0.2)])) as phone:
        await phone.speak()
        await asyncio.sleep(5)
        assert phone.told == []
    assert [turn.first_sound_secs for turn in phone.told] == [None]


# ---- which sounds are the answer: never a line of the bot's own


@both
@pytest.mark.parametrize("remembered", [True, False])
async def test_line_that_sounds_after_the_llm_was_asked_is_no_answer(
    make: Any, remembered: bool
) -> None:
    async with Phone(make(ANSWER)) as phone:
        phone.voice.audio_secs = 2.0
        await phone.line.send(TTSSpeakFrame("Hello there.", append_to_context=remembered))
        await phone.line.send(LLMContextFrame(LLMContext()))
        turn = await phone.answered()
    assert len(phone.told) == 1
    assert turn.first_sound_secs == pytest.approx(0.1)
    assert turn.first_token_secs == pytest.approx(0.4)
    assert turn.first_tts_audio_secs == pytest.approx(0.8)
    assert turn.first_answer_secs == pytest.approx(2.1, abs=2 * CHUNK)
    assert turn.filler_end_secs == pytest.approx(2.1, abs=2 * CHUNK)


async def test_sound_that_is_no_speech_is_no_answer() -> None:
    async with Phone(hedged(ANSWER)) as phone:
        await phone.speak()
        await asyncio.sleep(0.2)
        await phone.voice.push_frame(OutputAudioRawFrame(b"\1\1" * round(0.1 * RATE), RATE, 1))
        turn = await phone.answered()
    assert turn.first_sound_secs == pytest.approx(0.3 + 0.2, abs=2 * CHUNK)
    assert turn.first_answer_secs == pytest.approx(1.1)
    assert turn.filler_end_secs is None


SLOW: list[Step] = [Wait(0.4), Say("We are "), Wait(2.0), Say("open. "), Say("Till nine.")]


@both
@pytest.mark.parametrize(
    ("script", "mode", "line_secs", "answer_secs"),
    [
        ([Wait(2.0), *ANSWER], TextAggregationMode.SENTENCE, 0.5, 2.7),
        ([Wait(2.0), *ANSWER], TextAggregationMode.TOKEN, 0.5, 2.4),
        (SLOW, TextAggregationMode.SENTENCE, 1.0, 2.4),
    ],
    ids=["before the text", "before the text, by tokens", "before the sentence"],
)
async def test_line_in_the_middle_of_an_answer_is_no_answer(
    make: Any, script: Any, mode: TextAggregationMode, line_secs: float, answer_secs: float
) -> None:
    async with Phone(make(script), voice=Voice(0.1, text_aggregation_mode=mode)) as phone:
        await phone.speak()
        await asyncio.sleep(line_secs)
        await phone.voice.queue_frame(TTSSpeakFrame("One moment."))
        turn = await phone.answered()
    assert turn.first_sound_secs == pytest.approx(0.3 + line_secs + 0.1)
    assert turn.first_answer_secs == pytest.approx(0.3 + answer_secs + 0.1)
    assert turn.first_tts_audio_secs == turn.first_answer_secs


@both
async def test_second_request_while_the_answer_sounds_has_its_own_record(make: Any) -> None:
    async with Phone(make(ANSWER)) as phone:
        phone.voice.audio_secs = 2.0
        await phone.speak()
        await asyncio.sleep(1.0)
        await phone.line.send(LLMContextFrame(LLMContext()))
        await phone.answered()
    first, second = phone.told
    assert first.voice_to_voice_secs == pytest.approx(1.1)
    assert not first.interrupted
    assert second.anchor == "context"
    assert second.first_tts_audio_secs == pytest.approx(0.8)
    assert second.first_answer_secs == pytest.approx(3.1 - 1.3, abs=2 * CHUNK)


async def test_pause_of_a_bare_service_does_not_end_the_turn() -> None:
    """It may still be interrupted."""
    slow: list[Step] = [Wait(0.4), Say("We are open. "), Say("So "), Wait(5.0), Say("come.")]
    async with Phone(ScriptedLLMService(slow)) as phone:
        await phone.speak()
        await asyncio.sleep(3.0)
        assert phone.told == []
        turn = await phone.answered()
    assert len(phone.told) == 1
    assert turn.first_answer_secs == pytest.approx(0.8, abs=0.01)


def test_speech_to_speech_model_says_only_answers() -> None:
    audio, model = AnswerAudio(), ScriptedLLMService(ANSWER)
    for turn in (1, 2):
        audio.audio_started(TTSStartedFrame(), model, turn)
        assert audio.turn_of(None) == turn


# ---- tools: one turn with what is said before them, while they run, and after

CALLS: list[Step] = [Wait(0.3), Call("look_up")]
ANNOUNCES: list[Step] = [Wait(0.3), Say("Let me look. "), Call("look_up")]


async def called(
    llm: LLMService[Any],
    say: TTSSpeakFrame | None = None,
    *,
    run_llm: bool | None = None,
    then: Callable[[Phone], Awaitable[None]] | None = None,
    after_secs: float = 10.0,
) -> list[TurnLatency]:
    """A caller asks what a tool of three seconds knows; ``say`` is said as it begins."""

    async def look_up(params: FunctionCallParams) -> None:
        if say is not None:
            await llm.queue_frame(say)
        await asyncio.sleep(3.0)
        properties = FunctionCallResultProperties(run_llm=run_llm)
        await params.result_callback({"open": True}, properties=properties)

    phone = Phone(llm, remembers=True)
    tool = FunctionSchema("look_up", "Looks up.", {}, [], handler=look_up)
    phone.context.set_tools([tool])
    async with phone:
        await phone.speak(context=phone.context)
        await asyncio.sleep(after_secs)
        if then is not None:
            await then(phone)
    return phone.told


@both
@pytest.mark.parametrize("append_to_context", [True, False])
async def test_line_before_a_tool_is_no_answer(make: Any, append_to_context: bool) -> None:
    line = TTSSpeakFrame("Let me check.", append_to_context=append_to_context)
    (turn,) = await called(make(CALLS, ANSWER), line)
    assert turn.anchor == "user_silence"
    assert turn.first_sound_secs == pytest.approx(0.3 + 0.3 + 0.1, abs=0.01)
    assert turn.filler_end_secs == pytest.approx(0.3 + 0.3 + 0.1 + 0.1, abs=0.05)
    assert turn.first_tts_audio_secs == pytest.approx(0.3 + 0.3 + 3.0 + 0.8, abs=0.01)
    assert turn.voice_to_voice_secs == pytest.approx(0.3 + 0.3 + 3.0 + 0.8, abs=0.01)
    if make is hedged:
        assert [r.outcome for r in turn.reports] == ["answered_with_tools", "answered"]


@both
async def test_llms_text_before_its_tool_is_an_answer(make: Any) -> None:
    """The record goes on to the end of the answer after the tool."""
    (turn,) = await called(make(ANNOUNCES, ANSWER))
    assert turn.voice_to_voice_secs == pytest.approx(0.3 + 0.3 + 0.1, abs=0.01)
    assert turn.first_token_secs == pytest.approx(0.3 + 0.3, abs=0.01)
    assert turn.first_sentence_secs == pytest.approx(0.3 + 0.3, abs=0.01)
    assert not turn.interrupted
    if make is hedged:
        assert [r.outcome for r in turn.reports] == ["answered_with_tools", "answered"]
        assert turn.asked_secs == pytest.approx((0.3, 3.6), abs=0.01)


@both
async def test_result_that_asks_for_no_answer_ends_the_turn(make: Any) -> None:
    async def speak(phone: Phone) -> None:
        assert [turn.interrupted for turn in phone.told] == [False]
        await phone.speak()
        await phone.answered()

    first, second = await called(make(ANNOUNCES, ANSWER), run_llm=False, then=speak)
    assert first.voice_to_voice_secs == pytest.approx(0.7, abs=0.01)
    assert second.voice_to_voice_secs == pytest.approx(1.1, abs=0.01)


@both
async def test_speech_while_a_tool_runs_interrupts_the_turn(make: Any) -> None:
    async def speak(phone: Phone) -> None:
        assert phone.told == []
        await phone.line.send(UserStartedSpeakingFrame())
        await asyncio.sleep(0.5)

    (turn,) = await called(make(ANNOUNCES, ANSWER), then=speak, after_secs=2.0)
    assert turn.interrupted
    assert turn.voice_to_voice_secs == pytest.approx(0.7, abs=0.01)


# ---- what is waited for


def started(*ids: str) -> FunctionCallsStartedFrame:
    context = LLMContext()
    return FunctionCallsStartedFrame([FunctionCallFromLLM("f", id_, {}, context) for id_ in ids])


def running(id_: str, *, waits: bool = True) -> FunctionCallInProgressFrame:
    return FunctionCallInProgressFrame("f", id_, {}, cancel_on_interruption=waits)


def result(id_: str, value: Any = "x", **options: Any) -> FunctionCallResultFrame:
    properties = FunctionCallResultProperties(**options) if options else None
    return FunctionCallResultFrame("f", id_, {}, value, properties=properties)


def cancelled(id_: str, *, run_llm: bool) -> FunctionCallCancelFrame:
    return FunctionCallCancelFrame("f", id_, run_llm=run_llm)


@pytest.mark.parametrize(
    ("frames", "waits"),
    [
        pytest.param([], False, id="no tools"),
        pytest.param([started("a")], True, id="called"),
        pytest.param([started("a"), result("a")], True, id="the LLM has yet to be asked"),
        pytest.param(
            [started("a"), result("a"), LLMFullResponseStartFrame()], False, id="it has been"
        ),
        pytest.param([started("a"), result("a", None)], False, id="an empty result asks nothing"),
        pytest.param([started("a"), result("a", run_llm=False)], False, id="told not to ask"),
        pytest.param([started("a", "b"), result("a", None)], True, id="one of two"),
        pytest.param(
            [started("a", "b"), result("a"), LLMFullResponseStartFrame()],
            True,
            id="asked between the two",
        ),
        pytest.param([running("a")], True, id="never announced"),
        pytest.param([started("a"), running("a", waits=False)], False, id="runs beside"),
        pytest.param([running("a", waits=False), result("a", is_final=False)], True, id="so far"),
        pytest.param([running("a", waits=False), result("a")], True, id="it asks, though beside"),
        pytest.param([started("a"), cancelled("a", run_llm=False)], False, id="cancelled"),
        pytest.param([started("a"), cancelled("a", run_llm=True)], True, id="timed out"),
        pytest.param([result("a"), cancelled("b", run_llm=True)], False, id="of another turn"),
    ],
)
def test_tools_are_awaited(frames: list[Any], waits: bool) -> None:
    """Until every tool has returned, and the LLM has been asked again if one wants it to be."""
    tools = AwaitedTools()
    for frame in frames:
        tools.take(frame)
    assert bool(tools) is waits


# ---- arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"log": "none/turns.jsonl"}, "log: there is no folder none: make it first"),
        ({"logs": "turns.jsonl"}, r"logs is no argument of .* did you mean log\?"),
    ],
)
def test_unsuitable_arguments_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HedgeError, match=message):
        TurnLatencyObserver(**options)
