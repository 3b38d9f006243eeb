"""How many extra requests may be sent at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policy.hedge_burst import (
    MOST_TOKENS,
    REFILL_SECS,
    SLACK,
    BurstBound,
    HedgeBurst,
)
from pipecat_hedge.race import InFlight, LaunchDecision, Waiting
from tests.policy.test_first_place import At


def send_all(burst: HedgeBurst, now: float) -> int:
    """How many can be sent in one moment."""
    sent = 0
    while burst.permits(1.0, now):
        burst.spend(1.0, now)
        sent += 1
    return sent


@given(
    st.floats(0.02, 0.5),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 20)), min_size=1, max_size=60),
)
def test_any_period_is_within_the_budget_and_the_burst(
    budget: float, moments: list[tuple[float, int]]
) -> None:
    """However many are wanted: turns times the budget, the burst, and the refill over time."""
    burst, now = HedgeBurst(budget), 0.0
    burst.permits(1.0, now)
    seen: list[tuple[float, int, int]] = []
    for secs, turns in moments:
        now += secs
        for _ in range(turns):
            burst.begin_turn(now)
        seen.append((now, turns, send_all(burst, now)))
    for begin in range(len(seen)):
        for end in range(begin, len(seen)):
            period = seen[begin : end + 1]
            by_time = (period[-1][0] - period[0][0]) / REFILL_SECS
            # The first moment's turns were there before its requests.
            turns = sum(turns for _, turns, _ in period[1:])
            sent = sum(sent for _, _, sent in period)
            assert sent <= MOST_TOKENS + SLACK * budget * turns + by_time + 1e-6


def test_slow_period_is_hedged_at_twice_the_budget() -> None:
    burst, sent = HedgeBurst(0.1), 0
    for _ in range(200):
        burst.begin_turn(0.0)
        sent += send_all(burst, 0.0)
    assert sent == pytest.approx(MOST_TOKENS + SLACK * 0.1 * 200, abs=1)


def test_free_requests_need_no_room_and_dear_ones_a_full_bucket() -> None:
    burst = HedgeBurst(0.1)
    assert burst.permits(10.0, 0.0)
    burst.spend(1.0, 0.0)
    assert [burst.permits(cost, 0.0) for cost in (10.0, 1.0)] == [False, True]
    burst.spend(9.0, 0.0)
    assert [burst.permits(cost, 0.0) for cost in (0.1, 0.0)] == [False, True]


def test_debt_is_forgotten_after_a_full_refill() -> None:
    burst = HedgeBurst(0.1)
    for _ in range(100):
        burst.spend(1.0, 0.0)
    assert not burst.permits(1.0, 0.9 * (MOST_TOKENS + 1) * REFILL_SECS)
    assert burst.permits(1.0, (MOST_TOKENS + 1) * REFILL_SECS)


# ---- as a launch rule


def decision(at: float | None, now: float, *, room: bool = False) -> LaunchDecision:
    """What a turn of 10.0 does."""
    rule = BurstBound(At(at), lambda provider, now: room, lambda provider: None)
    return rule.next_launch(Waiting(10.0, (InFlight("a", 10.0, None),), "b", now))


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize(("at", "now"), [(None, 12.9), (12.0, 11.9), (12.5, 12.0)])
def test_hedge_that_is_not_due_needs_no_room(at: float | None, now: float, room: bool) -> None:
    usual = LaunchDecision(at, "saves 2 s")
    assert decision(at, now, room=room) == usual


def test_hedge_without_room_is_put_off() -> None:
    found = decision(12.0, 12.0)
    assert (found.at, found.is_put_off) == (None, True)
