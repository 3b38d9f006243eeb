"""The work class of a request: the order of urgency when not all work can be done at once.

The sender sets it with ``working_as``; a client may pass ``work()`` on to its server, as with
vLLM's ``priority``. It is a context variable, because Pipecat's services pass nothing on.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TypeAlias, get_args

WorkClass: TypeAlias = Literal[
    "primary", "tool_follow_up", "rescue", "hedge", "warm_up", "background"
]
"""The work classes, most urgent first: a caller's turn, the answer to a tool result, the
replacement of a failed or stalled attempt, a hedge, a warm-up prompt, a one-shot inference."""

WORK_CLASSES: tuple[WorkClass, ...] = get_args(WorkClass)
"""The work classes, most urgent first."""

_work: ContextVar[WorkClass] = ContextVar("work", default="primary")


def work() -> WorkClass:
    """The work class of the request that is being made."""
    return _work.get()


@contextmanager
def working_as(what: WorkClass) -> Generator[None, None, None]:
    """Set the work class of the requests made inside the context."""
    token = _work.set(what)
    try:
        yield
    finally:
        _work.reset(token)
