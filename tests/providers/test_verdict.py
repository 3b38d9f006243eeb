"""What the end of an attempt says about its provider."""

from __future__ import annotations

import pytest

from pipecat_hedge.providers.verdict import Verdict, classify
from pipecat_hedge.race import Attempt, AttemptError, LaunchReason, Slot
from pipecat_hedge.race.attempt import EMPTY_ANSWER, MISSED_DEADLINE, STALLED, TIMED_OUT


def attempt(
    error: AttemptError | None = None,
    reason: LaunchReason = "primary",
    lasted_secs: float | None = None,
    silent_secs: float | None = 3.0,
) -> Attempt:
    made = Attempt(0, Slot("a", silent_secs, timeout_secs=30.0), reason, 10.0)
    made.error = error
    made.ended_at = None if lasted_secs is None else 10.0 + lasted_secs
    return made


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (AttemptError("server", "500"), "failed"),
        (AttemptError("connectivity", "no route", is_connection=True), "not_connected"),
        (EMPTY_ANSWER, "failed"),
        (AttemptError("rate_limit", "429", is_busy=True), "busy"),
        (AttemptError("authentication", "401", permanent=True), "dropped"),
        (AttemptError("application", "a bad image"), "dropped"),
        (STALLED, "silent"),
        (TIMED_OUT, "silent"),
        (MISSED_DEADLINE, "silent"),
    ],
)
def test_errors_are_classified(error: AttemptError, verdict: Verdict) -> None:
    assert classify(error, has_answered=False) == verdict
    closed = AttemptError("connectivity", "closed")  # the race's own error takes precedence
    assert classify(closed, has_answered=False, attempt=attempt(error)) == verdict


@pytest.mark.parametrize(("has_answered", "verdict"), [(True, "answered"), (False, "dropped")])
def test_attempts_without_error_are_classified(has_answered: bool, verdict: Verdict) -> None:
    assert classify(None, has_answered=has_answered, attempt=attempt()) == verdict


@pytest.mark.parametrize(
    ("lasted_secs", "silent_secs", "verdict"),
    [(0.5, 3.0, "dropped"), (3.5, 3.0, "silent"), (3.5, None, "dropped")],
)
def test_deadline_counts_only_for_long_silences(
    lasted_secs: float, silent_secs: float | None, verdict: Verdict
) -> None:
    hedge = attempt(MISSED_DEADLINE, "hedge", lasted_secs, silent_secs)
    assert classify(None, has_answered=False, attempt=hedge) == verdict
