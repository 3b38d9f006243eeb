"""When another request is worth its price."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policy.hedge_benefit import BenefitCache, HedgeBenefit, expected_saving, joint
from pipecat_hedge.policy.priced_delay import (
    LatencyEstimate,
    PricedDelay,
)
from pipecat_hedge.policy.survival import SurvivalCurve
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


def waiting(*in_flight: tuple[str, float], further: str = "b", started_at: float = 0.0) -> Waiting:
    attempts = tuple(InFlight(name, started_at + at, None) for name, at in in_flight)
    return Waiting(started_at, attempts, further)


@given(st.floats(0.1, 5), st.floats(0.1, 5), st.floats(0, 10))
def test_the_saving_of_exponential_latencies(first: float, second: float, at: float) -> None:
    """E[(X − Y)⁺] = x²/(x + y) for means x and y, however long has been waited."""
    saved = expected_saving(exponential(first), exponential(second), np.array([at]))
    assert saved[0] == pytest.approx(first * first / (first + second), rel=0.03, abs=0.01)


@given(st.floats(0.1, 5), st.floats(0, 3), st.floats(0, 4))
def test_only_waiting_beyond_the_deadline_counts(mean: float, at: float, deadline: float) -> None:
    """With a further request that answers at once, what is saved is the wait beyond it."""
    at_once = SurvivalCurve.of([0.0], [0.0], 1e-3)
    saved = expected_saving(exponential(mean), at_once, np.array([at]), deadline)
    beyond = max(0.0, deadline - at)
    assert saved[0] == pytest.approx(mean * math.exp(-beyond / mean), rel=0.01, abs=1e-6)


def test_the_saving_against_a_simulation() -> None:
    """The mean of what was saved in as many turns as it takes."""
    random = np.random.default_rng(4)

    def draw(count: int) -> np.ndarray:
        body = np.exp(random.normal(math.log(0.5), 0.12, count))
        return np.where(random.random(count) < 0.05, random.exponential(5, count), body)

    first, second = draw(400_000), draw(400_000)
    for at in (0.3, 0.55, 0.7, 2.0):
        late = first > at
        saved = np.maximum(first - at - second, 0)[late].mean()
        assert expected_saving(HEAVY, HEAVY, np.array([at]))[0] == pytest.approx(saved, rel=0.05)


def test_the_first_of_several_exponentials() -> None:
    """Rates add up, whenever each was sent; before it was sent it cannot answer."""
    both = joint([(exponential(1.0), 0.0), (exponential(0.5), 2.0)])
    assert both.share_after(4.0) == pytest.approx(math.exp(-4.0) * math.exp(-4.0), rel=1e-6)
    assert both.expected_remaining(5.0) == pytest.approx(1 / 3, rel=1e-6)


@given(st.floats(0, 3), st.floats(0, 30))
def test_the_first_of_several(sent: float, at: float) -> None:
    """None has answered by t if each has not."""
    both = joint([(HEAVY, 0.0), (LIGHT, sent)])
    expected = HEAVY.share_after(at) * LIGHT.share_after(max(at - sent, -1.0))
    assert both.share_after(at) == pytest.approx(expected, abs=0.02)


def rule(
    first: SurvivalCurve = HEAVY, second: SurvivalCurve = HEAVY, share: float = 0.1, **options: Any
) -> PricedDelay:
    return PricedDelay(
        {"a": LatencyEstimate(first), "b": LatencyEstimate(second)},
        {"a": share, "b": share},
        **options,
    )


def asked(policy: PricedDelay, *in_flight: tuple[str, float]) -> LaunchDecision:
    return policy.next_launch(waiting(*(in_flight or (("a", 0.0),))))


@pytest.mark.parametrize("share", [0.02, 0.05, 0.1, 0.25])
def test_a_heavy_tail_is_hedged_for_about_the_share_of_turns(share: float) -> None:
    """Between the bounds within which the price decides, and with the reason."""
    decision = asked(rule(share=share))
    assert decision.at is not None
    assert HEAVY.quantile(1 - 1.6 * share) <= decision.at <= HEAVY.quantile(1 - 0.8 * share)
    assert " price " in decision.reason


def test_a_light_tail_is_not_worth_it() -> None:
    """Not before hardly anybody is waiting, and the reason says by how much it falls short."""
    decision = asked(rule(LIGHT, LIGHT))
    assert decision.at is None or LIGHT.share_after(decision.at) < 0.01
    assert decision.reason.startswith("tail too light: saves 0.")
    assert "price 0.15 s" in decision.reason


def test_a_rare_stall_is_hedged_once_hardly_anybody_else_is_left() -> None:
    """It pays then, for far fewer than the share; the reason says that it was not before."""
    rare = lognormal(0.5, 0.12, stalls=0.001)
    decision = asked(rule(rare, rare, share=0.1))
    assert decision.at is not None
    assert 0.001 < rare.share_after(decision.at) < 0.2 * 0.1
    assert expected_saving(rare, rare, np.array([decision.at]))[0] > 0.15
    assert expected_saving(rare, rare, np.array([rare.quantile(0.92)]))[0] == pytest.approx(
        0.05, abs=0.01
    )
    assert decision.reason == f"tail too light: saves 0.05 s until {decision.at:.2f} s"


def test_what_is_never_worth_it_is_launched_only_when_it_hangs() -> None:
    """After a wait that no curve knows: twice the longest usual one."""
    decision = asked(rule(LIGHT, LIGHT, min_saving_secs=60.0))
    assert decision.at == pytest.approx(2 * LIGHT.quantile(0.998))
    assert decision.reason.endswith(" s, price 60.00 s, unless it hangs")


def test_who_has_waited_five_seconds_is_worth_any_price() -> None:
    """Whatever the purse says, and however long a provider is known to hang."""
    hangs = SurvivalCurve.of([0.4, 30.0], [0.6, 0.5], 30.0)
    fast = lognormal(0.4, 0.1)
    for share in (0.5, 0.1, 1e-3, 1e-12, 1e-300):
        decision = asked(rule(hangs, fast, share=share))
        assert decision.at is not None
        assert decision.at <= 5.0 + 1e-9


def test_everybody_slow_is_no_reason_to_hedge() -> None:
    """A wait that is usual for both is not shortened by another one: constant work."""
    slow = lognormal(5.0, 0.05)
    decision = asked(rule(slow, slow))
    assert decision.at is not None
    assert decision.at > 2 * slow.quantile(0.5)


def test_without_a_budget_there_is_no_hedge() -> None:
    """A share of 0 is never."""
    assert asked(rule(share=0.0)) == LaunchDecision(None, "the budget is 0")


def test_what_costs_nothing_is_launched_as_soon_as_it_is_worth_it() -> None:
    """The price at a share of 1 is the least saving."""
    free = asked(rule(share=1.0, min_saving_secs=0.3)).at
    dear = asked(rule(share=0.05, min_saving_secs=0.3)).at
    assert free is not None
    assert dear is not None
    assert free < 0.5 < dear
    assert expected_saving(HEAVY, HEAVY, np.array([free]))[0] > 0.25


def test_one_request_alone_is_its_own_curve() -> None:
    """Sent at the beginning, there is nothing to put together."""
    assert joint([(HEAVY, 0.0)]) is HEAVY


@given(st.floats(0.001, 1), st.floats(0.001, 1))
def test_a_larger_share_never_hedges_later(one: float, other: float) -> None:
    """The budget delays and does not forbid."""
    low, high = sorted((one, other))
    late, early = asked(rule(share=low)).at, asked(rule(share=high)).at
    assert late is not None
    assert early is not None
    assert early <= late + 0.05  # two times at which it is computed are so far apart


@given(st.floats(0.01, 0.04), st.floats(0, 2))
def test_who_has_waited_long_is_worth_any_price(share: float, benefit: float) -> None:
    """By the time by which all but 0.8 times the share have answered."""
    at = asked(rule(share=share, min_saving_secs=benefit)).at
    assert at is not None
    latest = HEAVY.quantile(1 - 0.8 * share)
    if expected_saving(HEAVY, HEAVY, np.array([latest]))[0] > benefit:
        assert at <= latest + 1e-9


def test_a_slow_second_provider_saves_nothing() -> None:
    """When everybody is slow hedging stops by itself."""
    decision = asked(rule(HEAVY, lognormal(60.0, 0.1), min_saving_secs=0.5))
    assert decision.at is None or decision.at > 5


def test_with_a_deadline_a_fast_second_is_asked_just_in_time() -> None:
    """Later than one that needs longer, and the reason names the deadline."""
    fast = asked(rule(HEAVY, lognormal(0.1, 0.1), share=0.5, deadline_secs=1.5))
    slower = asked(rule(HEAVY, lognormal(0.6, 0.1), share=0.5, deadline_secs=1.5))
    assert fast.at is not None
    assert slower.at is not None
    assert slower.at <= fast.at < 1.5
    assert fast.reason == f"deadline 1.5 s: hedge at {fast.at:.2f} s"


def test_the_third_attempt_is_the_same_question_again() -> None:
    """With two requests in flight: after the second, on the turn's own clock."""
    policy = rule()
    alone = policy.next_launch(waiting(("a", 0.0), started_at=100.0)).at
    assert alone is not None
    both = policy.next_launch(waiting(("a", 0.0), ("b", alone - 100), started_at=100.0)).at
    assert both is not None
    assert alone + HEAVY.quantile(0.5) < both < alone + HEAVY.quantile(0.95)


