"""Both directions of a call's audio, each sample with its send or receive time."""

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

PAUSE_SECS = 0.3
"""Silence that is longer than a pause between words."""
KEPT_FRAMES = 6000
"""Two minutes, so that long calls do not fill the memory."""


class AudioSender(MediaStreamTrack):
    """Sends frames on an absolute schedule: queued recordings, and faint noise between them.

    Digital silence would be unrealistic: no microphone sends it, and voice detectors recognise it.

    Attributes:
        late_secs: The delay of each frame. More than a frame's length means that the machine cannot
            keep up, which distorts the measurement.
    """

    kind = "audio"

    def __init__(self) -> None:
        """Create a sender; its schedule begins with the first frame that is pulled."""
        super().__init__()
        self._noise = np.random.default_rng(0)
        self._queue: deque[tuple[Samples, asyncio.Future[float]]] = deque()
        self._sent = 0
        self._began_at: float | None = None
        self.late_secs: list[float] = []

    def play(self, frames: Samples) -> list[asyncio.Future[float]]:
        """Queue frames; each future gets the time at which its frame is sent.

        Args:
            frames: Shape ``(n, FRAME)``.
        """
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in frames]
        self._queue.extend(zip(frames, futures, strict=True))
        return futures

    def fail(self, error: Exception) -> None:
        """Drop the queued frames, and set an exception on their futures."""
        for _, sent in self._queue:
            if not sent.done():
                sent.set_exception(error)
        self._queue.clear()

    async def recv(self) -> AudioFrame:
        """Return the next 20 ms when they are due."""
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
    """Keeps the bot's audio with its arrival times, on the loop's clock.

    Attributes:
        changed: Notified after each frame.
        received_at: The arrival of the latest frame.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Condition()
        self.received_at = 0.0
        self._frames: deque[_Received] = deque(maxlen=KEPT_FRAMES)
        self._least_transit = math.inf
        self._onsets: list[float] = []
        self._last_loud_at = -math.inf

    async def receive(self, frame: AudioFrame, now: float) -> None:
        """Add a frame that has just arrived.

        Args:
            frame: Stereo or mono, 16 bit, packed.
            now: The current time, in seconds.
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
        """Return the beginning of the first speech after a time; None without any."""
        index = bisect.bisect_left(self._onsets, at)
        return self._onsets[index] if index < len(self._onsets) else None

    def speaking_since(self, at: float) -> float | None:
        """Return the beginning of the speech at a time; None if the bot is silent then."""
        index = bisect.bisect_right(self._onsets, at) - 1
        if index < 0 or at - self._onsets[index] > PAUSE_SECS:
            return None
        while index and self._onsets[index] - self._onsets[index - 1] <= PAUSE_SECS:
            index -= 1
        return self._onsets[index]

    def last_loud(self, since: float) -> float:
        """Return the time of the last loud sample, or ``since`` if none followed it."""
        return max(since, self._last_loud_at)

    def late_since(self, at: float) -> list[float]:
        """Return the delay of each frame since a time, relative to the fastest frame, in seconds.

        A bot sends its audio in real time. Late audio means a starved bot process or a bad network.
        """
        return [frame.late_secs for frame in self._frames if frame.at >= at]

    def between(self, begin: float, end: float) -> Samples:
        """Return the audio from one time to another, gaps as silence; mono, at ``RATE``."""
        track = np.zeros(max(round((end - begin) * RATE), 0), np.int16)
        for frame in self._frames:
            place = round((frame.at - begin) * RATE)
            if 0 <= place < len(track):
                track[place : place + len(frame.samples)] = frame.samples[: len(track) - place]
        return track
