"""Measures how far behind an event loop is, while a session needs it.

A short sleep repeats; the time by which it is late is the delay of every callback, and so of every
caller's audio.
"""

from __future__ import annotations

import asyncio
import threading
import time
from weakref import WeakKeyDictionary

from pipecat_hedge.providers.overload import Overload

EVERY_SECS = 0.1
"""Ten samples a second cost about 0.1 % of a core."""


class LoopWatch:
    """The lag of each event loop of a process.

    Example::

        watch = LoopWatch()
        work = LoopWork({"watches the loop": watch.run})
        ...
        if (reason := watch.why_behind()) is not None:
            ...  # no hedge now: "the event loop is 0.31 s behind"
    """

    def __init__(self) -> None:
        """Create a watch of no loop."""
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Overload] = WeakKeyDictionary()
        self._lock = threading.Lock()  # protects the dictionary; lags are read without it

    def why_behind(self) -> str | None:
        """Why the running loop may send no hedge now; None if it may."""
        loop = asyncio.get_running_loop()
        overload = self._loops.get(loop)
        return None if overload is None else overload.why_behind(loop.time())

    def lag_now(self) -> float:
        """How late the running loop is now, in seconds; 0.0 if it is not watched."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # turns in virtual time have no loop
            return 0.0
        overload = self._loops.get(loop)
        return 0.0 if overload is None else overload.lag_now(loop.time())

    def lag_secs(self, now: float) -> float | None:
        """The largest lag of all watched loops, in seconds; None without one. Thread-safe.

        Args:
            now: The time of real loops, ``time.monotonic()``.
        """
        with self._lock:
            overloads = list(self._loops.values())
        lags = [lag for each in overloads if (lag := each.lag_secs(now)) is not None]
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
            overload = self._loops.setdefault(loop, Overload())
        try:
            while True:
                due = loop.time() + EVERY_SECS
                overload.expect(due)
                await asyncio.sleep(EVERY_SECS)
                now = loop.time()
                overload.sample(max(now - due, 0.0), now)
        finally:
            overload.expect(None)


def is_real(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a running loop uses real time, unlike a test's."""
    return abs(loop.time() - time.monotonic()) < 60.0
