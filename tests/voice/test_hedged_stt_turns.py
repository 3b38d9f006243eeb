"""Turns with a hedged recogniser: in each place, and with each strategy, of a bare one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import pytest
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    Frame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    ManuallySwitchServiceFrame,
    ProposedUserStartedSpeakingFrame,
    ProposedUserStoppedSpeakingFrame,
    SystemFrame,
    TTSSpeakFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.service_switcher import ServiceSwitcher
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.stt_service import STTService
from pipecat.turns.user_mute import AlwaysUserMuteStrategy
from pipecat.turns.user_stop import BaseUserTurnStopStrategy, SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import ExternalUserTurnStrategies, UserTurnStrategies

from pipecat_hedge import HedgedSTTService, ProviderStats
from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from pipecat_hedge.voice import EagerStopStrategy
from tests.support.call import Event, PhoneCall, Voice
from tests.support.hearing import WORDS, HearingRescue, HearingSTT, speech
from tests.support.recognition import (
    CONSTANT_SECS,
    STOP_SECS,
    Heard,
    Said,
    ScriptedRescue,
    ScriptedSTT,
    analyzed,
    call,
    spoken,
)

pytestmark = pytest.mark.virtual_time

KINDS = pytest.mark.parametrize("is_hedged", [False, True], ids=["bare", "hedged"])


def text(number: int) -> str:
    """Sentences that are not alike: one that is like the one before is rescued in its turn."""
    words = ["parking", "sunday", "pizza", "window", "invoice", "garden", "doctor", "bicycle"]
    return " ".join(random.Random(number).choices(words, k=6)) + f" {number}"


def calm(number: int) -> Sequence[Said]:
    return [(0.02, f"…{text(number)}"), (0.4, text(number))]


def interim_only(number: int) -> Sequence[Said]:
    return [(0.02, f"…{text(number)}")]


def nothing(_: int) -> Sequence[Said]:
    return []


class Rescue(ScriptedRescue):
    """Hears the utterances from a number on, one after the other."""

    def __init__(self, first: int = 0, said: Callable[[int], str] = text):
        super().__init__(lambda count: said(first + count))


def hedged(primary: Any, rescue: STTService, stats: ProviderStats | None = None) -> FrameProcessor:
    return HedgedSTTService(primary, rescue, stats=stats or ProviderStats())


async def hold(stt: FrameProcessor, utterances: int, **options: Any) -> Heard:
    return await call(nothing, timing=None, stt=stt, utterances=utterances, **options)


def eager() -> BaseUserTurnStopStrategy:
    return EagerStopStrategy(SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.0))


@KINDS
async def test_eager_answer_is_confirmed_by_the_final_transcript(is_hedged: bool) -> None:
    """The model is asked once a turn, at the interim transcript."""
    llm = ScriptedLLMService([Wait(0.5), Say("Yes.")])
    primary = ScriptedSTT(calm)
    stt = hedged(primary, Rescue()) if is_hedged else primary
    heard = await hold(stt, 5, stop=eager, llm=llm)
    assert heard.contexts == [text(number) for number in range(5)]
    assert len(llm.contexts) == 5


async def test_eager_answer_is_confirmed_by_the_rescue() -> None:
    llm = ScriptedLLMService([Wait(0.5), Say("Yes.")])
    heard = await hold(hedged(ScriptedSTT(interim_only), Rescue()), 5, stop=eager, llm=llm)
    assert heard.contexts == [text(number) for number in range(5)]
    assert len(llm.contexts) == 5


@KINDS
async def test_rescue_comes_before_the_turn_times_out(is_hedged: bool) -> None:
    """Pipecat ends a turn without a transcript after 5 s, and the words are lost."""
    primary = ScriptedSTT(nothing)
    heard = await hold(hedged(primary, Rescue()) if is_hedged else primary, 3)
    assert heard.contexts == ([text(number) for number in range(3)] if is_hedged else [])
    if is_hedged:
        assert all(secs < 4.0 for secs in heard.waits)
    else:
        assert all(secs >= 5.0 for secs in heard.waits)


@dataclass
class Seen(SystemFrame):
    """What a voice detection behind the recogniser is about to notice."""

    frame: Frame


class Hides(FrameProcessor):
    """Hides from the recogniser what the voice detection before it would say."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        vad = (VADUserStartedSpeakingFrame, VADUserStoppedSpeakingFrame)
        is_vad = direction is FrameDirection.DOWNSTREAM and isinstance(frame, vad)
        await self.push_frame(Seen(frame) if is_vad else frame, direction)


