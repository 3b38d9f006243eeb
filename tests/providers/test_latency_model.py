"""The latency model: a decayed, censored and mergeable survival curve."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.providers.latency_model import BUCKETS, LatencyModel, bucket_of, value_of
from pipecat_hedge.providers.survival import Floats, SurvivalCurve

PRIOR = SurvivalCurve.of([0.0, 0.5, 1.0], [1.0, 0.5, 0.1], 1.0)
OBSERVED = st.lists(st.tuples(st.floats(0.01, 60), st.booleans()), min_size=1, max_size=100)


def rounded(secs: float) -> float:
    return value_of(bucket_of(secs))


def counts_of(*answered: float, censored: tuple[float, ...] = ()) -> Floats:
    counts = np.zeros((2, BUCKETS))
    for row, times in enumerate((answered, censored)):
        for secs in times:
            counts[row, bucket_of(secs)] += 1
    return counts


def learned(*secs: float, censored: tuple[float, ...] = ()) -> LatencyModel:
    """A model without a prior in which all observations weigh the same."""
    model = LatencyModel(PRIOR, prior_weight=0, half_life=math.inf)
    for value in secs:
        model.record(value)
    for value in censored:
        model.record(value, censored=True)
    return model


def exact(observed: list[tuple[float, bool]], t: float) -> float:
    """Kaplan and Meier's estimate of the share beyond t, as it is defined."""
    share, waiting = 1.0, len(observed)
    for at, group in itertools.groupby(sorted(observed), key=lambda each: each[0]):
        together = list(group)
        if at > t:
            break
        share *= 1.0 - sum(not censored for _, censored in together) / waiting
        waiting -= len(together)
    return share


# ---- the estimate


