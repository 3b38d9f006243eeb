"""What the caller hears, and when: every sample with the time at which it arrived."""

from __future__ import annotations

import asyncio
import bisect
import math

import numpy as np
from av import AudioFrame

from pipecat_hedge.tools.replay.sound import LOUD, RATE, Samples, first_loud

__all__ = ["HUSH_SECS", "AudioReceiver"]

HUSH_SECS = 0.3
"""Without a loud sample: the pause between two words is shorter."""
KEPT_SECS = 120.0
"""A call of hours does not fill the memory: older sound is dropped."""


class AudioReceiver:
    """Keeps what was heard.

    Attributes:
        heard: Told whenever a frame has come.
        heard_at: When the latest frame came, on the loop's clock.
    """

    def __init__(self) -> None:
        """Begin to listen."""
        self.heard = asyncio.Condition()
        self.heard_at = 0.0
        self._at: list[float] = []
        self._frames: list[Samples] = []
        self._late: list[float] = []
        self._least_transit = math.inf
        self._onsets: list[float] = []
        self._last_loud_at: float | None = None

    async def take(self, frame: AudioFrame, now: float) -> None:
        """Take a frame that has just come.

        Args:
            frame: Stereo or mono, 16 bit, packed.
            now: The time.
        """
        channels = len(frame.layout.channels)
        samples = frame.to_ndarray().reshape(-1, channels)[:, 0].astype(np.int16)
        loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > LOUD)
        onset = first_loud(samples)
        async with self.heard:
            self.heard_at = now
            if onset is not None:
                self._onsets.append(now + onset / RATE)
            self._at.append(now)
            self._late.append(self._lateness(frame, now))
            self._frames.append(samples)
            if loud.size:
                self._last_loud_at = now + float(loud[-1]) / RATE
            while now - self._at[0] > KEPT_SECS:
                del self._at[0], self._frames[0], self._late[0]
            self.heard.notify_all()

    def loud_since(self, at: float) -> float | None:
        """When speech began that was heard after a time; None if there was none.

        Args:
            at: The time, on the loop's clock.
        """
        index = bisect.bisect_left(self._onsets, at)
        return self._onsets[index] if index < len(self._onsets) else None

    def speaking_since(self, at: float) -> float | None:
        """When the speech began that is heard at a time; None if there is none.

        Args:
            at: The time, on the loop's clock.
        """
        index = bisect.bisect_right(self._onsets, at) - 1
        if index < 0 or at - self._onsets[index] > HUSH_SECS:
            return None
        while index and self._onsets[index] - self._onsets[index - 1] <= HUSH_SECS:
            index -= 1
        return self._onsets[index]

    def last_loud(self, since: float) -> float:
        """When the last loud sample came, or ``since`` if none came after it.

        Args:
            since: The time, on the loop's clock.
        """
        return since if self._last_loud_at is None else max(since, self._last_loud_at)

    def late_since(self, at: float) -> list[float]:
        """How late each frame was, compared with the quickest one of the call, in seconds.

        A bot sends its sound in real time. Where it comes late, the bot's process did not get to
        it, or the line is bad.

        Args:
            at: Frames before this time are left out.
        """
        return self._late[bisect.bisect_left(self._at, at) :]

    def _lateness(self, frame: AudioFrame, now: float) -> float:
        pts, unit = frame.pts, frame.time_base
        sent = now if pts is None or unit is None else float(pts * unit)
        self._least_transit = min(self._least_transit, now - sent)
        return now - sent - self._least_transit

    def between(self, begin: float, end: float) -> Samples:
        """What was heard from one time to another, gaps as silence; mono, at ``RATE``.

        Args:
            begin: The time, on the loop's clock.
            end: The time, on the loop's clock.
        """
        track = np.zeros(max(round((end - begin) * RATE), 0), np.int16)
        first = bisect.bisect_left(self._at, begin)
        for at, samples in zip(self._at[first:], self._frames[first:], strict=True):
            place = round((at - begin) * RATE)
            if place >= len(track):
                break
            track[place : place + len(samples)] = samples[: len(track) - place]
        return track
