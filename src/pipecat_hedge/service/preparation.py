"""Prepares a session's first turn, in the background."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pipecat_hedge.race.task_scope import TaskScope


class Preparation:
    """The preparation of a session. Owns its task, and whether a turn has begun."""

    def __init__(self, name: str, prepare: Callable[[], Awaitable[None]]):
        """Name the work; nothing runs yet.

        Args:
            name: The name of the task.
            prepare: Prepares the first turn.
        """
        self._name = name
        self._prepare = prepare
        self._scope = TaskScope()
        self._has_run = self._is_late = False

    def start(self) -> None:
        """Prepare the first turn now."""
        self._has_run = True
        self._scope.start(self._run(), name=self._name)

    async def _run(self) -> None:
        await self._prepare()

    def turn_began(self) -> None:
        """Record that a turn has begun: it is too late to prepare the first one."""
        self._is_late = True

    async def restart(self) -> None:
        """Prepare once more, because the prompt has changed, unless a turn has begun."""
        if self._has_run and not self._is_late:
            await self._scope.close()
            self.start()

    async def close(self) -> None:
        """End it."""
        await self._scope.close()
