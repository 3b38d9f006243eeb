"""How providers stand: states, work classes and terms to rank, room and eligibility for a hedge."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from pipecat_hedge.providers import ProviderRegistry, Terms
from pipecat_hedge.providers.concurrency_limit import SHED_BOUNDS
from pipecat_hedge.providers.priority import WORK_CLASSES, WorkClass
from pipecat_hedge.providers.registry import TIER_SECS
from pipecat_hedge.providers.standing import first_choice
from pipecat_hedge.providers.verdict import Verdict
from pipecat_hedge.race import Tier

OPEN, SHED = Terms(), Terms(bounds=SHED_BOUNDS, sheds=True)
IGNORING = Terms(ignores_breakers=True)


def end(registry: ProviderRegistry, key: str, verdict: Verdict, at: float, times: int = 1) -> None:
    for _ in range(times):
        registry.release(registry.issue(key, "primary", OPEN, at), verdict, at)


def fill(registry: ProviderRegistry, key: str) -> None:
    registry.set_queue(key, 0, 1, 0.0)


def reject(registry: ProviderRegistry, key: str) -> None:
    """For load, with two more requests in flight."""
    for _ in range(2):
        registry.issue(key, "primary", OPEN, 0.0)
    end(registry, key, "busy", 0.0)


def ask_later(registry: ProviderRegistry, key: str) -> None:
    registry.set_retry_after(key, 2.0)
    registry.set_retry_after(key, 1.0)


def use_up(registry: ProviderRegistry, key: str) -> None:
    registry.set_used_up(key, 3.0)
    registry.set_used_up(key, 1.0)  # an older response


def be_over(registry: ProviderRegistry, key: str) -> None:
    registry.set_retry_after(key, 0.0)
    registry.set_used_up(key, 0.0)


STATES: dict[str, tuple[Callable[[ProviderRegistry, str], None], int, str | None]] = {
    "well": (lambda r, key: None, 0, None),
    "all over": (be_over, 0, None),
    "full": (fill, 1, "has 0 of 0 requests in flight"),
    "used up": (use_up, 1, "has its rate limit used up for 3 s"),
    "half-open": (lambda r, key: end(r, key, "failed", -100.0, 5), 1, "is excluded by its breaker"),
    "open": (lambda r, key: end(r, key, "failed", 0.0, 5), 2, "is excluded by its breaker (5 fail"),
    "rejecting": (reject, 3, "has 2 of 2 requests in flight"),
    "Retry-After": (
        lambda r, key: r.set_retry_after(key, 2.0),
        3,
        "has sent Retry-After, 2 s left",
    ),
    "longer": (lambda r, key: r.set_retry_after(key, 9.0), 3, "has sent Retry-After, 9 s"),
}
"""How a provider gets into a state, its rank at 0, and why it has no room and gets no hedge."""


@pytest.fixture
def registry() -> ProviderRegistry:
    return ProviderRegistry(random.Random(1))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("terms", [OPEN, SHED, IGNORING], ids=["open", "shed", "ignores breakers"])
def test_state_decides_rank_room_and_eligibility(
    registry: ProviderRegistry, state: str, terms: Terms
) -> None:
    """For every work class alike."""
    enter, rank, why = STATES[state]
    enter(registry, "a")
    if terms is IGNORING and state in ("open", "half-open"):
        why = None
    for work in WORK_CLASSES:
        (found,) = registry.standing(["a"], work, terms, 0.0)
        assert (found.rank, found.is_well) == (rank, state not in NOT_WELL)
        for reason in (found.full, found.ineligible):
            assert reason is why or (reason and reason.startswith(why or " "))


NOT_WELL = ("open", "half-open", "Retry-After", "longer")


@pytest.mark.parametrize(
    ("work", "terms", "most_of_20", "beside_premium"),
    [
        ("primary", OPEN, 20, 20),
        ("tool_follow_up", OPEN, 20, 20),
        ("rescue", OPEN, 20, 20),
        ("background", OPEN, 20, 20),
        ("hedge", OPEN, 18, 18),
        ("warm_up", OPEN, 15, 15),
        ("primary", replace(SHED, tier="premium"), 20, 20),
        ("primary", replace(SHED, tier="standard"), 20, 13),
        ("rescue", replace(SHED, tier="economy"), 20, 10),
        ("background", replace(SHED, tier="premium"), 20, 10),
        ("hedge", replace(SHED, tier="economy"), 18, 18),
    ],
)
@pytest.mark.parametrize("premium_at", [None, -TIER_SECS, 0.1 - TIER_SECS])
def test_less_urgent_work_leaves_room_for_more_urgent(
    registry: ProviderRegistry,
    work: WorkClass,
    terms: Terms,
    most_of_20: int,
    beside_premium: int,
    premium_at: float | None,
) -> None:
    """Worse tiers of sessions that shed leave some for a minute after a premium turn."""
    registry.set_queue("a", 20, 15, 0.0)  # room for twenty more
    if premium_at is not None:
        registry.begin_turn(replace(SHED, tier="premium"), premium_at)
    most, sent = beside_premium if premium_at == 0.1 - TIER_SECS else most_of_20, 0
    while (found := registry.standing(["a"], work, terms, 0.0)[0]).full is None:
        assert (found.ineligible is None) is (sent < 18), "hedges leave a tenth"
        registry.issue("a", work, terms, 0.0)
        sent += 1
    assert found.full == f"has {most} of 20 requests in flight"


def test_only_a_session_that_sheds_reserves_room(registry: ProviderRegistry) -> None:
    tiers: tuple[Tier, Tier] = ("premium", "economy")
    premium, economy = (replace(OPEN, tier=tier) for tier in tiers)
    registry.begin_turn(premium, 0.0)
    registry.set_queue("a", 20, 15, 0.0)
    for _ in range(15):
        registry.issue("a", "primary", premium, 0.0)
    for terms in (economy, replace(SHED, tier="economy")):
        assert registry.standing(["a"], "primary", terms, 0.0)[0].full is None


@pytest.mark.parametrize(
    ("states", "first"),
    [
        (["well", "well"], 0),
        (["full", "well"], 1),
        (["full", "full"], 0),
        (["used up", "well"], 1),
        (["used up", "half-open"], 0),
        (["half-open", "full"], 1),
        (["open", "half-open"], 1),
        (["rejecting", "half-open"], 1),
        (["rejecting", "open"], 1),
        (["Retry-After", "open"], 1),
        (["Retry-After", "rejecting"], 1),
        (["longer", "Retry-After"], 1),
        (["rejecting"], 0),
    ],
)
def test_first_request_goes_where_it_may_be_taken_first(
    registry: ProviderRegistry, states: list[str], first: int
) -> None:
    keys = "ab"[: len(states)]
    for key, state in zip(keys, states, strict=True):
        STATES[state][0](registry, key)
    assert first_choice(registry.standing(keys, "primary", OPEN, 0.0)) == first
