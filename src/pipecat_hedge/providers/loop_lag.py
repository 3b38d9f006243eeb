"""Measures how far behind an event loop is, while a session needs it.

A short sleep repeats; the time by which it is late is the delay of every callback, and so of every
caller's audio. What was read late is learned as what came within an interval (``latency.py``).
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from weakref import WeakKeyDictionary

EVERY_SECS = 0.1
"""Ten samples a second cost about 0.1 % of a core."""
SAMPLES = 5
"""The mean is of half a second: a single long step hardly shows."""
FRESH_SECS = 2.0
"""A sample is valid for this time plus twice its lag: a late loop is sampled less often."""


class LoopWatch:
    """The lag of each event loop of a process.

    Example::

        watch = LoopWatch()
        work = LoopWork({"watches the loop": watch.run})
        ...
        came_after = loop.time() - watch.lag_now()  # what has just been read
    """

    def __init__(self) -> None:
        """Create a watch of no loop."""
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopLag] = WeakKeyDictionary()
        self._lock = threading.Lock()  # protects the dictionary; lags are read without it

    def lag_now(self) -> float:
        """How late the running loop is now, in seconds; 0.0 if it is not watched."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # turns in virtual time have no loop
            return 0.0
        lag = self._loops.get(loop)
        return 0.0 if lag is None else lag.now_secs(loop.time())

    def lag_secs(self, now: float) -> float | None:
        """The largest lag of all watched loops, in seconds; None without one. Thread-safe.

        Args:
            now: The time of real loops, ``time.monotonic()``.
        """
        with self._lock:
            loops = list(self._loops.values())
        lags = [secs for each in loops if (secs := each.mean_secs(now)) is not None]
        return max(lags, default=None)

    async def run_if_real(self) -> None:
        """Watch the running loop until cancelled; does nothing on a virtual loop.

        A timer would make a virtual loop run ahead of its threads.
        """
        if is_real(asyncio.get_running_loop()):
            await self.run()

    async def run(self) -> None:
        """Watch the running loop until cancelled."""
        loop = asyncio.get_running_loop()
        with self._lock:
            lag = self._loops.setdefault(loop, LoopLag())
        try:
            while True:
                due = loop.time() + EVERY_SECS
                lag.expect(due)
                await asyncio.sleep(EVERY_SECS)
                now = loop.time()
                lag.sample(max(now - due, 0.0), now)
        finally:
            lag.expect(None)


class LoopLag:
    """The lag of one event loop, from samples."""

    def __init__(self) -> None:
        """Create the state of a loop without lag."""
        self._fresh_until = -math.inf
        self._lags: deque[float] = deque([0.0] * SAMPLES, maxlen=SAMPLES)
        self._due_at = math.inf

    def expect(self, due_at: float | None) -> None:
        """Set when the next sample is due; None if there is none."""
        self._due_at = math.inf if due_at is None else due_at

    def sample(self, lag_secs: float, now: float) -> None:
        """Add a sample.

        Args:
            lag_secs: How late a timer of the loop was.
            now: The time, in seconds; never earlier than at the call before.
        """
        if now - lag_secs > self._fresh_until:
            self._lags.extend([0.0] * SAMPLES)
        self._fresh_until = now + FRESH_SECS + 2 * lag_secs
        self._lags.append(lag_secs)

    def now_secs(self, now: float) -> float:
        """How late the loop is now, in seconds.

        It is the lag of the last sample, or how late the next one is already.
        """
        before = self._lags[-1] if now <= self._fresh_until else 0.0
        return max(before, now - self._due_at, 0.0)

    def mean_secs(self, now: float) -> float | None:
        """The mean of the last lags; None without a recent sample."""
        return None if now > self._fresh_until else sum(self._lags) / SAMPLES


def is_real(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a running loop uses real time, unlike a test's."""
    return abs(loop.time() - time.monotonic()) < 60.0
