"""Releases the permits and claims of tasks whose event loop was closed.

A closed loop runs no task to its ``finally``, so that what the task holds would never be released.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """A resource that a task holds.

    Parameters:
        loop: The task's event loop.
        give_back: Gives it back; called in any thread.
    """

    loop: asyncio.AbstractEventLoop
    give_back: Callable[[], None]


class LoopHolds:
    """The holds of a process, by event loop. Thread-safe.

    Example::

        hold = holds.add(give_back)
        try:
            ...
        finally:
            if holds.drop(hold):
                give_back()
    """

    def __init__(self) -> None:
        """Begin without holds."""
        self._loops: dict[asyncio.AbstractEventLoop, set[Hold]] = {}
        self._lock = threading.Lock()  # protects the dictionary and its sets

    def add(self, give_back: Callable[[], None]) -> Hold:
        """Have ``give_back`` called if the running loop is closed before ``drop``."""
        hold = Hold(asyncio.get_running_loop(), give_back)
        with self._lock:
            self._loops.setdefault(hold.loop, set()).add(hold)
        return hold

    def drop(self, hold: Hold) -> bool:
        """End a hold.

        Returns:
            Whether the caller gives back what was held. False for a task of a closed loop, whose
            ``finally`` runs when it is garbage.
        """
        if hold.loop.is_closed():
            return False
        with self._lock:
            held = self._loops.get(hold.loop, set())
            held.discard(hold)
            if not held:
                self._loops.pop(hold.loop, None)
        return True

    def give_back_closed(self) -> None:
        """Release what the tasks of closed loops hold."""
        with self._lock:
            closed = [self._loops.pop(loop) for loop in list(self._loops) if loop.is_closed()]
        for hold in (hold for holds in closed for hold in holds):
            hold.give_back()
