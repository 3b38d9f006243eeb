"""How many extra requests hedging may send, and when one is put off."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecat_hedge import HedgeError
from pipecat_hedge.policy.budget import (
    BURST,
    BURST_SECS,
    FULL_SHARE,
    PEAK,
    BudgetAccount,
    BudgetAccounts,
    BudgetRule,
    TokenBucket,
    TurnBudget,
    relative_cost,
)
from pipecat_hedge.race.events import InFlight, LaunchDecision, Waiting

LATER_SECS = 1e6
"""After so long without a claim the burst is full."""


def process(count: int = 1) -> BudgetAccounts:
    return BudgetAccounts(threading.Lock(), lambda: count)


def send_all(accounts: BudgetAccounts, budget: float = 0.1, now: float = 0.0) -> int:
    """How many can be sent in one moment."""
    return sum(1 for _ in iter(lambda: accounts.claim(budget, 1.0, now), False))


def balance(accounts: BudgetAccounts, budget: float = 0.1) -> float:
    return next(state.balance for state in accounts.states() if state.budget == budget)


# ---- how much


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.floats(0.001, 1.5), min_size=1, max_size=3),
    st.lists(st.sampled_from([0, 0, 0, 1, 2, 3]), min_size=1, max_size=300),
)
def test_any_thousand_turns_stay_within_the_bound(budgets: list[float], wanted: list[int]) -> None:
    """However many extra requests are wanted, in whatever waves; of each budget alone."""
    accounts, sent = process(), {budget: list[int]() for budget in budgets}
    for turn in range(2_500):
        budget = budgets[turn % len(budgets)]
        accounts.begin_turn(budget)
        many = wanted[turn * len(wanted) // 2_500]
        claims = [accounts.claim(budget, 1.0, turn * LATER_SECS) for _ in range(many)]
        sent[budget].append(sum(claims))
    for budget, told in sent.items():
        summed = [0, *itertools.accumulate(told)]
        most = max((b - a for a, b in zip(summed, summed[1_000:], strict=False)), default=0)
        assert most <= max(1_250 * budget, 1_000 * budget + 1) + 1e-6


@pytest.mark.parametrize("budgets", [[0.05, 0.1], [0.01, 0.02, 0.2]])
def test_other_budgets_do_not_add_up(budgets: list[float]) -> None:
    """The process stays within 1.25 times the mean budget, however many there are."""
    accounts, told = process(), list[int]()
    budgets = [budget + n * 1e-6 for n in range(50) for budget in budgets]
    for turn in range(6_000):
        accounts.begin_turn(budgets[turn % len(budgets)])
        told.append(sum(accounts.claim(b, 1.0, turn * LATER_SECS) for b in budgets[:20]))
    summed = [0, *itertools.accumulate(told)]
    most = max(b - a for a, b in zip(summed, summed[1_000:], strict=False))
    assert 900 < most / (sum(budgets) / len(budgets)) <= 1_250


@pytest.mark.parametrize("budget", [0.02, 0.1, 0.5])
def test_the_share_uses_the_budget_up(budget: float) -> None:
    """Turns hedged by chance at the share cost the budget."""
    rng, accounts, sent = random.Random(3), process(), 0
    for turn in range(20_000):
        accounts.begin_turn(budget)
        if rng.random() < accounts.share(budget, 1.0):
            sent += accounts.claim(budget, 1.0, turn * LATER_SECS)
    assert sent == pytest.approx(20_000 * budget, rel=0.05)


def test_a_small_budget_is_used_too() -> None:
    accounts, sent = process(), 0
    for turn in range(20_000):
        accounts.begin_turn(0.004)
        sent += accounts.claim(0.004, 1.0, turn * LATER_SECS)
    assert sent == pytest.approx(20_000 * 0.004, rel=0.03)


def test_a_budget_of_zero_sends_only_what_is_free() -> None:
    accounts = process()
    accounts.begin_turn(0.0)
    assert accounts.share(0.0, 1.0) == 0.0
    assert not accounts.permits(0.0, 1e-6)
    assert not accounts.claim(0.0, 1e-6, 0.0)
    assert accounts.claim(0.0, 0.0, 0.0)


def test_unspent_credit_raises_the_share_and_spent_credit_lowers_it() -> None:
    account = BudgetAccount(0.1)
    assert account.share() == pytest.approx(0.1)
    account.settle(-1e6)
    assert account.share() == pytest.approx(FULL_SHARE * 0.1)
    account.settle(1e6)
    assert account.share() == pytest.approx(0.1 / FULL_SHARE)


def test_prices_count() -> None:
    """A dear request is sent in fewer turns, a free one in all; unknown prices count as usual."""
    account = BudgetAccount(0.1)
    assert account.share(relative_cost(6.0, 3.0)) == pytest.approx(0.05)
    assert account.share(relative_cost(0.0, 3.0)) == 1.0
    assert relative_cost(None, 3.0) == relative_cost(3.0, None) == relative_cost(3.0, 0.0) == 1.0
    assert relative_cost(1000.0, 1.0) == 10.0


@pytest.mark.parametrize("budget", [-0.1, float("nan"), float("inf")])
def test_a_budget_that_is_no_share_is_refused(budget: float) -> None:
    with pytest.raises(HedgeError, match=r"budget must be a share of turns such as 0\.1"):
        BudgetAccount(budget)


@settings(deadline=None)
@given(st.floats(0.5, 20), st.lists(st.floats(-30, 30)))
def test_a_bucket_is_never_negative_and_never_overfull(depth: float, moves: list[float]) -> None:
    bucket = TokenBucket(depth, depth / 2)
    for tokens in moves:
        if tokens < 0:
            bucket.earn(-tokens)
        else:
            bucket.spend(tokens)
        assert 0 <= bucket.tokens <= bucket.depth


@settings(deadline=None)
@given(st.floats(0.02, 0.5), st.floats(0, 10), st.integers(0, 200), st.integers(0, 20))
def test_a_claim_paid_back_is_worth_what_it_cost(
    budget: float, cost: float, turns: int, sent: int
) -> None:
    accounts = process()
    accounts.begin_turn(budget)
    for _ in range(sent):
        accounts.pay(budget, 1.0)
    for _ in range(turns):
        accounts.begin_turn(budget)
    before = accounts.states(), send_all_costs(accounts, budget)
    if accounts.claim(budget, cost, 0.0):
        accounts.pay_back(budget, cost)
    after = accounts.states(), send_all_costs(accounts, budget)
    assert after[0][0].balance == pytest.approx(before[0][0].balance)
    assert after[1] == before[1]


def send_all_costs(accounts: BudgetAccounts, budget: float) -> list[float]:
    """What could be sent now; nothing is."""
    costs = [c / 2 for c in range(1, 20) if accounts.claim(budget, c / 2, 0.0)]
    for cost in costs:
        accounts.pay_back(budget, cost)
    return costs


# ---- how fast


@pytest.mark.parametrize(("processes", "most"), [(1, 4), (2, 2), (3, 1), (8, 1), (100, 1)])
def test_what_is_sent_at_once_is_divided_among_the_processes(processes: int, most: int) -> None:
    accounts = process(processes)
    accounts.begin_turn(0.1)
    assert send_all(accounts) == most


@settings(deadline=None)
@given(
    st.floats(0.02, 0.5),
    st.integers(1, 20),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 20)), min_size=1, max_size=60),
)
def test_credit_is_released_at_twice_the_rate(
    budget: float, processes: int, moments: list[tuple[float, int]]
) -> None:
    """Any stretch has the burst, twice its turns' budgets, and one request each four seconds."""
    accounts, now, told = process(processes), 0.0, list[tuple[float, int, int]]()
    for secs, turns in moments:
        now += secs
        for _ in range(turns):
            accounts.begin_turn(budget)
        told.append((now, turns, send_all(accounts, budget, now)))
    for begin, end in itertools.combinations_with_replacement(range(len(told)), 2):
        stretch = told[begin : end + 1]
        by_time = (stretch[-1][0] - stretch[0][0]) / BURST_SECS / processes
        turns = sum(turns for _, turns, _ in stretch[1:])  # the first had begun before
        sent = sum(sent for _, _, sent in stretch)
        assert sent <= max(BURST / processes, 1.0) + PEAK * budget * turns + by_time + 1e-6


