"""A microphone that plays recordings, on an absolute schedule."""

from __future__ import annotations

import asyncio
import fractions

import numpy as np
from aiortc.mediastreams import MediaStreamTrack
from av import AudioFrame

from pipecat_hedge.tools.replay.sound import FRAME, RATE, Samples

__all__ = ["AudioSender"]


class AudioSender(MediaStreamTrack):
    """Sends frames on an absolute schedule: a recording if there is one, else faint noise.

    Noise because digital silence is nothing that a microphone sends, and detectors know it.

    Attributes:
        late_secs: How late each frame was, in seconds. Where the machine cannot keep up, it is the
            machine that is measured.
    """

    kind = "audio"

    def __init__(self) -> None:
        """Make a microphone; it begins with the first frame that is asked of it."""
        super().__init__()
        self._noise = np.random.default_rng(0)
        self._queue: list[tuple[Samples, asyncio.Future[float]]] = []
        self._sent = 0
        self._began_at: float | None = None
        self.late_secs: list[float] = []

    def play(self, frames: Samples) -> list[asyncio.Future[float]]:
        """Queue whole frames; each future gets the time at which its frame is sent.

        Args:
            frames: Shape ``(n, FRAME)``.
        """
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in frames]
        self._queue += zip(frames, futures, strict=True)
        return futures

    def drop(self, error: Exception) -> None:
        """Forget what is queued: nobody takes it any more.

        Args:
            error: Why; whoever waits for a frame to be sent gets it.
        """
        for _, sent in self._queue:
            if not sent.done():
                sent.set_exception(error)
        self._queue.clear()

    async def recv(self) -> AudioFrame:
        """The next 20 ms, when they are due."""
        loop = asyncio.get_running_loop()
        if self._began_at is None:
            self._began_at = loop.time()
        due = self._began_at + self._sent / RATE
        if (wait := due - loop.time()) > 0:
            await asyncio.sleep(wait)
        now = loop.time()
        self.late_secs.append(now - due)
        if self._queue:
            samples, sent = self._queue.pop(0)
            if not sent.done():
                sent.set_result(now)
        else:
            samples = self._noise.integers(-8, 9, FRAME, dtype=np.int16)
        frame = AudioFrame.from_ndarray(samples[np.newaxis, :], layout="mono")
        frame.sample_rate = RATE
        frame.time_base = fractions.Fraction(1, RATE)
        frame.pts = self._sent
        self._sent += FRAME
        return frame
