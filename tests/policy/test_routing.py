"""Which provider a turn asks first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policy.hedge_policy import AfterSilence
from pipecat_hedge.policy.routing import Probing, Route, route
from pipecat_hedge.policy.slow_period import SlowPeriod
from pipecat_hedge.race import InFlight, LaunchDecision, Waiting
from tests.policy.test_slow_period import answered

LEVEL_SECS = 2.0


def routes(
    median_secs: dict[str, float],
    turned_slow: str = "",
    times: int = 1,
    budget: float = 0.1,
    in_debt: bool = False,
) -> list[Route]:
    slow_periods = {
        name: answered(*[LEVEL_SECS] * 5) if name in turned_slow else SlowPeriod()
        for name in median_secs
    }
    return [
        route(list(median_secs), slow_periods, median_secs, budget, 0.0, in_debt=in_debt)
        for _ in range(times)
    ]


@given(st.lists(st.floats(0.01, 90.0), min_size=1, max_size=3))
def test_order_is_as_given_while_the_first_is_as_usual(secs: list[float]) -> None:
    """However much quicker another is: only a change counts."""
    median_secs = dict(zip("abc", secs, strict=False))
    assert routes(median_secs) == [Route(tuple(median_secs))]


@pytest.mark.parametrize(
    ("secs", "turned_slow", "order"),
    [
        pytest.param((0.5, 0.9, 0.2), "a", "bca", id="by the next in the given order"),
        pytest.param((0.5, 2.1, 0.2), "a", "cba", id="that is quicker"),
        pytest.param((0.5, 0.9, 0.2), "ab", "cba", id="and has not turned slow"),
        pytest.param((0.5,), "a", "a", id="not as the only one"),
        pytest.param((0.5, 0.4), "ab", "ab", id="not if all have turned slow"),
        pytest.param((0.5, 2.0), "a", "ab", id="not if the other is no quicker"),
        pytest.param((0.5, 0.4), "b", "ab", id="not if it is not the first"),
    ],
)
def test_slow_first_is_replaced_and_asked_last(
    secs: tuple[float, ...], turned_slow: str, order: str
) -> None:
    median_secs = dict(zip("abc", secs, strict=False))
    (found,) = routes(median_secs, turned_slow)
    assert "".join(found.order) == order
    if order == "bca":
        assert found.reason == "a has turned slow (2.00 s or more), b takes 0.90 s at the median"


def test_without_a_budget_the_order_is_as_given() -> None:
    """Its recovery could not be noticed."""
    assert routes({"a": 0.5, "b": 0.4}, "a", budget=0.0) == [Route(("a", "b"))]


@pytest.mark.parametrize(
    ("in_debt", "probed"), [(False, list(range(13, 140, 14))), (True, list[int]())]
)
def test_replaced_provider_is_probed_within_the_budget(in_debt: bool, probed: list[int]) -> None:
    """As often as three quarters of it allow; the rest is left for hedges."""
    found = routes({"a": 0.5, "b": 0.4}, "a", times=140, in_debt=in_debt)
    assert [n for n, each in enumerate(found) if each.probe == "a"] == probed
    assert {each.order for each in found} == {("b", "a")}
    assert {each.hedges for each in found} == {0.25}


def test_probe_is_sent_beside_the_first_request() -> None:
    """A third attempt waits as usual; so does one to another provider."""
    rule = Probing(AfterSilence(0.6), "a")
    alone = (InFlight("b", 5.0, None),)
    both = (*alone, InFlight("a", 5.0, None))
    assert rule.next_launch(Waiting(5.0, alone, "a")) == LaunchDecision(5.0, "probes a")
    assert rule.next_launch(Waiting(5.0, alone, "c")).at == 5.6
    assert rule.next_launch(Waiting(5.0, both, "c")).at == 5.6


class At:
    """A rule that names a time."""

    def __init__(self, at: float | None):
        self._at = at

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        return LaunchDecision(self._at, "saves 2 s")
