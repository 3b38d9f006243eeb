"""Breakers and limits together: which providers may get a request."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from pipecat_hedge.limits import OBSERVED_LOSER_INTERVAL, AdmissionController
from pipecat_hedge.limits.admission_controller import UNMEASURED_AFTER
from pipecat_hedge.limits.concurrency_limit import SHED_BOUNDS
from pipecat_hedge.limits.permits import Permit, Terms
from pipecat_hedge.limits.priority import WorkClass
from pipecat_hedge.limits.verdict import Verdict
from pipecat_hedge.race import Tier

OPEN, SHED = Terms(), Terms(bounds=SHED_BOUNDS, sheds=True)


@pytest.fixture
def health() -> AdmissionController:
    return AdmissionController(random.Random(1))


def take(health: AdmissionController, *keys: str, now: float = 0.0) -> Permit:
    """A caller's request."""
    key = health.first_choice(keys, "primary", OPEN, now)
    assert key is not None
    return health.issue(key, "primary", OPEN, now)


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


def test_limit_only_ranks_providers_for_callers(health: AdmissionController) -> None:
    for key in "ab":
        health.set_queue(key, 0, 1, 0.0)
    assert health.refusals(["a", "b"], "primary", OPEN, 0.0).keys() == {"a", "b"}
    assert health.reluctance("ab", OPEN, 0.0) == {"a": 1, "b": 1}
    chosen = [take(health, "a", "b").key for _ in range(3)]
    health.set_queue("b", 1, 0, 0.0)
    assert [*chosen, take(health, "a", "b").key] == ["a", "a", "a", "b"]


def test_caller_is_sent_where_a_provider_may_take_it_first(health: AdmissionController) -> None:
    """Rejections for load are worse than an open breaker, and a Retry-After is the worst."""
    health.set_retry_after("a", 90.0)
    health.set_retry_after("b", 60.0)
    assert take(health, "a", "b").key == "b"
    refuse(health, "c")
    assert take(health, "a", "b", "c").key == "c"
    end(health, "failed", key="d", times=5)
    assert take(health, "a", "b", "c", "d").key == "d"


@pytest.mark.parametrize(("tier", "most"), [("premium", 20), ("standard", 13), ("economy", 10)])
@pytest.mark.parametrize("is_alone", [True, False])
def test_shedding_turn_leaves_room_for_better_tiers(
    health: AdmissionController, tier: Tier, most: int, is_alone: bool
) -> None:
    """If one of their turns has come of late."""
    health.set_queue("a", 20, 15, 0.0)  # room for twenty more
    if not is_alone:
        health.first_choice("a", "primary", replace(SHED, tier="premium"), 0.0)
    terms, sent = replace(SHED, tier=tier), 0
    while health.first_choice("a", "primary", terms, 0.0) is not None:
        health.issue("a", "primary", terms, 0.0)
        sent += 1
    assert sent == (20 if is_alone else most)


# ---- hedges and warm-up prompts


@pytest.mark.parametrize(("work", "most"), [("hedge", 18), ("warm_up", 15)])
def test_optional_work_leaves_room_for_callers(
    health: AdmissionController, work: WorkClass, most: int
) -> None:
    health.set_queue("a", 20, 15, 0.0)  # room for twenty more
    sent = 0
    while not health.refusals("a", work, OPEN, 0.0):
        health.issue("a", work, OPEN, 0.0)
        sent += 1
    assert sent == most
    assert health.refusals("a", work, OPEN, 0.0) == {"a": f"has {most} of 20 requests in flight"}
    assert health.refusals("a", "primary", OPEN, 0.0) == {}


def test_optional_work_avoids_unhealthy_providers(health: AdmissionController) -> None:
    end(health, "failed", times=5)
    health.set_retry_after("b", 2.0)
    refuse(health, "c")
    refusals = health.refusals("abc", "hedge", OPEN, 0.0)
    assert refusals["a"].startswith("is excluded by its breaker (5 failures in a row")
    assert refusals["b"] == "has sent Retry-After, 2 s left"
    assert refusals["c"] == "has 2 of 2 requests in flight"
    assert health.reluctance("abc", OPEN, 0.0) == {"a": 2, "b": 3, "c": 3}


def test_used_up_rate_limit_stops_hedges_until_its_reset(health: AdmissionController) -> None:
    health.set_used_up("a", 30.0)
    health.set_used_up("a", 4.0)  # an older response
    refusals = health.refusals("a", "hedge", OPEN, 27.0)
    assert refusals == {"a": "has its rate limit used up for 3 s"}
    assert take(health, "a", "b", now=27.0).key == "b"
    assert take(health, "a", now=27.0).key == "a", "a caller is sent where nobody else is left"
    assert health.refusals("a", "hedge", OPEN, 30.0) == {}


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
    probe = health.issue("a", "primary", OPEN, 100.0, is_probe=True)
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


def test_threads_lose_no_count(health: AdmissionController) -> None:
    def work() -> None:
        for _ in range(500):
            permit = health.issue("a", "primary", OPEN, 0.0)
            time.sleep(0)  # lets another thread in while the permit is out
            health.release(permit, "answered", 0.0)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert health.entry("a").limit.in_flight == 0


def test_registry_forgets_providers_without_requests(health: AdmissionController) -> None:
    held = take(health, "held")
    for number in range(400):
        end(health, "answered", key=str(number))
    assert len(health.entries()) < 400
    assert health.entry(held.key).limit.in_flight == 1


def test_one_loser_in_seventy_is_observed(health: AdmissionController) -> None:
    assert health.claim_observed_loser("a")
    assert not health.claim_observed_loser("b")
    end(health, "answered", times=OBSERVED_LOSER_INTERVAL)
    assert not health.claim_observed_loser("a"), "one at a time"
    assert health.claim_observed_loser("b")
    health.release_observed_loser("a")
    assert not health.claim_observed_loser("a")
    end(health, "answered", times=OBSERVED_LOSER_INTERVAL)
    assert health.claim_observed_loser("a")


def test_second_release_changes_nothing(health: AdmissionController) -> None:
    permit, _ = take(health, "a"), take(health, "a")
    for _ in range(2):
        health.release(permit, "answered", 0.0)
    assert health.entry("a").limit.in_flight == 1
