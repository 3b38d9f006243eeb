"""When a circuit breaker opens, tries its provider and closes."""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.providers.circuit_breaker import (
    JITTER,
    RECOVERED,
    UNFOLLOWED_SECS,
    CircuitBreaker,
    CircuitBreakerSettings,
)

FLEET = "the fleet: 2 of 3"


def breaker(**settings: Any) -> CircuitBreaker:
    return CircuitBreaker(random.Random(1), CircuitBreakerSettings(**settings))


def fail(it: CircuitBreaker, times: int, now: float = 0.0) -> CircuitBreaker:
    for _ in range(times):
        it.record("failed", now)
    return it


def recovery(it: CircuitBreaker, verdict: Any, now: float, times: int = 1) -> None:
    for _ in range(times):
        assert it.claim_recovery(now)
        assert not it.claim_recovery(now)
        it.record(verdict, now, is_recovery=True)


def each(verdict: Any, times: int, every_secs: float = 0.0, age_secs: float = 0.0) -> list[Any]:
    return [(verdict, every_secs * number, age_secs) for number in range(times)]


def mixed(
    verdict: str, other: str, times: int, period: int, every_secs: float, longer_secs: float = 0.0
) -> list[Any]:
    """One verdict in so many attempts; the others were so much older at their end, in turn."""
    return [
        (other if n % period else verdict, every_secs * n, 0.1 + longer_secs * (n % period))
        for n in range(times)
    ]


LATER = each("busy", 15, 1.0)[6:]
ENDS: dict[str, tuple[list[tuple[Any, float, float]], str]] = {
    "five failures": (each("failed", 5), "5 failures in a row"),
    "four failures": (each("failed", 4), ""),
    "half of twenty": (mixed("answered", "failed", 20, 2, 1.0), "10 of 20 attempts failed within"),
    "half of twenty, the last answered": (mixed("failed", "answered", 20, 2, 1.0), ""),
    "half of nineteen": (mixed("failed", "answered", 19, 2, 1.0), ""),
    "too few within the window": (mixed("answered", "failed", 40, 2, 2.0), ""),
    "interrupted attempts": (each("dropped", 50), ""),
    "rejections at once": (each("busy", 50), ""),
    "rejections among superseded attempts": (mixed("busy", "dropped", 300, 10, 0.1), ""),
    "occasional rejections": (mixed("busy", "dropped", 30, 3, 1.0, 0.4), ""),
    "superseded attempts outlived failures": (mixed("failed", "dropped", 30, 5, 1.0, 0.4), ""),
    "quickly superseded attempts": (
        [("dropped", 0.0, 1.0), ("failed", 0.0, 3.0)] * 5,
        "5 failures",
    ),
    "rejections for 9 s": (each("busy", 10, 1.0), ""),
    "rejections for 10 s": (each("busy", 11, 1.0), "rejected for load for 10 s, 11 times"),
    "an answer between": ([*each("busy", 15, 1.0)[:5], ("answered", 5, 0), *LATER], ""),
}
"""How attempts ended: verdict, time and age; and why the breaker opened, if it did."""


@pytest.mark.parametrize("case", ENDS)
def test_failures_in_a_row_shares_and_lasting_rejections_open_it(case: str) -> None:
    it, (ends, reason) = breaker(), ENDS[case]
    for verdict, now, age_secs in ends:
        it.record(verdict, now, age_secs=age_secs)
    assert it.state(ends[-1][1]) == ("open" if reason else "closed")
    assert it.reason.startswith(reason) if reason else not it.reason


@pytest.mark.parametrize("now", [10.0, 74.0])
def test_only_an_answer_to_a_later_request_closes_it(now: float) -> None:
    it = fail(breaker(), 6, 1.0)
    state = it.state(now)
    for verdict in ("failed", "busy", "dropped"):
        it.record(verdict, now, age_secs=0.1)
    it.record("answered", now, age_secs=now - 0.9)
    assert it.state(now) == state
    it.record("answered", now, age_secs=now - 1.0)
    assert it.state(now) == "closed"
    assert it.take_events()[-1].reason == "a request sent while it was open was answered"


