"""Whom to ask first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.facts import InFlight, Waiting
from pipecat_hedge.policies.hedge_policy import AfterSilence
from pipecat_hedge.policies.routing import Probing, Router

NAMES = ("a", "b", "c")


@given(st.lists(st.floats(0.3, 0.42), min_size=3, max_size=3))
def test_the_order_is_as_given_while_nobody_is_much_faster(secs: list[float]) -> None:
    """However the medians stand to each other."""
    route = Router().route(NAMES, dict(zip(NAMES, secs, strict=True)), 0.1)
    assert (route.order, route.probe, route.hedges) == (NAMES, None, 1.0)


def test_a_slow_first_is_replaced_by_the_fastest_and_asked_last() -> None:
    """With the reason."""
    route = Router().route(NAMES, {"a": 1.5, "b": 0.6, "c": 0.5}, 0.1)
    assert route.order == ("c", "b", "a")
    assert route.reason == "a takes 1.50 s at the median, c 0.50 s"


def test_nobody_is_probed_on_credit() -> None:
    """Nor without a budget, however likely it is that the first one has recovered."""
    slow = {"a": 1.5, "b": 0.5}
    for budget, in_debt in ((0.1, True), (0.0, False)):
        router = Router()
        for recovered in (False, True) * 50:
            route = router.route(
                ("a", "b"), slow, budget, seems_recovered=recovered, in_debt=in_debt
            )
            assert (route.order, route.probe) == (("b", "a"), None)


def test_between_much_and_little_nothing_changes() -> None:
    """In either direction."""
    router = Router()
    between = {"a": 0.65, "b": 0.5}
    assert router.route(("a", "b"), between, 0.1).order == ("a", "b")
    assert router.route(("a", "b"), {"a": 1.5, "b": 0.5}, 0.1).order == ("b", "a")
    assert router.route(("a", "b"), between, 0.1).order == ("b", "a")
    assert router.route(("a", "b"), {"a": 0.55, "b": 0.5}, 0.1).order == ("a", "b")
    assert router.route(("a", "b"), between, 0.1).order == ("a", "b")


def test_milliseconds_are_not_worth_it() -> None:
    """Much faster counts only where a caller would notice."""
    assert Router().route(("a", "b"), {"a": 0.09, "b": 0.03}, 0.1).order == ("a", "b")


def test_who_was_replaced_is_probed_out_of_the_budget() -> None:
    """As often as three quarters of it allow; the rest is left for hedges."""
    router = Router()
    routes = [router.route(("a", "b"), {"a": 1.5, "b": 0.5}, 0.1) for _ in range(140)]
    assert [i for i, r in enumerate(routes) if r.probe == "a"] == list(range(13, 140, 14))
    assert {r.hedges for r in routes} == {0.25}


def test_who_is_hardly_known_is_tried_out_beside_a_slow_first() -> None:
    """Never put first on an assumption; and only if it is assumed to be much faster."""
    router = Router()
    assumed = {"b": 1.4, "c": 0.5}
    routes = [router.route(NAMES, {"a": 1.5}, 0.1, assumed_secs=assumed) for _ in range(42)]
    assert {route.order[0] for route in routes} == {"a"}
    assert [i for i, route in enumerate(routes) if route.probe == "c"] == [13, 27, 41]
    assert routes[13].order == ("a", "c", "b")
    assert routes[13].reason == "a takes 1.50 s at the median, c may take 0.50 s"
    assert Router().route(NAMES, {"a": 1.5}, 0.1, assumed_secs={"b": 1.4}).hedges == 1.0


def test_a_probe_that_finds_it_recovered_is_repeated_at_once() -> None:
    """The next turn shows whether it was chance."""
    router = Router()
    slow = {"a": 1.5, "b": 0.5}
    assert router.route(("a", "b"), slow, 0.1).probe is None
    assert router.route(("a", "b"), slow, 0.1, seems_recovered=True).probe == "a"


def test_nobody_unknown_is_put_first() -> None:
    """Nor is anything changed where there is nobody else."""
    assert Router().route(("a", "b"), {"a": 9.0}, 0.1).order == ("a", "b")
    assert Router().route(("a",), {"a": 9.0}, 0.1).order == ("a",)


def test_another_first_provider_begins_anew() -> None:
    """A provider that is out of the race does not hold the place of the one that was replaced."""
    router = Router()
    assert router.route(("a", "b"), {"a": 1.5, "b": 0.5}, 0.1).order == ("b", "a")
    assert router.route(("b", "c"), {"b": 0.5, "c": 0.5}, 0.1).order == ("b", "c")


def test_a_probe_is_asked_beside_the_first_one() -> None:
    """And a third attempt waits as usual; so does one that would ask somebody else in its place."""
    rule = Probing(AfterSilence(0.6), "a")
    alone = Waiting(5.0, (InFlight("b", 5.0, None),), "a")
    assert rule.next_launch(alone).at == 5.0
    assert rule.next_launch(alone).reason == "probes a"
    assert rule.next_launch(Waiting(5.0, alone.in_flight, "c")).at == 5.6
    both = Waiting(5.0, (*alone.in_flight, InFlight("a", 5.0, None)), "c")
    assert rule.next_launch(both).at == 5.6
