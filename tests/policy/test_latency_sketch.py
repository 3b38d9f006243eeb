"""Counts that add up, and the curves that are made of them."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policy.latency_model import LatencyModel
from pipecat_hedge.policy.latency_sketch import (
    ACCURACY,
    LAST_BUCKET,
    LatencyCounts,
    LatencySketch,
    kaplan_meier,
)
from pipecat_hedge.policy.survival import SurvivalCurve

PRIOR = SurvivalCurve.of([0.0, 0.5, 1.0], [1.0, 0.5, 0.1], 1.0)
TIMES = st.floats(0.002, 600)
OBSERVED = st.lists(st.tuples(TIMES, st.booleans()), max_size=80)


def sketch_of(observed: list[tuple[float, bool]]) -> LatencySketch:
    sketch = LatencySketch()
    for secs, censored in observed:
        sketch.add(secs, censored=censored)
    return sketch


def merged(*sketches: LatencySketch) -> LatencySketch:
    total = LatencySketch()
    for each in sketches:
        total.merge(each)
    return total


def exact(observed: list[tuple[float, bool]], t: float) -> float:
    """Kaplan and Meier's estimate of the share beyond t, written down as it is defined."""
    share, waiting = 1.0, len(observed)
    for at, group in itertools.groupby(sorted(observed), key=lambda each: each[0]):
        all_of_it = list(group)
        if at > t:
            break
        share *= 1.0 - sum(not censored for _, censored in all_of_it) / waiting
        waiting -= len(all_of_it)
    return share


@given(OBSERVED, OBSERVED, OBSERVED)
def test_sums_do_not_depend_on_the_order(
    one: list[tuple[float, bool]], two: list[tuple[float, bool]], three: list[tuple[float, bool]]
) -> None:
    """And the sketch of all observations is the sum of the parts' sketches."""
    a, b, c = sketch_of(one), sketch_of(two), sketch_of(three)
    assert merged(a, b) == merged(b, a)
    assert merged(merged(a, b), c) == merged(a, merged(b, c)) == sketch_of([*one, *two, *three])
    assert merged(a, b).minus(b) == a
    assert a.minus(merged(a, b)) == LatencySketch()
    assert merged(a, b).count == a.count + b.count


@given(st.lists(TIMES, min_size=1, max_size=200), st.floats(0, 0.999))
def test_a_quantile_is_within_a_hundredth(secs: list[float], p: float) -> None:
    """Of the true one, whatever the distribution, where anything has been seen of it."""
    curve = kaplan_meier([(sketch_of([(each, False) for each in secs]), 1.0)], 1.0)
    assert curve is not None
    rank = math.ceil(p * len(secs) - 1e-9) - 1
    if rank >= len(secs) - 1:  # beyond the last but one nothing is known but a tail
        return
    true = sorted(secs)[max(rank, 0)]
    assert curve.quantile(max(p, 1e-9)) == pytest.approx(true, rel=ACCURACY * 1.001)


@given(st.lists(st.tuples(TIMES, st.booleans()), min_size=2, max_size=120))
def test_with_cancelled_waits_it_is_kaplan_and_meiers_estimate(
    observed: list[tuple[float, bool]],
) -> None:
    """Exactly that of the same times put into buckets; the floor of the last step aside."""
    if all(censored for _, censored in observed):
        return
    sketch = sketch_of(observed)
    curve = kaplan_meier([(sketch, 1.0)], 1.0)
    assert curve is not None
    rounded: list[tuple[float, bool]] = []
    for secs, censored in observed:
        ((bucket, _),) = (sketch_of([(secs, False)])).answered.items()
        value = kaplan_meier([(sketch_of([(secs, False)]), 1.0)], 1.0)
        assert value is not None
        assert value.secs[-1] == pytest.approx(secs, rel=ACCURACY * 1.001)
        assert 0 <= bucket <= LAST_BUCKET
        rounded.append((float(value.secs[-1]), censored))
    for t in {secs for secs, _ in rounded}:
        share = max(exact(rounded, t), 1 / (len(observed) + 1))
        assert float(curve.share_after(t)) == pytest.approx(share)


