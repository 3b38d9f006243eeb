"""Watches how far behind an event loop is, for as long as anybody there needs to know.

One short sleep after the other: what it is overslept by is the lag that every callback, and so
every caller's audio, has suffered. What follows from it, the policy decides. Ten looks a second
cost some 0.1 % of a core: 2 µs each to decide, the rest to wake up.
"""

from __future__ import annotations

import asyncio
import time
from weakref import WeakKeyDictionary

from pipecat_hedge.policies.overload import Overload
from pipecat_hedge.work import Tier, WorkClass

__all__ = ["EVERY_SECS", "LoopWatch"]

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

    def sheds(self, work_class: WorkClass, tier: Tier = "standard") -> str | None:
        """Why work is to be left undone on the running loop, for a person to read; None if not.

        Args:
            work_class: What the work is for.
            tier: Whose it is.
        """
        loop = asyncio.get_running_loop()
        overload = self._loops.get(loop)
        return None if overload is None else overload.sheds(work_class, tier, loop.time())

    async def run_if_real(self) -> None:
        """Watch the running loop until it is cancelled; a virtual one is left alone.

        Nobody waits for a virtual loop, and a timer would have it run ahead of its threads.
        """
        if _is_real(asyncio.get_running_loop()):
            await self.run()

    async def run(self) -> None:
        """Watch the running loop until it is cancelled."""
        loop = asyncio.get_running_loop()
        overload = self._loops.setdefault(loop, Overload())
        # On a virtual loop the seconds of the processor have nothing to do with those of the loop.
        is_real = _is_real(loop)
        now, used_secs = loop.time(), time.thread_time()
        while True:
            began, used_before = now, used_secs
            await asyncio.sleep(EVERY_SECS)
            now, used_secs = loop.time(), time.thread_time()
            took = now - began
            share = (used_secs - used_before) / took if is_real else 0.0
            overload.sample(max(took - EVERY_SECS, 0.0), share, now)


def _is_real(loop: asyncio.AbstractEventLoop) -> bool:
    return abs(loop.time() - time.monotonic()) < 60.0
