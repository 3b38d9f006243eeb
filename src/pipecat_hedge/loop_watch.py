"""Watches how far behind an event loop is, for as long as anybody there needs to know.

One short sleep after the other: what it is overslept by is the lag that every callback, and so
every caller's audio, has suffered. What follows from it, the policy decides. Ten looks a second
cost some 0.1 % of a core: 2 µs each to decide, the rest to wake up.
"""

from __future__ import annotations

import asyncio
import threading
import time
from weakref import WeakKeyDictionary

from pipecat_hedge.policies.overload import Overload
from pipecat_hedge.work import Tier, WorkClass

__all__ = ["EVERY_SECS", "LoopWatch", "is_real"]

EVERY_SECS = 0.1


class LoopWatch:
    """What is known of the event loops of a process, each for itself.

    Example::

        watch = LoopWatch()
        work = LoopWork({"watches the loop": watch.run})
        ...
        if (reason := watch.sheds("hedge", "standard")) is not None:
            ...
    """

    def __init__(self) -> None:
        """Begin; nothing is watched yet."""
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Overload] = WeakKeyDictionary()
        self._lock = threading.Lock()  # of who is watched; lags are read without it

    def sheds(self, work_class: WorkClass, tier: Tier = "standard") -> str | None:
        """Why work is to be left undone on the running loop, for a person to read; None if not.

        Args:
            work_class: What the work is for.
            tier: Whose it is.
        """
        loop = asyncio.get_running_loop()
        overload = self._loops.get(loop)
        return None if overload is None else overload.sheds(work_class, tier, loop.time())

    def lag_secs(self, now: float) -> float | None:
        """How far behind the worst of the loops is, in seconds; None if none is watched.

        Args:
            now: The time of real loops, ``time.monotonic()``. Call it from any thread.
        """
        with self._lock:
            overloads = list(self._loops.values())
        lags = [lag for each in overloads if (lag := each.lag_secs(now)) is not None]
        return max(lags, default=None)

    async def run_if_real(self) -> None:
        """Watch the running loop until it is cancelled; a virtual one is left alone.

        Nobody waits for a virtual loop, and a timer would have it run ahead of its threads.
        """
        if is_real(asyncio.get_running_loop()):
            await self.run()

    async def run(self) -> None:
        """Watch the running loop until it is cancelled."""
        loop = asyncio.get_running_loop()
        with self._lock:
            overload = self._loops.setdefault(loop, Overload())
        # On a virtual loop the seconds of the processor have nothing to do with those of the loop.
        has_seconds = is_real(loop)
        now, used_secs = loop.time(), time.thread_time()
        while True:
            began, used_before = now, used_secs
            await asyncio.sleep(EVERY_SECS)
            now, used_secs = loop.time(), time.thread_time()
            took = now - began
            share = (used_secs - used_before) / took if has_seconds else 0.0
            overload.sample(max(took - EVERY_SECS, 0.0), share, now)


def is_real(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a loop's seconds are those of a clock, and not of a test.

    Args:
        loop: The loop, running.
    """
    return abs(loop.time() - time.monotonic()) < 60.0
