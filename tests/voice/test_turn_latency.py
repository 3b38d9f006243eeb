"""Where the time of a turn went: each moment at its time, and a filler is no answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMContextFrame,
    LLMUpdateSettingsFrame,
    OutputAudioRawFrame,
    StartFrame,
    TTSSpeakFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import LLMSettings
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams

from pipecat_hedge import FillerProcessor, HedgedLLMService, HedgeError, HedgePolicy, Provider
from pipecat_hedge.testing import Error, Say, ScriptedLLMService, Step, Wait
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


def rounded(turn: TurnLatency) -> dict[str, float | None]:
    names = (
        *("turn_end_secs", "context_secs", "first_token_secs", "first_sentence_secs"),
        *("first_tts_audio_secs", "first_sound_secs", "first_answer_secs"),
    )
    values = {name: getattr(turn, name) for name in names}
    return {name: None if v is None else round(v, 3) for name, v in values.items()}


@pytest.mark.parametrize("make", [hedged, ScriptedLLMService])
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


async def test_without_vad_the_turn_end_is_the_anchor() -> None:
    async with Phone(hedged(ANSWER)) as phone:
        await phone.speak(with_vad=False)
        turn = await phone.answered()
    assert turn.anchor == "turn_end"
    assert turn.turn_end_secs == 0.0
    assert turn.first_answer_secs == pytest.approx(0.8)
    assert turn.voice_to_voice_secs is None


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
