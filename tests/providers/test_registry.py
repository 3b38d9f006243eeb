"""What a process counts of its providers: failures in a row, losers, requests in flight."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from pipecat_hedge.providers import OBSERVED_LOSER_INTERVAL, ProviderRegistry
from pipecat_hedge.providers.permits import Permit, Terms
from pipecat_hedge.providers.registry import UNMEASURED_AFTER
from pipecat_hedge.providers.verdict import Verdict
from tests.support.standing import standing

OPEN = Terms()


@pytest.fixture
def registry() -> ProviderRegistry:
    return ProviderRegistry(random.Random(1))


def take(registry: ProviderRegistry, key: str, *, now: float = 0.0) -> Permit:
    """A caller's request."""
    return registry.issue(key, "primary", OPEN, now)


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