def test_kaplan_and_meiers_estimate() -> None:
    """The classic data set: weeks in remission under 6-MP (Freireich et al., 1963)."""
    came = (6, 6, 6, 7, 10, 13, 16, 22, 23)
    censored = (6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35)
    curve = learned(*came, censored=censored).curve
    published = {5: 1.0, 6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    for weeks, share in published.items():
        assert curve.share_after(weeks * 1.01) == pytest.approx(share, abs=5e-4)
    assert curve.share_after(35) == pytest.approx(0.448, abs=5e-4)


@given(OBSERVED)
def test_curve_is_kaplan_and_meiers_estimate(
    observed: list[tuple[float, bool]],
) -> None:
    values = [rounded(secs) for secs, _ in observed]
    assert values == pytest.approx([secs for secs, _ in observed], rel=0.011, abs=1e-4)
    curve = learned(
        *(secs for secs, censored in observed if not censored),
        censored=tuple(secs for secs, censored in observed if censored),
    ).curve
    both = [(value, censored) for value, (_, censored) in zip(values, observed, strict=True)]
    for t in values:
        expected = max(exact(both, t), 1 / (len(observed) + 1))
        assert float(curve.share_after(t)) == pytest.approx(expected, abs=1e-9)


@given(OBSERVED, st.floats(0, 100), st.floats(0, 0.9999))
def test_curve_falls_and_quantiles_invert_it(
    observed: list[tuple[float, bool]], earlier: float, p: float
) -> None:
    model = LatencyModel(PRIOR)
    for secs, censored in observed:
        model.record(secs, censored=censored)
    curve, later = model.curve, 1.5 * earlier
    assert 1 >= curve.share_after(earlier) >= curve.share_after(later) >= 0
    assert curve.expected_remaining(later) > 0
    at = curve.quantile(p)
    assert curve.share_after(at + 1e-9) <= 1 - p + 1e-9
    if at > 0:
        assert curve.share_after(at * (1 - 1e-9) - 1e-9) >= 1 - p - 1e-9


@pytest.mark.parametrize(("weight", "until"), [(0, 30.0), (20, 5.0)])
def test_tail_of_exponential_latencies_is_memoryless(weight: int, until: float) -> None:
    rng = random.Random(5)
    model = LatencyModel(PRIOR, prior_weight=weight, half_life=math.inf)
    for _ in range(4000):
        secs = rng.expovariate(1 / 0.8)
        model.record(min(secs, 2.0), censored=secs > 2.0)
    for elapsed in (0.0, 1.0, 1.9, 5.0, until):
        assert model.curve.expected_remaining(elapsed) == pytest.approx(0.8, rel=0.15)


def test_heavy_tail_is_not_taken_for_the_edge_of_the_body() -> None:
    body = [0.4 + k / 1000 for k in range(95)]
    light, heavy = learned(*body), learned(*body, *(10.0 + k for k in range(10)))
    assert light.curve.expected_remaining(1.0) < 0.1
    assert heavy.curve.expected_remaining(25.0) > 4.0
    few = learned(*[0.4] * 5)
    assert few.curve.expected_remaining(1.0) == pytest.approx(PRIOR.tail_secs, rel=0.05)


# ---- priors and age


def test_prior_gives_way_to_observations() -> None:
    model = LatencyModel(PRIOR, prior_weight=20, half_life=math.inf)
    assert model.prior_weight == 1
    assert model.curve is PRIOR
    for count, weight in ((20, 0.25), (500, (20 / 520) ** 2)):
        while len(model) < count:
            model.record(3.0)
        model.refresh()
        assert model.prior_weight == pytest.approx(weight)
        expected = weight * float(PRIOR.share_after(2.9)) + 1 - weight
        assert model.curve.share_after(2.9) == pytest.approx(expected, abs=0.002)
    assert model.curve.quantile(0.5) == pytest.approx(3.0, rel=0.011)


@pytest.mark.parametrize(("secs", "most_weight"), [(0.01, 1.0), (9.0, 0.05)])
def test_early_interruptions_leave_the_prior(secs: float, most_weight: float) -> None:
    model = LatencyModel(PRIOR)
    for _ in range(100):
        model.record(secs, censored=True)
    model.refresh()
    assert most_weight == 1.0 or model.curve.quantile(0.1) > 8.9
    assert (model.prior_weight == 1.0) is (most_weight == 1.0)
    assert model.prior_weight <= most_weight


def test_observations_halve_with_the_half_life() -> None:
    model = LatencyModel(PRIOR, prior_weight=0, half_life=64)
    for secs in [0.5] * 6400 + [1.5] * 128:
        model.record(secs)
    model.refresh()
    assert model.curve.share_after(1.0) == pytest.approx(0.75, abs=0.01)
    assert model.counts.sum() == pytest.approx(64 / math.log(2), abs=1)


# ---- changes


# ---- counts of other processes


def theirs(count: int, secs: float = 0.3) -> Floats:
    """Answers around a time, and 5 % of them at three times as much."""
    return counts_of(*[secs] * round(0.95 * count), *[3 * secs] * round(0.05 * count))


def informed(count: int, *own: float) -> LatencyModel:
    """A model with observations of its own, and so many of others."""
    model = LatencyModel(PRIOR, prior_weight=20, half_life=math.inf)
    for secs in own:
        model.record(secs)
    model.inform(theirs(count))
    return model


def test_counts_of_others_replace_the_prior() -> None:
    few, many = informed(20), informed(4000)
    assert few.prior_weight == pytest.approx(0.25)
    expected = 0.75 * 0.05 + 0.25 * float(PRIOR.share_after(0.35))
    assert few.curve.share_after(0.35) == pytest.approx(expected, abs=0.04)
    assert many.prior_weight < 1e-4
    assert many.curve.quantile(0.5) == pytest.approx(0.3, rel=0.011)
    many.inform(None)
    assert many.curve is PRIOR


@pytest.mark.parametrize(("own", "share"), [(0, 1.0), (256, 0.25), (8000, 0.001)])
def test_counts_of_others_give_way_to_own_observations(own: int, share: float) -> None:
    """A quarter of the curve is theirs after as many observations as all of them weigh."""
    model = informed(4096, *[0.3] * own)
    assert model.curve.share_after(0.6) == pytest.approx(0.05 * share, abs=0.004)


@pytest.mark.parametrize(("secs", "agrees"), [(0.29, True), (0.9, False)])
def test_others_at_another_level_are_ignored(secs: float, agrees: bool) -> None:
    """A level within a tenth is the same."""
    assert (informed(4096, *[secs] * 100).prior_weight < 0.01) is agrees
