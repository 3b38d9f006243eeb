"""Keeps the budget accounts of a process: one per budget, and one that bounds their sum."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from pipecat_hedge.policy.hedge_benefit import BenefitCache
from pipecat_hedge.policy.hedge_budget import HedgeBudget
from pipecat_hedge.policy.hedge_burst import HedgeBurst

MOST_ACCOUNTS = 64
"""The least recently used account is dropped beyond this number, which bounds memory."""
MEAN_TURNS = 1_000.0
"""The mean budget of all turns is a moving average over this many turns, the span of the
invariant."""


@dataclass(frozen=True, slots=True)
class BudgetState:
    """The state of one budget account.

    Parameters:
        budget: Extra requests per turn, on average.
        balance: Requests in the account; negative is a debt.
        most_credit: Largest credit, in requests.
        share: The share of turns to hedge now, from 0 to 1.
    """

    budget: float
    balance: float
    most_credit: float
    share: float


class BudgetAccounts:
    """The budget accounts of all services in a process. Safe for several event loops and threads.

    Services with the same budget share an account, whatever their providers: a new provider or
    model adds no credit. A new budget adds none either, because the sum is bounded by the mean
    budget of all turns.

    Attributes:
        benefits: What hedges save, as computed for pairs of latency curves.
    """

    def __init__(self, lock: threading.Lock | None = None):
        """Start without accounts.

        Args:
            lock: Held while an account is read or changed; None creates one.
        """
        self.benefits = BenefitCache()
        self._lock = lock or threading.Lock()
        self._accounts: OrderedDict[float, HedgeBudget] = OrderedDict()
        self._bursts: dict[float, HedgeBurst] = {}
        self._all = HedgeBudget(0.0)
        self._turns = 0
        self._unshared: dict[float, list[int]] = {}

    @property
    def accounts(self) -> Mapping[float, HedgeBudget]:
        """The accounts by budget; hold the lock while reading."""
        return self._accounts

    def begin_turn(self, budget: float, now: float | None = None) -> None:
        """Deposit a turn's budget.

        Args:
            budget: Extra requests per turn.
            now: Time in seconds; None for turns replayed one after the other, without bursts.
        """
        with self._lock:
            self._of(budget).begin_turn()
            self._count(budget, turns=1)
            self._turns += 1
            mean = self._all.budget + (budget - self._all.budget) / min(self._turns, MEAN_TURNS)
            self._all.rebase(mean)
            self._all.begin_turn(budget)
            if now is not None:
                self._bursts[budget].begin_turn(now)

    def share(self, budget: float, cost: float) -> float:
        """Return the share of turns to hedge now; see ``HedgeBudget.share``."""
        with self._lock:
            return self._of(budget).share(cost)

    def permits(self, budget: float, cost: float) -> bool:
        """Return whether there is room for an extra request; see ``HedgeBudget.permits``."""
        with self._lock:
            return self._permits(budget, cost)

    def claim(self, budget: float, cost: float, now: float) -> bool:
        """Pay for an extra request if the account and the token bucket have room for it.

        Args:
            budget: Extra requests per turn.
            cost: Cost in units of the turn's first request.
            now: Time in seconds.

        Returns:
            Whether the request is paid for. Then send it, or call ``pay_back``.
        """
        with self._lock:
            if not self._permits(budget, cost):
                return False
            if not self._bursts[budget].permits(cost, now):
                return False
            self._pay(budget, cost, now)
            return True

    def pay(self, budget: float, cost: float, now: float | None = None) -> None:
        """Pay for an extra request that is sent in any case; arguments as for ``claim``."""
        with self._lock:
            self._pay(budget, cost, now)

    def pay_back(self, budget: float, cost: float) -> None:
        """Refund a claimed request that was not sent; arguments as for ``claim``."""
        with self._lock:
            self._count(budget, cost=-cost)
            for account in (self._of(budget), self._all):
                account.withdraw(-cost)
            self._bursts[budget].pay_back(cost)

    def in_debt(self, budget: float) -> bool:
        """Whether the debt exceeds random variation."""
        with self._lock:
            return self._of(budget).in_debt

    def states(self) -> tuple[BudgetState, ...]:
        """Return the state of each account."""
        with self._lock:
            return tuple(
                BudgetState(a.budget, a.balance, a.most_credit, a.share())
                for a in self._accounts.values()
            )

    def _permits(self, budget: float, cost: float) -> bool:
        if not self._of(budget).permits(cost):
            return False
        return len(self._accounts) == 1 or self._all.permits(cost)

    # ---- in a fleet; the lock must be held

    def delta(self) -> dict[str, dict[str, int]]:
        """Turns, and thousandths of hedges, that other processes do not know of yet, by budget."""
        return {
            f"{budget:g}": {"turns": turns, "hedges": hedges}
            for budget, (turns, hedges) in self._unshared.items()
        }

    def take_delta(self, delta: Mapping[str, Mapping[str, int]] | None = None) -> None:
        """Count no more what other processes know of now; None is everything."""
        for budget, counts in self._unshared.items():
            told = (self.delta() if delta is None else delta).get(f"{budget:g}")
            if told is not None:
                counts[0] -= told["turns"]
                counts[1] -= told["hedges"]

    def heed(self, sums: Mapping[str, Mapping[str, int]]) -> None:
        """Take what a fleet has sent of late, by budget; see ``HedgeBudget.heed``."""
        for budget, account in self._accounts.items():
            found = sums.get(f"{budget:g}")
            if found is not None:
                account.heed(found.get("turns", 0), found.get("hedges", 0) / 1000)

    def _count(self, budget: float, *, turns: int = 0, cost: float = 0.0) -> None:
        counts = self._unshared.setdefault(budget, [0, 0])
        counts[0] += turns
        counts[1] += round(1000 * cost)

    def _pay(self, budget: float, cost: float, now: float | None) -> None:
        self._count(budget, cost=cost)
        for account in (self._of(budget), self._all):
            account.withdraw(cost)
        if now is not None:
            self._bursts[budget].spend(cost, now)

    def _of(self, budget: float) -> HedgeBudget:
        found = self._accounts.get(budget)
        if found is None:
            found = self._accounts[budget] = HedgeBudget(budget)
            self._bursts[budget] = HedgeBurst(budget)
            if len(self._accounts) > MOST_ACCOUNTS:
                oldest, _ = self._accounts.popitem(last=False)
                del self._bursts[oldest]
                self._unshared.pop(oldest, None)
        else:
            self._accounts.move_to_end(budget)
        return found
