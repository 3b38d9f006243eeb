"""When another request is worth its price."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge import HedgeError
from pipecat_hedge.facts import InFlight, Waiting
from pipecat_hedge.policies.hedge_delay import PricedDelay, joint, savings
from pipecat_hedge.survival import Survival


def exponential(mean_secs: float) -> Survival:
    return Survival.of([0.0], [1.0], mean_secs)


def lognormal(median: float, sigma: float, stalls: float = 0.0) -> Survival:
    """A body, and a share of answers that stall for 5 s on average."""
    secs = np.geomspace(median / 20, median * 20, 4000)
    body = np.array([0.5 * math.erfc(math.log(t / median) / sigma / math.sqrt(2)) for t in secs])
    return Survival.of(secs, (1 - stalls) * body + stalls * np.exp(-secs / 5), 5.0)


HEAVY = lognormal(0.5, 0.12, stalls=0.05)
LIGHT = lognormal(0.8, 0.08)


def waiting(*in_flight: tuple[str, float], further: str = "b", started_at: float = 0.0) -> Waiting:
    attempts = tuple(InFlight(name, started_at + at, None) for name, at in in_flight)
    return Waiting(started_at, attempts, further)


@given(st.floats(0.1, 5), st.floats(0.1, 5), st.floats(0, 10))
def test_the_saving_of_exponential_latencies(first: float, second: float, at: float) -> None:
    """E[(X − Y)⁺] = x²/(x + y) for means x and y, however long has been waited."""
    saved = savings(exponential(first), exponential(second), np.array([at]))
    assert saved[0] == pytest.approx(first * first / (first + second), rel=0.03, abs=0.01)


@given(st.floats(0.1, 5), st.floats(0, 3), st.floats(0, 4))
def test_only_waiting_beyond_the_deadline_counts(mean: float, at: float, deadline: float) -> None:
    """With a further request that answers at once, what is saved is the wait beyond it."""
    at_once = Survival.of([0.0], [0.0], 1e-3)
    saved = savings(exponential(mean), at_once, np.array([at]), deadline)
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
        assert savings(HEAVY, HEAVY, np.array([at]))[0] == pytest.approx(saved, rel=0.05)


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


def test_a_heavy_tail_is_hedged_where_it_begins() -> None:
    """Once the body has gone by, and with the reason."""
    rule = PricedDelay({"a": HEAVY, "b": HEAVY}, price_secs=1.0)
    decision = rule.next_launch(waiting(("a", 0.0)))
    assert decision.at is not None
    assert HEAVY.quantile(0.7) < decision.at < HEAVY.quantile(0.96)
    assert "price 1.00 s" in decision.reason


def test_a_light_tail_is_not_worth_it() -> None:
    """It never reaches the price, and the reason says by how much it falls short."""
    rule = PricedDelay({"a": LIGHT, "b": LIGHT}, price_secs=6.0)
    decision = rule.next_launch(waiting(("a", 0.0)))
    assert decision.at is None
    assert decision.reason.startswith("tail too light: saves ")
    assert decision.reason.endswith(" s, price 6.00 s")


@given(st.floats(0, 4), st.floats(0, 4))
def test_a_higher_price_never_hedges_earlier(one: float, other: float) -> None:
    """And may hedge not at all."""
    low, high = sorted((one, other))
    curves = {"a": HEAVY, "b": HEAVY}
    first = PricedDelay(curves, low).next_launch(waiting(("a", 0.0))).at
    second = PricedDelay(curves, high).next_launch(waiting(("a", 0.0))).at
    if second is not None:
        assert first is not None
        assert first <= second + 1e-9


def test_a_slow_second_provider_saves_nothing() -> None:
    """When everybody is slow hedging stops by itself."""
    slow = lognormal(60.0, 0.1)
    decision = PricedDelay({"a": HEAVY, "b": slow}, 0.5).next_launch(waiting(("a", 0.0)))
    assert decision.at is None or decision.at > 5


def test_with_a_deadline_a_fast_second_is_asked_just_in_time() -> None:
    """Later than one that needs longer, and the reason names the deadline."""
    fast, slower = lognormal(0.1, 0.1), lognormal(0.6, 0.1)
    asked = {
        name: PricedDelay({"a": HEAVY, "b": curve}, 0.5, deadline_secs=1.5).next_launch(
            waiting(("a", 0.0))
        )
        for name, curve in (("fast", fast), ("slower", slower))
    }
    fast_at, slower_at = asked["fast"].at, asked["slower"].at
    assert fast_at is not None
    assert slower_at is not None
    assert slower_at <= fast_at < 1.5
    assert asked["fast"].reason == f"deadline 1.5 s: hedge at {fast_at:.2f} s"


def test_the_third_attempt_is_the_same_question_again() -> None:
    """With two requests in flight: after the second, on the turn's own clock."""
    rule = PricedDelay({"a": HEAVY, "b": HEAVY}, price_secs=1.0)
    alone = rule.next_launch(waiting(("a", 0.0), started_at=100.0)).at
    assert alone is not None
    both = rule.next_launch(waiting(("a", 0.0), ("b", alone - 100), started_at=100.0)).at
    assert both is not None
    assert both > alone + HEAVY.quantile(0.5)


def test_a_price_that_is_none_is_refused() -> None:
    """The error names the field."""
    with pytest.raises(HedgeError, match="price_secs must not be negative, got -1"):
        PricedDelay({}, -1)
