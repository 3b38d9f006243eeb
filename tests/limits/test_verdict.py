"""What the end of an attempt says about its provider."""

from __future__ import annotations

import pytest

from pipecat_hedge.limits.ending import ANSWERED, DROPPED, SILENT, Ending
from pipecat_hedge.limits.verdict import classify
from pipecat_hedge.race.attempt import EMPTY_ANSWER, MISSED_DEADLINE, STALLED, TIMED_OUT, Attempt
from pipecat_hedge.race.errors import AttemptError
from pipecat_hedge.race.events import LaunchReason, Slot

FAILED = Ending("failed", "failed")


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
    ("error", "ending"),
    [
        (AttemptError("server", "500"), FAILED),
        (AttemptError("connectivity", "refused"), FAILED),
        (AttemptError("quota", "402"), FAILED),
        (
            AttemptError("connectivity", "no route", is_connection=True),
            Ending("failed", "failed", is_connection=True),
        ),
        (EMPTY_ANSWER, FAILED),
        (AttemptError("rate_limit", "429", is_busy=True), Ending("busy", "busy")),
        (AttemptError("server", "529", is_busy=True), Ending("busy", "busy")),
        (AttemptError("authentication", "401", permanent=True), Ending("dropped", "failed")),
        (AttemptError("application", "a bad image"), Ending("dropped", "failed")),
        (STALLED, SILENT),
        (TIMED_OUT, SILENT),
    ],
)
def test_errors(error: AttemptError, ending: Ending) -> None:
    """The provider's failures, its load, and what is neither."""
    assert classify(error, has_answered=False) == ending
    assert classify(None, has_answered=False, attempt=attempt(error)) == ending


def test_an_answer_and_a_cancelled_attempt() -> None:
    assert classify(None, has_answered=True, attempt=attempt()) is ANSWERED
    assert classify(None, has_answered=False, attempt=attempt()) is DROPPED


def test_what_the_race_says_comes_first() -> None:
    """It closed the request for its silence; whatever the service says of that is our own doing."""
    closed = AttemptError("connectivity", "closed")
    assert classify(closed, has_answered=False, attempt=attempt(STALLED)) is SILENT


def test_a_deadline_blames_who_had_the_time() -> None:
    """The first to be asked, and whoever was silent for as long as it may be."""
    missed = MISSED_DEADLINE
    assert classify(None, has_answered=False, attempt=attempt(missed)) is SILENT
    late = attempt(missed, reason="hedge", lasted_secs=0.5)
    assert classify(None, has_answered=False, attempt=late) is DROPPED
    long = attempt(missed, reason="hedge", lasted_secs=3.5)
    assert classify(None, has_answered=False, attempt=long) is SILENT
    never = attempt(missed, reason="hedge", lasted_secs=3.5, stall_secs=None)
    assert classify(None, has_answered=False, attempt=never) is DROPPED
    assert classify(missed, has_answered=False) is SILENT
