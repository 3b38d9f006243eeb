"""Breakers, limits and the queue together: which providers may get a request."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pipecat_hedge.limits.admission_controller import (
    LATENCY_PROBE_INTERVAL,
    UNMEASURED_AFTER,
    AdmissionController,
)
from pipecat_hedge.limits.concurrency_limit import OPEN_BOUNDS, SHED_BOUNDS
from pipecat_hedge.limits.permit_queue import Ticket
from pipecat_hedge.limits.priority import WORK_CLASSES, WorkClass
from pipecat_hedge.limits.provider_health import Permit
from pipecat_hedge.limits.verdict import Verdict
from pipecat_hedge.race import TIERS, Tier

FAILED, BUSY = "failed", "busy"
NOT_CONNECTED = "not_connected"
CALLERS: list[WorkClass] = ["primary", "tool_follow_up", "rescue", "background"]
OPTIONAL: list[WorkClass] = ["hedge", "warm_up"]


def registry() -> AdmissionController:
    return AdmissionController(random.Random(1))


def ticket(
    *keys: str,
    work: WorkClass = "primary",
    tier: Tier = "standard",
    now: float = 0.0,
    sheds: bool = False,
    in_panic: bool = False,
) -> Ticket:
    bounds = SHED_BOUNDS if sheds else OPEN_BOUNDS
    return Ticket(
        work, tier, now + 3.0, keys, now, bounds=bounds, sheds=sheds, ignores_breakers=in_panic
    )


def take(health: AdmissionController, *keys: str, now: float = 0.0) -> Permit:
    """A caller's request that gets a permit at once."""
    permit = health.acquire(ticket(*keys, now=now), now)
    assert permit is not None
    return permit


def end(
    health: AdmissionController,
    verdict: Verdict,
    *,
    key: str = "a",
    now: float = 0.0,
    times: int = 1,
) -> None:
    """Requests, one after the other, that end at once."""
    for _ in range(times):
        health.release(take(health, key, now=now), verdict, now)


def refuse(health: AdmissionController, *keys: str, now: float = 0.0) -> list[Permit]:
    """Providers that reject for load, with two requests in flight each."""
    left: list[Permit] = []
    for key in keys:
        permits = [take(health, key, now=now) for _ in range(3)]
        health.release(permits.pop(), BUSY, now)
        left += permits
    return left


