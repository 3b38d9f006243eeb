"""What the end of an attempt says about its provider. Pure.

Law: a provider is blamed for what it did itself, and for nothing else.

Three parties can end an attempt: the provider, by answering, failing or refusing; the race or the
caller, by wanting no more of it; and the application, whose request no provider would take. Only
the first says anything about the provider, and of that a refusal for load speaks to how many
requests it gets, a failure to whether it gets any.
"""

from __future__ import annotations

from pipecat_hedge.limits.ending import ANSWERED, DROPPED, SILENT, Ending
from pipecat_hedge.race.attempt import MISSED_DEADLINE, STALLED, TIMED_OUT, Attempt
from pipecat_hedge.race.errors import INCOMPLETE_CALL, SHED, AttemptError

__all__ = ["classify"]

_BUSY = Ending("busy", "busy")
_FAILED = Ending("failed", "failed")
_NOT_CONNECTED = Ending("failed", "failed", is_connection=True)
_NOT_ITS_OWN = Ending("dropped", "failed")


def classify(
    error: AttemptError | None, *, has_answered: bool, attempt: Attempt | None = None
) -> Ending:
    """Say whose doing the end of a request was.

    Args:
        error: What the service said went wrong; or None.
        has_answered: Whether the answer came to an end by itself, and was one.
        attempt: The race's record, as it is when the request is closed.
    """
    if attempt is not None and attempt.error is not None:
        error = attempt.error
    if error is None:
        return ANSWERED if has_answered else DROPPED
    if error.category in (SHED, INCOMPLETE_CALL):
        return DROPPED
    if error.is_busy:
        return _BUSY
    if error.permanent or error.category == "application":
        return _NOT_ITS_OWN
    if error in (STALLED, TIMED_OUT):
        return SILENT
    if error == MISSED_DEADLINE:
        # Whoever was asked shortly before the turn's deadline has missed nothing.
        return SILENT if attempt is None or _was_long(attempt) else DROPPED
    return _NOT_CONNECTED if error.is_connection else _FAILED


def _was_long(attempt: Attempt) -> bool:
    if attempt.reason == "primary":
        return True
    if attempt.ended_at is None or attempt.stall_secs is None:
        return False
    return attempt.ended_at - attempt.last_usable_at >= attempt.stall_secs
