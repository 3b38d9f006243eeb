"""What a process knows of its providers: which of them may get a request."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from pipecat_hedge.providers import OBSERVED_LOSER_INTERVAL, ProviderRegistry
from pipecat_hedge.providers.concurrency_limit import SHED_BOUNDS
from pipecat_hedge.providers.permits import Permit, Terms
from pipecat_hedge.providers.priority import WorkClass
from pipecat_hedge.providers.registry import UNMEASURED_AFTER
from pipecat_hedge.providers.standing import first_choice
from pipecat_hedge.providers.verdict import Verdict
from pipecat_hedge.race import Tier
from tests.support.standing import standing

OPEN, SHED = Terms(), Terms(bounds=SHED_BOUNDS, sheds=True)


@pytest.fixture
def registry() -> ProviderRegistry:
    return ProviderRegistry(random.Random(1))


def take(registry: ProviderRegistry, *keys: str, now: float = 0.0) -> Permit:
    """A caller's request."""
    key = keys[first_choice(registry.standing(keys, "primary", OPEN, now))]
    return registry.issue(key, "primary", OPEN, now)


def reason(registry: ProviderRegistry, key: str, work: WorkClass, now: float = 0.0) -> str | None:
    """Why a provider gets no request of a kind."""
    (found,) = registry.standing([key], work, OPEN, now)
    return found.ineligible if work == "hedge" else found.full


def end(
    registry: ProviderRegistry,
    verdict: Verdict,
    *,
    key: str = "a",
    now: float = 0.0,
    times: int = 1,
    **how: Any,
) -> None:
    """Requests, one after the other, that end at once."""
    for _ in range(times):
        registry.release(take(registry, key, now=now), verdict, now, **how)


def reject(registry: ProviderRegistry, *keys: str) -> list[Permit]:
    """Providers that reject for load, with two requests in flight each."""
    left: list[Permit] = []
    for key in keys:
        permits = [take(registry, key) for _ in range(3)]
        registry.release(permits.pop(), "busy", 0.0)
        left += permits
    return left


# ---- callers' requests


def test_limit_only_ranks_providers_for_callers(registry: ProviderRegistry) -> None:
    for key in "ab":
        registry.set_queue(key, 0, 1, 0.0)
    full = "has 0 of 0 requests in flight"
    found = registry.standing("ab", "primary", OPEN, 0.0)
    assert [(each.full, each.rank) for each in found] == [(full, 1)] * 2
    chosen = [take(registry, "a", "b").key for _ in range(3)]
    registry.set_queue("b", 1, 0, 0.0)
    assert [*chosen, take(registry, "a", "b").key] == ["a", "a", "a", "b"]


def test_caller_is_sent_where_a_provider_may_take_it_first(registry: ProviderRegistry) -> None:
    """Rejections for load are worse than an open breaker, and a Retry-After is the worst."""
    registry.set_retry_after("a", 90.0)
    registry.set_retry_after("b", 60.0)
    assert take(registry, "a", "b").key == "b"
    reject(registry, "c")
    assert take(registry, "a", "b", "c").key == "c"
    end(registry, "failed", key="d", times=5)
    assert take(registry, "a", "b", "c", "d").key == "d"


@pytest.mark.parametrize(("tier", "most"), [("premium", 20), ("standard", 13), ("economy", 10)])
@pytest.mark.parametrize("is_alone", [True, False])
def test_shedding_turn_leaves_room_for_better_tiers(
    registry: ProviderRegistry, tier: Tier, most: int, is_alone: bool
) -> None:
    """If one of their turns has come of late."""
    registry.set_queue("a", 20, 15, 0.0)  # room for twenty more
    if not is_alone:
        registry.begin_turn(replace(SHED, tier="premium"), 0.0)
    terms, sent = replace(SHED, tier=tier), 0
    while registry.standing("a", "primary", terms, 0.0)[0].full is None:
        registry.issue("a", "primary", terms, 0.0)
        sent += 1
    assert sent == (20 if is_alone else most)


# ---- hedges and warm-up prompts


@pytest.mark.parametrize(("work", "most"), [("hedge", 18), ("warm_up", 15)])
def test_optional_work_leaves_room_for_callers(
    registry: ProviderRegistry, work: WorkClass, most: int
) -> None:
    registry.set_queue("a", 20, 15, 0.0)  # room for twenty more
    sent = 0
    while reason(registry, "a", work) is None:
        registry.issue("a", work, OPEN, 0.0)
        sent += 1
    assert sent == most
    assert reason(registry, "a", work) == f"has {most} of 20 requests in flight"
    assert reason(registry, "a", "primary") is None


