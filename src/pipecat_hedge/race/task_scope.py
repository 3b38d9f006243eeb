"""Tasks that cannot be forgotten.

Law: only this module creates tasks, and every task it created has been cancelled and awaited when
its scope is left, whichever way it is left.

The naive ways fail in two places. ``asyncio.TaskGroup`` waits for as long as a task likes, and a
provider's client that swallows the cancellation then holds up the caller's next turn; leaving a
scope here takes ``CLOSE_SECS`` at most. And ``suppress(CancelledError)`` around the awaiting of a
cancelled task swallows the cancellation of the caller as well, which on a barge-in keeps the bot
talking; here the tasks are waited for without being awaited, so the caller's own cancellation is
the only one that can come up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any

__all__ = ["CLOSE_SECS", "TaskScope"]

CLOSE_SECS = 0.25
"""How long leaving a scope waits for its cancelled tasks. An interruption travels on only then."""


class TaskScope:
    """Owns tasks from their creation to their end.

    Example::

        async with TaskScope() as scope:
            scope.start(watch(), name="watch")
            await work()
        # here watch() is over, however work() ended

    Attributes:
        stragglers: The tasks that had not ended ``CLOSE_SECS`` after their cancellation, known
            once the scope has been left.
    """

    def __init__(self) -> None:
        """Make an empty scope."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.stragglers: frozenset[asyncio.Task[None]] = frozenset()

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run ``work`` in a task of this scope.

        Args:
            work: The coroutine to run.
            name: The task's name, for debuggers and leak reports.
        """
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
        """Take charge of a task that another scope has started, which lets go of it."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def release(self, task: asyncio.Task[None]) -> None:
        """Leave a task to the scope that adopts it.

        Args:
            task: A task of this scope.
        """
        self._tasks.discard(task)

    async def join(self) -> None:
        """Wait for every task to end by itself, for ``CLOSE_SECS`` at most."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=CLOSE_SECS)

    async def close(self) -> None:
        """Cancel every task and wait for its end, for ``CLOSE_SECS`` at most."""
        for task in self._tasks:
            if not task.cancelling():  # one that is closing already must be let close
                task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=CLOSE_SECS)
        self.stragglers = frozenset(self._tasks)
