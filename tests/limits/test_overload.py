"""Whether an event loop is too far behind to send hedges."""

from __future__ import annotations

import pytest

from pipecat_hedge.limits.overload import FRESH_SECS, SAMPLES, Overload


def behind(lag_secs: float, it: Overload | None = None, times: int = 2 * SAMPLES) -> Overload:
    """A loop with a constant lag; the last sample is at time 0."""
    it = it or Overload()
    for number in range(times):
        it.sample(lag_secs, number * 1e-6)
    return it


@pytest.mark.parametrize(
    ("lag_secs", "reason"), [(0.09, None), (0.11, "the event loop is 0.11 s behind")]
)
def test_lag_of_100_ms_stops_hedges(lag_secs: float, reason: str | None) -> None:
    assert behind(lag_secs).refusal(0.0) == reason


def test_few_long_steps_change_nothing() -> None:
    it = behind(0.0)
    refusals = [it.refusal(1.0)]
    for _ in range(SAMPLES // 2 + 1):
        it.sample(2.0, 1.0)
        refusals.append(it.refusal(1.0))
    assert [reason is None for reason in refusals] == [True] * (SAMPLES // 2 + 1) + [False]


def test_hedges_resume_at_half_the_lag() -> None:
    it = behind(0.3)
    refused = [behind(lag_secs, it).refusal(0.0) is not None for lag_secs in (0.06, 0.04, 0.06)]
    assert refused == [True, False, False]


def test_samples_expire_later_on_a_late_loop() -> None:
    it = behind(0.3)
    fresh_secs = FRESH_SECS + 2 * 0.3
    assert it.refusal(fresh_secs) is not None
    assert it.refusal(fresh_secs + 0.1) is None
    it.sample(0.3, 60.0)
    assert it.refusal(60.0) is None
    assert it.lag_secs(60.0) == pytest.approx(0.3 / SAMPLES)
    assert it.lag_secs(90.0) is None
