"""How much hedging may cost, and so how often it may be done now. Pure; counted in turns, not time.

Law: over any 1,000 turns there are at most 1.25 times as many extra requests as the budget allows,
or one more than the budget, whichever is more.

The problem: extra requests are to be ``budget`` per turn on average, hardly more over any stretch
that a bill or a rate limit would notice, and a caller who has waited long is to be helped all the
same. The naive answer, a bucket of tokens, is empty exactly when slow turns cluster, and abandons
those callers. A price that is raised in proportion to the debt does little for a long while and
then too much, because what a request saves hardly changes with time beyond the knee of the curve.

Ours steers the *share of turns* that are hedged. Every turn deposits ``budget``, every extra
request withdraws what it costs, and the share is ``budget · exp(balance / SCALE)`` within bounds.
With the learned curve that share is a time (``hedge_delay.py``): in debt hedges come later, in
credit earlier. The share has a floor for any debt that chance explains; a debt beyond that means
that something has changed for all turns at once, and then the share falls further.

What keeps the law is the bucket all the same, 225 turns' budgets wide: most of it is what can
be saved up for the bad minutes, the rest what can be owed. An extra request for which there is no
room is not sent. ``hedge_burst.py`` bounds how fast what is saved is spent. An account that fills
up means that nothing is worth the price at that share, as when more turns are slow than may be
hedged: then the share is raised until some are.

What replaces a failure is not counted: a budget never turns into silence.
"""

from __future__ import annotations

import math

from pipecat_hedge.race.errors import ConfigurationError

__all__ = ["HedgeBudget"]

SCALE = 6.0
"""The debt, in requests, at which the share is 1/e of the budget, but for the bounds."""
SAVED_TURNS, OWED_TURNS = 125.0, 100.0
"""No more is saved, or owed, than the deposits of so many turns. What is left to a quarter of what
1,000 turns earn is for silences that are replaced though there is no room."""
LEAST_SAVED = 1.0
"""Nor less, or a small budget would never be used."""
UNUSED_TURNS, UNUSED_REQUESTS = 40, 4.0
UNUSED = 0.75
"""Of the deposits of ``UNUSED_TURNS``, of so many requests if those are more, and of no more than
can be saved: a credit that nobody uses. No request is worth it at such a share, so the share is
raised."""
RAISED_BY = 20.0
"""How much a full purse raises the share."""
LOWEST, HIGHEST = 0.6, 1.2
"""Of the budget, for debts and credits that chance explains."""
CHANCE = 2.0
"""The debt that chance explains: about its standard deviation, √(SCALE / 2)."""
MOST_SHARE = 0.95
"""Of turns; only what costs nothing is asked in all."""
DEAREST = 10.0
"""The most that one extra request counts for."""
ROUNDING = 1e-9


class HedgeBudget:
    """The account of everybody who has the same budget.

    Attributes:
        budget: Extra requests per turn, on average.
        balance: What is in the account, in requests; negative is a debt.
        most_credit: The most that is saved, in requests.
        most_debt: The most that is owed, in requests.
    """

    def __init__(self, budget: float):
        """Begin with an even balance.

        Args:
            budget: Extra requests per turn, on average; not negative.

        Raises:
            ConfigurationError: If it is negative or no number.
        """
        if not budget >= 0 or math.isinf(budget):
            raise ConfigurationError(
                f"budget must be a share of turns such as 0.1, not negative, got {budget}"
            )
        self.balance = 0.0
        self.rebase(budget)

    def rebase(self, budget: float) -> None:
        """Have another budget from now on; the balance stays what it is.

        Args:
            budget: Extra requests per turn, on average.
        """
        self.budget = budget
        self.most_credit = max(SAVED_TURNS * budget, LEAST_SAVED) if budget else 0.0
        self.most_debt = OWED_TURNS * budget

    def begin_turn(self, deposit: float | None = None) -> None:
        """Deposit a turn's budget.

        Args:
            deposit: Another amount; None is the budget.
        """
        added = self.budget if deposit is None else deposit
        self.balance = min(self.balance + added, self.most_credit)

    def permits(self, cost: float = 1.0) -> bool:
        """Whether there is room for an extra request.

        Args:
            cost: What it costs, in usual requests. What is free always has room, and what costs
                more than a full account holds is let pass when it is full.
        """
        if cost <= 0 or not self.budget:
            return cost <= 0
        return self.balance + ROUNDING >= min(cost - self.most_debt, self.most_credit)

    def withdraw(self, cost: float = 1.0) -> None:
        """Pay for an extra request.

        Args:
            cost: What it costs, in usual requests; see ``relative_cost``. Negative is paid back.
        """
        self.balance = min(max(self.balance - cost, -self.most_debt), self.most_credit)

    def settle(self, amount: float) -> None:
        """Hand a part of the balance over to those who share the budget, or take one of theirs.

        Args:
            amount: What is handed over, in requests; negative is taken.
        """
        self.balance = min(max(self.balance - amount, -self.most_debt), self.most_credit)

    def share(self, cost: float = 1.0) -> float:
        """The share of turns to hedge as things stand.

        Args:
            cost: What the extra request would cost, in usual requests; free ones are not limited.

        Returns:
            The share, from 0 to 1.
        """
        factor = min(max(math.exp(self.balance / SCALE), LOWEST), HIGHEST)
        if self.in_debt:
            factor *= math.exp((self.balance + CHANCE) / SCALE)
        unused = min(max(UNUSED_TURNS * self.budget, UNUSED_REQUESTS), self.most_credit)
        full = min(self.balance / unused, 1.0) if unused else 0.0
        if full > UNUSED:
            factor *= RAISED_BY ** ((full - UNUSED) / (1.0 - UNUSED))
        allowed = self.budget * factor
        return min(allowed / cost, MOST_SHARE) if cost > 0 else 1.0

    @property
    def in_debt(self) -> bool:
        """Whether more has been spent than chance explains."""
        return self.balance < -CHANCE

    @staticmethod
    def relative_cost(extra: float | None, usual: float | None) -> float:
        """What an extra request costs in units of a usual one.

        Args:
            extra: Its price, in tokens or dollars; None if not known.
            usual: The price of the turn's first request, in the same unit; None if not known.

        Returns:
            The ratio, at most ``DEAREST``; 1 if it is not known, or if the usual one is free.
        """
        if extra is None or not usual:
            return 1.0
        return min(extra / usual, DEAREST)
