"""What is learned from latencies, those included that were never seen to their end."""

from __future__ import annotations

import random
import statistics
import time

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipecat_hedge import HedgeError
from pipecat_hedge.policy.hedge_benefit import joint
from pipecat_hedge.policy.latency_model import LatencyModel
from pipecat_hedge.policy.survival import SurvivalCurve

PRIOR = SurvivalCurve.of([0.0, 0.5, 1.0], [1.0, 0.5, 0.1], 1.0)


def learned(*secs: float, censored: tuple[float, ...] = ()) -> LatencyModel:
    """A model without a prior in which all observations weigh the same."""
    model = LatencyModel(PRIOR, prior_weight=0, half_life=1e12)
    for value in secs:
        model.record(value)
    for value in censored:
        model.record(value, censored=True)
    return model


def test_kaplan_and_meiers_estimate() -> None:
    """The classic data set: weeks in remission under 6-MP (Freireich et al., 1963)."""
    came = (6, 6, 6, 7, 10, 13, 16, 22, 23)
    censored = (6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35)
    curve = learned(*came, censored=censored).curve
    published = {5: 1.0, 6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    for weeks, share in published.items():
        assert curve.share_after(weeks) == pytest.approx(share, abs=5e-4)
    assert curve.share_after(35) == pytest.approx(0.448, abs=5e-4)


@given(st.lists(st.floats(0.01, 60), min_size=2, max_size=300))
def test_without_censoring_it_is_the_empirical_share(secs: list[float]) -> None:
    """But for what is slower than all that was seen."""
    curve = learned(*secs).curve
    for t in secs:
        share = sum(value > t for value in secs) / len(secs)
        assert curve.share_after(t) == pytest.approx(max(share, 1 / (len(secs) + 1)))


@given(
    st.lists(st.tuples(st.floats(0, 60), st.booleans()), max_size=100),
    st.floats(0, 100),
    st.floats(0, 100),
)
def test_a_curve_falls(observed: list[tuple[float, bool]], earlier: float, later: float) -> None:
    """From 1, never below 0, with a positive wait always left."""
    model = LatencyModel(PRIOR)
    for secs, censored in observed:
        model.record(secs, censored=censored)
    earlier, later = min(earlier, later), max(earlier, later)
    before, after = model.curve.share_after(earlier), model.curve.share_after(later)
    assert 1 >= before >= after >= 0
    assert model.curve.expected_remaining(later) > 0


@given(
    st.lists(st.tuples(st.floats(0.01, 60), st.booleans()), max_size=60),
    st.lists(st.floats(0, 0.9999), min_size=2, max_size=2),
)
def test_a_quantile_is_where_the_curve_has_fallen_so_far(
    observed: list[tuple[float, bool]], shares: list[float]
) -> None:
    """The smallest time after which at most 1 − p are left; a larger share takes longer."""
    model = LatencyModel(PRIOR)
    for secs, censored in observed:
        model.record(secs, censored=censored)
    low, high = sorted(shares)
    assert model.curve.quantile(low) <= model.curve.quantile(high)
    at = model.curve.quantile(high)
    assert model.curve.share_after(at + 1e-9) <= 1 - high + 1e-9
    if at > 0:
        assert model.curve.share_after(at * (1 - 1e-9) - 1e-9) >= 1 - high - 1e-9


def test_the_area_is_that_under_the_curve() -> None:
    """Against a sum over a fine grid, tail included."""
    rng = random.Random(3)
    model = LatencyModel(PRIOR)
    for _ in range(200):
        model.record(rng.lognormvariate(-0.5, 0.7), censored=rng.random() < 0.2)
    grid = np.arange(0, 200, 1e-3)
    for t in (0.0, 0.3, 0.777, 2.5, 20.0):
        above = grid[grid >= t]
        summed = float(model.curve.share_after(above).sum() * 1e-3)
        assert model.curve.area_after(t) == pytest.approx(summed, rel=0.01, abs=1e-3)


def test_the_model_answers_for_its_curve() -> None:
    """The three questions, without the detour."""
    model = learned(*(0.1 * k for k in range(1, 101)))
    assert model.survival(5.0) == pytest.approx(0.5, abs=0.011)
    assert model.quantile(0.95) == pytest.approx(9.5, abs=0.11)
    assert model.expected_remaining(5.0) == model.curve.expected_remaining(5.0)


def test_the_tail_is_that_of_the_slowest() -> None:
    """Of exponential latencies the same wait is always left, though many were cancelled."""
    rng = random.Random(5)
    model = LatencyModel(PRIOR, prior_weight=0, window=4000, half_life=1e12)
    for _ in range(4000):
        secs = rng.expovariate(1 / 0.8)
        model.record(min(secs, 2.0), censored=secs > 2.0)
    for elapsed in (0.0, 1.0, 1.9, 5.0, 30.0):
        assert model.curve.expected_remaining(elapsed) == pytest.approx(0.8, rel=0.15)


def test_the_prior_gives_way() -> None:
    """It is everything at first, a quarter after as many observations, nothing after hundreds."""
    model = LatencyModel(PRIOR, prior_weight=20, half_life=1e12)
    assert model.prior_weight == 1
    assert model.curve.quantile(0.5) == 0.5
    for _ in range(20):
        model.record(3.0)
    assert model.prior_weight == pytest.approx(0.25)
    assert model.curve.share_after(2.9) == pytest.approx(
        0.75 + 0.25 * float(PRIOR.share_after(2.9)), abs=0.002
    )
    for _ in range(480):
        model.record(3.0)
    assert model.prior_weight == pytest.approx((20 / 520) ** 2)
    assert model.curve.quantile(0.5) == 3.0


def test_what_was_cut_short_at_once_says_nothing() -> None:
    """A hundred calls interrupted at their beginning leave what was assumed as it is."""
    model = LatencyModel(PRIOR)
    for _ in range(100):
        model.record(0.01, censored=True)
    assert model.prior_weight == 1.0
    assert model.quantile(0.5) == PRIOR.quantile(0.5)
    for _ in range(100):
        model.record(9.0, censored=True)
    assert model.prior_weight < 0.05
    assert model.quantile(0.1) > 9.0


def test_recent_observations_weigh_more() -> None:
    """After a shift the curve follows before the window has turned over."""
    model = LatencyModel(PRIOR, prior_weight=0, window=512, half_life=64)
    for secs in [0.5] * 512 + [1.5] * 128:
        model.record(secs)
    assert model.curve.share_after(1.0) == pytest.approx(0.75, abs=0.01)


def test_the_window_forgets() -> None:
    """What is older than the window does not count at all."""
    model = LatencyModel(PRIOR, prior_weight=0, window=4)
    for secs in (9.0, 1.0, 1.0, 1.0, 1.0):
        model.record(secs)
    assert len(model) == 4
    assert model.curve.share_after(1.0) == pytest.approx(1 / 5)


def test_cancelled_answers_do_not_make_a_provider_look_fast() -> None:
    """Hedging at the learned p95, window after window, stays at 5 % of turns.

    Recording winners alone, the same experiment drifts upwards: each hedge hides a slow answer.
    """
    rng = random.Random(11)

    def latency() -> float:
        return rng.lognormvariate(-0.7, 0.35) + (
            rng.expovariate(1 / 3) if rng.random() < 0.03 else 0
        )

    def rates(censoring: bool) -> list[float]:
        model = LatencyModel(PRIOR, prior_weight=0)
        for _ in range(512):
            model.record(latency())
        hedged: list[float] = []
        for _ in range(8):
            count, p95 = 0, 0.0
            for turn in range(2000):
                if turn % 16 == 0:
                    p95 = model.curve.quantile(0.95)
                first, second = latency(), latency()
                if first <= p95:
                    model.record(first)
                    continue
                count += 1
                won_at = min(first, p95 + second)
                if first <= won_at:
                    model.record(first)
                elif censoring:
                    model.record(won_at, censored=True)
                if censoring or first > won_at:
                    model.record(won_at - p95, censored=first <= won_at)
            hedged.append(count / 2000)
        return hedged

    ours, naive = rates(censoring=True), rates(censoring=False)
    assert 0.045 < float(np.mean(ours)) < 0.055
    assert abs(float(np.mean(ours[:3])) - float(np.mean(ours[-3:]))) < 0.006
    assert float(np.mean(naive[-3:])) > 0.06


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: LatencyModel(PRIOR, window=0), "window must be at least 1, got 0"),
        (lambda: LatencyModel(PRIOR, half_life=0), "half_life must be positive, got 0"),
        (lambda: LatencyModel(PRIOR, prior_weight=-1), "prior_weight must not be negative"),
        (lambda: LatencyModel(PRIOR).record(-0.1), "secs must not be negative, got -0.1"),
        (lambda: LatencyModel(PRIOR).record(float("nan")), "secs must not be negative, got nan"),
        (lambda: LatencyModel(PRIOR).record(float("inf")), "got inf: it must be finite"),
        (lambda: PRIOR.quantile(1.0), "p must be from 0 to below 1, got 1.0"),
        (
            lambda: SurvivalCurve.of([], [], 1),
            "secs and shares must be of one length and not empty",
        ),
        (lambda: SurvivalCurve.of([2, 1], [1, 0.5], 1), "secs must be ascending"),
        (lambda: SurvivalCurve.of([1, 2], [0.5, 0.6], 1), "shares must fall"),
        (lambda: SurvivalCurve.of([1], [0.5], 0), "tail_secs must be positive, got 0"),
    ],
)
def test_bad_input_is_named(make: object, told: str) -> None:
    """The field and what it should be."""
    assert callable(make)
    with pytest.raises(HedgeError, match=told.replace("(", r"\(")):
        make()


