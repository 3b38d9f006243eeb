"""How often hedging may be done, as things stand."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policy.hedge_budget import (
    HIGHEST,
    LOWEST,
    UNUSED,
    UNUSED_REQUESTS,
    UNUSED_TURNS,
    HedgeBudget,
)


@given(st.floats(0.01, 0.5), st.lists(st.booleans(), max_size=200))
def test_a_debt_delays_and_a_credit_hastens(budget: float, hedged: list[bool]) -> None:
    """Within bounds."""
    account = HedgeBudget(budget)
    for spent in hedged:
        account.begin_turn()
        if spent:
            account.withdraw()
        assert 0 < account.share() <= 1.0
        assert account.balance <= account.most_credit
        unused = min(max(UNUSED_TURNS * budget, UNUSED_REQUESTS), account.most_credit)
        if account.balance <= UNUSED * unused:
            assert account.share() <= HIGHEST * budget
        if account.balance < 0:
            assert account.share() <= budget
        elif account.balance > 0:
            assert account.share() >= budget


def test_a_debt_that_chance_explains_changes_little() -> None:
    """And one beyond it more and more: then something has happened to all turns at once."""
    account = HedgeBudget(0.2)
    account.withdraw(2)
    assert account.share() == pytest.approx(max(LOWEST, math.exp(-2 / 6)) * 0.2)
    account.withdraw(2)
    assert account.share() == pytest.approx(LOWEST * 0.2 * math.exp(-2 / 6))
    account.withdraw(6)
    assert account.share() == pytest.approx(LOWEST * 0.2 * math.exp(-8 / 6))


@pytest.mark.parametrize("budget", [0.02, 0.05, 0.1, 0.25])
def test_who_hedges_the_share_stays_within_the_budget(budget: float) -> None:
    """Over any 2,000 of 40,000 turns to a tenth, or a tenth of a hundred requests."""
    rng, account = random.Random(3), HedgeBudget(budget)
    spent: list[int] = []
    for _ in range(40_000):
        account.begin_turn()
        spent.append(account.permits() and rng.random() < account.share())
        if spent[-1]:
            account.withdraw()
    for begin in range(0, 38_000, 100):
        extra = sum(spent[begin : begin + 2000])
        assert extra <= 2000 * budget + max(200 * budget, 10)
    assert sum(spent) == pytest.approx(40_000 * budget, rel=0.03)


@given(
    st.floats(0.001, 1.5),
    st.lists(st.sampled_from([0, 0, 0, 1, 2, 3]), min_size=1, max_size=400),
)
def test_over_any_thousand_turns_it_is_a_bound(budget: float, wanted: list[int]) -> None:
    """However many extra requests the turns would send, in whatever waves."""
    account, sent = HedgeBudget(budget), list[int]()
    for turn in range(3_000):
        account.begin_turn()
        sent.append(0)
        for _ in range(wanted[turn * len(wanted) // 3_000]):
            if account.permits():
                account.withdraw()
                sent[-1] += 1
    summed = [0, *itertools.accumulate(sent)]
    most = max(b - a for a, b in zip(summed, summed[1_000:], strict=False))
    assert most <= max(1_225 * budget, 1_000 * budget + 1) + 1e-6


@pytest.mark.parametrize("budget", [0.004, 0.01, 0.1, 0.5])
def test_a_small_budget_is_used_too(budget: float) -> None:
    """By those whom a request would always help."""
    account, sent = HedgeBudget(budget), 0
    for _ in range(20_000):
        account.begin_turn()
        if account.permits():
            account.withdraw()
            sent += 1
    assert sent == pytest.approx(20_000 * budget, rel=0.03)


def test_without_a_budget_nothing_is_spent() -> None:
    """But for what costs nothing."""
    account = HedgeBudget(0.0)
    account.begin_turn()
    assert not account.permits()
    assert not account.permits(1e-6)
    assert account.permits(0.0)


def test_what_was_saved_can_be_spent_in_bad_minutes() -> None:
    """What is saved can be spent in every turn, at an eightfold share or more, until it is used."""
    account = HedgeBudget(0.1)
    for _ in range(10_000):
        account.begin_turn()
    assert account.balance == account.most_credit == pytest.approx(12.5)
    for _ in range(9):
        assert account.share() >= 0.8
        account.withdraw()
    assert account.share() > 0.1


def test_prices_count() -> None:
    """A dear request is sent in fewer turns, a free one in all; unknown prices count as usual."""
    account = HedgeBudget(0.1)
    assert account.share(HedgeBudget.relative_cost(6.0, 3.0)) == pytest.approx(0.05)
    assert account.share(HedgeBudget.relative_cost(0.0, 3.0)) == 1.0
    assert HedgeBudget.relative_cost(None, 3.0) == 1.0
    assert HedgeBudget.relative_cost(3.0, None) == 1.0
    assert HedgeBudget.relative_cost(3.0, 0.0) == 1.0
    assert HedgeBudget.relative_cost(1000.0, 1.0) == 10.0


def test_a_balance_can_be_evened_out_with_others() -> None:
    """Within what may be owed and saved."""
    account = HedgeBudget(0.1)
    account.withdraw(6)
    account.withdraw(-2.5)
    assert account.balance == -3.5
    account.withdraw(1.0)
    assert account.balance == -4.5
    account.withdraw(1e6)
    assert account.balance == -10.0
    account.withdraw(-1e6)
    assert account.balance == account.most_credit
