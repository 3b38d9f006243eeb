"""What a request is for: the order in which work matters when not all of it can be done at once.

Whoever sends a request says in what capacity, with ``working_as``; whoever talks to the server
reads ``work()`` and may tell it, as vLLM is told with ``priority``. It travels in a context
variable, because Pipecat's services stand in between and pass nothing on.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TypeAlias, get_args

__all__ = ["WORK_CLASSES", "WorkClass", "work", "working_as"]

WorkClass: TypeAlias = Literal[
    "primary", "tool_follow_up", "rescue", "hedge", "warm_up", "background"
]
"""What a request is for, the most urgent first: a caller's turn, the answer to a tool's result, the
replacement of a failed or silent attempt, a hedge, a prompt sent ahead, a one-shot inference."""

WORK_CLASSES: tuple[WorkClass, ...] = get_args(WorkClass)
"""The classes in their order."""

_work: ContextVar[WorkClass] = ContextVar("work", default="primary")


def work() -> WorkClass:
    """What the request that is being made is for."""
    return _work.get()


@contextmanager
def working_as(what: WorkClass) -> Generator[None, None, None]:
    """Say what the requests made inside are for.

    Args:
        what: The class of work.
    """
    token = _work.set(what)
    try:
        yield
    finally:
        _work.reset(token)
