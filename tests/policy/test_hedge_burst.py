"""How many extra requests may be sent at once."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policy.budget_accounts import BudgetAccounts
from pipecat_hedge.policy.hedge_burst import (
    MOST_PER_PROCESS,
    REFILL_SECS,
    SLACK,
    BurstBound,
    HedgeBurst,
    saved,
)
from pipecat_hedge.race import InFlight, LaunchDecision, Waiting


def send_all(burst: HedgeBurst, now: float, processes: int = 1) -> int:
    """How many can be sent in one moment."""
    sent = 0
    while burst.permits(1.0, now, processes):
        burst.spend(1.0, now)
        sent += 1
    return sent


@pytest.mark.parametrize(("processes", "most"), [(1, 4), (3, 4), (4, 3), (6, 2), (12, 1), (100, 1)])
def test_what_is_saved_is_divided_among_the_processes(processes: int, most: int) -> None:
    """One has four; many have twelve in all, and each of them one at least."""
    burst = HedgeBurst(0.1)
    assert send_all(burst, 0.0, processes) == most
    assert most <= MOST_PER_PROCESS
    assert most * processes <= saved(0.1) or most == 1


@given(
    st.floats(0.02, 0.5),
    st.integers(1, 20),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 20)), min_size=1, max_size=60),
)
def test_any_stretch_is_within_the_budget_and_the_burst(
    budget: float, processes: int, moments: list[tuple[float, int]]
) -> None:
    """Whatever is wanted: turns times the budget, what is saved, and what time alone brings."""
    burst, now = HedgeBurst(budget), 0.0
    burst.permits(1.0, now, processes)
    told: list[tuple[float, int, int]] = []
    for secs, turns in moments:
        now += secs
        for _ in range(turns):
            burst.begin_turn(now)
        told.append((now, turns, send_all(burst, now, processes)))
    for begin in range(len(told)):
        for end in range(begin, len(told)):
            stretch = told[begin : end + 1]
            by_time = (stretch[-1][0] - stretch[0][0]) / REFILL_SECS / processes
            # The first moment's turns were there before its requests.
            turns = sum(turns for _, turns, _ in stretch[1:])
            sent = sum(sent for _, _, sent in stretch)
            assert sent <= burst.most + SLACK * budget * turns + by_time + 1e-6


def test_a_spell_is_hedged_at_twice_the_budgeted_rate() -> None:
    """Four at once, and then in two turns of ten."""
    burst, sent = HedgeBurst(0.1), 0
    for _ in range(200):
        burst.begin_turn(0.0)
        sent += send_all(burst, 0.0)
    assert sent == pytest.approx(4 + 2 * 0.1 * 200, abs=1)


def test_prices_count() -> None:
    """What is free is never put off; what costs more than the bucket holds needs a full one."""
    burst = HedgeBurst(0.1)
    assert burst.permits(10.0, 0.0)
    burst.spend(1.0, 0.0)
    assert not burst.permits(10.0, 0.0)
    assert burst.permits(2.5, 0.0)
    burst.spend(9.0, 0.0)
    assert burst.permits(0.0, 0.0)
    assert not burst.permits(0.1, 0.0)


def test_a_debt_is_forgotten_soon() -> None:
    """However many silent ones were replaced: no more is owed than the bucket holds."""
    burst = HedgeBurst(0.1)
    for _ in range(100):
        burst.spend(1.0, 0.0)
    assert not burst.permits(1.0, 0.9 * (MOST_PER_PROCESS + 1) * REFILL_SECS)
    assert burst.permits(1.0, (MOST_PER_PROCESS + 1) * REFILL_SECS)


def test_a_clock_that_begins_anew_does_no_harm() -> None:
    """Loops may have clocks of their own: nothing is won by it, and nothing lost for ever."""
    burst = HedgeBurst(0.1)
    assert send_all(burst, 1e6) == MOST_PER_PROCESS
    assert not burst.permits(1.0, 0.0)
    assert burst.permits(1.0, REFILL_SECS)


# ---- as a rule


class At:
    """A rule that names a time."""

    def __init__(self, at: float | None):
        self._at = at

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        return LaunchDecision(self._at, "saves 2 s")


def nobody(provider: str) -> None:
    """Is paid back nothing."""
    raise AssertionError(provider)


def asked(at: float | None, now: float, *, room: bool, last_token_at: float | None = None):
    rule = BurstBound(At(at), lambda provider, secs: room, nobody, {"a": 3.0})
    return rule.next_launch(Waiting(10.0, (InFlight("a", 10.0, last_token_at),), "b", now))


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize(("at", "now"), [(None, 99.0), (12.0, 11.9)])
def test_what_is_not_due_is_as_usual(at: float | None, now: float, room: bool) -> None:
    """Whether there is room is asked when the time has come."""
    assert asked(at, now, room=room) == LaunchDecision(at, "saves 2 s")


def test_what_is_due_goes_where_there_is_room() -> None:
    """And waits where there is none: for the silence after which it is lost."""
    assert asked(12.0, 12.0, room=True) == LaunchDecision(12.0, "saves 2 s")
    put_off = asked(12.0, 12.0, room=False)
    assert put_off.is_put_off
    assert put_off.at == 13.0
    assert put_off.reason.startswith("put off, ")
    assert asked(12.0, 12.0, room=False, last_token_at=11.5).at == 14.5
    assert asked(19.0, 19.0, room=False).at == 19.0


def test_a_caller_is_not_left_in_silence_because_little_would_be_saved() -> None:
    """Twice the silence of one that is lost; until then what the rule says stands."""
    assert asked(12.5, 12.0, room=True).at == 12.5
    assert asked(99.0, 12.0, room=True).at == 16.0
    assert not asked(99.0, 15.9, room=True).is_put_off
    replaced = asked(99.0, 16.0, room=False)
    assert replaced.at == 16.0
    assert replaced.is_put_off, "it is a replacement then"
    assert asked(99.0, 16.0, room=False, last_token_at=13.0).at == 19.0


def test_who_speaks_to_others_meanwhile_is_slow_and_not_silent() -> None:
    """What it said before the request was sent tells nothing."""
    for spoke_at, lost_at in ((9.9, 13.0), (11.0, 16.0)):
        rule = BurstBound(
            At(12.0), lambda provider, secs: False, nobody, {"a": 3.0}, {"a": spoke_at}.__getitem__
        )
        waiting = Waiting(10.0, (InFlight("a", 10.0, None),), "b", 12.0)
        assert rule.next_launch(waiting).at == lost_at


@pytest.mark.parametrize(("last_token_at", "lost_at"), [(12.0, 16.0), (11.0, 13.0)])
def test_who_has_just_answered_somebody_has_a_queue_and_is_not_silent(
    last_token_at: float, lost_at: float
) -> None:
    """Although nobody who came later has been answered; the last token must be recent."""
    rule = BurstBound(
        At(12.0),
        lambda *_: False,
        nobody,
        {"a": 3.0},
        last_token_at_of={"a": last_token_at}.__getitem__,
    )
    waiting = Waiting(10.0, (InFlight("a", 10.0, None),), "b", 12.9)
    assert rule.next_launch(waiting).at == lost_at


def test_what_is_due_is_claimed_once() -> None:
    """However often it is asked until somebody takes it; then it has been paid for."""
    claimed: list[str] = []
    paid_back: list[str] = []

    def claim(provider: str, now: float) -> bool:
        claimed.append(provider)
        return True

    rule = BurstBound(At(12.0), claim, paid_back.append, {"a": 3.0})
    for now in (12.0, 12.1):
        assert rule.next_launch(Waiting(10.0, (InFlight("a", 10.0, None),), "b", now)).at == 12.0
    assert claimed == ["b"]
    assert rule.take_claim()
    assert not rule.take_claim()
    rule.close()
    assert paid_back == []


def test_what_was_claimed_and_never_sent_is_paid_back() -> None:
    """A turn may end while nobody takes its hedge; it is paid back once."""
    accounts = BudgetAccounts(threading.Lock())
    rule = BurstBound(
        At(12.0),
        lambda provider, now: accounts.claim(0.1, 1.0, now),
        lambda provider: accounts.pay_back(0.1, 1.0),
        {"a": 3.0},
    )
    waiting = Waiting(10.0, (InFlight("a", 10.0, None),), "b", 12.0)
    left = [accounts.claim(0.1, 1.0, 12.0) for _ in range(round(MOST_PER_PROCESS) - 1)]
    assert all(left)
    assert not rule.next_launch(waiting).is_put_off
    assert not accounts.claim(0.1, 1.0, 12.0)
    rule.close()
    rule.close()
    assert accounts.claim(0.1, 1.0, 12.0)
    assert not accounts.claim(0.1, 1.0, 12.0)


@given(st.floats(0.0, 20.0), st.integers(0, 6))
def test_what_is_paid_back_never_overfills(cost: float, spent: int) -> None:
    """It holds what it holds."""
    burst = HedgeBurst(0.1)
    for _ in range(spent):
        burst.spend(1.0, 0.0)
    burst.pay_back(cost)
    assert send_all(burst, 0.0) <= burst.most