def test_a_replacement_is_hedged_by_its_own_time() -> None:
    """An attempt that was launched late is waited for as long as any other."""
    policy = rule()
    alone = policy.next_launch(waiting(("a", 0.0))).at
    later = policy.next_launch(waiting(("a", 7.0))).at
    assert alone is not None
    assert later == pytest.approx(7.0 + alone, abs=0.05)


def test_an_attempt_that_dribbles_is_overtaken() -> None:
    """After its first token it is judged by how soon a sentence usually follows."""
    sentence = lognormal(0.15, 0.3)
    policy = PricedDelay(
        {"a": LatencyEstimate(HEAVY, sentence), "b": LatencyEstimate(HEAVY, sentence)},
        {"a": 0.1, "b": 0.1},
    )
    talking = Waiting(0.0, (InFlight("a", 0.0, 0.4, 0.4),), "b")
    decision = policy.next_launch(talking)
    assert decision.at is None or decision.at > 0.4 + sentence.quantile(0.84)
    heavy = LatencyEstimate(HEAVY, lognormal(0.15, 0.3, stalls=0.1))
    dribbles = PricedDelay({"a": heavy, "b": heavy}, {"a": 0.1, "b": 0.1}).next_launch(talking)
    assert dribbles.at is not None
    assert 0.4 + 0.15 < dribbles.at < 2.0


