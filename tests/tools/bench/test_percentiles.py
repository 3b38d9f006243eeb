"""One rule for all percentiles."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.tools.bench import percentile


@given(st.lists(st.floats(allow_nan=False), min_size=1), st.floats(0.001, 1))
def test_it_is_the_value_of_the_nearest_rank(values: list[float], p: float) -> None:
    """Infinite ones, of what never came, included."""
    assert percentile(values, p) == sorted(values)[math.ceil(p * len(values)) - 1]


def test_of_nothing_there_is_none() -> None:
    assert percentile([], 0.5) is None
