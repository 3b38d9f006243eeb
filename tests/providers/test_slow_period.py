"""Whether a provider has turned slow, compared with what was typical for it."""

from __future__ import annotations

import random

import pytest

from pipecat_hedge.providers.slow_period import RECOVERED, SLOW, SlowPeriod
from pipecat_hedge.race import Attempt, Slot

LATE_AFTER = 1.0
LATE, IN_TIME = 2.0, 0.5


def sent(slow_period: SlowPeriod, now: float = 0.0, late_after: float = LATE_AFTER) -> Attempt:
    attempt = Attempt(0, Slot("a"), "primary", now)
    slow_period.sent(attempt, late_after)
    return attempt


def answered(*all_secs: float, slow_period: SlowPeriod | None = None) -> SlowPeriod:
    """A provider whose attempts are answered, one after the other."""
    slow_period = slow_period or SlowPeriod()
    for secs in all_secs:
        attempt = sent(slow_period)
        attempt.first_token_at, attempt.outcome = secs, "won"
        slow_period.ended(attempt, secs, LATE_AFTER, has_answered=True)
    return slow_period


@pytest.mark.parametrize(
    ("all_secs", "is_on"),
    [
        pytest.param([LATE] * (SLOW - 1), False, id="four late answers"),
        pytest.param([LATE] * SLOW, True, id="five late answers"),
        pytest.param(
            [*[IN_TIME] * 50, *[LATE] * (SLOW - 1), IN_TIME, LATE],
            False,
            id="an answer in time takes one step back",
        ),
        pytest.param([*[LATE] * (SLOW - 1), IN_TIME, LATE, LATE], True, id="only one step"),
        pytest.param([*[LATE] * SLOW, *[IN_TIME] * (RECOVERED - 1)], True, id="not recovered yet"),
        pytest.param([*[LATE] * SLOW, *[IN_TIME] * RECOVERED], False, id="recovered"),
        pytest.param([*[LATE] * SLOW, IN_TIME, LATE, IN_TIME], True, id="a late answer between"),
    ],
)
def test_five_late_answers_begin_and_two_in_time_end_it(all_secs: list[float], is_on: bool) -> None:
    assert answered(*all_secs).is_on is is_on


def test_silent_attempt_is_late_and_counts_once() -> None:
    slow_period = SlowPeriod()
    attempts = [sent(slow_period, now=n / 10) for n in range(SLOW)]
    for now in (LATE_AFTER + 0.3, LATE_AFTER + 0.35, LATE_AFTER + 0.35):
        slow_period.look(now)
        assert not slow_period.is_on
    slow_period.look(LATE_AFTER + 0.5)
    assert slow_period.is_on
    for attempt in attempts:
        slow_period.ended(attempt, 3.0, LATE_AFTER, has_answered=True)
    assert not answered(*[IN_TIME] * RECOVERED, slow_period=slow_period).is_on


@pytest.mark.parametrize(
    ("secs", "late_after", "is_on"),
    [
        pytest.param(0.9, LATE_AFTER, False, id="cancelled in time"),
        pytest.param(1.1, LATE_AFTER, True, id="cancelled late"),
    ],
)
def test_only_late_cancellations_count(secs: float, late_after: float, is_on: bool) -> None:
    slow_period = SlowPeriod()
    for _ in range(2 * SLOW):
        slow_period.ended(
            sent(slow_period, late_after=late_after), secs, late_after, has_answered=False
        )
        slow_period.forget(failed := sent(slow_period))
        failed.outcome = "failed"
    slow_period.look(99.0)
    assert slow_period.is_on is is_on


@pytest.mark.parametrize("share", [0.2, 0.25])
def test_chance_is_no_slow_period(share: float) -> None:
    """As many late answers as typical, or a few more where a model thinks."""
    rng = random.Random(3)
    slow_period, begun = SlowPeriod(), 0
    for _ in range(4000):
        was_on = slow_period.is_on
        answered(LATE if rng.random() < share else IN_TIME, slow_period=slow_period)
        begun += slow_period.is_on and not was_on
    assert begun <= 12