def test_what_was_computed_is_remembered_for_the_same_curves() -> None:
    """And only for those, however many there were."""
    benefits = BenefitCache()
    curves = [lognormal(0.5, 0.1 + 0.001 * number) for number in range(70)]
    first = benefits.of(curves[0], curves[1], None)
    assert benefits.of(curves[0], curves[1], None) is first
    assert benefits.of(curves[1], curves[0], None) is not first
    assert benefits.of(curves[0], curves[1], 1.0) is not first
    for one, other in itertools.pairwise(curves):
        assert benefits.of(one, other, None).saved[0] == pytest.approx(
            float(expected_saving(one, other, np.array([0.0]))[0])
        )


def test_between_and_beyond_the_times_that_were_computed() -> None:
    """Evenly between two, and as at the last one beyond it."""
    benefit = HedgeBenefit((0.0, 1.0, 2.0), (0.0, 2.0, 1.0), (0.0, 2.0, 2.0), (1.0, 0.5, 0.1))
    assert [benefit.at_time(t, benefit.saved) for t in (0.0, 0.5, 1.5, 2.0, 9.0)] == [
        0,
        1,
        1.5,
        1,
        1,
    ]
    assert benefit.first_above(1.0, 0.0) == 0.5
    assert benefit.first_above(1.0, 0.75) == 0.75
    assert benefit.first_above(3.0, 0.0) is None
    assert benefit.first_above(1.5, 1.9) is None


def test_a_narrow_body_is_not_taken_for_a_tail() -> None:
    """V jumps where a body ends; what lies in front of the jump is not in between."""
    for median, spread in ((1.0, 0.03), (2.0, 0.05), (0.3, 0.002)):
        body = lognormal(median, spread)
        benefit = HedgeBenefit.of(body, body)
        at = body.quantile(0.95)
        exact = expected_saving(body, body, np.array([at]))[0]
        assert benefit.at_time(at, benefit.saved) == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.6, 0.95])
def test_a_budget_that_is_larger_than_the_tail_is_not_used_up(share: float) -> None:
    """Who is about to be answered is not hedged, though there would be money for it."""
    body = 0.5 + 0.03 * np.linspace(-2, 2, 400)
    stalls = SurvivalCurve.of(body, np.linspace(0.99, 0.01, 400), 20.0)
    decision = asked(rule(stalls, stalls, share=share))
    assert decision.at is not None
    assert 0.55 < decision.at < 0.7
    assert decision.reason.startswith("saves ")
