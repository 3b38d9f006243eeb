"""Task scopes: every task is cancelled and awaited when its scope is left.

Only this module creates tasks. ``asyncio.TaskGroup`` waits without a limit for a client that
swallows its cancellation; leaving a scope takes at most ``CLOSE_SECS``. The tasks are waited for
and not awaited, so the only ``CancelledError`` that can surface is the caller's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any
from weakref import WeakSet

CLOSE_SECS = 0.25
"""How long leaving a scope waits for cancelled tasks. It delays an interruption by as much."""
_closing: WeakSet[asyncio.Task[Any]] = WeakSet()
"""Tasks that were cancelled here. ``Task.cancelling`` does not tell: while a client connects, anyio
cancels its task, and takes that back."""


class TaskScope:
    """Owns tasks from their creation to their end.

    Example::

        async with TaskScope() as scope:
            scope.start(watch(), name="watch")
            await work()
        # watch() has ended, however work() ended
    """

    def __init__(self) -> None:
        """Make an empty scope."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run a coroutine in a task of this scope. The name is for debuggers and leak reports."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def __aenter__(self) -> TaskScope:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def adopt(self, task: asyncio.Task[None]) -> None:
        """Take over a task that another scope has started and released."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def release(self, task: asyncio.Task[None]) -> None:
        """Hand a task over to the scope that adopts it."""
        self._tasks.discard(task)

    @staticmethod
    def cancel(task: asyncio.Task[Any]) -> None:
        """Cancel a task; leaving its scope does not interrupt how it closes."""
        _closing.add(task)
        task.cancel()

    async def join(self) -> None:
        """Wait for every task to end by itself, at most ``CLOSE_SECS``."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=CLOSE_SECS)

    async def close(self) -> None:
        """Cancel every task and wait for its end, at most ``CLOSE_SECS``."""
        for task in self._tasks:
            if task not in _closing:  # which is not interrupted
                self.cancel(task)
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=CLOSE_SECS)