def test_replaced_silences_do_not_stop_hedging_for_long() -> None:
    """They are sent without credit, and no debt is left."""
    accounts = process()
    accounts.begin_turn(0.1)
    for _ in range(100):
        accounts.pay(0.1, 1.0)
    assert send_all(accounts) == 0
    for _ in range(10):
        accounts.begin_turn(0.1)
    assert send_all(accounts) == 1


def test_a_clock_that_begins_anew_earns_nothing() -> None:
    accounts = process()
    accounts.begin_turn(0.1)
    assert send_all(accounts, now=1e6) == BURST
    assert send_all(accounts, now=0.0) == 0
    assert send_all(accounts, now=BURST_SECS) == 1


# ---- one turn


class At:
    """A rule that names a time."""

    def __init__(self, at: float | None):
        self._at = at

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        return LaunchDecision(self._at, "saves 2 s")


def turn_budget(*, room: bool = True, costs: Mapping[str, float] | None = None) -> TurnBudget:
    accounts = process()
    accounts.begin_turn(0.1)
    if not room:
        send_all(accounts, now=LATER_SECS)
    return TurnBudget(accounts, 0.1, costs or {"a": 1.0, "b": 1.0})


def decided(
    at: float | None, now: float, *, room: bool, heard_at: float | None = None
) -> LaunchDecision:
    rule = BudgetRule(At(at), turn_budget(room=room), {"a": 3.0})
    return rule.next_launch(Waiting(10.0, (InFlight("a", 10.0, heard_at),), "b", now))


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize(("at", "now"), [(None, 99.0), (12.0, 11.9)])
def test_what_is_not_due_is_as_usual(at: float | None, now: float, room: bool) -> None:
    assert decided(at, now, room=room) == LaunchDecision(at, "saves 2 s")