def test_what_it_costs(capsys: pytest.CaptureFixture[str]) -> None:
    """Under 5 µs to record and 200 µs to ask, window full, machine quiet: so many sorted lists."""
    rng = random.Random(1)
    model = LatencyModel(PRIOR, window=512)
    yardstick = [rng.expovariate(1) for _ in range(512)]
    for secs in yardstick:
        model.record(secs)
    recorded, asked, sorting = [], [], []
    for _ in range(200):
        began = time.perf_counter()
        for _ in range(10):
            model.record(0.5)
        then = time.perf_counter()
        model.curve.quantile(0.95)
        at_last = time.perf_counter()
        sorted(yardstick)
        recorded.append((then - began) / 10)
        asked.append(at_last - then)
        sorting.append(time.perf_counter() - at_last)
    one_list = statistics.median(sorting)
    to_record, to_ask = statistics.median(recorded), statistics.median(asked)
    with capsys.disabled():
        print(
            f"\nrecord {to_record * 1e6:.2f} µs, quantile of 512 {to_ask * 1e6:.0f} µs, "
            f"512 numbers sorted {one_list * 1e6:.0f} µs"
        )
    assert to_record < one_list / 5
    assert to_ask < one_list * 30


def test_a_new_start_keeps_the_latest() -> None:
    """And what is assumed is new."""
    model = LatencyModel(PRIOR, prior_weight=1)
    for secs in (9.0, 8.0, 0.5, 0.6):
        model.record(secs, censored=secs == 0.6)
    model.restart(PRIOR.scaled(3.0), keep=2)
    assert model.observations == [(0.5, False), (0.6, True)]
    model.restart(PRIOR.scaled(3.0))
    assert len(model) == 0
    assert model.curve.quantile(0.5) == pytest.approx(1.5)
    model.rebase(PRIOR)
    assert model.curve is PRIOR
    model.record(7.0)
    model.rebase(PRIOR.scaled(9.0))
    assert model.observations == [(7.0, False)], "what was learned is not thrown away"


