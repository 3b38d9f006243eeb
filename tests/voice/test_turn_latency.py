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
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import FunctionCallParams, LLMService
from pipecat.services.settings import LLMSettings
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams

from pipecat_hedge import FillerProcessor, HedgedLLMService, HedgeError, HedgePolicy, Provider
from pipecat_hedge.testing import Call, Error, Say, ScriptedLLMService, Step, Wait
from pipecat_hedge.voice.turn_latency import TurnLatencyObserver
from pipecat_hedge.voice.turn_timeline import TurnLatency
from tests.support.line import Line
from tests.voice.test_filler import RATE, Voice, with_tool

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
        await asyncio.sleep(1.0)
        await asyncio.sleep(0.2)
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


async def test_each_moment_at_its_time(tmp_path: Path) -> None:
    """From the caller's silence on; with the race inside, and Pipecat's own breakdown."""
    log = tmp_path / "turns.jsonl"
    async with Phone(hedged(ANSWER), log=log) as phone:
        await phone.speak()
        turn = await phone.answered()
    assert len(phone.told) == 1
    assert turn.anchor == "user_silence"
    assert rounded(turn) == AT_ITS_TIME
    assert turn.voice_to_voice_secs == pytest.approx(1.1)
    assert [report.winner for report in turn.reports] == ["scripted:gpt-4.1"]
    assert [a.outcome for a in turn.reports[0].attempts] == ["won", "superseded"]
    assert not turn.interrupted
    assert not turn.may_wait
    written = [json.loads(line) for line in log.read_text().splitlines()]
    assert written[0]["reports"][0]["attempts"][0]["provider"] == "scripted:gpt-4.1"
    assert written[0]["first_answer_secs"] == pytest.approx(1.1)
    assert turn.asked_secs == pytest.approx((0.3,), abs=0.001)
    assert turn.reports[0].committed_secs == pytest.approx(0.7)
    assert {"endpointing_wait", "speech_synthesis"} <= {c["key"] for c in turn.contributions}


async def test_a_bare_service_has_its_moments_too() -> None:
    """As far as frames tell them."""
    async with Phone(ScriptedLLMService(ANSWER)) as phone:
        await phone.speak()
        turn = await phone.answered()
    assert turn.reports == ()
    assert rounded(turn) == AT_ITS_TIME


async def test_a_filler_is_a_sound_and_no_answer() -> None:
    """Though the bot speaks on without a break."""
    late: list[Step] = [Wait(2.5), Say("We are open.")]
    async with Phone(hedged(late), fillers=True) as phone:
        for _ in range(30):
            await phone.speak()
            await phone.answered(20.0)
        await phone.speak()
        turn = await phone.answered(20.0)
    assert turn.reports[0].filler is not None
    assert turn.reports[0].filler.spoken_secs == pytest.approx(0.8, abs=0.01)
    assert turn.first_sound_secs == pytest.approx(0.3 + 0.8 + 0.1, abs=0.02)
    assert turn.first_answer_secs == pytest.approx(0.3 + 2.5 + 0.1, abs=0.02)
    assert turn.first_tts_audio_secs == pytest.approx(0.3 + 2.5 + 0.1, abs=0.02)
    assert turn.filler_end_secs == pytest.approx(0.3 + 0.8 + 0.1 + 0.1, abs=2 * CHUNK)
    assert len(phone.told) == 31


async def test_an_answer_that_waits_for_the_filler_to_end() -> None:
    """Is heard when it begins to sound, not when it was synthesized."""
    late: list[Step] = [Wait(0.95), Say("We are open.")]
    scripts = [[Wait(2.5), Say("We are open.")]] * 30 + [late]
    async with Phone(hedged(*scripts), fillers=True) as phone:
        phone.voice.audio_secs = 1.0
        for _ in range(30):
            await phone.speak()
            await phone.answered(20.0)
        await phone.speak()
        turn = await phone.answered(20.0)
    assert turn.first_sound_secs == pytest.approx(0.3 + 0.8 + 0.1, abs=0.02)
    assert turn.first_tts_audio_secs is not None
    assert turn.first_sound_secs is not None
    assert turn.first_answer_secs == pytest.approx(turn.first_sound_secs + 1.0, abs=2 * CHUNK)


async def test_there_is_one_record_a_turn_behind_which_the_context_is_told() -> None:
    """Pipecat's assistant aggregator sends the context on after an answer; it asks for nothing."""
    async with Phone(hedged(ANSWER), remembers=True) as phone:
        for _ in range(2):
            await phone.speak(context=phone.context)
            await phone.answered()
        await phone.line.send(LLMContextFrame(phone.context))  # the bot is run again, nobody spoke
        turn = await phone.answered()
    assert [told.turn for told in phone.told] == [1, 2, 3]
    assert [rounded(told) for told in phone.told[:2]] == [AT_ITS_TIME] * 2
    assert turn.anchor == "context"
    assert turn.first_answer_secs == pytest.approx(0.8)


async def test_what_the_bot_says_of_its_own_accord_is_no_turns_sound() -> None:
    """A greeting or a reminder that is spoken without the LLM."""
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
async def test_a_cough_while_the_answer_is_awaited(stops: bool) -> None:
    """Is not what the caller said: the wait is counted from the turn's own silence."""
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


async def test_without_a_local_vad() -> None:
    """The end of the turn is what is known; there is no voice-to-voice latency."""
    async with Phone(hedged(ANSWER)) as phone:
        await phone.speak(with_vad=False)
        turn = await phone.answered()
    assert turn.anchor == "turn_end"
    assert turn.turn_end_secs == 0.0
    assert turn.first_answer_secs == pytest.approx(0.8)
    assert turn.voice_to_voice_secs is None


