"""Whether an event loop is too far behind to send hedges."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.limits.overload import FRESH_SECS, SAMPLES, Overload

EVERY_SECS = 0.1


def behind(lag_secs: float, it: Overload | None = None, times: int = 2 * SAMPLES) -> Overload:
    """A loop with a constant lag; the last sample is at time 0."""
    it = it or Overload()
    for number in range(times):
        it.sample(lag_secs, number * 1e-6)
    return it


@pytest.mark.parametrize(
    ("lag_secs", "reason"),
    [
        (0.0, None),
        (0.09, None),
        (0.11, "the event loop is 0.11 s behind"),
        (9.0, "the event loop is 9.00 s behind"),
    ],
)
def test_lag_of_100_ms_stops_hedges(lag_secs: float, reason: str | None) -> None:
    assert behind(lag_secs).refusal(0.0) == reason


def test_few_long_steps_change_nothing() -> None:
    it = behind(0.0)
    for _ in range(SAMPLES // 2):
        it.sample(2.0, 1.0)
        assert it.refusal(1.0) is None
    it.sample(2.0, 1.0)
    assert it.refusal(1.0) is not None


def test_hedges_resume_at_half_the_lag() -> None:
    it = behind(0.3)
    assert it.refusal(0.0) is not None
    assert behind(0.06, it).refusal(0.0) is not None
    assert behind(0.04, it).refusal(0.0) is None
    assert behind(0.06, it).refusal(0.0) is None


def test_old_samples_expire() -> None:
    it = behind(0.3)
    fresh_secs = FRESH_SECS + 2 * 0.3
    assert it.refusal(fresh_secs) is not None
    assert it.refusal(fresh_secs + 0.1) is None
    it.sample(0.3, 60.0)
    assert it.refusal(60.0) is None
    assert it.lag_secs(90.0) is None


def test_samples_of_a_very_late_loop_stay_valid() -> None:
    it, now = Overload(), 0.0
    for _ in range(SAMPLES):
        now += EVERY_SECS + 6.0
        it.sample(6.0, now)
    assert it.refusal(now + 6.0) is not None


def test_overdue_sample_counts_at_once() -> None:
    it = Overload()
    assert it.lag_now(5.0) == 0.0
    it.expect(10.0)
    assert it.lag_now(9.9) == 0.0
    assert it.lag_now(10.4) == pytest.approx(0.4)
    it.sample(0.5, 10.5)
    it.expect(10.6)
    assert it.lag_now(10.5) == 0.5
    it.sample(0.0, 10.6)
    it.expect(10.7)
    assert it.lag_now(10.65) == 0.0


@given(
    st.lists(st.tuples(st.floats(0, 2) | st.floats(0, 0.1), st.floats(0, 5)), max_size=60),
    st.floats(0, 10),
)
def test_loop_is_late_only_while_most_samples_are(steps: list[Any], waited_secs: float) -> None:
    it, now, lags = Overload(), 0.0, [0.0] * SAMPLES
    for lag_secs, secs in steps:
        now += lag_secs + secs
        it.sample(lag_secs, now)
        lags.append(lag_secs)
        late = sum(lag >= 0.05 for lag in lags[-SAMPLES:])
        if it.refusal(now) is not None:
            assert late > SAMPLES // 2
        assert it.lag_now(now) >= 0.0
        if waited_secs > FRESH_SECS + 2 * lag_secs:
            assert it.refusal(now + waited_secs) is None
