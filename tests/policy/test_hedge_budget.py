"""The budget: how often hedges may be sent."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policy.hedge_budget import (
    HIGHEST,
    UNUSED,
    UNUSED_REQUESTS,
    UNUSED_TURNS,
    HedgeBudget,
)


@given(st.floats(0.01, 0.5), st.lists(st.booleans(), max_size=200))
def test_debt_delays_and_credit_hastens(budget: float, hedged: list[bool]) -> None:
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


@given(
    st.floats(0.001, 1.5),
    st.lists(st.sampled_from([0, 0, 0, 1, 2, 3]), min_size=1, max_size=400),
)
def test_budget_bounds_any_thousand_turns(budget: float, wanted: list[int]) -> None:
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


@pytest.mark.parametrize("wants_all", [True, False])
@pytest.mark.parametrize("budget", [0.004, 0.02, 0.1, 0.25])
def test_budget_is_used_up(budget: float, wants_all: bool) -> None:
    """By turns that always want a hedge, and by those that hedge at the share."""
    rng, account, sent = random.Random(3), HedgeBudget(budget), 0
    for _ in range(20_000):
        account.begin_turn()
        if account.permits() and (wants_all or rng.random() < account.share()):
            account.withdraw()
            sent += 1
    assert sent == pytest.approx(20_000 * budget, rel=0.05)


def test_without_a_budget_only_free_requests_are_sent() -> None:
    account = HedgeBudget(0.0)
    account.begin_turn()
    assert not account.permits(1e-6)
    assert account.permits(0.0)


@pytest.mark.parametrize(
    ("price", "first", "cost"),
    [
        (6.0, 3.0, 2.0),
        (0.0, 3.0, 0.0),
        (None, 3.0, 1.0),
        (3.0, None, 1.0),
        (3.0, 0.0, 1.0),
        (1000.0, 1.0, 10.0),
    ],
)
def test_relative_cost_divides_the_share(
    price: float | None, first: float | None, cost: float
) -> None:
    """Unknown prices count as the first request's."""
    assert HedgeBudget.relative_cost(price, first) == cost
    share = HedgeBudget(0.1).share(cost)
    assert share == (pytest.approx(0.1 / cost) if cost else 1.0)
