"""Recognisers that hear the words in audio: it shows which ones were lost, or said twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Container, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import SegmentedSTTService, STTService
from pipecat.turns.user_stop import turn_analyzer_user_turn_stop_strategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies

from pipecat_hedge import HedgedSTTService, ProviderStats, TranscriptReport
from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from tests.support.call import Event, PhoneCall
from tests.support.recognition import STOP_SECS, analyzed, stopped

RATE, CHUNK_SECS, START_SECS = 16_000, 0.1, 0.2
_letters = random.Random(1)
WORDS: list[str] = ["".join(_letters.choices("abcdefghijklmnoprstuvw", k=6)) for _ in range(1000)]
"""No two are alike: what was said is found by its letters."""


def sound(number: int | None) -> Frame:
    """A chunk of a word; None is silence."""
    value = 0 if number is None else number + 1
    samples = np.full(round(RATE * CHUNK_SECS), value, np.int16)
    return InputAudioRawFrame(samples.tobytes(), RATE, 1)


def words_in(audio: bytes) -> list[str]:
    """The words in audio, each once."""
    samples = np.frombuffer(audio, np.int16)
    return [WORDS[int(value) - 1] for value in dict.fromkeys(samples.tolist()) if value]


def speech(
    numbers: Sequence[int], *, word_secs: float = 0.3, then_secs: float = 5.0
) -> list[Event]:
    """Words, as the VAD hears them, and silence."""
    spoken = [n for n in numbers for _ in range(round(word_secs / CHUNK_SECS))]
    events: list[Event] = []
    for place, number in enumerate(spoken):
        events += [sound(number), CHUNK_SECS]
        if place == round(START_SECS / CHUNK_SECS):
            events.append(VADUserStartedSpeakingFrame(start_secs=START_SECS))
    for place in range(round(then_secs / CHUNK_SECS)):
        events += [sound(None), CHUNK_SECS]
        if place == round(STOP_SECS / CHUNK_SECS) - 1:
            events.append(stopped)
    return events


class HearingSTT(STTService):
    """Says each word as it hears it, in interim transcripts.

    Attributes:
        says: The number of words after which it says nothing more.
        silent: Numbers of words at which it says nothing, and later does.
        every: The number of words from which on it sends an interim transcript.
        finals: The number of words from which on it sends a final transcript in mid-speech.
        marks: Whether the VAD's stop ends an utterance, and its last transcript is marked as final;
            else 0.8 s of silence in the audio do.
        late_secs: When the last transcript comes, after the VAD's stop.
        heard: All words that it has heard.
    """

    def __init__(
        self,
        *,
        says: int = 1000,
        silent: Container[int] = (),
        every: int = 1,
        finals: int = 1000,
        marks: bool = True,
        late_secs: float = 0.05,
        **kwargs: Any,
    ):
        settings = STTSettings(model="hearing", language=None)
        super().__init__(settings=settings, ttfs_p99_latency=1.0, **kwargs)
        self.says, self.silent, self.every, self.finals = says, silent, every, finals
        self.marks, self.late_secs = marks, late_secs
        self.heard: list[str] = []
        self._pending: list[str] = []
        self._silence_secs = 0.0

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        for word in words_in(audio):
            if self.heard[-1:] == [word]:
                continue
            self.heard.append(word)
            self._pending.append(word)
            if self.is_stuck or len(self.heard) in self.silent:
                continue
            if len(self._pending) >= self.finals:
                yield self._final()
            elif len(self._pending) % self.every == 0:
                yield InterimTranscriptionFrame(" ".join(self._pending), "caller", "now")
        self._silence_secs = 0.0 if any(audio) else self._silence_secs + CHUNK_SECS
        if not self.marks and self._pending and self._silence_secs > 0.8:
            yield self._final()
        yield None

    @property
    def is_stuck(self) -> bool:
        return len(self.heard) > self.says

    def _final(self, *, marked: bool = False) -> TranscriptionFrame:
        text, self._pending = " ".join(self._pending), []
        return TranscriptionFrame(text, "caller", "now", finalized=marked)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStoppedSpeakingFrame):
            self.create_task(self._finish(), "says the rest")

    async def _finish(self) -> None:
        await asyncio.sleep(self.late_secs)
        if self.marks and not self.is_stuck and self._pending:
            await self.push_frame(self._final(marked=True))


class HearingRescue(SegmentedSTTService):
    """Transcribes each segment.

    Attributes:
        secs: How long it takes.
        fails: The number of segments with which it fails at first.
        heard: What it has heard of each segment.
    """

    def __init__(self, *, secs: float = 0.3, fails: int = 0):
        settings = STTSettings(model="hearing-rescue", language=None)
        super().__init__(settings=settings, ttfs_p99_latency=1.0)
        self.secs, self.fails = secs, fails
        self.heard: list[str] = []

    @property
    def wants_wav_segments(self) -> bool:
        return False

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        self.heard.append(" ".join(words_in(audio)))
        await asyncio.sleep(self.secs)
        if len(self.heard) <= self.fails:
            raise ConnectionError("down")
        if self.heard[-1]:
            yield TranscriptionFrame(self.heard[-1], "caller", "now")


class Talk:
    """A call with recognisers that hear words.

    Attributes:
        made: The primary recognisers, in their order.
        rescue: The second recogniser.
        contexts: What each turn of the caller says.
        reports: Of each utterance.
        waits: From the end of speech to the model, in seconds.
    """

    def __init__(
        self,
        make: Callable[[int], HearingSTT],
        rescue: STTService | None = None,
        *,
        stats: ProviderStats | None = None,
        is_kept: bool = False,
    ):
        self.made: list[HearingSTT] = []
        self.rescue: Any = rescue or HearingRescue()
        self._make, self._stats, self._is_kept = make, stats or ProviderStats(), is_kept
        self.reports: list[TranscriptReport] = []
        self.waits: list[float] = []
        self.contexts: list[str] = []

    def _create(self) -> HearingSTT:
        self.made.append(self._make(len(self.made)))
        return self.made[-1]

    async def _take(self, _: object, report: TranscriptReport) -> None:
        self.reports.append(report)

    async def hold(self, *events: Event) -> list[str]:
        """Hold the call; returns the words in the conversation."""
        primary = self._create() if self._is_kept else self._create
        stt = HedgedSTTService(primary, self.rescue, stats=self._stats)
        stt.add_event_handler("on_transcript_report", self._take)
        llm = ScriptedLLMService([Wait(0.1), Say("Yes.")])
        strategies = UserTurnStrategies(stop=[analyzed()])  # late words begin a turn
        clock = SimpleNamespace(time=lambda: asyncio.get_running_loop().time())
        with patch.object(turn_analyzer_user_turn_stop_strategy, "time", clock):
            async with PhoneCall(llm, strategies=strategies, before=[stt]) as phone:
                await phone.play(*events)
                users = [m for m in phone.messages if m["role"] == "user"]
                self.contexts = [m["content"] for m in users]
                self.waits = [turn.context_secs for turn in phone.turns if turn.context_secs]
        return " ".join(self.contexts).split()


def words(numbers: Sequence[int]) -> list[str]:
    return [WORDS[number] for number in numbers]
