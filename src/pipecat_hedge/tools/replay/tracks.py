"""Both directions of a call's sound, each sample with the time at which it was sent or received."""

from __future__ import annotations

import asyncio
import bisect
import fractions
import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from aiortc.mediastreams import MediaStreamTrack
from av import AudioFrame

from pipecat_hedge.tools.replay.audio import BOT_LEVEL, FRAME, RATE, Samples, first_loud

__all__ = ["PAUSE_SECS", "AudioReceiver", "AudioSender"]

PAUSE_SECS = 0.3
"""Silence that is longer than the pause between two words."""
KEPT_FRAMES = 6000
"""Two minutes: a call of hours does not fill the memory."""


class AudioSender(MediaStreamTrack):
    """Sends frames on an absolute schedule: queued recordings, and faint noise between them.

    Noise because no microphone sends digital silence, and voice detectors know it.

    Attributes:
        late_secs: How late each frame was. Where it is more than a frame's length, the machine
            cannot keep up, and it is the machine that is measured.
    """

    kind = "audio"

    def __init__(self) -> None:
        """Make a sender; its schedule begins with the first frame that is pulled from it."""
        super().__init__()
        self._noise = np.random.default_rng(0)
        self._queue: deque[tuple[Samples, asyncio.Future[float]]] = deque()
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
        self._queue.extend(zip(frames, futures, strict=True))
        return futures

    def fail(self, error: Exception) -> None:
        """Drop what is queued.

        Args:
            error: What the futures of the queued frames get.
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
            samples, sent = self._queue.popleft()
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


@dataclass(frozen=True, slots=True)
class _Received:
    at: float
    samples: Samples
    late_secs: float


class AudioReceiver:
    """Keeps the bot's sound with its arrival times, on the loop's clock.

    Attributes:
        changed: Notified whenever a frame has come.
        received_at: When the latest frame came.
    """

    def __init__(self) -> None:
        """Make a receiver that has received nothing yet."""
        self.changed = asyncio.Condition()
        self.received_at = 0.0
        self._frames: deque[_Received] = deque(maxlen=KEPT_FRAMES)
        self._least_transit = math.inf
        self._onsets: list[float] = []
        self._last_loud_at = -math.inf

    async def receive(self, frame: AudioFrame, now: float) -> None:
        """Take a frame that has just come.

        Args:
            frame: Stereo or mono, 16 bit, packed.
            now: The time.
        """
        channels = len(frame.layout.channels)
        samples = frame.to_ndarray().reshape(-1, channels)[:, 0].astype(np.int16)
        loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > BOT_LEVEL)
        onset = first_loud(samples)
        transit = 0.0
        if frame.pts is not None and frame.time_base is not None:
            transit = now - float(frame.pts * frame.time_base)
        self._least_transit = min(self._least_transit, transit)
        async with self.changed:
            self.received_at = now
            if onset is not None:
                self._onsets.append(now + onset / RATE)
            if loud.size:
                self._last_loud_at = now + float(loud[-1]) / RATE
            self._frames.append(_Received(now, samples, transit - self._least_transit))
            self.changed.notify_all()

    def loud_since(self, at: float) -> float | None:
        """When the first speech after a time began; None if there was none.

        Args:
            at: The time.
        """
        index = bisect.bisect_left(self._onsets, at)
        return self._onsets[index] if index < len(self._onsets) else None

    def speaking_since(self, at: float) -> float | None:
        """When the speech that goes on at a time began; None if the bot is silent at that time.

        Args:
            at: The time.
        """
        index = bisect.bisect_right(self._onsets, at) - 1
        if index < 0 or at - self._onsets[index] > PAUSE_SECS:
            return None
        while index and self._onsets[index] - self._onsets[index - 1] <= PAUSE_SECS:
            index -= 1
        return self._onsets[index]

    def last_loud(self, since: float) -> float:
        """When the last loud sample came, or ``since`` if none came after it.

        Args:
            since: The time.
        """
        return max(since, self._last_loud_at)

    def late_since(self, at: float) -> list[float]:
        """How late each frame since a time was, against the quickest frame of the call, in seconds.

        A bot sends its sound in real time. Sound that comes late means that the bot's process was
        starved, or that the line is bad.

        Args:
            at: The time.
        """
        return [frame.late_secs for frame in self._frames if frame.at >= at]

    def between(self, begin: float, end: float) -> Samples:
        """The sound from one time to another, gaps as silence; mono, at ``RATE``.

        Args:
            begin: The first time.
            end: The second one.
        """
        track = np.zeros(max(round((end - begin) * RATE), 0), np.int16)
        for frame in self._frames:
            place = round((frame.at - begin) * RATE)
            if 0 <= place < len(track):
                track[place : place + len(frame.samples)] = frame.samples[: len(track) - place]
        return track
