"""What a process may spend on extra requests: an account for each budget, and a cap for all."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipecat_hedge.policy.hedge_budget import HedgeBudget
from pipecat_hedge.policy.hedge_burst import HedgeBurst

__all__ = ["BudgetAccounts", "BudgetState"]

MOST_ACCOUNTS = 64
"""The account that has not been used for the longest makes room."""
MEAN_TURNS = 1_000.0


@dataclass(frozen=True, slots=True)
class BudgetState:
    """How a budget stands.

    Parameters:
        budget: Extra requests per turn, on average.
        balance: What is saved up, in requests; negative is a debt.
        most_credit: The most that is saved, in requests.
        share: The share of turns to hedge as things stand.
    """

    budget: float
    balance: float
    most_credit: float
    share: float


class BudgetAccounts:
    """The accounts of everybody in a process who hedges. Several loops and threads may use them.

    All who have the same budget share an account, whoever their providers are: another provider or
    model brings no credit of its own. Nor does another budget: what all of them spend together is
    bounded by the budget that turns have on average.
    """

    def __init__(self, lock: threading.Lock, processes: Callable[[], int] = lambda: 1):
        """Begin with none.

        Args:
            lock: Held by whoever reads or changes an account.
            processes: Tells how many share the budgets, this process included.
        """
        self._lock = lock
        self._processes = processes
        self._accounts: OrderedDict[float, HedgeBudget] = OrderedDict()
        self._bursts: dict[float, HedgeBurst] = {}
        self._all = HedgeBudget(0.0)
        self._turns = 0

    @property
    def accounts(self) -> Mapping[float, HedgeBudget]:
        """Every account by its budget; hold the lock."""
        return self._accounts

    def begin_turn(self, budget: float, now: float | None = None) -> None:
        """Deposit a turn's budget.

        Args:
            budget: Extra requests per turn.
            now: The time, in seconds; None where turns come one after the other and not when
                callers call.
        """
        with self._lock:
            self._of(budget).begin_turn()
            self._turns += 1
            mean = self._all.budget + (budget - self._all.budget) / min(self._turns, MEAN_TURNS)
            self._all.rebase(mean)
            self._all.begin_turn(budget)
            if now is not None:
                self._burst(budget).begin_turn(now)

    def share(self, budget: float, cost: float) -> float:
        """The share of turns to hedge as things stand; see ``HedgeBudget.share``."""
        with self._lock:
            return self._of(budget).share(cost)

    def permits(self, budget: float, cost: float) -> bool:
        """Whether there is credit for an extra request; see ``HedgeBudget.permits``."""
        with self._lock:
            return self._permits(budget, cost)

    def claim(self, budget: float, cost: float, now: float) -> bool:
        """Pay for an extra request, if there is credit for it and there are not too many at once.

        Args:
            budget: Extra requests per turn.
            cost: What it costs, in usual requests.
            now: The time, in seconds.

        Returns:
            Whether it is paid for; then it is sent, or ``pay_back`` is called.
        """
        processes = self._processes()
        with self._lock:
            burst = self._burst(budget)
            if not self._permits(budget, cost) or not burst.permits(cost, now, processes):
                return False
            self._pay(budget, cost, now)
            return True

    def pay(self, budget: float, cost: float, now: float | None = None) -> None:
        """Pay for one that is sent in any case; as ``claim``."""
        with self._lock:
            self._pay(budget, cost, now)

    def pay_back(self, budget: float, cost: float) -> None:
        """Put one back in that was claimed and never sent; as ``claim``."""
        with self._lock:
            for account in (self._of(budget), self._all):
                account.withdraw(-cost)
            self._burst(budget).pay_back(cost)

    def has_credit(self, budget: float) -> bool:
        """Whether less has been spent than the budget allows for."""
        with self._lock:
            return self._of(budget).balance > 0

    def in_debt(self, budget: float) -> bool:
        """Whether more has been spent than chance explains."""
        with self._lock:
            return self._of(budget).in_debt

    def states(self) -> tuple[BudgetState, ...]:
        """How each account stands."""
        with self._lock:
            return tuple(
                BudgetState(a.budget, a.balance, a.most_credit, a.share())
                for a in self._accounts.values()
            )

    def _permits(self, budget: float, cost: float) -> bool:
        if not self._of(budget).permits(cost):
            return False
        return len(self._accounts) == 1 or self._all.permits(cost)

    def _pay(self, budget: float, cost: float, now: float | None) -> None:
        for account in (self._of(budget), self._all):
            account.withdraw(cost)
        if now is not None:
            self._burst(budget).spend(cost, now)

    def _of(self, budget: float) -> HedgeBudget:
        found = self._accounts.get(budget)
        if found is None:
            found = self._accounts[budget] = HedgeBudget(budget)
            if len(self._accounts) > MOST_ACCOUNTS:
                oldest, _ = self._accounts.popitem(last=False)
                self._bursts.pop(oldest, None)
        else:
            self._accounts.move_to_end(budget)
        return found

    def _burst(self, budget: float) -> HedgeBurst:
        found = self._bursts.get(budget)
        if found is None:
            found = self._bursts[budget] = HedgeBurst(budget)
        return found
