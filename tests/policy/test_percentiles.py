"""One rule for all percentiles: the nearest rank."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.tools.bench import percentile


def test_no_values_have_no_percentile() -> None:
    assert percentile([], 0.5) is None


@given(st.lists(st.floats(allow_nan=False), min_size=1), st.floats(0.001, 1))
def test_percentile_is_the_value_of_the_nearest_rank(values: list[float], p: float) -> None:
    assert percentile(values, p) == sorted(values)[math.ceil(p * len(values)) - 1]