def test_what_was_put_aside_can_be_taken_up_again() -> None:
    """With the latest few behind it; and once only."""
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
    assert model.observations == expected.observations
    assert model.prior_weight == expected.prior_weight
    assert model.quantile(0.9) == expected.quantile(0.9)
    with pytest.raises(HedgeError, match="nothing was put aside"):
        model.resume()


@example([1.0] * 3 + [2.0] * 5, 1.0, 8)
@given(
    st.lists(st.floats(0.01, 50.0), min_size=1, max_size=600),
    st.floats(0.01, 30.0),
    st.integers(8, 128),
)
def test_a_thinned_curve_is_the_same_but_for_its_grain(
    secs: list[float], tail_secs: float, most: int
) -> None:
    """Its mean and its tail are kept, its quantiles are off by no more than a step's share."""
    secs = sorted(secs)
    shares = 1 - (np.arange(len(secs)) + 1) / (len(secs) + 1)
    curve = SurvivalCurve.of(secs, shares, tail_secs)
    thin = curve.thinned(most)
    assert thin.secs.size <= most + 1
    assert thin.expected_remaining(0.0) == pytest.approx(curve.expected_remaining(0.0))
    assert thin.quantile(0.9999) == pytest.approx(curve.quantile(0.9999))
    for p in (0.2, 0.5, 0.8):
        off = 2.5 / (most // 2 - 1) + 1e-6
        assert curve.quantile(max(p - off, 0)) <= thin.quantile(p) + 1e-9
        assert thin.quantile(p) <= curve.quantile(min(p + off, 0.9999)) + 1e-9
    if curve.secs.size <= most:
        assert thin is curve


@pytest.mark.parametrize("seed", range(20))
def test_a_thinned_curve_is_a_curve(seed: int) -> None:
    """No share of it is above 1, not by the last digit: what a further attempt saves is found."""
    secs = np.sort(np.random.default_rng(seed).exponential(1.0, 200))
    thin = SurvivalCurve.of(secs, 1 - (np.arange(200) + 1) / 201, 1.0).thinned()
    assert thin.shares[0] <= 1.0
    assert joint([(thin, 0.0), (thin, 0.3)]).shares[0] == pytest.approx(1.0)


def test_a_curve_cannot_be_thinned_to_nothing() -> None:
    """Its ends and its tail must stay."""
    with pytest.raises(HedgeError, match="most must be at least 4, got 3"):
        PRIOR.thinned(3)


def test_a_curve_can_be_scaled_and_delayed() -> None:
    """Every latency so many times as long, or so much longer."""
    for p in (0.2, 0.5, 0.95, 0.999):
        assert PRIOR.scaled(3.0).quantile(p) == pytest.approx(3 * PRIOR.quantile(p))
        if p >= 0.5:
            assert PRIOR.delayed(0.7).quantile(p) == pytest.approx(0.7 + PRIOR.quantile(p))
    assert PRIOR.delayed(0.7).share_after(0.6) == 1.0
    assert PRIOR.delayed(0) is PRIOR
    assert PRIOR.scaled(2.0).area_after(1.0) == pytest.approx(2 * float(PRIOR.area_after(0.5)))
    with pytest.raises(HedgeError, match="factor must be positive, got 0"):
        PRIOR.scaled(0)


# ---- what others have seen

THEIRS = SurvivalCurve.of([0.29, 0.3, 0.31, 0.9], [0.9, 0.49, 0.05, 0.005], 0.5)


def test_what_others_have_seen_takes_the_place_of_the_prior() -> None:
    """As far as they have seen enough; and then nothing is assumed any more."""
    model = LatencyModel(PRIOR, prior_weight=20)
    assert model.inform(THEIRS, 20)
    assert model.prior_weight == pytest.approx(0.25)
    assert model.curve.share_after(0.35) == pytest.approx(
        0.75 * 0.05 + 0.25 * float(PRIOR.share_after(0.35))
    )
    assert model.inform(THEIRS, 4000)
    assert model.prior_weight < 1e-4
    assert model.quantile(0.5) == 0.3
    assert model.inform(None)
    assert model.prior_weight == 1.0
    assert model.quantile(0.5) == 0.5
    assert not model.inform(None)


def test_what_others_have_seen_gives_way_slowly() -> None:
    """A quarter of the curve is theirs after as many observations as all of them weigh."""
    model = LatencyModel(PRIOR, prior_weight=20, half_life=1e12)
    model.inform(THEIRS, 4096)
    for _ in range(256):
        model.record(0.3)
    tail = float(THEIRS.share_after(0.5))
    assert model.curve.share_after(0.5) == pytest.approx(tail / 4, abs=0.004)
    for _ in range(8_000):
        model.record(0.3)
    assert not model.inform(THEIRS, 600)  # no more than that: what they know is known here
    assert model.prior_weight < 1e-5


def test_others_who_see_something_else_weigh_no_more_than_a_guess() -> None:
    """They ask from elsewhere, say. A level within a tenth is the same, however narrow."""
    near, far = (LatencyModel(PRIOR, prior_weight=20, half_life=1e12) for _ in range(2))
    for model, secs in ((near, 0.29), (far, 0.9)):
        for _ in range(100):
            model.record(secs)
        model.inform(THEIRS, 4096)
    assert near.curve.share_after(0.3) == pytest.approx(0.5 * (256 / 356) ** 2, abs=0.02)
    assert far.curve.share_after(0.5) > 0.96


def test_a_change_is_one_for_what_others_have_seen_too() -> None:
    """Until they are asked again, what is assumed is what the change says."""
    model = LatencyModel(PRIOR, prior_weight=20)
    model.inform(THEIRS, 4096)
    model.record(0.3)
    model.restart(PRIOR.scaled(10.0), put_aside_but=0)
    assert model.quantile(0.5) == 5.0
    assert model.prior_weight == 1.0
    model.resume()
    assert model.prior_weight < 1.0
    assert model.quantile(0.5) != 5.0


def test_the_same_prior_again_changes_nothing() -> None:
    """The curve is the same object; another prior is combined with what others have seen."""
    model = LatencyModel(PRIOR)
    model.inform(THEIRS, 20)
    curve = model.curve
    model.rebase(PRIOR)
    assert model.curve is curve
    model.rebase(PRIOR.scaled(4.0))
    assert model.curve.share_after(1.9) == pytest.approx(
        0.75 * float(THEIRS.share_after(1.9)) + 0.25, abs=1e-3
    )