def test_without_room_a_request_waits_until_the_last_one_is_silent() -> None:
    assert decided(12.0, 12.0, room=True) == LaunchDecision(12.0, "saves 2 s")
    put_off = decided(12.0, 12.0, room=False)
    assert (put_off.is_put_off, put_off.at) == (True, 13.0)
    assert put_off.reason.startswith("put off, ")
    assert decided(12.0, 12.0, room=False, heard_at=11.5).at == 14.5
    assert decided(19.0, 19.0, room=False).at == 19.0


def test_a_long_silence_is_ended_even_when_little_would_be_saved() -> None:
    """After twice the silence of a lost request."""
    assert decided(12.5, 12.0, room=True).at == 12.5
    assert decided(99.0, 12.0, room=True).at == 16.0
    assert not decided(99.0, 15.9, room=True).is_put_off
    replaced = decided(99.0, 16.0, room=False)
    assert (replaced.is_put_off, replaced.at) == (True, 16.0)
    assert decided(99.0, 16.0, room=False, heard_at=13.0).at == 19.0


@pytest.mark.parametrize(("is_answering", "lost_at"), [(False, 13.0), (True, 16.0)])
def test_a_provider_that_answers_others_gets_twice_as_long(
    is_answering: bool, lost_at: float
) -> None:
    asked = list[tuple[str, float, float]]()

    def answers(provider: str, since: float, recently: float) -> bool:
        asked.append((provider, since, recently))
        return is_answering

    rule = BudgetRule(At(12.0), turn_budget(room=False), {"a": 3.0}, answers)
    waiting = Waiting(10.0, (InFlight("a", 10.0, None),), "b", 12.5)
    assert rule.next_launch(waiting).at == lost_at
    assert asked == [("a", 10.0, 11.0)]


def test_what_is_due_is_paid_for_once() -> None:
    """However often the rule is asked until the request is sent; the next one pays again."""
    accounts = process()
    accounts.begin_turn(0.1)
    budget = TurnBudget(accounts, 0.1, {"b": 1.0})
    rule = BudgetRule(At(12.0), budget, {"a": 3.0})
    for now in (12.0, 12.1):
        assert rule.next_launch(Waiting(10.0, (InFlight("a", 10.0, None),), "b", now)).at == 12.0
    budget.sent("b")
    budget.close()
    assert balance(accounts) == pytest.approx(0.1 - 1.0)
    budget.sent("b")
    assert balance(accounts) == pytest.approx(0.1 - 2.0)


def test_what_was_never_sent_is_paid_back_once() -> None:
    accounts = process()
    accounts.begin_turn(0.1)
    budget = TurnBudget(accounts, 0.1, {"b": 2.0})
    assert budget.claim("b", 12.0)
    assert balance(accounts) == pytest.approx(0.1 - 2.0)
    budget.close()
    budget.close()
    assert balance(accounts) == pytest.approx(0.1)
    assert send_all(accounts, now=12.0) == BURST
