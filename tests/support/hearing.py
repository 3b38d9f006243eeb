"""Recognisers that hear the words in audio: it shows which ones were lost, or said twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from typing import Any

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

from tests.support.call import Event
from tests.support.recognition import STOP_SECS, stopped

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
        every: The number of words from which on it sends an interim transcript.
        finals: The number of words from which on it sends a final transcript in mid-speech.
        heard: All words that it has heard.
    """

    def __init__(self, *, says: int = 1000, every: int = 1, finals: int = 1000, **kwargs: Any):
        settings = STTSettings(model="hearing", language=None)
        super().__init__(settings=settings, ttfs_p99_latency=1.0, **kwargs)
        self.says, self.every, self.finals = says, every, finals
        self.heard: list[str] = []
        self._pending: list[str] = []

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        for word in words_in(audio):
            if self.heard[-1:] == [word]:
                continue
            self.heard.append(word)
            self._pending.append(word)
            if self.is_stuck:
                continue
            if len(self._pending) >= self.finals:
                yield self._final()
            elif len(self._pending) % self.every == 0:
                yield InterimTranscriptionFrame(" ".join(self._pending), "caller", "now")
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
        await asyncio.sleep(0.05)
        if not self.is_stuck and self._pending:
            await self.push_frame(self._final(marked=True))


class HearingRescue(SegmentedSTTService):
    """Transcribes each segment.

    Attributes:
        secs: How long it takes.
        heard: What it has heard of each segment.
    """

    def __init__(self, *, secs: float = 0.3):
        settings = STTSettings(model="hearing-rescue", language=None)
        super().__init__(settings=settings, ttfs_p99_latency=1.0)
        self.secs = secs
        self.heard: list[str] = []

    @property
    def wants_wav_segments(self) -> bool:
        return False

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        self.heard.append(" ".join(words_in(audio)))
        await asyncio.sleep(self.secs)
        if self.heard[-1]:
            yield TranscriptionFrame(self.heard[-1], "caller", "now")
