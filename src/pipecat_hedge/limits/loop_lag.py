"""Watches how far behind an event loop is, for as long as anybody there needs to know.

One short sleep after the other: what it is overslept by is the lag that every callback, and so
every caller's audio, has suffered. Ten samples a second cost some 0.1 % of a core.
"""

from __future__ import annotations

import asyncio
import threading
import time
from weakref import WeakKeyDictionary

from pipecat_hedge.limits.overload import Overload

__all__ = ["EVERY_SECS", "LoopWatch", "is_real"]

EVERY_SECS = 0.1


class LoopWatch:
    """What is known of the event loops of a process, each for itself.

    Example::

        watch = LoopWatch()
        work = LoopWork({"watches the loop": watch.run})
        ...
        if (reason := watch.refusal()) is not None:
            ...  # no hedge now: "the event loop is 0.31 s behind"
    """

    def __init__(self) -> None:
        """Begin; nothing is watched yet."""
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Overload] = WeakKeyDictionary()
        self._lock = threading.Lock()  # of who is watched; lags are read without it

    def refusal(self) -> str | None:
        """Why the running loop is to send no hedge now, for a person to read; None if it may."""
        loop = asyncio.get_running_loop()
        overload = self._loops.get(loop)
        return None if overload is None else overload.refusal(loop.time())

    def lag_now(self) -> float:
        """How late the running loop has come to what is done now, in seconds; 0.0 if unknown."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # turns in virtual time need none
            return 0.0
        overload = self._loops.get(loop)
        return 0.0 if overload is None else overload.lag_now(loop.time())

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
    """Whether a loop's seconds are those of a clock, and not of a test.

    Args:
        loop: The loop, running.
    """
    return abs(loop.time() - time.monotonic()) < 60.0
