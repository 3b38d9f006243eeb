"""Background work of an event loop that its sessions share.

A loop runs each work once, whatever the number of sessions, and ends it with the last one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from pipecat_hedge.race.task_scope import TaskScope


class _Held:
    def __init__(self) -> None:
        self.holders = 0
        self.scope = TaskScope()


class LoopWork:
    """Background work that the sessions of a loop share.

    Example::

        work = LoopWork({"syncs": sync_for_ever})
        work.hold()
        ...
        await work.release()
    """

    def __init__(self, works: Mapping[str, Callable[[], Coroutine[Any, Any, None]]]):
        """Name the work; nothing runs yet.

        Args:
            works: The functions that create the coroutines to run, by task name.
        """
        self._works = dict(works)
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Held] = WeakKeyDictionary()
        self._lock = threading.Lock()  # protects the dictionary

    @property
    def holders(self) -> int:
        """The number of holders on all loops that are not closed. Thread-safe."""
        with self._lock:
            return sum(h.holders for loop, h in self._loops.items() if not loop.is_closed())

    def hold(self) -> None:
        """Run the work on this loop until ``release``. Holds are counted."""
        with self._lock:
            held = self._loops.setdefault(asyncio.get_running_loop(), _Held())
        held.holders += 1
        if held.holders == 1:
            for name, work in self._works.items():
                held.scope.start(work(), name=name)

    async def release(self) -> bool:
        """End one ``hold``. The last one cancels the work and waits for its end.

        Returns:
            Whether this was the last holder on this loop.
        """
        held = self._loops.get(asyncio.get_running_loop())
        if held is None:
            return False
        held.holders -= 1
        if held.holders:
            return False
        with self._lock:
            del self._loops[asyncio.get_running_loop()]
        await held.scope.close()
        return True