def open_secs(it: CircuitBreaker, now: float) -> float:
    """How long it stays open."""
    least, most = 0.0, 2000.0
    while most - least > 1e-6:
        middle = (least + most) / 2
        is_open = copy.deepcopy(it).state(now + middle) == "open"
        least, most = (middle, most) if is_open else (least, middle)
    return most


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [("failed", "recovery request failed"), ("busy", "recovery request rejected for load")],
)
def test_reopening_doubles_the_open_time_up_to_the_cap(verdict: Any, reason: str) -> None:
    it, now = fail(breaker(recovery_secs=60, max_recovery_secs=200), 5), 0.0
    for expected in (60, 120, 200, 200):
        assert expected * (1 - JITTER) <= open_secs(it, now) <= expected
        now += open_secs(it, now)
        recovery(it, verdict, now)
    assert reason in it.take_events()[-1].reason


@pytest.mark.parametrize(("calm_secs", "expected"), [(200.0, 60), (10.0, 240)])
def test_long_closed_breaker_opens_briefly_again(calm_secs: float, expected: float) -> None:
    it = fail(breaker(max_recovery_secs=600), 5)
    recovery(it, "failed", 73.0)
    recovery(it, "answered", 223.0, times=RECOVERED)
    now = 223.0 + calm_secs
    assert expected * (1 - JITTER) <= open_secs(fail(it, 5, now), now) <= expected


# ---- what other processes have found


def test_breaker_follows_the_fleet_open() -> None:
    it = breaker()
    assert it.follow_open(30.0, 40.0, FLEET)
    assert (it.state(40.0), it.opened_by_itself(40.0)) == ("open", None)
    assert it.reason == FLEET
    assert 30 * (1 - JITTER) <= open_secs(it, 40.0) <= 30
    assert it.state(70.0) == "half_open"
    assert it.take_events()[0].reason.startswith(f"{FLEET}: open for ")
    capped = breaker(max_recovery_secs=60)
    assert capped.follow_open(1e6, 0.0, FLEET)
    assert open_secs(capped, 0.0) <= 60


def test_recently_closed_breaker_does_not_follow() -> None:
    it = fail(breaker(), 5)
    assert not it.follow_open(30.0, 0.0, FLEET)
    assert it.opened_by_itself(0.0) == 0.0
    assert not it.follow_open(30.0, 73.0, FLEET)
    assert it.opened_by_itself(73.0) is None
    recovery(it, "answered", 73.0, times=RECOVERED)
    assert not it.follow_open(30.0, 73.0 + UNFOLLOWED_SECS - 0.1, FLEET)
    assert it.follow_open(30.0, 73.0 + UNFOLLOWED_SECS, FLEET)


def test_answer_in_another_process_starts_a_recovery_request() -> None:
    it = breaker()
    assert not it.follow_closed(0.0, FLEET)
    assert it.follow_open(60.0, 0.0, FLEET)
    assert it.follow_closed(5.0, FLEET)
    assert it.state(5.0) == "half_open"
    assert not it.follow_closed(5.0, FLEET)
    recovery(it, "failed", 6.0)
    assert it.opened_by_itself(6.0) == 6.0
    assert not it.follow_closed(7.0, FLEET), "what its own requests have opened"


STEPS = st.tuples(
    st.sampled_from(["answered", "failed", "busy", "dropped", "fleet open", "fleet closed"]),
    st.floats(0, 100),
    st.booleans(),
    st.floats(0, 100),
)


@given(st.lists(STEPS, max_size=80))
def test_states_and_recovery_requests_stay_consistent(steps: Any) -> None:
    it = breaker()
    now, is_trying, states = 0.0, False, ["closed"]
    for verdict, secs, wants_recovery, age_secs in steps:
        now += secs
        if wants_recovery and it.claim_recovery(now):
            assert not is_trying
            assert it.state(now) == "half_open"
            is_trying = True
        if verdict == "fleet open":
            it.follow_open(50.0, now, FLEET)
        elif verdict == "fleet closed":
            it.follow_closed(now, FLEET)
        else:
            it.record(verdict, now, is_recovery=is_trying, age_secs=age_secs)
            is_trying = False
        states += [event.after for event in it.take_events()]
    changes = {*itertools.pairwise(states)}
    assert changes <= {
        ("closed", "open"),
        ("open", "half_open"),
        ("open", "closed"),
        ("half_open", "open"),
        ("half_open", "closed"),
    }
