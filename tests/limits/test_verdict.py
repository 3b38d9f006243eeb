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
def test_errors_are_classified(error: AttemptError, verdict: Verdict) -> None:
    assert classify(error, has_answered=False) == verdict
    assert classify(None, has_answered=False, attempt=attempt(error)) == verdict


def test_answer_and_cancelled_attempt_are_classified() -> None:
    assert classify(None, has_answered=True, attempt=attempt()) == "answered"
    assert classify(None, has_answered=False, attempt=attempt()) == "dropped"


def test_race_error_takes_precedence() -> None:
    closed = AttemptError("connectivity", "closed")
    assert classify(closed, has_answered=False, attempt=attempt(STALLED)) == "silent"


def test_deadline_counts_only_for_long_silences() -> None:
    missed = MISSED_DEADLINE
    assert classify(None, has_answered=False, attempt=attempt(missed)) == "silent"
    late = attempt(missed, reason="hedge", lasted_secs=0.5)
    assert classify(None, has_answered=False, attempt=late) == "dropped"
    long = attempt(missed, reason="hedge", lasted_secs=3.5)
    assert classify(None, has_answered=False, attempt=long) == "silent"
    never = attempt(missed, reason="hedge", lasted_secs=3.5, stall_secs=None)
    assert classify(None, has_answered=False, attempt=never) == "dropped"
    assert classify(missed, has_answered=False) == "silent"
