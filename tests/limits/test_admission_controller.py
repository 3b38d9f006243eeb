"""Breakers, limits and the queue together: which providers may get a request."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from pipecat_hedge.limits import LATENCY_PROBE_INTERVAL, AdmissionController
from pipecat_hedge.limits.admission_controller import UNMEASURED_AFTER
from pipecat_hedge.limits.concurrency_limit import OPEN_BOUNDS, SHED_BOUNDS
from pipecat_hedge.limits.permit_queue import OPTIONAL, Ticket
from pipecat_hedge.limits.permits import Rejected, permit_for
from pipecat_hedge.limits.priority import WORK_CLASSES, WorkClass
from pipecat_hedge.limits.provider_health import Permit
from pipecat_hedge.limits.verdict import Verdict
from pipecat_hedge.race import Tier


def ticket(
    *keys: str,
    work: WorkClass = "primary",
    tier: Tier = "standard",
    now: float = 0.0,
    sheds: bool = False,
    **fields: Any,
) -> Ticket:
    bounds = SHED_BOUNDS if sheds else OPEN_BOUNDS
    return Ticket(work, tier, now + 3.0, keys, now, bounds=bounds, sheds=sheds, **fields)


@pytest.fixture
def health() -> AdmissionController:
    return AdmissionController(random.Random(1))


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
    **how: Any,
) -> None:
    """Requests, one after the other, that end at once."""
    for _ in range(times):
        health.release(take(health, key, now=now), verdict, now, **how)


def refuse(health: AdmissionController, *keys: str) -> list[Permit]:
    """Providers that reject for load, with two requests in flight each."""
    left: list[Permit] = []
    for key in keys:
        permits = [take(health, key) for _ in range(3)]
        health.release(permits.pop(), "busy", 0.0)
        left += permits
    return left


# ---- callers' requests


@pytest.mark.parametrize("work", [work for work in WORK_CLASSES if work not in OPTIONAL])
def test_limit_only_ranks_providers_for_callers(
    health: AdmissionController, work: WorkClass
) -> None:
    for key in "ab":
        health.set_queue(key, 0, 1, 0.0)
    wanted = ticket("a", "b", work=work)
    assert health.refusals(["a", "b"], wanted, 0.0).keys() == {"a", "b"}
    assert health.reluctance("ab", wanted, 0.0) == {"a": 1, "b": 1}
    assert health.reluctance("ab", replace(wanted, sheds=True), 0.0) == {"a": 3, "b": 3}
    permits = [health.acquire(wanted, 0.0) for _ in range(3)]
    health.set_queue("b", 1, 0, 0.0)
    permits.append(health.acquire(wanted, 0.0))
    assert [permit and permit.key for permit in permits] == ["a", "a", "a", "b"]


def test_caller_is_not_held_back_beyond_its_deadline(health: AdmissionController) -> None:
    health.set_retry_after("a", 90.0)
    health.set_retry_after("b", 60.0)
    assert take(health, "a", "b").key == "b"
    assert health.force(ticket("b", "a"), 0.0).key == "b"
    health.set_retry_after("c", 1.0)
    assert health.acquire(ticket("a", "b", "c"), 0.0) is None, "that one is worth waiting for"


# ---- hedges and warm-up prompts


@pytest.mark.parametrize(("work", "most"), [("hedge", 18), ("warm_up", 15)])
def test_optional_work_leaves_room_for_callers(
    health: AdmissionController, work: WorkClass, most: int
) -> None:
    health.set_queue("a", 20, 15, 0.0)  # room for twenty more
    wanted = ticket("a", work=work)
    sent = [health.acquire(wanted, 0.0) for _ in range(20)]
    assert sum(permit is not None for permit in sent) == most
    assert health.refusals(["a"], wanted, 0.0) == {"a": f"has {most} of 20 requests in flight"}
    assert health.refusals(["a"], ticket("a"), 0.0) == {}


def test_optional_work_avoids_unhealthy_providers(health: AdmissionController) -> None:
    end(health, "failed", times=5)
    health.set_retry_after("b", 2.0)
    refuse(health, "c")
    wanted = ticket("a", "b", "c", work="hedge")
    assert health.acquire(wanted, 0.0) is None
    refusals = health.refusals("abc", wanted, 0.0)
    assert refusals["a"].startswith("is excluded by its breaker (5 failures in a row")
    assert refusals["b"] == "has sent Retry-After, 2 s left"
    assert refusals["c"] == "has 2 of 2 requests in flight"
    assert health.rejection_reason(wanted, 0.0).startswith("a is excluded by its breaker (5")
    assert health.reluctance("abc", ticket("a"), 0.0) == {"a": 2, "b": 3, "c": 3}


def test_used_up_rate_limit_stops_hedges_until_its_reset(health: AdmissionController) -> None:
    health.set_used_up("a", 30.0)
    health.set_used_up("a", 4.0)  # an older response
    wanted = ticket("a", work="hedge")
    assert health.refusals("a", wanted, 27.0) == {"a": "has its rate limit used up for 3 s"}
    assert health.acquire(wanted, 27.0) is None
    assert take(health, "a", "b", now=27.0).key == "b"
    assert take(health, "a", now=27.0).key == "a", "a caller is sent where nobody else is left"
    assert health.acquire(wanted, 30.0) is not None


def test_hedge_does_not_overtake_a_waiting_caller(health: AdmissionController) -> None:
    refuse(health, "a")
    health.wait(waiting := ticket("a"), lambda permit: None, 0.0)
    wanted = ticket("a", work="hedge", tier="premium")
    health.entry("a").limit.recover()
    assert health.acquire(wanted, 0.0) is None
    assert health.refusals(["a"], wanted, 0.0)["a"].endswith("and others waiting")
    health.leave(waiting)
    assert health.acquire(wanted, 0.0) is not None


# ---- breakers


# ---- failures of our own network


def lose_connections(
    health: AdmissionController, now: float, *, times: int = 1, **hosts: str
) -> None:
    for _ in range(times):
        for key, host in hosts.items():
            end(health, "not_connected", key=key, now=now, host=host)


@pytest.mark.parametrize("is_shared", [False, True])
def test_probe_connection_failure_counts_unless_shared(
    health: AdmissionController, is_shared: bool
) -> None:
    end(health, "failed", times=5)
    assert health.claim_probe("a", 100.0)
    probe = health.acquire(ticket("a", now=100.0, probe="a"), 100.0)
    assert probe is not None
    health.release(probe, "not_connected", 100.0, host="one:443")
    if is_shared:
        lose_connections(health, 100.0, b="two:443")
    assert not health.claim_probe("a", 100.0)
    ((state, _),) = health.breaker_states("a", 103.0)
    assert state == ("half_open" if is_shared else "open")
    assert health.claim_probe("a", 103.0) is is_shared


# ---- observations


OVERTAKEN: dict[str, Any] = {"was_overtaken": True, "was_late": True}


def test_overtaken_provider_is_unmeasured_until_a_token(health: AdmissionController) -> None:
    for _ in range(UNMEASURED_AFTER):
        assert not health.is_unmeasured("a")
        end(health, "dropped", **OVERTAKEN)
    end(health, "dropped")  # interrupted: says nothing
    end(health, "silent")
    assert health.is_unmeasured("a")
    end(health, "dropped", has_begun=True)  # overtaken, but after it had begun
    assert not health.is_unmeasured("a")


@pytest.mark.parametrize(
    ("ends", "opens"),
    [
        pytest.param([("silent", {}, 5)], True, id="five timeouts"),
        pytest.param(
            [("dropped", OVERTAKEN, 4), ("silent", {}, 1)],
            True,
            id="a timeout counts those overtaken before",
        ),
        pytest.param(
            [("dropped", OVERTAKEN, 3), ("silent", {}, 2)], True, id="and counts them once"
        ),
        pytest.param(
            [("dropped", {"was_overtaken": True}, 20), ("silent", {}, 1)],
            False,
            id="not those overtaken before they were late",
        ),
        pytest.param([("silent", {"has_begun": True}, 5)], True, id="broken answers count"),
    ],
)
def test_five_timeouts_in_a_row_open_the_breaker(
    health: AdmissionController, ends: list[tuple[Verdict, dict[str, Any], int]], opens: bool
) -> None:
    for verdict, how, times in ends:
        for _ in range(times):
            assert health.state("a", 0.0) == "closed"
            end(health, verdict, **how)
    assert (health.state("a", 0.0) == "open") is opens


# ---- threads, and what is kept


def test_threads_do_not_exceed_the_limit(health: AdmissionController) -> None:
    health.entry("a").limit.set_queue(5, until=float("inf"))
    in_flight: list[int] = []

    def work() -> None:
        for _ in range(500):
            if (permit := health.acquire(ticket("a", sheds=True), 0.0)) is not None:
                in_flight.append(health.entry("a").limit.in_flight)
                time.sleep(0)  # lets another thread in while the permit is out
                health.release(permit, "answered", 0.0)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= max(in_flight) <= 5
    assert health.entry("a").limit.in_flight == 0


def test_registry_forgets_providers_without_requests(health: AdmissionController) -> None:
    held = take(health, "held")
    for number in range(400):
        end(health, "answered", key=str(number))
    assert len(health.entries()) < 400
    assert health.entry(held.key).limit.in_flight == 1


def test_one_loser_in_seventy_becomes_a_latency_probe(health: AdmissionController) -> None:
    assert health.claim_latency_probe("a")
    assert not health.claim_latency_probe("b")
    end(health, "answered", times=LATENCY_PROBE_INTERVAL)
    assert not health.claim_latency_probe("a"), "one at a time"
    assert health.claim_latency_probe("b")
    health.release_latency_probe("a")
    assert not health.claim_latency_probe("a")
    end(health, "answered", times=LATENCY_PROBE_INTERVAL)
    assert health.claim_latency_probe("a")


def test_second_release_changes_nothing(health: AdmissionController) -> None:
    permit, _ = take(health, "a"), take(health, "a")
    for _ in range(2):
        health.release(permit, "answered", 0.0)
    assert health.entry("a").limit.in_flight == 1


# ---- waiting on a loop


@pytest.mark.virtual_time
async def test_permit_of_a_cancelled_waiter_goes_to_the_next(health: AdmissionController) -> None:
    health.entry("a").limit.set_queue(1, until=float("inf"))
    held = take(health, "a")
    first, second = (
        asyncio.create_task(permit_for(health, ticket("a", sheds=True), lambda: None))
        for _ in range(2)
    )
    await asyncio.sleep(0.01)
    health.release(held, "answered", 0.01)
    first.cancel()
    health.release(await second, "answered", 0.01)
    assert first.cancelled()
    assert health.entry("a").limit.in_flight == 0


@pytest.mark.virtual_time
async def test_late_loop_rejects_only_optional_work(health: AdmissionController) -> None:
    sent: set[WorkClass] = set()
    for work in WORK_CLASSES:
        with suppress(Rejected):
            await permit_for(health, ticket("a", work=work), lambda: "the event loop is behind")
            sent.add(work)
    assert sent == {*WORK_CLASSES} - OPTIONAL
    assert asyncio.get_running_loop().time() == 0.0


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_open_at_first", [True, False])
async def test_shedding_request_is_rejected_at_open_breakers(
    health: AdmissionController, is_open_at_first: bool
) -> None:
    loop, permits = asyncio.get_running_loop(), [take(health, "a") for _ in range(5)]

    def fail() -> None:
        for permit in permits:
            health.release(permit, "failed", loop.time())

    if is_open_at_first:
        fail()
    else:
        health.entry("a").limit.set_queue(1, until=float("inf"))
        loop.call_at(0.05, fail)
    with pytest.raises(Rejected, match=r"every breaker is open: a is excluded by its breaker \(5"):
        await permit_for(health, ticket("a", sheds=True), lambda: None)
    assert loop.time() == pytest.approx(0.0 if is_open_at_first else 0.1)
