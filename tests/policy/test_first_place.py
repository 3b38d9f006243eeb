"""Which provider a turn asks first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policy.first_place import AskReplaced, FirstPlace, first_place
from pipecat_hedge.providers.slow_period import SlowPeriod
from pipecat_hedge.race import InFlight, LaunchDecision, Waiting
from tests.providers.test_slow_period import answered

LEVEL_SECS = 2.0


def routes(
    median_secs: dict[str, float],
    turned_slow: str = "",
    times: int = 1,
    budget: float = 0.1,
    in_debt: bool = False,
    may_hang: str = "",
) -> list[FirstPlace]:
    slow_periods = {
        name: answered(*[LEVEL_SECS] * 5) if name in turned_slow else SlowPeriod()
        for name in median_secs
    }
    return [
        first_place(
            list(median_secs),
            slow_periods,
            median_secs,
            budget,
            0.0,
            in_debt=in_debt,
            may_hang=may_hang,
        )
        for _ in range(times)
    ]


@given(st.lists(st.floats(0.01, 90.0), min_size=1, max_size=3))
def test_order_is_as_given_while_the_first_is_as_usual(secs: list[float]) -> None:
    """However much quicker another is: only a change counts."""
    median_secs = dict(zip("abc", secs, strict=False))
    assert routes(median_secs) == [FirstPlace(tuple(median_secs))]


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
    assert routes({"a": 0.5, "b": 0.4}, "a", budget=0.0) == [FirstPlace(("a", "b"))]


@pytest.mark.parametrize(
    ("in_debt", "tried"), [(False, list(range(13, 140, 14))), (True, list[int]())]
)
def test_replaced_provider_is_tried_within_the_budget(in_debt: bool, tried: list[int]) -> None:
    """As often as three quarters of it allow; the rest is left for hedges."""
    found = routes({"a": 0.5, "b": 0.4}, "a", times=140, in_debt=in_debt)
    assert [n for n, each in enumerate(found) if each.trial == "a"] == tried
    assert {(each.order, each.replaced) for each in found} == {(("b", "a"), "a")}
    assert {each.hedges for each in found} == {0.25}


@pytest.mark.parametrize(
    ("may_hang", "in_debt", "order", "trial"),
    [
        pytest.param("b", False, "bac", "a", id="a trial"),
        pytest.param("b", True, "bac", None, id="a hedge at once, if the burst bound permits"),
        pytest.param("ac", False, "bca", None, id="not because of other providers"),
    ],
)
def test_replaced_is_next_to_a_replacement_that_may_hang(
    may_hang: str, in_debt: bool, order: str, trial: str | None
) -> None:
    secs = {"a": 0.5, "b": 0.4, "c": 0.6}
    (found,) = routes(secs, "a", may_hang=may_hang, in_debt=in_debt)
    assert ("".join(found.order), found.trial) == (order, trial)


@pytest.mark.parametrize(
    ("at", "is_put_off", "asks_at"),
    [
        pytest.param(12.0, False, 6.5, id="that is too late"),
        pytest.param(5.2, True, 6.5, id="for which the budget has no room"),
        pytest.param(None, False, 6.5, id="none"),
        pytest.param(5.9, False, 5.9, id="that is earlier"),
    ],
)
def test_replaced_provider_is_asked_after_a_rare_wait(
    at: float | None, is_put_off: bool, asks_at: float
) -> None:
    """Whatever hedge the other rule would send; a third attempt is only the other rule's."""
    rule = AskReplaced(At(at, is_put_off=is_put_off), "a", {"a": 9.0, "b": 1.5, "c": 2.5})
    alone = (InFlight("b", 5.0, None),)
    assert rule.next_launch(Waiting(5.0, alone, "a")).at == asks_at
    assert rule.next_launch(Waiting(5.0, (*alone, InFlight("c", 6.5, None)), "a")).at in (at, 9.0)
    assert rule.next_launch(Waiting(5.0, (*alone, InFlight("a", 6.5, None)), "c")).at == at
    assert rule.next_launch(Waiting(5.0, (InFlight("b", 5.0, 5.4, 5.4),), "a")).at == at


class At:
    """A rule that names a time."""

    def __init__(self, at: float | None, *, is_put_off: bool = False):
        self._decision = LaunchDecision(at, "saves 2 s", is_put_off=is_put_off)

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        return self._decision
