"""Whom to ask first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policy.hedge_policy import AfterSilence
from pipecat_hedge.policy.routing import Probing, Route, route
from pipecat_hedge.policy.slow_period import SLOW, SlowPeriod
from pipecat_hedge.race import Attempt, InFlight, Slot, Waiting

NAMES = ("a", "b", "c")
LEVEL_SECS = 2.0


def slow() -> SlowPeriod:
    slow_period = SlowPeriod()
    for _ in range(SLOW):
        attempt = Attempt(0, Slot("a"), "primary", 0.0)
        attempt.outcome = "won"
        slow_period.ended(attempt, LEVEL_SECS, 1.0, has_answered=True)
    return slow_period


def order(
    median_secs: dict[str, float],
    *turned_slow: str,
    budget: float = 0.1,
    in_debt: bool = False,
) -> Route:
    slow_periods = {name: slow() if name in turned_slow else SlowPeriod() for name in median_secs}
    return route(list(median_secs), slow_periods, median_secs, budget, 0.0, in_debt=in_debt)


@given(st.lists(st.floats(0.01, 90.0), min_size=1, max_size=3))
def test_the_order_is_as_given_while_the_first_is_as_usual(secs: list[float]) -> None:
    """However much quicker another is: only a change counts."""
    given_order = NAMES[: len(secs)]
    assert order(dict(zip(given_order, secs, strict=True))) == Route(given_order)


def test_a_slow_first_is_replaced_and_asked_last() -> None:
    """By the next in the given order that is well and quicker than the first is now."""
    found = order({"a": 0.5, "b": 0.9, "c": 0.2}, "a")
    assert found.order == ("b", "c", "a")
    assert found.reason == "a has turned slow (2.00 s or more), b takes 0.90 s at the median"
    assert order({"a": 0.5, "b": 2.1, "c": 0.2}, "a").order == ("c", "b", "a")
    assert order({"a": 0.5, "b": 0.9, "c": 0.2}, "a", "b").order == ("c", "b", "a")


@pytest.mark.parametrize(
    ("median_secs", "turned_slow"),
    [
        pytest.param({"a": 0.5}, "a", id="it is the only one"),
        pytest.param({"a": 0.5, "b": 0.4}, "ab", id="all have turned slow"),
        pytest.param({"a": 0.5, "b": 2.0}, "a", id="the other is no quicker"),
        pytest.param({"a": 0.5, "b": 0.4}, "b", id="it is not the first"),
    ],
)
def test_the_order_stays_where_no_other_is_better(
    median_secs: dict[str, float], turned_slow: str
) -> None:
    assert order(median_secs, *turned_slow) == Route(tuple(median_secs))


def test_without_a_budget_the_order_is_as_given() -> None:
    """Its recovery could not be noticed."""
    assert order({"a": 0.5, "b": 0.4}, "a", budget=0.0) == Route(("a", "b"))


def test_a_replaced_provider_is_probed_out_of_the_budget() -> None:
    """As often as three quarters of it allow; the rest is left for hedges."""
    slow_periods, median_secs = {"a": slow(), "b": SlowPeriod()}, {"a": 0.5, "b": 0.4}
    routes = [route(("a", "b"), slow_periods, median_secs, 0.1, 0.0) for _ in range(140)]
    assert [n for n, each in enumerate(routes) if each.probe == "a"] == list(range(13, 140, 14))
    assert {each.order for each in routes} == {("b", "a")}
    assert {each.hedges for each in routes} == {0.25}


def test_no_provider_is_probed_on_credit() -> None:
    slow_periods, median_secs = {"a": slow(), "b": SlowPeriod()}, {"a": 0.5, "b": 0.4}
    for _ in range(100):
        found = route(("a", "b"), slow_periods, median_secs, 0.1, 0.0, in_debt=True)
        assert (found.order, found.probe) == (("b", "a"), None)


def test_a_probe_is_asked_beside_the_first_one() -> None:
    """And a third attempt waits as usual; so does one that would ask another in its place."""
    rule = Probing(AfterSilence(0.6), "a")
    alone = Waiting(5.0, (InFlight("b", 5.0, None),), "a")
    assert rule.next_launch(alone).at == 5.0
    assert rule.next_launch(alone).reason == "probes a"
    assert rule.next_launch(Waiting(5.0, alone.in_flight, "c")).at == 5.6
    both = Waiting(5.0, (*alone.in_flight, InFlight("a", 5.0, None)), "c")
    assert rule.next_launch(both).at == 5.6
