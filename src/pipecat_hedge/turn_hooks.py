"""Who is told of every turn of every service that shares a registry.

Law: a hook never ends a turn: one that fails is named once, and called again the next time.

An event handler belongs to one service, and a process has one for each call. What counts turns,
for metrics or a board, is told of all of them here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from loguru import logger

from pipecat_hedge.loop_watch import is_real
from pipecat_hedge.reports import TurnReport

__all__ = ["BEAT_SECS", "TurnHook", "TurnHooks"]

TurnHook: TypeAlias = Callable[[TurnReport], None]

BEAT_SECS = 5.0
"""How often those are called who write down how things stand now: a third of the usual interval at
which metrics are read."""


class TurnHooks:
    """A registry's hooks. They are called on the service's loop, and must not wait for anything.

    Example::

        hooks = TurnHooks()
        hooks.add(lambda report: print(report.outcome))
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._hooks: tuple[TurnHook, ...] = ()
        self._beats: tuple[Callable[[], None], ...] = ()
        self._failed: set[object] = set()

    def add(self, hook: TurnHook, *, beat: Callable[[], None] | None = None) -> None:
        """Have a hook called with every ``TurnReport`` from now on.

        Args:
            hook: The hook.
            beat: Called every ``BEAT_SECS`` while there are sessions, and when the last has ended.
        """
        self._hooks = (*self._hooks, hook)
        if beat is not None:
            self._beats = (*self._beats, beat)

    def remove(self, hook: TurnHook, *, beat: Callable[[], None] | None = None) -> None:
        """Have it called no more; as ``add``."""
        self._hooks = tuple(each for each in self._hooks if each != hook)
        self._beats = tuple(each for each in self._beats if each != beat)

    def tell(self, report: TurnReport) -> None:
        """Tell every hook of a turn.

        Args:
            report: The turn.
        """
        for hook in self._hooks:
            self._call(hook, report)

    def beat(self) -> None:
        """Call those who write down how things stand."""
        for beat in self._beats:
            self._call(beat)

    async def run_if_real(self) -> None:
        """Beat until it is cancelled, and once more then; on a virtual loop do nothing."""
        if not is_real(asyncio.get_running_loop()):
            return
        try:
            while True:
                await asyncio.sleep(BEAT_SECS)
                self.beat()
        finally:
            self.beat()

    def _call(self, hook: Callable[..., None], *args: Any) -> None:
        try:
            hook(*args)
        except Exception as e:  # whatever it is, the caller is to have the answer
            if hook not in self._failed:
                self._failed.add(hook)
                logger.warning(f"a turn hook failed, which is said once: {hook!r}: {e!r}")
