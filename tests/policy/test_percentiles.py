"""One rule for all percentiles."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.tools.bench import percentile


@pytest.mark.parametrize(
    ("p", "expected"), [(0.01, 1.0), (0.25, 1.0), (0.5, 2.0), (0.75, 3.0), (0.76, 4.0), (1.0, 4.0)]
)
def test_it_is_one_of_the_values(p: float, expected: float) -> None:
    """The nearest rank, whatever their order."""
    assert percentile([3.0, 1.0, 4.0, 2.0], p) == expected


def test_of_nothing_there_is_none() -> None:
    """Not zero."""
    assert percentile([], 0.5) is None


@given(st.lists(st.floats(allow_nan=False), min_size=1), st.floats(0.001, 1))
def test_a_share_does_not_exceed_it_and_fewer_stay_below(values: list[float], p: float) -> None:
    """Infinite ones, of what never came, included."""
    found = percentile(values, p)
    assert found is not None
    rank = math.ceil(p * len(values))
    assert sum(value <= found for value in values) >= rank
    assert sum(value < found for value in values) < rank