def test_it_agrees_with_the_model_of_the_same_observations() -> None:
    """A fifth of them cut short: median, tail and mean wait that is left."""
    rng = random.Random(3)
    model = LatencyModel(PRIOR, prior_weight=0, window=4000, half_life=1e12)
    sketch = LatencySketch()
    for _ in range(4000):
        secs, cut = rng.lognormvariate(-0.5, 0.8), rng.expovariate(0.3)
        model.record(min(secs, cut), censored=secs > cut)
        sketch.add(min(secs, cut), censored=secs > cut)
    curve = kaplan_meier([(sketch, 1.0)], 1.0)
    assert curve is not None
    for p in (0.1, 0.5, 0.9, 0.95, 0.99):
        assert curve.quantile(p) == pytest.approx(model.quantile(p), rel=0.02)
    for t in (0.0, 1.0, 3.0):
        assert curve.expected_remaining(t) == pytest.approx(model.expected_remaining(t), rel=0.1)
    assert sketch.count == 4000
    assert len(sketch.answered) + len(sketch.censored) < 700


def test_a_heavy_tail_is_seen() -> None:
    """A twentieth that hangs is not taken for the edge of the body."""
    sketch = sketch_of([(0.4 + k / 1000, False) for k in range(95)])
    light = kaplan_meier([(sketch, 1.0)], 9.0)
    sketch.merge(sketch_of([(10.0 + k, False) for k in range(10)]))
    heavy = kaplan_meier([(sketch, 1.0)], 9.0)
    assert light is not None
    assert heavy is not None
    assert light.tail_secs < 0.1
    assert heavy.tail_secs > 4
    few = kaplan_meier([(sketch_of([(0.4, False)] * 5), 1.0)], 9.0)
    assert few is not None
    assert few.tail_secs == 9.0


def test_what_weighs_less_counts_less() -> None:
    """Half of the weight is half of the observations; none of it is none."""
    old, new = sketch_of([(1.0, False)] * 200), sketch_of([(0.1, False)] * 100)
    even = kaplan_meier([(old, 0.5), (new, 1.0)], 1.0)
    assert even is not None
    assert float(even.share_after(0.5)) == pytest.approx(0.5)
    alone = kaplan_meier([(old, 0.0), (new, 1.0)], 1.0)
    assert alone is not None
    assert float(alone.share_after(0.5)) < 0.02
    assert kaplan_meier([(sketch_of([(1.0, True)]), 1.0)], 1.0) is None
    assert kaplan_meier([], 1.0) is None


def test_what_was_cut_short_at_once_tells_nothing() -> None:
    """What was waited for long tells as much as an answer."""
    assert sketch_of([(0.002, True)] * 50).told(PRIOR) == pytest.approx(0, abs=0.1)
    assert sketch_of([(30.0, True)] * 50).told(PRIOR) == pytest.approx(50)
    assert sketch_of([(0.3, False)] * 50).told(PRIOR) == 50


@given(st.floats(0, 1e9))
def test_every_time_has_a_bucket(secs: float) -> None:
    """Also nought, and a week."""
    (bucket,) = sketch_of([(secs, False)]).answered
    assert 0 <= bucket <= LAST_BUCKET


@given(st.lists(st.tuples(st.sampled_from("0123us"), TIMES, st.booleans()), max_size=60))
def test_counts_travel_as_plain_numbers(seen: list[tuple[str, float, bool]]) -> None:
    """And come back as they were, written out or not."""
    counts = LatencyCounts()
    for part, secs, censored in seen:
        counts.add(part, secs, censored=censored)
    fields = counts.fields()
    for told in (fields, {name: str(count) for name, count in fields.items()}):
        back, unusable = LatencyCounts.of_fields(told)
        assert back.fields() == fields
        assert unusable == 0
    assert bool(counts) == bool(seen)
    twice = LatencyCounts()
    twice.merge(counts)
    twice.merge(counts)
    assert twice.minus(counts).fields() == fields


def test_what_is_no_count_is_passed_over() -> None:
    """Told of, and the rest is used."""
    told = {"0a5": "3", "0a": "1", "": "1", "0x5": "1", "0a9999": "1", "0a-1": "1", "0a6": "-2"}
    counts, unusable = LatencyCounts.of_fields({**told, "0a7": "many", "0c8": str(2**60)})
    assert counts.fields() == {"0a5": 3}
    assert unusable == 8
    assert np.isfinite(counts.of("0").told(PRIOR))
