"""Separating failures of our own network from a provider's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.limits.shared_outage import WITHIN_SECS, SharedOutage


def blamed(outage: SharedOutage[str], now: float) -> list[tuple[float, str]]:
    """The providers whose failures count."""
    return [(at, key) for at, key, is_shared in outage.settle(now) if not is_shared]


def test_failures_at_one_host_count_after_two_seconds() -> None:
    outage = SharedOutage[str]()
    outage.add("one:443", 0.0, "a")
    outage.add("one:443", 1.0, "a")
    outage.add("one:443", 1.0, "b")
    assert outage.settle(WITHIN_SECS - 0.1) == []
    assert outage.settle(WITHIN_SECS) == [(0.0, "a", False)]
    assert outage.settle(WITHIN_SECS + 1.0) == [(1.0, "a", False), (1.0, "b", False)]
    assert outage.settle(99.0) == []


def test_failures_at_two_hosts_count_for_none() -> None:
    outage = SharedOutage[str]()
    outage.add("one:443", 0.0, "a")
    outage.add("two:443", 1.9, "b")
    assert blamed(outage, 99.0) == []


def test_failures_further_apart_count() -> None:
    outage = SharedOutage[str]()
    outage.add("one:443", 0.0, "a")
    assert blamed(outage, 2.1) == [(0.0, "a")]
    outage.add("two:443", 2.1, "b")
    assert blamed(outage, 99.0) == [(2.1, "b")]


def test_lasting_outage_counts_for_none() -> None:
    outage, counted = SharedOutage[str](), list[tuple[float, str]]()
    for second in range(30):
        outage.add("one:443", float(second), "a")
        outage.add("two:443", second + 0.5, "b")
        counted += blamed(outage, second + 0.5)
    assert counted == []


def test_host_still_down_after_an_outage_counts() -> None:
    outage = SharedOutage[str]()
    outage.add("two:443", 0.0, "b")
    for second in range(10):
        outage.add("one:443", float(second), "a")
    assert blamed(outage, 99.0) == [(float(second), "a") for second in range(3, 10)]


@given(st.lists(st.tuples(st.floats(0, 3), st.sampled_from("ab")), max_size=50))
def test_each_failure_is_settled_once(steps: list[tuple[float, str]]) -> None:
    outage, now, counted = SharedOutage[str](), 0.0, 0
    for secs, key in steps:
        now += secs
        outage.add(f"{key}:443", now, key)
        counted += len(outage.settle(now))
    counted += len(outage.settle(now + 2 * WITHIN_SECS))
    assert counted == len(steps)
    assert outage.settle(now + 99.0) == []
