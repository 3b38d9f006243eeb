"""Classifies the end of an attempt by what it says about its provider.

A provider is charged only with its own failures. An attempt that the race or the caller ended says
nothing, nor does a request that every provider would reject. A rejection for load limits how many
requests a provider gets; a failure, whether it gets any.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pipecat_hedge.race.attempt import MISSED_DEADLINE, STALLED, TIMED_OUT, Attempt
from pipecat_hedge.race.errors import INCOMPLETE_CALL, AttemptError

Verdict: TypeAlias = Literal["answered", "failed", "not_connected", "silent", "busy", "dropped"]
"""How an attempt ended: it answered; it failed; its connection failed, possibly through our own
network; it made no progress for too long; it was rejected for load; or it ended for a reason that
says nothing about the provider."""


def classify(
    error: AttemptError | None, *, has_answered: bool, attempt: Attempt | None = None
) -> Verdict:
    """Classify the end of a request.

    Args:
        error: The service's error; None if it reported none.
        has_answered: Whether the answer was usable and ended normally.
        attempt: The race's record when the request is closed.
    """
    if attempt is not None and attempt.error is not None:
        error = attempt.error
    if error is None:
        return "answered" if has_answered else "dropped"
    if error.category == INCOMPLETE_CALL:
        return "dropped"
    if error.is_busy:
        return "busy"
    if error.permanent or error.category == "application":
        return "dropped"
    if error in (STALLED, TIMED_OUT):
        return "silent"
    if error == MISSED_DEADLINE:
        # A request sent shortly before the deadline has missed nothing.
        return "silent" if attempt is None or _was_long(attempt) else "dropped"
    return "not_connected" if error.is_connection else "failed"


def _was_long(attempt: Attempt) -> bool:
    if attempt.reason == "primary":
        return True
    silent_secs = attempt.slot.silent_secs
    if attempt.ended_at is None or silent_secs is None:
        return False
    return attempt.ended_at - attempt.last_usable_at >= silent_secs