def test_optional_work_avoids_unhealthy_providers(registry: ProviderRegistry) -> None:
    end(registry, "failed", times=5)
    registry.set_retry_after("b", 2.0)
    reject(registry, "c")
    a, b, c = registry.standing("abc", "primary", OPEN, 0.0)
    assert a.ineligible is not None
    assert a.ineligible.startswith("is excluded by its breaker (5 failures in a row")
    assert b.ineligible == "has sent Retry-After, 2 s left"
    assert c.ineligible == "has 2 of 2 requests in flight"
    assert [a.rank, b.rank, c.rank] == [2, 3, 3]


def test_used_up_rate_limit_stops_hedges_until_its_reset(registry: ProviderRegistry) -> None:
    registry.set_used_up("a", 30.0)
    registry.set_used_up("a", 4.0)  # an older response
    assert reason(registry, "a", "hedge", 27.0) == "has its rate limit used up for 3 s"
    assert take(registry, "a", "b", now=27.0).key == "b"
    assert take(registry, "a", now=27.0).key == "a", "a caller is sent where nobody else is left"
    assert reason(registry, "a", "hedge", 30.0) is None


# ---- failures of our own network


def lose_connections(
    registry: ProviderRegistry, now: float, *, times: int = 1, **hosts: str
) -> None:
    for _ in range(times):
        for key, host in hosts.items():
            end(registry, "not_connected", key=key, now=now, host=host)


@pytest.mark.parametrize("is_shared", [False, True])
def test_recovery_connection_failure_counts_unless_shared(
    registry: ProviderRegistry, is_shared: bool
) -> None:
    end(registry, "failed", times=5)
    assert registry.claim_recovery("a", 100.0)
    recovery = registry.issue("a", "primary", OPEN, 100.0, is_recovery=True)
    registry.release(recovery, "not_connected", 100.0, host="one:443")
    if is_shared:
        lose_connections(registry, 100.0, b="two:443")
    assert not registry.claim_recovery("a", 100.0)
    assert standing(registry, "a", 103.0).breaker == ("half_open" if is_shared else "open")
    assert registry.claim_recovery("a", 103.0) is is_shared


# ---- observations


OVERTAKEN: dict[str, Any] = {"was_overtaken": True, "was_late": True}


def test_overtaken_provider_is_unmeasured_until_a_token(registry: ProviderRegistry) -> None:
    for _ in range(UNMEASURED_AFTER):
        assert not registry.is_unmeasured("a")
        end(registry, "dropped", **OVERTAKEN)
    end(registry, "dropped")  # interrupted: says nothing
    end(registry, "silent")
    assert registry.is_unmeasured("a")
    end(registry, "dropped", has_begun=True)  # overtaken, but after it had begun
    assert not registry.is_unmeasured("a")


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
    registry: ProviderRegistry, ends: list[tuple[Verdict, dict[str, Any], int]], opens: bool
) -> None:
    for verdict, how, times in ends:
        for _ in range(times):
            assert standing(registry, "a", 0.0).breaker == "closed"
            end(registry, verdict, **how)
    assert (standing(registry, "a", 0.0).breaker == "open") is opens


# ---- threads, and what is kept


def test_threads_lose_no_count(registry: ProviderRegistry) -> None:
    def work() -> None:
        for _ in range(500):
            permit = registry.issue("a", "primary", OPEN, 0.0)
            time.sleep(0)  # lets another thread in while the permit is out
            registry.release(permit, "answered", 0.0)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry.record("a").limit.in_flight == 0


def test_registry_forgets_providers_without_requests(registry: ProviderRegistry) -> None:
    held = take(registry, "held")
    for number in range(400):
        end(registry, "answered", key=str(number))
    assert len(registry.records()) < 400
    assert registry.record(held.key).limit.in_flight == 1


def test_one_loser_in_seventy_is_observed(registry: ProviderRegistry) -> None:
    assert registry.claim_observed_loser("a")
    assert not registry.claim_observed_loser("b")
    end(registry, "answered", times=OBSERVED_LOSER_INTERVAL)
    assert not registry.claim_observed_loser("a"), "one at a time"
    assert registry.claim_observed_loser("b")
    registry.release_observed_loser("a")
    assert not registry.claim_observed_loser("a")
    end(registry, "answered", times=OBSERVED_LOSER_INTERVAL)
    assert registry.claim_observed_loser("a")


def test_second_release_changes_nothing(registry: ProviderRegistry) -> None:
    permit, _ = take(registry, "a"), take(registry, "a")
    for _ in range(2):
        registry.release(permit, "answered", 0.0)
    assert registry.record("a").limit.in_flight == 1
