"""A loudspeaker in real time whose recording tells what a caller heard, and when."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
from pipecat.frames.frames import OutputAudioRawFrame, StartFrame
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams

from tests.support.call import RATE
from tests.support.spoken_words import words_in

BUFFER_SECS = 0.1
"""What a player holds back after a silence, so that a late frame makes no hole in a word."""
AUDIBLE = 1000
WINDOW_SECS = 0.01


class Recorder(BaseOutputTransport):
    """Plays at the speed of sound, and records what it plays, its silences included.

    Attributes:
        began_at: When the recording begins, in the loop's time.
    """

    def __init__(self) -> None:
        super().__init__(
            TransportParams(
                audio_out_enabled=True, audio_out_sample_rate=RATE, audio_out_end_silence_secs=0
            )
        )
        self._samples, self._played = bytearray(), bytearray()

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        self.began_at = asyncio.get_running_loop().time()
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        late_secs = asyncio.get_running_loop().time() - self._ends_at
        if late_secs > 0:
            self._samples += bytes(2 * round((late_secs + BUFFER_SECS) * RATE))
        self._samples += frame.audio
        self._played += frame.audio
        begins_at = self._ends_at - frame.num_frames / RATE
        await asyncio.sleep(begins_at - BUFFER_SECS - asyncio.get_running_loop().time())
        return True

    @property
    def _ends_at(self) -> float:
        return self.began_at + len(self._samples) / 2 / RATE

    @property
    def words(self) -> list[str]:
        """What was played, transcribed: the simulator's voices spell words in tones.

        Without the silences in which nothing was played, some of which a busy machine makes.
        """
        return words_in(bytes(self._played), RATE)

    def sounds(self) -> list[tuple[float, float]]:
        """From when to when, in the loop's time, something was audible."""
        size = round(WINDOW_SECS * RATE)
        samples = np.abs(np.frombuffer(self._samples, "<i2").astype(int))
        loud = samples[: len(samples) // size * size].reshape(-1, size).max(axis=1) > AUDIBLE
        edges = np.flatnonzero(np.diff(np.concatenate([[False], loud, [False]]).astype(int)))
        return [
            (self.began_at + a * WINDOW_SECS, self.began_at + b * WINDOW_SECS)
            for a, b in edges.reshape(-1, 2)
        ]

    def silences(self, from_secs: float, to_secs: float) -> list[float]:
        """How long each silence lasts from one time on, up to the last sound before another."""
        sounds = [each for each in self.sounds() if from_secs <= each[0] < to_secs]
        if not sounds:
            return [to_secs - from_secs]
        marks = [from_secs, *itertools.chain.from_iterable(sounds)]
        return [b - a for a, b in zip(marks[::2], marks[1::2], strict=False)]