class Notices(FrameProcessor):
    """Says it behind the recogniser, both ways, as the user's aggregator does."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, Seen):
            await self.broadcast_frame_instance(frame.frame)
        else:
            await self.push_frame(frame, direction)


@pytest.mark.parametrize("is_behind", [False, True], ids=["before", "behind"])
@KINDS
async def test_voice_detection_before_or_behind_the_recogniser(
    is_hedged: bool, is_behind: bool
) -> None:
    """The rescue hears the same audio, and the wait is learned."""
    primary = ScriptedSTT(lambda number: [] if number == 40 else [(0.05, text(number))])
    rescue = Rescue(40)
    stt = hedged(primary, rescue) if is_hedged else primary
    sound = InputAudioRawFrame(bytes(2 * 1_600), 16_000, 1)
    place = Pipeline([Hides(), stt, Notices()]) if is_behind else stt
    heard = await hold(place, 42, audio=sound)
    said = range(42) if is_hedged else [number for number in range(42) if number != 40]
    assert heard.contexts == [text(number) for number in said]
    if is_hedged:
        assert rescue.heard == [pytest.approx(1.0 + STOP_SECS + 0.5, abs=0.25)]
        assert heard.waits[30] == pytest.approx(STOP_SECS + 0.05, abs=0.01)


class Conversation:
    """A call in which the caller is muted while the bot speaks, for ``bot_secs`` at a time."""

    def __init__(self, bot_secs: float, *, says: int, is_hedged: bool):
        primary, self.rescue = HearingSTT(says=says, late_secs=2.6), HearingRescue()
        voice = Voice()
        voice.audio_secs = bot_secs
        llm = ScriptedLLMService([Wait(0.1), Say("Yes.")])
        self.call = PhoneCall(
            llm,
            voice=voice,
            strategies=UserTurnStrategies(stop=[analyzed()]),
            before=[hedged(primary, self.rescue) if is_hedged else primary],
            mute=[AlwaysUserMuteStrategy()],
        )

    async def hold(self, *events: Event) -> list[str]:
        """What the caller has said, as it is remembered."""
        async with self.call as call:
            await call.play(*events)
            return [m["content"] for m in call.messages if m["role"] == "user"]


def line_at(secs: float, events: Sequence[Event]) -> list[Event]:
    """With a line of the bot's own after so many seconds."""
    pauses = accumulate(each if isinstance(each, float) else 0.0 for each in events)
    place = next(n for n, at in enumerate(pauses) if at > secs)
    line = TTSSpeakFrame("One moment.", append_to_context=False)
    return [*events[:place], line, *events[place:]]


@pytest.mark.parametrize("secs", [2.0, 2.4])
@KINDS
async def test_words_from_before_the_caller_was_muted_are_said_behind_it(
    is_hedged: bool, secs: float
) -> None:
    """Pipecat drops what a recogniser says while the caller is muted, the rescue's answer too."""
    talk = Conversation(1.0, says=1000, is_hedged=is_hedged)
    said = await talk.hold(*line_at(secs, speech(range(5), then_secs=7.0)))
    assert said == [" ".join(WORDS[:5])]


@KINDS
async def test_what_a_muted_caller_says_is_not_rescued(is_hedged: bool) -> None:
    talk = Conversation(3.0, says=0, is_hedged=is_hedged)
    said = await talk.hold(*line_at(0.1, speech([], then_secs=0.5)), *speech(range(5)))
    assert said == []
    assert talk.rescue.heard == []


@KINDS
async def test_what_the_caller_says_while_the_detection_is_muted_is_said_behind_it(
    is_hedged: bool,
) -> None:
    """A voice detection in the aggregator hears nothing while the caller is muted."""
    primary = ScriptedSTT(lambda _: [(9.0, "…yes"), (9.3, "yes exactly")])
    stt = hedged(primary, Rescue(said=lambda _: "two large pizzas")) if is_hedged else primary
    call = PhoneCall(
        ScriptedLLMService([Wait(0.1), Say("Yes.")]),
        strategies=UserTurnStrategies(stop=[analyzed()]),
        before=[stt],
        mute=[AlwaysUserMuteStrategy()],
    )
    bot: list[Event] = [BotStartedSpeakingFrame, 3.0, BotStoppedSpeakingFrame]
    async with call:
        await call.play(*spoken(), 5.0, *bot, 6.0)
        said = [m["content"] for m in call.messages if m["role"] == "user"]
    assert said == ["two large pizzas"] * is_hedged + ["yes exactly"]


class Late(HearingSTT):
    """It is calm in its first utterance only."""

    async def _finish(self) -> None:
        await super()._finish()
        self.late_secs = 4.0


