"""Who is told of every turn of every service that shares a registry.

Law: a hook never ends a turn: one that fails is named once, and called again the next time.

An event handler belongs to one service, and a process has one for each call. What counts turns,
for metrics or a board, is told of all of them here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeAlias

from loguru import logger

from pipecat_hedge.race.reports import TurnReport

__all__ = ["Hooks", "TurnHook", "TurnHooks"]

P = ParamSpec("P")
TurnHook: TypeAlias = Callable[[TurnReport], None]


class Hooks(Generic[P]):
    """Whom to call. They must not wait for anything.

    Example::

        hooks = Hooks[[TurnReport]]()
        hooks.add(lambda report: print(report.outcome))
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._hooks: tuple[Callable[P, None], ...] = ()
        self._failed: set[object] = set()

    def add(self, hook: Callable[P, None]) -> None:
        """Have a hook called from now on.

        Args:
            hook: The hook.
        """
        self._hooks = (*self._hooks, hook)

    def remove(self, hook: Callable[P, None]) -> None:
        """Have it called no more; as ``add``."""
        self._hooks = tuple(each for each in self._hooks if each != hook)

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call every hook."""
        for hook in self._hooks:
            try:
                hook(*args, **kwargs)
            except Exception as e:  # whatever it is, the caller is to have the answer
                if hook not in self._failed:
                    self._failed.add(hook)
                    logger.warning(f"a turn hook failed, which is said once: {hook!r}: {e!r}")


class TurnHooks(Hooks[[TurnReport]]):
    """A registry's hooks. They are called on the service's loop, with every ``TurnReport``."""
