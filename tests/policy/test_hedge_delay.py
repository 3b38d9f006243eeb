"""When another request is worth its price."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policy.hedge_benefit import HedgeBenefit, expected_saving, joint
from pipecat_hedge.policy.priced_delay import PricedDelay
from pipecat_hedge.providers.latency import LatencyEstimate
from pipecat_hedge.providers.latency_model import AnswerTimes
from pipecat_hedge.providers.survival import SurvivalCurve
from pipecat_hedge.race import InFlight, LaunchDecision, Waiting


def exponential(mean_secs: float) -> SurvivalCurve:
    return SurvivalCurve.of([0.0], [1.0], mean_secs)


def lognormal(median: float, sigma: float, stalls: float = 0.0) -> SurvivalCurve:
    """A body, and a share of answers that stall for 5 s on average."""
    secs = np.geomspace(median / 20, median * 20, 4000)
    body = np.array([0.5 * math.erfc(math.log(t / median) / sigma / math.sqrt(2)) for t in secs])
    return SurvivalCurve.of(secs, (1 - stalls) * body + stalls * np.exp(-secs / 5), 5.0)


HEAVY = lognormal(0.5, 0.12, stalls=0.05)
LIGHT = lognormal(0.8, 0.08)
FAST = lognormal(0.1, 0.1)


def saving(first: SurvivalCurve, further: SurvivalCurve, at: float) -> float:
    return float(expected_saving(first, further, np.array([at]))[0])


# ---- the expected saving


@given(st.floats(0.1, 5), st.floats(0.1, 5), st.floats(0, 10))
def test_saving_of_exponential_latencies(first: float, second: float, at: float) -> None:
    """E[(X − Y)⁺] = x²/(x + y) for means x and y, however long the turn has waited."""
    expected = first * first / (first + second)
    saved = saving(exponential(first), exponential(second), at)
    assert saved == pytest.approx(expected, rel=0.03, abs=0.01)


@given(st.floats(0.1, 5), st.floats(0, 3), st.floats(0, 4))
def test_only_waiting_beyond_the_deadline_counts(mean: float, at: float, deadline: float) -> None:
    at_once = SurvivalCurve.of([0.0], [0.0], 1e-3)
    saved = expected_saving(exponential(mean), at_once, np.array([at]), deadline)
    beyond = max(0.0, deadline - at)
    assert saved[0] == pytest.approx(mean * math.exp(-beyond / mean), rel=0.01, abs=1e-6)


@given(st.floats(0, 3), st.floats(0, 30))
def test_joint_curve_is_the_product(sent: float, at: float) -> None:
    both = joint([(HEAVY, 0.0), (LIGHT, sent)])
    expected = HEAVY.share_after(at) * LIGHT.share_after(max(at - sent, -1.0))
    assert both.share_after(at) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(("median", "spread"), [(1.0, 0.03), (2.0, 0.05), (0.3, 0.002)])
def test_narrow_body_is_not_taken_for_a_tail(median: float, spread: float) -> None:
    """The saving jumps where a body ends."""
    body = lognormal(median, spread)
    benefit, at = HedgeBenefit.of(body, body), body.quantile(0.95)
    assert benefit.at_time(at, benefit.saved) == pytest.approx(saving(body, body, at), abs=0.01)


# ---- the time of a hedge


NO_ANSWERS = AnswerTimes(0, 0, 0, 0)


def decision(
    first: SurvivalCurve = HEAVY,
    second: SurvivalCurve = HEAVY,
    share: float = 0.1,
    in_flight: tuple[InFlight, ...] = (InFlight("a", 0.0, None),),
    sentence: SurvivalCurve | None = None,
    **options: Any,
) -> LaunchDecision:
    curves = {"a": first, "b": second}
    known = {n: LatencyEstimate(c, sentence, c, 0.0, NO_ANSWERS, 0) for n, c in curves.items()}
    rule = PricedDelay(known, {"a": share, "b": share}, **options)
    return rule.next_launch(Waiting(in_flight[0].launched_at, in_flight, "b"))


def hedged_at(*curves: Any, **options: Any) -> float:
    at = decision(*curves, **options).at
    assert at is not None
    return at


@pytest.mark.parametrize("share", [0.02, 0.05, 0.1, 0.25])
def test_heavy_tail_is_hedged_for_about_the_share_of_turns(share: float) -> None:
    at = hedged_at(share=share)
    assert HEAVY.quantile(1 - 1.6 * share) <= at <= HEAVY.quantile(1 - 0.8 * share)
    assert " price " in decision(share=share).reason


def test_light_tail_is_not_worth_it() -> None:
    found = decision(LIGHT, LIGHT)
    assert found.at is None or LIGHT.share_after(found.at) < 0.01
    assert found.reason.startswith("tail too light: saves 0.")
    assert "price 0.15 s" in found.reason


def test_rare_stall_is_hedged_when_few_still_wait() -> None:
    rare = lognormal(0.5, 0.12, stalls=0.001)
    at = hedged_at(rare, rare)
    assert 0.001 < rare.share_after(at) < 0.2 * 0.1
    assert saving(rare, rare, at) > 0.15
    assert decision(rare, rare).reason.startswith("saves ")


def test_hang_is_hedged_at_any_price() -> None:
    """After twice the longest typical wait."""
    found = decision(LIGHT, LIGHT, min_saving_secs=60.0)
    assert found.at == pytest.approx(2 * LIGHT.quantile(0.998))
    assert found.reason.endswith(" s, price 60.00 s, unless it hangs")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(lognormal(5.0, 0.05), lognormal(5.0, 0.05), id="both are slow"),
        pytest.param(HEAVY, lognormal(60.0, 0.1), id="the second is slow"),
    ],
)
def test_slow_second_provider_saves_nothing(first: SurvivalCurve, second: SurvivalCurve) -> None:
    at = decision(first, second, min_saving_secs=0.5).at
    assert at is None or at > max(5.0, 2 * first.quantile(0.5))


def test_budget_of_zero_is_never() -> None:
    assert decision(share=0.0) == LaunchDecision(None, "the budget is 0")


@given(st.floats(0.001, 1), st.floats(0.001, 1))
def test_larger_share_never_hedges_later(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert hedged_at(share=high) <= hedged_at(share=low) + 0.05  # the grid's step


@pytest.mark.parametrize("share", [0.1, 0.25, 0.6, 0.95])
def test_budget_larger_than_the_tail_is_not_used_up(share: float) -> None:
    """A turn that is about to be answered is not hedged."""
    body = 0.5 + 0.03 * np.linspace(-2, 2, 400)
    stalls = SurvivalCurve.of(body, np.linspace(0.99, 0.01, 400), 20.0)
    assert 0.55 < hedged_at(stalls, stalls, share=share) < 0.7
    assert decision(stalls, stalls, share=share).reason.startswith("saves ")


def test_fast_second_is_asked_just_before_the_deadline() -> None:
    options: dict[str, Any] = {"share": 0.5, "deadline_secs": 1.5}
    at = hedged_at(HEAVY, FAST, **options)
    assert hedged_at(HEAVY, lognormal(0.6, 0.1), **options) <= at < 1.5
    assert decision(HEAVY, FAST, **options).reason == f"deadline 1.5 s: hedge at {at:.2f} s"


def test_third_attempt_is_timed_after_the_second() -> None:
    first = InFlight("a", 100.0, None)
    alone = hedged_at(in_flight=(first,))
    both = hedged_at(in_flight=(first, InFlight("b", alone, None)))
    assert alone + HEAVY.quantile(0.5) < both < alone + HEAVY.quantile(0.95)


def test_answer_without_a_sentence_is_overtaken() -> None:
    """After its first token an attempt is judged by how soon a sentence usually follows."""
    begun = (InFlight("a", 0.0, 0.4, 0.4),)
    sentence = lognormal(0.15, 0.3)
    typical = decision(in_flight=begun, sentence=sentence).at
    assert typical is None or typical > 0.4 + sentence.quantile(0.84)
    stalls = lognormal(0.15, 0.3, stalls=0.1)
    assert 0.4 + 0.15 < hedged_at(in_flight=begun, sentence=stalls) < 2.0
