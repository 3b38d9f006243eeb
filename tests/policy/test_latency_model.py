"""The latency model: a decayed, censored and mergeable survival curve."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge import HedgeError
from pipecat_hedge.policy.latency_model import BUCKETS, LatencyModel, bucket_of, value_of
from pipecat_hedge.policy.survival import Floats, SurvivalCurve

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


def test_area_is_that_under_the_curve_and_its_tail() -> None:
    rng = random.Random(3)
    model = LatencyModel(PRIOR)
    for _ in range(200):
        model.record(rng.lognormvariate(-0.5, 0.7), censored=rng.random() < 0.2)
    grid = np.arange(0, 200, 1e-3)
    for t in (0.0, 0.3, 0.777, 2.5, 20.0):
        above = grid[grid >= t]
        summed = float(model.curve.share_after(above).sum() * 1e-3)
        assert model.curve.area_after(t) == pytest.approx(summed, rel=0.01, abs=1e-3)


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


def test_cancellations_beyond_all_answers_change_nothing() -> None:
    curve = learned(*[0.3] * 50, censored=tuple([5.0] * 50)).curve
    assert curve.share_after(4.9) == pytest.approx(0.5, abs=0.01)
    assert curve.quantile(0.6) > 5.0


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


def test_censored_losers_keep_the_learned_p95_unbiased() -> None:
    """Recording winners alone drifts: each hedge hides a slow answer."""
    rng, model = random.Random(11), LatencyModel(PRIOR, prior_weight=0)

    def latency() -> float:
        stall = rng.expovariate(1 / 3) if rng.random() < 0.03 else 0.0
        return rng.lognormvariate(-0.7, 0.35) + stall

    for _ in range(1024):
        model.record(latency())
    hedged, p95 = 0, 0.0
    for turn in range(16_000):
        if turn % 16 == 0:
            p95 = model.curve.quantile(0.95)
        first, second = latency(), latency()
        won_at = min(first, p95 + second)
        model.record(min(first, won_at), censored=first > won_at)
        if first > p95:
            hedged += 1
            model.record(won_at - p95, censored=first <= won_at)
    assert 0.045 < hedged / 16_000 < 0.055


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LatencyModel(PRIOR).record(-0.1), "secs must not be negative, got -0.1"),
        (lambda: LatencyModel(PRIOR).record(float("nan")), "secs must not be negative, got nan"),
        (lambda: LatencyModel(PRIOR).record(float("inf")), "got inf: it must be finite"),
        (lambda: PRIOR.quantile(1.0), "p must be from 0 to below 1, got 1.0"),
    ],
)
def test_bad_input_is_named(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(HedgeError, match=message.replace("(", r"\(")):
        make()


def test_curve_is_recomputed_after_three_per_cent_more() -> None:
    model = LatencyModel(PRIOR)
    curves = list[SurvivalCurve]()
    for _ in range(1024):
        model.record(0.4)
        curves.append(model.curve)
    assert len({id(curve) for curve in curves[512:]}) <= 512 / 16


def test_curves_can_be_scaled_and_delayed() -> None:
    for p in (0.2, 0.5, 0.95, 0.999):
        assert PRIOR.scaled(3.0).quantile(p) == pytest.approx(3 * PRIOR.quantile(p))
        if p >= 0.5:
            assert PRIOR.delayed(0.7).quantile(p) == pytest.approx(0.7 + PRIOR.quantile(p))
    assert PRIOR.delayed(0.7).share_after(0.6) == 1.0
    assert PRIOR.delayed(0) is PRIOR
    assert PRIOR.scaled(2.0).area_after(1.0) == pytest.approx(2 * float(PRIOR.area_after(0.5)))


# ---- changes


def test_a_new_start_keeps_the_latest() -> None:
    model = LatencyModel(PRIOR, prior_weight=1, half_life=math.inf)
    for secs in (9.0, 8.0, 0.5, 0.6):
        model.record(secs, censored=secs == 0.6)
    model.restart(PRIOR.scaled(3.0), keep=2)
    assert np.array_equal(model.counts, counts_of(0.5, censored=(0.6,)))
    model.restart(PRIOR.scaled(3.0))
    assert len(model) == 0
    assert model.curve.quantile(0.5) == pytest.approx(1.5)
    model.rebase(PRIOR)
    assert model.curve is PRIOR


def test_observations_put_aside_are_resumed() -> None:
    model = LatencyModel(PRIOR, prior_weight=1)
    for secs in (0.5, 0.6, 8.0, 9.0):
        model.record(secs)
    model.restart(PRIOR.scaled(3.0), keep=2, put_aside_but=2)
    model.record(7.0)
    model.restart(PRIOR.scaled(9.0), keep=1)
    model.record(0.7, censored=True)
    model.resume(keep=1)
    expected = LatencyModel(PRIOR, prior_weight=1)
    for secs, censored in ((0.5, False), (0.6, False), (0.7, True)):
        expected.record(secs, censored=censored)
    expected.refresh()
    assert model.counts == pytest.approx(expected.counts)
    assert len(model) == 3
    assert model.prior_weight == pytest.approx(expected.prior_weight, rel=1e-3)
    assert model.curve.quantile(0.9) == pytest.approx(expected.curve.quantile(0.9))


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


def test_after_a_change_others_count_when_they_agree() -> None:
    model = LatencyModel(PRIOR, prior_weight=20)
    model.inform(theirs(4096))
    for _ in range(12):
        model.record(3.0)
    model.restart(PRIOR.scaled(6.0), keep=12)
    for secs, agrees in ((0.3, False), (3.0, True)):
        model.inform(theirs(4096, secs))
        assert (model.prior_weight < 0.01) is agrees
    model.restart(PRIOR)
    model.inform(theirs(4096))
    assert model.prior_weight == 1.0, "nothing has been seen yet that would agree"
