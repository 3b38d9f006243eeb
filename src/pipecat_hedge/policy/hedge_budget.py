"""Keeps an account of extra requests and derives the share of turns to hedge now.

Invariant: any 1,000 turns send at most 1.25 times the budget in extra requests, or one request
more than the budget, whichever is larger. Replacements of failed attempts are not counted.

Every turn deposits ``budget``; every extra request withdraws its cost. The share of turns to hedge
is ``budget · exp(balance / SCALE)``, within bounds: hedges come later in debt and earlier in
credit. An extra request waits while the account, 225 turns' budgets wide, has no room for it.
An account that fills up shows that no request reaches the price at this share, so the share rises.
See ``docs/design/when-to-hedge.md``.
"""

from __future__ import annotations

import math

SCALE = 6.0
"""A debt of this many requests lowers the share to 1/e of the budget, within the bounds."""
SAVED_TURNS = 125.0
"""Credit is capped at the deposits of this many turns."""
OWED_TURNS = 100.0
"""Debt is capped likewise. The rest of the 1.25 × 1,000 turns is for replacements of silent
attempts, which are sent without room in the account."""
LEAST_SAVED = 1.0
"""Credit of at least one request, or a small budget could never be used."""
UNUSED_TURNS = 40
"""Reference credit, as the deposits of this many turns; at most the cap."""
UNUSED_REQUESTS = 4.0
"""The least reference credit, in requests."""
UNUSED = 0.75
"""Above this part of the reference credit the budget counts as unused, and the share is raised."""
RAISED_BY = 20.0
"""A full account multiplies the share by this factor."""
LOWEST = 0.6
"""The lowest share in units of the budget, for balances within random variation."""
HIGHEST = 1.2
"""The highest such share."""
CHANCE = 2.0
"""Debt within random variation, in requests: about its standard deviation, √(SCALE / 2)."""
MOST_SHARE = 0.95
"""Upper bound of the share of turns; only free requests are sent in all turns."""
DEAREST = 10.0
"""Upper bound of the cost of one extra request, in units of the turn's first."""
MOST_RATIO = 1.2
"""A fleet that has sent so many times its budget sends no hedges for a while."""
LEAST_RATIO = 0.8
"""A fleet that leaves a part of its budget hedges at most as if it had left a fifth."""
HEEDED_HEDGES = 20.0
"""Hedges that a fleet's turns allow, below which the number that was sent says little."""
ROUNDING = 1e-9
"""Tolerance for sums of deposits in floating point."""


class HedgeBudget:
    """The budget account of all services in the process that have the same budget.

    Attributes:
        budget: Extra requests per turn, on average.
        balance: Requests in the account; negative is a debt.
        most_credit: Largest credit, in requests.
        most_debt: Largest debt, in requests.
        fleet_ratio: The hedges of a fleet's latest turns, in units of what the budget allows; None
            if they are not known, or too few.
    """

    def __init__(self, budget: float):
        """Start with a balance of 0.

        Args:
            budget: Extra requests per turn, on average; not negative.
        """
        self.balance = 0.0
        self.fleet_ratio: float | None = None
        self.rebase(budget)

    def rebase(self, budget: float) -> None:
        """Change the budget and keep the balance.

        Args:
            budget: Extra requests per turn, on average.
        """
        self.budget = budget
        self.most_credit = max(SAVED_TURNS * budget, LEAST_SAVED) if budget else 0.0
        self.most_debt = OWED_TURNS * budget

    def heed(self, turns: float, hedges: float) -> None:
        """Take what a fleet has sent, of which this account's turns are a part.

        Args:
            turns: Turns of late.
            hedges: The cost of their hedges, in usual requests.
        """
        allowed = turns * self.budget
        self.fleet_ratio = hedges / allowed if allowed >= HEEDED_HEDGES else None

    def begin_turn(self, deposit: float | None = None) -> None:
        """Deposit a turn's budget.

        Args:
            deposit: The amount in requests; None is ``budget``.
        """
        added = self.budget if deposit is None else deposit
        self.balance = min(self.balance + added, self.most_credit)

    def permits(self, cost: float = 1.0) -> bool:
        """Return whether the account has room for an extra request.

        Args:
            cost: Cost in units of the turn's first request. A free request always has room. One
                that costs more than a full account holds has room when the account is full.
        """
        if cost <= 0 or not self.budget:
            return cost <= 0
        if self.fleet_ratio is not None and self.fleet_ratio >= MOST_RATIO:
            return False
        return self.balance + ROUNDING >= min(cost - self.most_debt, self.most_credit)

    def withdraw(self, cost: float = 1.0) -> None:
        """Withdraw the cost of an extra request.

        Args:
            cost: Cost in units of the turn's first request; negative is a refund.
        """
        self.balance = min(max(self.balance - cost, -self.most_debt), self.most_credit)

    def share(self, cost: float = 1.0) -> float:
        """Return the share of turns to hedge now, from 0 to 1.

        Args:
            cost: Cost of the extra request; a free request has a share of 1.
        """
        factor = min(max(math.exp(self.balance / SCALE), LOWEST), HIGHEST)
        if self.in_debt:
            factor *= math.exp((self.balance + CHANCE) / SCALE)
        unused = min(max(UNUSED_TURNS * self.budget, UNUSED_REQUESTS), self.most_credit)
        full = min(self.balance / unused, 1.0) if unused else 0.0
        if full > UNUSED:
            factor *= RAISED_BY ** ((full - UNUSED) / (1.0 - UNUSED))
        if self.fleet_ratio is not None:
            factor /= max(self.fleet_ratio, LEAST_RATIO) ** 2
        allowed = self.budget * factor
        return min(allowed / cost, MOST_SHARE) if cost > 0 else 1.0

    @property
    def in_debt(self) -> bool:
        """Whether the debt exceeds random variation."""
        return self.balance < -CHANCE

    @staticmethod
    def relative_cost(extra: float | None, first: float | None) -> float:
        """Return the cost of an extra request in units of the turn's first request.

        Args:
            extra: Price of the extra request, in tokens or dollars; None if unknown.
            first: Price of the turn's first request, in the same unit; None if unknown.

        Returns:
            The ratio, at most ``DEAREST``; 1 if a price is unknown or the first request is free.
        """
        if extra is None or not first:
            return 1.0
        return min(extra / first, DEAREST)
