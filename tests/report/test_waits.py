"""Percentiles, and the curve they are points of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.percentiles import percentile
from pipecat_hedge.report.waits import NO_WAITS, Waits, curve_of

VALUES = st.lists(st.floats(0, 100), min_size=1, max_size=300)


@given(VALUES)
def test_percentiles_are_those_of_the_whole_package(values: list[float]) -> None:
    """To the last digit."""
    waits = Waits.of(values)
    assert (waits.p50_secs, waits.p95_secs, waits.p99_secs) == tuple(
        percentile(values, p) for p in (0.5, 0.95, 0.99)
    )
    assert (waits.count, waits.max_secs) == (len(values), max(values))
    assert waits.mean_secs == pytest.approx(sum(values) / len(values))


@given(VALUES)
def test_each_point_of_the_curve_is_true(values: list[float]) -> None:
    """So many of the waits were over by then; it rises to all of them."""
    points = curve_of(values)
    for point in points:
        below, until = sum(v < point.secs for v in values), sum(v <= point.secs for v in values)
        assert below <= round(point.share * len(values)) <= until
    assert points[-1].share == 1
    assert [p.share for p in points] == sorted(p.share for p in points)


def test_no_waits_are_unknown() -> None:
    """And no noughts."""
    assert Waits.of([]) == NO_WAITS
    assert NO_WAITS.p50_secs is None
    assert curve_of([]) == ()


def test_the_tail_of_a_curve_is_as_dense_as_its_body() -> None:
    """A hundred thousand waits in a few points, some of them among the slowest ten."""
    points = curve_of([float(n) for n in range(100_000)])
    assert len(points) < 200
    assert sum(p.share > 0.9999 for p in points) >= 10