async def test_a_greeting() -> None:
    """Nobody has spoken."""
    async with Phone(hedged(ANSWER)) as phone:
        await phone.line.send(LLMContextFrame(LLMContext()))
        turn = await phone.answered()
    assert turn.anchor == "context"
    assert turn.first_answer_secs == pytest.approx(0.8)


async def test_a_turn_with_a_tool_is_one() -> None:
    """Both races are in it, and the answer is the one that was heard."""
    context = with_tool(1.0)
    phone = Phone(hedged([Wait(0.3), Call("look_up")], ANSWER))
    ran = asyncio.Event()

    async def look_up(params: FunctionCallParams) -> None:
        await asyncio.sleep(1.0)
        ran.set()
        await params.result_callback({"open": True})

    service = phone.line.service
    assert isinstance(service, LLMService)
    service.register_function("look_up", look_up)
    async with phone:
        await phone.speak(context=context)
        await ran.wait()
        # The result is in the conversation, which goes back to the LLM from behind it.
        await service.queue_frame(LLMContextFrame(context), FrameDirection.UPSTREAM)
        turn = await phone.answered()
    assert [report.outcome for report in turn.reports] == ["answered_with_tools", "answered"]
    assert turn.first_answer_secs == pytest.approx(0.3 + 0.3 + 1.0 + 0.8, abs=0.01)
    assert turn.asked_secs == pytest.approx((0.3, 0.3 + 0.3 + 1.0), abs=0.01)
    assert turn.first_token_secs == pytest.approx(0.3 + 0.3 + 1.0 + 0.4, abs=0.01)


async def test_a_turn_that_is_interrupted_before_it_is_heard() -> None:
    """Is told of as far as it went."""
    async with Phone(hedged(ANSWER)) as phone:
        await phone.speak()
        await asyncio.sleep(0.5)
        await phone.line.send(InterruptionFrame())
        turn = await phone.answered(1.0)
        await phone.speak()
        await phone.answered()
    assert turn.interrupted
    assert turn.first_answer_secs is None
    assert turn.context_secs == pytest.approx(0.3)
    assert [told.turn for told in phone.told] == [1, 2]
    assert phone.told[1].first_answer_secs == pytest.approx(1.1)


async def test_a_caller_who_cuts_a_race_off() -> None:
    """The turn that was cut off has the race's report, and what is counted from is as it was."""
    async with Phone(hedged(ANSWER)) as phone:
        await phone.speak()
        await asyncio.sleep(0.5)
        await phone.line.send(VADUserStartedSpeakingFrame(), UserStartedSpeakingFrame())
        await phone.line.send(InterruptionFrame())
        turn = await phone.answered(0.5)
        await phone.speak()
        await phone.answered()
    assert turn.interrupted
    assert turn.anchor == "user_silence"
    assert [report.outcome for report in turn.reports] == ["interrupted"]
    assert turn.asked_secs == pytest.approx((0.3,), abs=0.001)
    assert [[r.turn for r in told.reports] for told in phone.told] == [[1], [2]]
    assert not phone.told[1].interrupted


async def test_a_caller_who_speaks_after_a_failure() -> None:
    """Interrupts nothing."""
    llm = HedgedLLMService([ScriptedLLMService([Error("no")])], policy=HedgePolicy.fallback())
    async with Phone(llm) as phone:
        await phone.speak()
        await asyncio.sleep(2)
        await phone.speak()
        await phone.answered(1.0)
    assert [told.interrupted for told in phone.told] == [False, False]


async def test_two_utterances_before_the_answer_are_one_turn() -> None:
    """What counts is the silence after the last."""
    async with Phone(hedged(ANSWER)) as phone:
        await phone.line.send(VADUserStartedSpeakingFrame(), UserStartedSpeakingFrame())
        await asyncio.sleep(1.0)
        await phone.line.send(VADUserStoppedSpeakingFrame(stop_secs=0.2))
        await asyncio.sleep(0.5)
        await phone.line.send(VADUserStartedSpeakingFrame())
        await asyncio.sleep(1.0)
        await phone.line.send(VADUserStoppedSpeakingFrame(stop_secs=0.2))
        await phone.line.send(UserStoppedSpeakingFrame(), LLMContextFrame(LLMContext()))
        turn = await phone.answered()
    assert len(phone.told) == 1
    assert turn.first_answer_secs == pytest.approx(0.2 + 0.8)


async def test_a_caller_who_has_not_finished() -> None:
    """Where the LLM decides that, a turn without an answer says that it may have been none."""
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


async def test_a_turn_that_is_never_heard() -> None:
    """Is told of when the call ends."""
    async with Phone(ScriptedLLMService([Wait(0.2)])) as phone:
        await phone.speak()
        await asyncio.sleep(5)
        assert phone.told == []
    assert len(phone.told) == 1
    assert phone.told[0].first_sound_secs is None


def test_a_log_that_cannot_be() -> None:
    """Is refused at construction."""
    with pytest.raises(HedgeError, match="log: there is no folder none: make it first"):
        TurnLatencyObserver(log="none/turns.jsonl")


def test_a_misspelt_argument() -> None:
    """Is refused rather than passed over."""
    with pytest.raises(HedgeError, match=r"logs is no argument of .* did you mean log\?"):
        TurnLatencyObserver(logs="turns.jsonl")
