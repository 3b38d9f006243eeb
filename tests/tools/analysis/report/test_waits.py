"""Percentiles, and the curve they are points of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policy.percentiles import percentile
from pipecat_hedge.tools.analysis.report.waits import (
    NO_WAITS,
    Estimate,
    Estimates,
    Waits,
    curve_of,
    estimates_of,
)

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


@given(VALUES)
def test_where_nobody_gave_up_nothing_is_estimated(values: list[float]) -> None:
    """The percentiles are those of the waits."""
    waits, found = Waits.of(values), estimates_of(values, [])
    known = (waits.p50_secs, waits.p95_secs, waits.p99_secs, waits.max_secs)
    told = (found.p50, found.p95, found.p99, found.longest)
    assert told == tuple(Estimate(secs) for secs in known if secs is not None)


def test_who_gave_up_would_have_waited_longer() -> None:
    """A third hung up after 8 s: the p95 is not that of the others, and nobody knows how long."""
    found = estimates_of([0.4] * 200, [8.0] * 100)
    least = Estimate(8.0, is_least=True)
    assert found == Estimates(Estimate(0.4), least, least, least)
    assert curve_of([0.4] * 200, [8.0] * 100)[-1].share == pytest.approx(2 / 3)
    assert estimates_of([], [8.0]).p50 == least
    assert estimates_of([], []) == Estimates()


def test_who_spoke_again_at_once_says_nothing_of_the_tail() -> None:
    """Kaplan and Meier by hand: of 4 that are left 1 goes; of 3, 2 and 1 that are left one each."""
    found = curve_of([1.0, 2.0, 3.0], [0.5, 1.5])
    assert [(p.secs, p.share) for p in found] == [
        (1.0, pytest.approx(1 / 4)),
        (2.0, pytest.approx(1 - 3 / 4 * 1 / 2)),
        (3.0, pytest.approx(1.0)),
    ]
    assert estimates_of([1.0, 2.0, 3.0], [0.5, 1.5]).p50 == Estimate(2.0)


@given(VALUES, VALUES)
def test_giving_up_never_makes_waits_shorter(values: list[float], given_up: list[float]) -> None:
    """Each percentile is at least what it is without them, if they gave up last."""
    late = [max(values) + secs for secs in given_up]
    without, found = estimates_of(values, []), estimates_of(values, late)
    for name in ("p50", "p95", "p99", "longest"):
        assert getattr(found, name).secs >= getattr(without, name).secs
