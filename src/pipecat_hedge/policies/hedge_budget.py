"""How much hedging may cost, and so how often it may be done now. Pure; counted in turns, not time.

The problem: extra requests are to be ``budget`` per turn on average, no more over any stretch that
a bill or a rate limit would notice, and a caller who has waited long is to be helped all the same.
The naive answer, a bucket of tokens, is empty exactly when slow turns cluster, and abandons those
callers. A price that is raised in proportion to the debt does little for a long while and then too
much, because what a request saves hardly changes with time beyond the knee of the curve.

Ours steers the *share of turns* that are hedged. Every turn deposits ``budget``, every extra
request withdraws what it costs, and the share is ``budget · exp(balance / SCALE)`` within bounds.
With the learned curve that share is a time (``hedge_delay.py``): in debt hedges come later, in
credit earlier. A debt is worked off within some hundred turns, so that the extra requests over any
2,000 turns stay within a tenth of the budget, while the share itself stays near it. The share has a
floor for any debt that chance explains; a debt beyond that means that something has changed for all
turns at once, and then the share falls further: constant work, whatever happens.

What is saved for the bad minutes is a quarter of what 1,000 turns earn. ``hedge_burst.py`` bounds
how fast it is spent; where it is, a stretch may go beyond that tenth. An account that fills up
means that nothing is worth the price at that share, as when more turns are slow than may be hedged:
then the share is raised until some are.

Failures' replacements are not counted: a budget never turns into silence.
"""

from __future__ import annotations

import math

from pipecat_hedge.errors import ConfigurationError

__all__ = ["HedgeBudget"]

SCALE = 6.0
"""The debt, in requests, at which the share is 1/e of the budget, but for the bounds."""
SAVED_TURNS, LEAST_SAVED = 250, 4.0
"""No more is saved than the deposits of so many turns, or so many requests if those are more: a
quarter of what 1,000 turns earn, for the bad minutes."""
UNUSED_TURNS = 40
MOST_DEBT = 20.0
"""More is not owed: a stormy hour does not rule the next."""
UNUSED = 0.75
"""Of the deposits of ``UNUSED_TURNS``: a credit that nobody uses. No request is worth it at such a
share, so the share is raised."""
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


class HedgeBudget:
    """The purse of everybody who hedges between the same providers.

    Attributes:
        budget: Extra requests per turn, on average.
        balance: What is in the purse, in requests; negative is a debt.
        most_credit: The most that is saved, in requests.
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
        self.budget = budget
        self.balance = 0.0
        self.most_credit = max(SAVED_TURNS * budget, LEAST_SAVED)

    def begin_turn(self) -> None:
        """Deposit a turn's budget."""
        self.balance = min(self.balance + self.budget, self.most_credit)

    def withdraw(self, cost: float = 1.0) -> None:
        """Pay for an extra request.

        Args:
            cost: What it costs, in usual requests; see ``relative_cost``.
        """
        self.balance = max(self.balance - cost, -MOST_DEBT)

    def settle(self, amount: float) -> None:
        """Hand a part of the balance over to those who share the budget, or take one of theirs.

        Args:
            amount: What is handed over, in requests; negative is taken.
        """
        self.balance = min(max(self.balance - amount, -MOST_DEBT), self.most_credit)

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
        full = min(self.balance / max(UNUSED_TURNS * self.budget, LEAST_SAVED), 1.0)
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