@KINDS
async def test_service_that_is_switched_to_in_mid_speech(is_hedged: bool) -> None:
    """It hears the end of an utterance alone: the rescue would answer for a part of it."""
    services: list[FrameProcessor] = [Late(every=1000), HearingSTT()]
    if is_hedged:
        services = [hedged(service, HearingRescue()) for service in services]
    there, back = (ManuallySwitchServiceFrame(service=each) for each in reversed(services))
    first, second = speech(range(3)), speech(range(3, 13), then_secs=8.0)
    call = PhoneCall(
        ScriptedLLMService([Wait(0.1), Say("Yes.")]),
        strategies=UserTurnStrategies(stop=[analyzed()]),
        before=[ServiceSwitcher(services)],
    )
    async with call:
        await call.play(*first, there, *second[:30], back, *second[30:])
        said = " ".join(m["content"] for m in call.messages if m["role"] == "user")
    assert said.split()[-5:] == WORDS[8:13]


async def test_hedged_services_in_a_switcher() -> None:
    """The active one transcribes, is rescued, and announces what it has learned."""
    stats = ProviderStats()
    first = ScriptedSTT(lambda number: [(0.05, "part one"), (0.25, text(number))], model="a")
    second = ScriptedSTT(lambda number: [] if number == 35 else [(0.1, text(100 + number))])
    rescues = [Rescue(), Rescue(135)]
    services = [hedged(first, rescues[0], stats), hedged(second, rescues[1], stats)]
    switch = {30: ManuallySwitchServiceFrame(service=services[1])}
    heard = await hold(ServiceSwitcher(services), 70, then=switch)
    numbers = [*range(30), *range(100, 140)]
    assert [words.removeprefix("part one ") for words in heard.contexts] == [
        text(number) for number in numbers
    ]
    assert heard.waits[29] == pytest.approx(STOP_SECS + 0.25, abs=0.08)
    assert (len(rescues[0].heard), len(rescues[1].heard)) == (0, 1)
    constants = [at for at, secs in enumerate(heard.announced) if secs == CONSTANT_SECS]
    assert len(constants) == 2  # each one's own
    assert all(after - before > 1 for before, after in pairwise(constants))


class TurnBased(ScriptedSTT):
    """Finds the ends of turns itself, as Deepgram Flux and Cartesia's turns do.

    It hears as the VAD does, sends an interim transcript each half second, and is stuck in the
    utterances of some numbers.
    """

    def __init__(self, *stuck: int, said: Callable[[int], str] = text):
        super().__init__(lambda number: [])
        self._stuck, self._said = stuck, said
        self._turn = -1
        self._speaking: asyncio.Task[None] | None = None

    @property
    def supports_ttfs(self) -> bool:
        return False

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStartedSpeakingFrame):
            self._turn += 1
            if self._turn not in self._stuck:
                await self.broadcast_frame(ProposedUserStartedSpeakingFrame)
                self._speaking = self.create_task(self._hear(), "hears")
        elif isinstance(frame, VADUserStoppedSpeakingFrame) and self._speaking is not None:
            await self.cancel_task(self._speaking)
            self._speaking = None
            await self._speak([(0.05, self._said(self._turn))])
            await self.broadcast_frame(ProposedUserStoppedSpeakingFrame)

    async def _hear(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            await self.push_frame(InterimTranscriptionFrame("I would like", "caller", "now"))


@KINDS
async def test_recogniser_that_ends_turns_itself(is_hedged: bool) -> None:
    primary, rescue = TurnBased(), Rescue()
    stt = hedged(primary, rescue) if is_hedged else primary
    heard = await hold(stt, 30, strategies=ExternalUserTurnStrategies())
    assert heard.contexts == [text(number) for number in range(30)]
    assert set(heard.announced) == {0.0}
    assert rescue.heard == []


async def test_recogniser_that_ends_turns_itself_is_not_rescued() -> None:
    """Pauses within a turn would be taken for ends of speech."""
    rescue = Rescue()
    stt = hedged(TurnBased(3), rescue)
    heard = await hold(stt, 6, strategies=ExternalUserTurnStrategies())
    assert heard.contexts == [text(number) for number in range(6) if number != 3]
    assert rescue.heard == []


async def test_stuck_recogniser_that_ends_turns_itself_is_replaced() -> None:
    """In the middle of a long utterance, which the fresh one hears from its beginning."""
    made: list[TurnBased] = []

    def create() -> TurnBased:
        made.append(TurnBased(*[2, 3][: 2 - 2 * len(made)], said=lambda n: f"{len(made)}: {n}"))
        return made[-1]

    stt = hedged(create, Rescue())
    sound = InputAudioRawFrame(bytes(2 * 1_600), 16_000, 1)
    heard = await hold(
        stt, 4, strategies=ExternalUserTurnStrategies(), audio=sound, speaks_secs=5.0
    )
    assert heard.contexts == ["1: 0", "1: 1", "2: 0", "2: 1"]
    assert len(made) == 2
