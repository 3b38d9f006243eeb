"""How often hedging may be done, as things stand."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge import HedgeError
from pipecat_hedge.policies.hedge_budget import (
    HIGHEST,
    LEAST_SAVED,
    LOWEST,
    UNUSED,
    UNUSED_TURNS,
    HedgeBudget,
)


@given(st.floats(0.01, 0.5), st.lists(st.booleans(), max_size=200))
def test_a_debt_delays_and_a_credit_hastens(budget: float, hedged: list[bool]) -> None:
    """Within bounds, and a debt never forbids."""
    purse = HedgeBudget(budget)
    for spent in hedged:
        purse.begin_turn()
        if spent:
            purse.withdraw()
        assert 0 < purse.share() <= 1.0
        assert purse.balance <= purse.most_credit
        if purse.balance <= UNUSED * max(UNUSED_TURNS * budget, LEAST_SAVED):
            assert purse.share() <= HIGHEST * budget
        if purse.balance < 0:
            assert purse.share() <= budget
        elif purse.balance > 0:
            assert purse.share() >= budget


def test_a_debt_that_chance_explains_changes_little() -> None:
    """And one beyond it more and more: then something has happened to all turns at once."""
    purse = HedgeBudget(0.05)
    purse.withdraw(2)
    assert purse.share() == pytest.approx(max(LOWEST, math.exp(-2 / 6)) * 0.05)
    purse.withdraw(2)
    assert purse.share() == pytest.approx(LOWEST * 0.05 * math.exp(-2 / 6))
    purse.withdraw(6)
    assert purse.share() == pytest.approx(LOWEST * 0.05 * math.exp(-8 / 6))


@pytest.mark.parametrize("budget", [0.02, 0.05, 0.1, 0.25])
def test_who_hedges_the_share_stays_within_the_budget(budget: float) -> None:
    """Over any 2,000 of 40,000 turns to a tenth, or a tenth of a hundred requests."""
    dice, purse = random.Random(3), HedgeBudget(budget)
    spent: list[int] = []
    for _ in range(40_000):
        purse.begin_turn()
        spent.append(dice.random() < purse.share())
        if spent[-1]:
            purse.withdraw()
    for begin in range(0, 38_000, 100):
        extra = sum(spent[begin : begin + 2000])
        assert extra <= 2000 * budget + max(200 * budget, 10)
    assert sum(spent) == pytest.approx(40_000 * budget, rel=0.03)


def test_a_quarter_of_a_thousand_turns_is_saved_for_bad_minutes() -> None:
    """What is saved can be spent in every turn, at an eightfold share or more, until it is used."""
    purse = HedgeBudget(0.1)
    for _ in range(10_000):
        purse.begin_turn()
    assert purse.balance == purse.most_credit == 25.0
    for _ in range(20):
        assert purse.share() >= 0.8
        purse.withdraw()
    assert purse.share() > 0.1


def test_prices_count() -> None:
    """A dear request is sent in fewer turns, a free one in all; unknown prices count as usual."""
    purse = HedgeBudget(0.1)
    assert purse.share(HedgeBudget.relative_cost(6.0, 3.0)) == pytest.approx(0.05)
    assert purse.share(HedgeBudget.relative_cost(0.0, 3.0)) == 1.0
    assert HedgeBudget.relative_cost(None, 3.0) == 1.0
    assert HedgeBudget.relative_cost(3.0, None) == 1.0
    assert HedgeBudget.relative_cost(3.0, 0.0) == 1.0
    assert HedgeBudget.relative_cost(1000.0, 1.0) == 10.0


@pytest.mark.parametrize("budget", [-0.1, float("nan"), float("inf")])
def test_a_budget_that_is_none_is_refused(budget: float) -> None:
    """The error names the field."""
    with pytest.raises(HedgeError, match=r"budget must be a share of turns such as 0\.1"):
        HedgeBudget(budget)


def test_a_balance_can_be_evened_out_with_others() -> None:
    """Within what may be owed and saved."""
    purse = HedgeBudget(0.1)
    purse.withdraw(6)
    purse.settle(-2.5)
    assert purse.balance == -3.5
    purse.settle(1.0)
    assert purse.balance == -4.5
    purse.settle(1e6)
    assert purse.balance == -20.0
    purse.settle(-1e6)
    assert purse.balance == purse.most_credit