class Permits(RuleBasedStateMachine):
    """Any sequence of requests and outcomes."""

    def __init__(self) -> None:
        super().__init__()
        self.health = registry()
        self.now = 0.0
        self.out: list[Permit] = []
        self.waiting: dict[Ticket, list[Permit]] = {}

    def got(self, permit: Permit, wanted: Ticket) -> None:
        """Optional and shedding permits are within the limit and in order."""
        limit = self.health.entry(permit.key).limit
        if wanted.is_optional or (wanted.sheds and not self.all_rest_too_long(wanted)):
            assert limit.in_flight <= limit.limit(self.now, wanted.bounds)
            assert self.health.state(permit.key, self.now) == "closed"
        if not self.all_rest_too_long(wanted):
            assert all(
                other.rank >= wanted.rank
                for other, given in self.waiting.items()
                if not given
                and permit.key in other.candidates
                and (wanted.sheds or not other.sheds)
            )
        self.out.append(permit)

    def all_rest_too_long(self, wanted: Ticket) -> bool:
        rests = [
            self.now + self.health.retry_after_secs(key, self.now) for key in wanted.candidates
        ]
        return not wanted.is_optional and min(rests) > wanted.deadline

    @rule(
        work=st.sampled_from(WORK_CLASSES),
        tier=st.sampled_from(TIERS),
        keys=st.lists(st.sampled_from("abc"), min_size=1, unique=True),
        waits=st.booleans(),
        sheds=st.booleans(),
    )
    def arrive(
        self, work: WorkClass, tier: Tier, keys: list[str], waits: bool, sheds: bool
    ) -> None:
        wanted = ticket(*keys, work=work, tier=tier, now=self.now, sheds=sheds)
        if (permit := self.health.acquire(wanted, self.now)) is not None:
            self.got(permit, wanted)
            return
        if not wanted.is_optional and not sheds:
            for key in keys:
                ahead = [
                    t for t, given in self.waiting.items() if not given and key in t.candidates
                ]
                assert (
                    self.health.retry_after_secs(key, self.now)
                    or self.health.entry(key).limit.is_refusing(self.now)
                    or any(t.rank < wanted.rank for t in ahead)
                ), f"a caller was refused {key} without a rejection of its own"
        if waits and not wanted.is_optional:
            given: list[Permit] = []

            def grant(permit: Permit) -> None:  # the registry's lock is held
                given.append(permit)
                self.out.append(permit)

            self.waiting[wanted] = given
            if (reason := self.health.wait(wanted, grant, self.now)) is not None:
                assert sheds, reason
                del self.waiting[wanted]

    @rule(data=st.data(), verdict=st.sampled_from(["answered", "dropped", "silent", FAILED, BUSY]))
    def end(self, data: st.DataObject, verdict: Verdict) -> None:
        """Requests, one after the other, that end at once."""
        if self.out:
            permit = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
            self.health.release(permit, verdict, self.now)
            self.health.release(permit, verdict, self.now)  # a second time changes nothing

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Cancel a waiting request, before or after its permit was granted."""
        if self.waiting:
            wanted = data.draw(st.sampled_from(list(self.waiting)))
            self.health.leave(wanted)
            for permit in self.waiting.pop(wanted):
                if permit in self.out:
                    self.out.remove(permit)
                    self.health.release(permit, "dropped", self.now)

    @rule(data=st.data())
    def hear(self, data: st.DataObject) -> None:
        if self.out:
            self.health.record_first_token(data.draw(st.sampled_from(self.out)), self.now)

    @rule(secs=st.floats(0.0, 90.0))
    def pass_time(self, secs: float) -> None:
        """Advance the clock; waiting requests are sent at their deadline."""
        self.now += secs
        for wanted, given in list(self.waiting.items()):
            self.health.recheck(wanted, self.now)
            if self.now >= wanted.deadline:
                self.health.leave(wanted)
                del self.waiting[wanted]
                if not given and not wanted.sheds:
                    self.out.append(self.health.force(wanted, self.now))

    @rule(key=st.sampled_from("abc"), waiting=st.integers(0, 10))
    def tell_its_queue(self, key: str, waiting: int) -> None:
        self.health.set_queue(key, 5, waiting, self.now)

    @rule(key=st.sampled_from("abc"), secs=st.floats(0.0, 10.0))
    def ask_to_be_left_alone(self, key: str, secs: float) -> None:
        self.health.set_retry_after(key, self.now + secs)

    @rule(key=st.sampled_from("abc"))
    def probe(self, key: str) -> None:
        if self.health.claim_probe(key, self.now):
            assert not self.health.claim_probe(key, self.now)  # one at a time
            wanted = replace(ticket(key, work="hedge", now=self.now), probe=key)
            permit = self.health.acquire(wanted, self.now)
            if permit is None:
                self.health.drop_probe(key, self.now)
            else:
                assert permit.is_probe
                self.out.append(permit)

    @invariant()
    def as_many_are_in_flight_as_are_out(self) -> None:
        for key, entry in self.health.entries().items():
            assert entry.limit.in_flight == sum(p.key == key for p in self.out)
        assert self.health.waiting == sum(not given for given in self.waiting.values())

    def teardown(self) -> None:
        for wanted in list(self.waiting):
            self.health.leave(wanted)
        for permit in self.out:
            self.health.release(permit, "dropped", self.now)
        assert all(entry.limit.in_flight == 0 for entry in self.health.entries().values())
        assert self.health.waiting == 0


TestPermits = Permits.TestCase


# ---- callers' requests


@pytest.mark.parametrize("work", CALLERS)
def test_limit_only_ranks_providers_for_callers(work: WorkClass) -> None:
    health = registry()
    for key in "ab":
        health.set_queue(key, 0, 1, 0.0)
    wanted = ticket("a", "b", work=work)
    assert health.refusals(["a", "b"], wanted, 0.0).keys() == {"a", "b"}
    assert [permit.key for _ in range(3) if (permit := health.acquire(wanted, 0.0))] == ["a"] * 3
    health.set_queue("b", 1, 0, 0.0)
    permit = health.acquire(wanted, 0.0)
    assert permit is not None
    assert permit.key == "b"


def test_open_breaker_comes_last_and_rejects_no_caller() -> None:
    health = registry()
    end(health, FAILED, times=5)
    assert health.state("a", 0.0) == "open"
    assert take(health, "a", "b").key == "b"
    assert take(health, "a").key == "a"
    refuse(health, "b")
    assert take(health, "a", "b").key == "a"


def test_caller_waits_only_while_all_providers_reject() -> None:
    health = registry()
    left = refuse(health, "a", "b")
    first, second = ticket("a", "b"), ticket("a", "b")
    got: list[Permit] = []
    for wanted in (first, second):
        assert health.acquire(wanted, 0.2) is None
        assert health.wait(wanted, got.append, 0.2) is None
    health.release(left[0], "answered", 0.2)
    assert [permit.key for permit in got] == ["a"]
    assert got[0].waited_secs == 0.2
    health.leave(second)
    assert health.force(second, 3.0).key in ("a", "b")


def test_caller_waits_for_the_end_of_retry_after() -> None:
    health = registry()
    health.set_retry_after("a", 2.0)
    health.set_retry_after("b", 1.0)
    wanted = ticket("a", "b")
    got: list[Permit] = []
    assert health.acquire(wanted, 0.0) is None
    assert health.wait(wanted, got.append, 0.0) is None
    assert health.recheck(wanted, 0.9) is None
    assert not got
    assert health.recheck(wanted, 1.0) is None
    assert [permit.key for permit in got] == ["b"]


def test_caller_does_not_wait_beyond_its_deadline() -> None:
    health = registry()
    health.set_retry_after("a", 90.0)
    health.set_retry_after("b", 60.0)
    assert take(health, "a", "b").key == "b"
    health.set_retry_after("c", 1.0)
    assert health.acquire(ticket("a", "b", "c"), 0.0) is None, "that one is worth waiting for"


def test_provider_with_retry_after_is_avoided() -> None:
    health = registry()
    end(health, FAILED, key="b", times=5)
    health.set_retry_after("a", 1.0)
    assert take(health, "a", "b").key == "b"


def test_permits_are_granted_in_queue_order() -> None:
    health = registry()
    left = refuse(health, "a")
    order: list[str] = []
    wants = {
        "inference": ticket("a", work="background"),
        "standard": ticket("a"),
        "premium": ticket("a", tier="premium"),
    }
    for name, wanted in wants.items():
        assert health.wait(wanted, lambda permit, name=name: order.append(name), 0.0) is None
    assert health.waiting == 3
    late = ticket("a", tier="economy")
    assert health.acquire(late, 0.0) is None
    for permit in left:
        health.release(permit, "answered", 0.1)
    assert order[:2] == ["premium", "standard"]


# ---- hedges and prompts sent ahead


@pytest.mark.parametrize(("work", "most"), [("hedge", 18), ("warm_up", 15)])
def test_optional_work_leaves_room_for_callers(work: WorkClass, most: int) -> None:
    health = registry()
    health.set_queue("a", 20, 0, 0.0)  # room for twenty more
    wanted = ticket("a", work=work)
    sent = [health.acquire(wanted, 0.0) for _ in range(20)]
    assert sum(permit is not None for permit in sent) == most
    assert health.refusals(["a"], wanted, 0.0) == {"a": f"has {most} of 20 requests in flight"}
    assert health.refusals(["a"], ticket("a"), 0.0) == {}


@pytest.mark.parametrize("work", OPTIONAL)
def test_optional_work_avoids_unhealthy_providers(work: WorkClass) -> None:
    health = registry()
    end(health, FAILED, times=5)
    health.set_retry_after("b", 2.0)
    refuse(health, "c")
    refusals = health.refusals("abc", wanted := ticket("a", "b", "c", work=work), 0.0)
    assert "5 failures in a row" in refusals["a"]
    assert refusals["b"] == "has sent Retry-After, 2 s left"
    assert refusals["c"] == "has 2 of 2 requests in flight"
    assert health.acquire(wanted, 0.0) is None
    reason = health.rejection_reason(wanted, 0.0)
    assert reason.startswith("a is excluded by its breaker (5 failures in a row")


def test_hedge_does_not_overtake_a_waiting_caller() -> None:
    health = registry()
    left = refuse(health, "a")
    health.wait(waiting := ticket("a"), lambda permit: None, 0.0)
    wanted = ticket("a", work="hedge", tier="premium")
    health.entry("a").limit.recover()
    assert health.acquire(wanted, 0.0) is None
    (reason,) = health.refusals(["a"], wanted, 0.0).values()
    assert reason.endswith("and others waiting")
    health.leave(waiting)
    assert health.acquire(wanted, 0.0) is not None
    for permit in left:
        health.release(permit, "answered", 0.0)


# ---- admission="shed"


def test_shedding_request_waits_for_room() -> None:
    health = registry()
    health.set_queue("a", 1, 0, 0.0)
    health.entry("a").limit.set_queue(1, 10.0)
    held, got = take(health, "a"), list[Permit]()
    wanted = ticket("a", sheds=True)
    assert health.acquire(wanted, 0.0) is None
    assert health.wait(wanted, got.append, 0.0) is None
    assert health.recheck(wanted, 0.1) is None
    assert not got
    health.release(held, "answered", 0.2)
    assert len(got) == 1


def test_shedding_request_does_not_wait_for_open_breakers() -> None:
    health = registry()
    health.entry("a").limit.set_queue(5, 10.0)
    wanted = ticket("a", sheds=True)
    out = [health.acquire(wanted, 0.0) for _ in range(5)]
    assert health.wait(wanted, lambda permit: None, 0.0) is None
    for permit in out:
        assert permit is not None
        health.entry("a").limit.set_queue(1, 10.0)
        health.release(permit, FAILED, 0.0)
    assert health.recheck(wanted, 0.0) == "every breaker is open"
    health.leave(wanted)
    assert health.wait(wanted, lambda permit: None, 0.0) is not None
    assert health.wait(ticket("a", "b", sheds=True), lambda permit: None, 0.0) is None


# ---- breakers


def test_half_open_provider_has_one_probe() -> None:
    health = registry()
    end(health, FAILED, times=5)
    assert not health.claim_probe("a", 1.0)
    assert health.state("a", 100.0) == "half_open"
    assert health.claim_probe("a", 100.0)
    assert not health.claim_probe("a", 100.0)
    wanted = ticket("a", work="hedge", now=100.0)
    assert health.acquire(wanted, 100.0) is None
    probe = health.acquire(replace(wanted, probe="a"), 100.0)
    assert probe is not None
    health.release(probe, "answered", 101.0)
    assert health.state("a", 101.0) == "half_open"
    assert health.claim_probe("a", 101.0)
    health.drop_probe("a", 101.0)
    assert health.claim_probe("a", 101.0)


def test_caller_answer_closes_an_open_breaker() -> None:
    health = registry()
    before = take(health, "a")
    refuse(health, "a")
    end(health, FAILED, times=5, now=61.0)
    health.release(before, "answered", 62.0)
    assert health.state("a", 62.0) == "open"
    end(health, "answered", now=63.0)
    assert health.state("a", 63.0) == "closed"
    assert health.occupancy("a", 63.0)[1] == OPEN_BOUNDS.ceiling


def test_breaker_changes_are_reported_once() -> None:
    health = registry()
    end(health, FAILED, times=5)
    (change,) = health.take_changes()
    assert (change.key, change.event.before, change.event.after) == ("a", "closed", "open")
    assert "5 failures in a row" in change.event.reason
    assert health.take_changes() == ()
    assert health.open_reason("a", 1.0) == change.event.reason
    assert health.open_reason("b", 1.0) == ""


def lose_connections(
    health: AdmissionController, hosts: dict[str, str], now: float, times: int = 5
) -> None:
    for _ in range(times):
        for key, host in hosts.items():
            health.release(take(health, key, now=now), NOT_CONNECTED, now, host=host)


def test_connection_failures_to_one_host_count_after_two_seconds() -> None:
    health = registry()
    lose_connections(health, {"a": "one:443", "b": "one:443"}, 0.0)
    assert health.are_healthy(["a", "b"], 1.9)
    assert not health.are_healthy(["a"], 2.0)
    assert [state for state, _ in health.breaker_states(["a", "b"], 2.0)] == ["open", "open"]


def test_connection_failures_to_two_hosts_open_no_breaker() -> None:
    health = registry()
    for second in range(30):
        lose_connections(health, {"a": "one:443", "b": "two:443"}, float(second), times=1)
    assert health.are_healthy(["a", "b"], 99.0)


def test_probe_connection_failure_counts_unless_shared() -> None:
    health = registry()
    for now, others in ((100.0, ()), (300.0, ("b",))):
        end(health, FAILED, times=5, now=now - 90)
        assert health.claim_probe("a", now)
        probe = health.acquire(replace(ticket("a", now=now), probe="a"), now)
        assert probe is not None
        health.release(probe, NOT_CONNECTED, now, host="one:443")
        for other in others:
            health.release(take(health, other, now=now), NOT_CONNECTED, now, host="two:443")
        assert not health.claim_probe("a", now)
        ((state, _),) = health.breaker_states(["a"], now + 3)
        assert state == ("half_open" if others else "open")
        assert health.claim_probe("a", now + 3) is bool(others)


def test_connection_failure_counts_from_its_time() -> None:
    health = registry()
    for _ in range(5):
        health.release(take(health, "a"), NOT_CONNECTED, 0.0, host="one:443")
    ((state, _),) = health.breaker_states(["a"], 600.0)
    assert state == "half_open"  # it was open meanwhile
    health = registry()
    for _ in range(5):
        health.release(take(health, "a"), NOT_CONNECTED, 0.0, host="one:443")
    permit = take(health, "a", now=1.0)
    health.record_first_token(permit, 1.5)
    ((state, _),) = health.breaker_states(["a"], 3.0)
    assert state == "closed"


def test_half_of_connections_failing_opens_the_breaker() -> None:
    health = registry()
    for number in range(12):
        at = float(number)
        health.release(take(health, "a", now=at), NOT_CONNECTED, at, host="one:443")
        permit = take(health, "a", now=at + 0.5)
        health.record_first_token(permit, at + 0.6)
        health.release(permit, "answered", at + 0.7)
    assert health.state("a", 13.0) == "closed"
    health.breaker_states(["a"], 14.0)
    assert health.open_reason("a", 14.0).startswith("1")


# ---- what is seen


def test_overtaken_provider_is_unmeasured_until_a_token() -> None:
    health = registry()

    def ends(verdict: Verdict, *, was_overtaken: bool, has_begun: bool = False) -> None:
        permit = take(health, "a")
        health.release(permit, verdict, 0.0, was_overtaken=was_overtaken, has_begun=has_begun)

    for _ in range(UNMEASURED_AFTER):
        assert not health.is_unmeasured("a")
        ends("dropped", was_overtaken=True)
    assert health.is_unmeasured("a")
    ends("dropped", was_overtaken=False)  # interrupted: says nothing
    ends("silent", was_overtaken=False)
    assert health.is_unmeasured("a")
    assert health.state("a", 0.0) == "closed"
    ends("dropped", was_overtaken=False, has_begun=True)  # overtaken, but after it had begun
    assert not health.is_unmeasured("a")


@pytest.mark.parametrize(
    "verdicts",
    [
        pytest.param(["silent"] * 5, id="each counts once"),
        pytest.param([*["dropped"] * 4, "silent"], id="a timeout counts those overtaken before"),
        pytest.param([*["dropped"] * 3, "silent", "silent"], id="and counts them once"),
    ],
)
def test_five_timeouts_in_a_row_open_the_breaker(verdicts: list[Verdict]) -> None:
    health = registry()
    for verdict in verdicts:
        assert health.state("a", 0.0) == "closed"
        was = verdict == "dropped"
        health.release(take(health, "a"), verdict, 0.0, was_overtaken=was, was_late=was)
    assert health.open_reason("a", 0.0).startswith("5 failures in a row")


def test_timeout_does_not_count_for_quickly_overtaken_requests() -> None:
    health = registry()
    for _ in range(20):
        health.release(take(health, "a"), "dropped", 0.0, was_overtaken=True, was_late=False)
    health.release(take(health, "a"), "silent", 0.0)
    assert health.state("a", 0.0) == "closed"


def test_broken_answer_still_counts_as_measured() -> None:
    health = registry()
    for _ in range(4):
        health.release(take(health, "a"), "silent", 0.0, has_begun=True)
        assert not health.is_unmeasured("a")
    for verdict in ("dropped", "dropped", "silent"):
        assert health.state("a", 0.0) == "closed"
        permit = take(health, "a")
        is_lost = verdict == "dropped"
        health.release(permit, verdict, 0.0, has_begun=not is_lost, was_overtaken=is_lost)
    assert health.open_reason("a", 0.0).startswith("5 failures in a row")


def test_one_loser_in_seventy_becomes_a_latency_probe() -> None:
    health = registry()
    assert health.claim_latency_probe("a")
    for _ in range(LATENCY_PROBE_INTERVAL):
        assert not health.claim_latency_probe("b")
        end(health, "answered")
    assert not health.claim_latency_probe("a")
    assert health.claim_latency_probe("b")
    health.release_latency_probe("a")
    assert not health.claim_latency_probe("a")
    end(health, "answered", times=LATENCY_PROBE_INTERVAL)
    assert health.claim_latency_probe("a")


def test_answered_since_is_the_latest_send_time() -> None:
    health = registry()
    early, late = take(health, "a", now=1.0), take(health, "a", now=2.0)
    assert health.answered_since("a") == float("-inf")
    health.record_first_token(late, 3.0)
    assert health.answered_since("a") == 2.0
    health.record_first_token(early, 4.0)
    assert health.answered_since("a") == 2.0
    assert health.answered_since("b") == float("-inf")
    assert (health.last_token_at("a"), health.last_token_at("b")) == (4.0, float("-inf"))


def test_late_first_tokens_of_many_sessions_lower_the_limit() -> None:
    health = registry()
    sessions = [object() for _ in range(60)]

    def hear(ttft_secs: float, now: float) -> None:
        permits: list[Permit] = []
        for session in sessions:
            permit = health.acquire(Ticket("primary", "standard", now, ("a",), now, session), now)
            assert permit is not None
            permits.append(permit)
        for permit in permits:
            for _ in range(3):
                health.record_first_token(permit, now + ttft_secs)
        for permit in permits:
            health.release(permit, "answered", now + ttft_secs)
            health.record_first_token(permit, now + 100.0)

    for second in range(0, 100, 10):
        hear(0.4, float(second))
    assert health.occupancy("a", 100.0) == (0, OPEN_BOUNDS.ceiling)
    hear(4.0, 100.0)
    assert health.occupancy("a", 110.0)[1] < len(sessions)


def test_longest_retry_after_counts_until_it_ends() -> None:
    health = registry()
    assert health.retry_after_secs("a", 0.0) == 0.0
    health.set_retry_after("a", 5.0)
    assert health.retry_after_secs("a", 2.0) == 3.0
    assert health.retry_after_secs("a", 6.0) == 0.0
    health.set_retry_after("a", 4.0)
    assert health.retry_after_secs("a", 2.0) == 3.0


@pytest.mark.parametrize(("running", "waiting", "limit"), [(9, 0, 23), (9, 8, 23), (2, 4, 1)])
def test_reported_queue_sets_the_limit(running: int, waiting: int, limit: int) -> None:
    health = registry()
    for _ in range(3):
        take(health, "a")
    health.set_queue("a", running, waiting, 0.0)
    assert health.occupancy("a", 1.9) == (3, limit)
    assert health.occupancy("a", 2.0) == (3, OPEN_BOUNDS.ceiling)


# ---- threads, and what is kept


def test_threads_do_not_exceed_the_limit() -> None:
    health = registry()
    health.entry("a").limit.set_queue(5, until=float("inf"))
    most = 0
    errors: list[BaseException] = []

    def work() -> None:
        nonlocal most
        try:
            for _ in range(500):
                if (permit := health.acquire(ticket("a", sheds=True), 0.0)) is not None:
                    most = max(most, health.entry("a").limit.in_flight)
                    time.sleep(0)  # lets another thread in while the permit is out
                    health.release(permit, "answered", 0.0)
        except BaseException as error:  # raised below: a thread's exception would be lost
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert 1 <= most <= 5
    assert health.entry("a").limit.in_flight == 0


@pytest.mark.parametrize("providers", [1, 100])
def test_registry_grows_with_providers_only(providers: int) -> None:
    health = registry()
    for session in range(1000):
        end(health, "answered", key=str(session % providers), now=float(session))
    assert len(health.entries()) == providers
