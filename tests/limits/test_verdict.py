"""What the end of an attempt says about its provider."""

from __future__ import annotations

import pytest

from pipecat_hedge.limits.verdict import Verdict, classify
from pipecat_hedge.race import Attempt, AttemptError, LaunchReason, Slot
from pipecat_hedge.race.attempt import EMPTY_ANSWER, MISSED_DEADLINE, STALLED, TIMED_OUT

FAILED = "failed"


def attempt(
    error: AttemptError | None = None,
    *,
    reason: LaunchReason = "primary",
    lasted_secs: float | None = None,
    stall_secs: float | None = 3.0,
) -> Attempt:
    made = Attempt(0, Slot("a", stall_secs, 30.0), reason, 10.0)
    made.error = error
    made.ended_at = None if lasted_secs is None else 10.0 + lasted_secs
    return made


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (AttemptError("server", "500"), FAILED),
        (AttemptError("connectivity", "refused"), FAILED),
        (AttemptError("quota", "402"), FAILED),
        (
            AttemptError("connectivity", "no route", is_connection=True),
            "not_connected",
        ),
        (EMPTY_ANSWER, FAILED),
        (AttemptError("rate_limit", "429", is_busy=True), "busy"),
        (AttemptError("server", "529", is_busy=True), "busy"),
        (AttemptError("authentication", "401", permanent=True), "dropped"),
        (AttemptError("application", "a bad image"), "dropped"),
        (STALLED, "silent"),
        (TIMED_OUT, "silent"),
    ],
)
def test_errors(error: AttemptError, verdict: Verdict) -> None:
    """The provider's failures, its load, and what is neither."""
    assert classify(error, has_answered=False) == verdict
    assert classify(None, has_answered=False, attempt=attempt(error)) == verdict


def test_an_answer_and_a_cancelled_attempt() -> None:
    assert classify(None, has_answered=True, attempt=attempt()) == "answered"
    assert classify(None, has_answered=False, attempt=attempt()) == "dropped"


def test_what_the_race_says_comes_first() -> None:
    """It closed the request for its silence; whatever the service says of that is our own doing."""
    closed = AttemptError("connectivity", "closed")
    assert classify(closed, has_answered=False, attempt=attempt(STALLED)) == "silent"


def test_a_deadline_blames_who_had_the_time() -> None:
    """The first to be asked, and whoever was silent for as long as it may be."""
    missed = MISSED_DEADLINE
    assert classify(None, has_answered=False, attempt=attempt(missed)) == "silent"
    late = attempt(missed, reason="hedge", lasted_secs=0.5)
    assert classify(None, has_answered=False, attempt=late) == "dropped"
    long = attempt(missed, reason="hedge", lasted_secs=3.5)
    assert classify(None, has_answered=False, attempt=long) == "silent"
    never = attempt(missed, reason="hedge", lasted_secs=3.5, stall_secs=None)
    assert classify(None, has_answered=False, attempt=never) == "dropped"
    assert classify(missed, has_answered=False) == "silent"
