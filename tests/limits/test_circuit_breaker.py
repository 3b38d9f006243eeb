"""When a circuit breaker opens, probes and closes."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.limits.circuit_breaker import (
    JITTER,
    PROBES,
    SETTLES_SECS,
    CircuitBreaker,
    CircuitBreakerSettings,
)
from pipecat_hedge.race import ConfigurationError


def breaker(**settings: Any) -> CircuitBreaker:
    return CircuitBreaker(random.Random(1), CircuitBreakerSettings(**settings))


def fail(it: CircuitBreaker, times: int, now: float) -> None:
    for _ in range(times):
        it.record("failed", now)


def test_five_failures_in_a_row_open_it() -> None:
    it = breaker()
    fail(it, 4, 0.0)
    it.record("answered", 1.0)
    fail(it, 4, 2.0)
    assert it.state(2.0) == "closed"
    it.record("failed", 3.0)
    assert it.state(3.0) == "open"
    (event,) = it.take_events()
    assert (event.at, event.before, event.after) == (3.0, "closed", "open")
    assert event.reason.startswith("5 failures in a row: open for ")
    assert it.take_events() == ()


def test_timeout_counts_for_superseded_requests_too() -> None:
    it = breaker()
    it.record("failed", 0.0, count=4)
    assert it.state(0.0) == "closed"
    it.record("failed", 1.0)
    assert it.state(1.0) == "open"


def test_half_of_twenty_failed_attempts_open_it() -> None:
    it = breaker(failures=99)
    for number in range(19):
        it.record("failed" if number % 2 else "answered", float(number))
    assert it.state(19.0) == "closed"
    it.record("failed", 19.0)
    assert it.state(19.0) == "open"
    assert "10 of 20 attempts failed within 30 s" in it.take_events()[0].reason
    spread = breaker(failures=99)
    for number in range(40):
        spread.record("failed" if number % 2 else "answered", 2.0 * number)
    assert spread.state(80.0) == "closed"


@pytest.mark.parametrize("verdict", ["dropped", "busy"])
def test_interrupted_and_rejected_attempts_do_not_open_it(verdict: Any) -> None:
    it = breaker()
    for _ in range(50):
        it.record(verdict, 0.0)
    assert it.state(1.0) == "closed"


def test_superseded_attempt_that_outlived_failures_counts_as_answer() -> None:
    it = breaker()
    for n in range(30):
        it.record("failed" if n % 5 == 0 else "dropped", float(n), age_secs=0.1 + 0.4 * (n % 5))
    assert it.state(30.0) == "closed"


def test_quickly_superseded_attempt_counts_for_nothing() -> None:
    it = breaker()
    for n in range(5):
        it.record("dropped", float(n), age_secs=1.0)
        it.record("failed", float(n), age_secs=3.0)
    assert it.state(5.0) == "open"


def test_occasional_rejections_do_not_open_it() -> None:
    it = breaker()
    for n in range(30):
        it.record("busy" if n % 3 == 0 else "dropped", float(n), age_secs=0.1 + 0.4 * (n % 3))
    assert it.state(30.0) == "closed"


def test_rejections_among_superseded_attempts_do_not_open_it() -> None:
    it = breaker()
    for n in range(300):
        it.record("busy" if n % 10 == 0 else "dropped", n / 10, age_secs=0.01)
    assert it.state(30.0) == "closed"


def test_persistent_rejections_open_it() -> None:
    it = breaker()
    for second in range(10):
        it.record("busy", float(second))
    it.record("answered", 9.5)
    for second in range(10, 20):
        it.record("busy", float(second))
    assert it.state(19.0) == "closed"
    it.record("busy", 20.0)
    assert it.state(20.0) == "open"
    assert "rejected for load for 10 s, 11 times" in it.take_events()[0].reason


def test_half_open_breaker_admits_one_probe() -> None:
    it = breaker()
    fail(it, 5, 0.0)
    assert not it.claim_probe(47.0)
    assert it.state(60) == "half_open"
    for number in range(PROBES):
        assert it.claim_probe(73.0 + number)
        assert not it.claim_probe(73.0 + number)
        it.record("answered", 73.5 + number, probe=True)
    assert it.state(75.0) == "closed"
    assert [event.after for event in it.take_events()] == ["open", "half_open", "closed"]


def test_superseded_probe_may_be_repeated() -> None:
    it = breaker()
    fail(it, 5, 0.0)
    assert it.claim_probe(73.0)
    it.record("dropped", 74.0, probe=True)
    assert it.state(74.0) == "half_open"
    assert it.claim_probe(74.0)


def test_older_attempts_do_not_settle_the_probe() -> None:
    it = breaker()
    fail(it, 6, 1.0)
    it.record("answered", 2.0, age_secs=1.1)
    assert it.state(74.0) == "half_open"
    it.record("failed", 74.0, age_secs=74.0)
    it.record("answered", 74.0, age_secs=73.1)
    assert it.state(74.0) == "half_open"


@pytest.mark.parametrize("now", [10.0, 74.0])
def test_answer_to_a_later_request_closes_it(now: float) -> None:
    it = breaker()
    fail(it, 5, 1.0)
    state = it.state(now)
    it.record("failed", now, age_secs=0.1)
    it.record("busy", now, age_secs=0.1)
    it.record("dropped", now, age_secs=0.1)
    assert it.state(now) == state
    it.record("answered", now, age_secs=now - 1.0)
    assert it.state(now) == "closed"
    assert it.take_events()[-1].reason == "a request sent while it was open was answered"
    assert it.closings == 1


@pytest.mark.parametrize(
    ("verdict", "reason"), [("failed", "probe failed"), ("busy", "probe rejected for load")]
)
def test_reopening_doubles_the_open_time_up_to_the_cap(verdict: Any, reason: str) -> None:
    it = breaker(recovery_secs=60, max_recovery_secs=200)
    fail(it, 5, 0.0)
    opened = now = 0.0
    lasted: list[float] = []
    for _ in range(4):
        while it.state(now) == "open":
            now += 1.0
        lasted.append(now - opened)
        assert it.claim_probe(now)
        it.record(verdict, now, probe=True)
        opened = now
    for secs, expected in zip(lasted, (60, 120, 200, 200), strict=True):
        assert expected * (1 - JITTER) <= secs <= expected + 1
    assert reason in it.take_events()[-1].reason


def test_recovered_provider_is_probed_within_75_seconds() -> None:
    it = breaker()
    fail(it, 5, 0.0)
    now = 0.0
    for _ in range(200):
        assert it.state(now + 75 - 9) == "half_open"
        now += 75
        assert it.claim_probe(now)
        it.record("failed", now, probe=True)


def test_long_closed_breaker_opens_briefly_again() -> None:
    for calm, expected in ((200.0, 60), (10.0, 240)):
        it = breaker(max_recovery_secs=600)
        fail(it, 5, 0.0)
        assert it.claim_probe(73.0)
        it.record("failed", 73.0, probe=True)
        now = 73.0 + 150
        for _ in range(PROBES):
            assert it.claim_probe(now)
            it.record("answered", now, probe=True)
        fail(it, 5, now + calm)
        assert it.state(now + calm + expected * (1 - JITTER) - 1) == "open"
        assert it.state(now + calm + expected) == "half_open"


# ---- what other processes have found


def test_breaker_follows_the_fleet_open() -> None:
    it = breaker()
    it.record("answered", 9.0)
    assert it.found(10.0) == "well"
    assert it.follow_open(30.0, 10.0, "the fleet: 2 of 3")
    assert it.state(10.0) == "open"
    assert it.reason == "the fleet: 2 of 3"
    assert it.found(10.0) == "unsure"
    assert 30 * (1 - JITTER) <= it.open_secs(10.0) <= 30
    assert it.state(10.0 + 30 * (1 - JITTER) - 0.1) == "open"
    assert it.state(10.0 + 30) == "half_open"
    assert it.open_secs(50.0) == 0.0
    (opened, _) = it.take_events()
    assert opened.reason.startswith("the fleet: 2 of 3: open for ")


def test_followed_open_time_is_capped() -> None:
    it = breaker(max_recovery_secs=60)
    assert not it.follow_open(0.0, 0.0, "the fleet")
    assert it.follow_open(1e6, 0.0, "the fleet")
    assert it.state(60) == "half_open"


def test_recently_closed_breaker_does_not_follow() -> None:
    it = breaker()
    fail(it, 5, 0.0)
    assert not it.follow_open(30.0, 0.0, "the fleet")
    assert it.found(0.0) == "down"
    assert not it.follow_open(30.0, 73.0, "the fleet")
    assert it.found(73.0) == "unsure"
    for _ in range(PROBES):
        assert it.claim_probe(73.0)
        it.record("answered", 73.0, probe=True)
    assert it.closings == 1
    assert not it.follow_open(30.0, 73.0 + SETTLES_SECS - 0.1, "the fleet")
    assert it.follow_open(30.0, 73.0 + SETTLES_SECS, "the fleet")


def test_answer_in_another_process_starts_a_probe() -> None:
    it = breaker()
    assert not it.follow_closed(0.0, "the fleet")
    assert it.follow_open(60.0, 0.0, "the fleet")
    assert it.follow_closed(5.0, "the fleet: another had an answer")
    assert it.state(5.0) == "half_open"
    assert not it.follow_closed(5.0, "the fleet")
    assert it.claim_probe(5.0)
    it.record("failed", 6.0, probe=True)
    assert it.found(6.0) == "down"
    assert it.closings == 0


def test_idle_breaker_reports_no_finding() -> None:
    it = breaker()
    assert it.found(0.0) == "unsure"
    it.record("answered", 0.0)
    assert it.found(29.0) == "well"
    assert it.found(31.0) == "unsure"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"failures": 0}, "failures must be a whole number from 1"),
        ({"min_attempts": 2.5}, "min_attempts must be a whole number from 1"),
        ({"failed_share": 0}, "failed_share must be above 0"),
        ({"window_secs": 0}, "window_secs must be a positive number"),
        ({"recovery_secs": -1}, "recovery_secs must be a positive number"),
        ({"max_recovery_secs": 10}, "max_recovery_secs must be at least recovery_secs, 60"),
    ],
)
def test_invalid_arguments_are_rejected_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        breaker(**settings)


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(
                ["answered", "failed", "busy", "dropped", "fleet open", "fleet closed"]
            ),
            st.floats(0, 100),
            st.booleans(),
            st.floats(0, 100),
        ),
        max_size=80,
    )
)
def test_states_and_probes_stay_consistent(steps: Any) -> None:
    it = breaker()
    now, probing, states = 0.0, False, ["closed"]
    for verdict, secs, wants_probe, age_secs in steps:
        now += secs
        if wants_probe and it.claim_probe(now):
            assert not probing
            assert it.state(now) == "half_open"
            probing = True
        if verdict == "fleet open":
            it.follow_open(50.0, now, "the fleet")
        elif verdict == "fleet closed":
            it.follow_closed(now, "the fleet")
        else:
            it.record(verdict, now, probe=probing, age_secs=age_secs)
            probing = False
        states += [event.after for event in it.take_events()]
    allowed = {
        "closed": {"open"},
        "open": {"half_open", "closed"},
        "half_open": {"open", "closed"},
    }
    for before, after in itertools.pairwise(states):
        assert after in allowed[before]
