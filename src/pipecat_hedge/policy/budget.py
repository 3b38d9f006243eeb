"""How many extra requests hedging may send: token buckets that turns fill. Pure.

Every turn earns ``budget`` tokens, and an extra request spends its cost, in units of the turn's
first request. Requests that replace a failure are free. An extra request needs tokens in three
buckets:

- the account of its budget, shared by all turns of the process with that budget, whatever their
  providers. It holds what ``CREDIT_TURNS`` turns earn, so over any 1,000 turns extra requests stay
  within 1.25 times the budget, or one more than the budget where that is more;
- the cap of the process, as wide, at the mean budget of its turns;
- the burst of the process, which holds ``BURST`` requests and earns ``PEAK`` times as much: when
  a provider turns slow for all callers at once, unspent credit is released bit by bit.

A provider that is silent is replaced even when the buckets are empty; they never go below 0.

The planner's price comes from the account, too: the share of turns to hedge is the budget while the
account is half full, more when it is fuller, less when it is emptier.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.events import LaunchDecision, LaunchRule, Waiting

__all__ = [
    "BURST",
    "PEAK",
    "BudgetAccount",
    "BudgetAccounts",
    "BudgetRule",
    "BudgetState",
    "TokenBucket",
    "TurnBudget",
    "relative_cost",
]

CREDIT_TURNS = 225.0
"""A quarter of 1,000 turns, less a margin for silent requests that are replaced without credit."""
BURST = 4.0
"""Extra requests that one process may send at once; the processes of a fleet divide them."""
PEAK = 2.0
"""At 1, hedges in calm would wait for a token as long as they are to save."""
BURST_SECS = 4.0
"""The burst also earns one request each time so long has passed, for processes with few turns.
Without it, one caller whose provider takes five times as long has a p99 of 7.9 s and not 6.2 s."""
FULL_SHARE = 4.0
"""A full account multiplies the share by this, an empty one divides it. At 20 the hosted trace's
p99.9 is 1.6 s and not 1.4 s, because the share follows chance."""
MAX_SHARE = 0.95
MAX_COST = 10.0
MAX_ACCOUNTS = 64
MEAN_TURNS = 1_000.0
ROUNDING = 1e-9
SLOW_FACTOR = 2.0
"""A provider that answers other requests is slow, not silent: it gets so many times as long."""
RECENT = 0.5
"""An answer to another request counts as recent for this part of the silence."""


def relative_cost(extra: float | None, usual: float | None) -> float:
    """What an extra request costs in units of the turn's first request.

    Args:
        extra: Its price; None if not known.
        usual: The price of the first request, in the same unit; None if not known.

    Returns:
        The ratio, at most ``MAX_COST``; 1 if it is not known, or if the first request is free.
    """
    if extra is None or not usual:
        return 1.0
    return min(extra / usual, MAX_COST)


class TokenBucket:
    """A number of tokens from 0 to a depth.

    Attributes:
        tokens: What is in it.
        depth: The most it holds.
    """

    def __init__(self, depth: float, tokens: float):
        self.depth = depth
        self.tokens = tokens

    def earn(self, tokens: float) -> None:
        """Add tokens; what does not fit is lost."""
        self.tokens = min(self.tokens + tokens, self.depth)

    def spend(self, tokens: float) -> None:
        """Take tokens, as many as there are."""
        self.tokens = max(self.tokens - tokens, 0.0)

    def permits(self, cost: float) -> bool:
        """Whether there are tokens for a request; above the depth, whether the bucket is full."""
        if cost <= 0 or not self.depth:
            return cost <= 0
        return self.tokens + ROUNDING >= min(cost, self.depth)

    def resize(self, depth: float) -> None:
        """Change the depth; what does not fit is lost."""
        self.depth = depth
        self.tokens = min(self.tokens, depth)


def _credit_depth(budget: float) -> float:
    """How much an account holds, in requests; one at least, or a small budget is never used."""
    return max(CREDIT_TURNS * budget, 1.0) if budget else 0.0


class BudgetAccount:
    """The account of all turns that have the same budget.

    Attributes:
        budget: Extra requests per turn, on average.
        credit: What may still be spent, in requests.
    """

    def __init__(self, budget: float):
        """Begin half full.

        Args:
            budget: Extra requests per turn, on average; not negative.

        Raises:
            ConfigurationError: If it is negative or not finite.
        """
        if not budget >= 0 or math.isinf(budget):
            raise ConfigurationError(
                f"budget must be a share of turns such as 0.1, not negative, got {budget}"
            )
        self.budget = budget
        depth = _credit_depth(budget)
        self.credit = TokenBucket(depth, depth / 2)

    @property
    def balance(self) -> float:
        """The credit above half of what the account holds, in requests."""
        return self.credit.tokens - self.credit.depth / 2

    def settle(self, amount: float) -> None:
        """Hand ``amount`` requests over to processes that share the budget; negative receives."""
        if amount < 0:
            self.credit.earn(-amount)
        else:
            self.credit.spend(amount)

    def share(self, cost: float = 1.0) -> float:
        """The share of turns to hedge as things stand, from 0 to 1.

        Args:
            cost: What the extra request would cost; free ones are not limited.
        """
        if cost <= 0:
            return 1.0
        if not self.budget:
            return 0.0
        fill = self.balance / (self.credit.depth / 2)
        return min(self.budget * FULL_SHARE**fill / cost, MAX_SHARE)


@dataclass(frozen=True, slots=True)
class BudgetState:
    """How a budget stands.

    Parameters:
        budget: Extra requests per turn, on average.
        balance: The credit above half of what the account holds, in requests.
        most_credit: The highest balance.
        share: The share of turns to hedge as things stand.
    """

    budget: float
    balance: float
    most_credit: float
    share: float


class BudgetAccounts:
    """A process's accounts, one for each budget, and what bounds all of them. Thread-safe."""

    def __init__(self, lock: threading.Lock, processes: Callable[[], int] = lambda: 1):
        """Begin with none.

        Args:
            lock: Held while an account is read or changed.
            processes: How many processes share the budgets, this one included.
        """
        self._lock = lock
        self._processes = processes
        self._accounts: OrderedDict[float, BudgetAccount] = OrderedDict()
        self._burst = TokenBucket(BURST, BURST)
        self._cap = TokenBucket(0.0, 0.0)
        self._mean, self._turns = 0.0, 0
        self._now: float | None = None

    @property
    def accounts(self) -> Mapping[float, BudgetAccount]:
        """Every account by its budget; hold the lock."""
        return self._accounts

    def begin_turn(self, budget: float) -> None:
        """Earn a turn's budget."""
        with self._lock:
            self._account(budget).credit.earn(budget)
            self._turns += 1
            self._mean += (budget - self._mean) / min(self._turns, MEAN_TURNS)
            depth = _credit_depth(self._mean)
            if not self._cap.depth:
                self._cap = TokenBucket(depth, depth / 2)
            self._cap.resize(depth)
            self._cap.earn(budget)
            self._burst.earn(PEAK * budget)

    def share(self, budget: float, cost: float) -> float:
        """The share of turns to hedge as things stand; see ``BudgetAccount.share``."""
        with self._lock:
            return self._account(budget).share(cost)

    def permits(self, budget: float, cost: float) -> bool:
        """Whether there is credit for an extra request, the burst left out."""
        with self._lock:
            return self._has_credit_for(budget, cost)

    def claim(self, budget: float, cost: float, now: float) -> bool:
        """Pay for an extra request if all buckets permit it.

        Args:
            budget: Extra requests per turn.
            cost: See ``relative_cost``.
            now: The time, in seconds. Loops may have clocks of their own: it may go back.

        Returns:
            Whether it is paid for; then send it or call ``pay_back``.
        """
        processes = self._processes()
        with self._lock:
            secs = 0.0 if self._now is None else max(now - self._now, 0.0)
            self._now = now
            self._burst.resize(max(BURST / processes, 1.0))
            self._burst.earn(secs / BURST_SECS / processes)
            is_paid = self._has_credit_for(budget, cost) and self._burst.permits(cost)
            if is_paid:
                self._spend(budget, cost)
            return is_paid

    def pay(self, budget: float, cost: float) -> None:
        """Pay for an extra request that is sent in any case, as far as there are tokens."""
        with self._lock:
            self._spend(budget, cost)

    def pay_back(self, budget: float, cost: float) -> None:
        """Return a claim that was not sent."""
        with self._lock:
            for bucket in self._buckets(budget):
                bucket.earn(cost)

    def has_credit(self, budget: float) -> bool:
        """Whether the account is more than half full: less was spent than the budget allows."""
        with self._lock:
            return self._account(budget).balance > 0

    def states(self) -> tuple[BudgetState, ...]:
        """How each account stands."""
        with self._lock:
            return tuple(
                BudgetState(a.budget, a.balance, a.credit.depth / 2, a.share())
                for a in self._accounts.values()
            )

    def _has_credit_for(self, budget: float, cost: float) -> bool:
        is_only = len(self._accounts) == 1  # which the fleet may have evened out, unlike the cap
        return self._account(budget).credit.permits(cost) and (is_only or self._cap.permits(cost))

    def _spend(self, budget: float, cost: float) -> None:
        for bucket in self._buckets(budget):
            bucket.spend(cost)

    def _buckets(self, budget: float) -> tuple[TokenBucket, ...]:
        return self._account(budget).credit, self._cap, self._burst

    def _account(self, budget: float) -> BudgetAccount:
        found = self._accounts.get(budget)
        if found is None:
            found = self._accounts[budget] = BudgetAccount(budget)
            if len(self._accounts) > MAX_ACCOUNTS:
                self._accounts.popitem(last=False)
        else:
            self._accounts.move_to_end(budget)
        return found


class TurnBudget:
    """What one turn spends.

    An extra request is paid for when it is decided, not when it is sent: callers that wait for the
    same provider are often due in the same instant, and a request may wait for a permit first.
    """

    def __init__(self, accounts: BudgetAccounts, budget: float, costs: Mapping[str, float]):
        """Begin with nothing claimed.

        Args:
            accounts: The process's accounts.
            budget: Extra requests per turn.
            costs: By provider, what an extra request costs; see ``relative_cost``.
        """
        self._accounts, self._budget, self._costs = accounts, budget, costs
        self._claimed: str | None = None

    def claim(self, provider: str, now: float) -> bool:
        """Pay for the next extra request, if it is not paid for yet and there is room for it."""
        if self._claimed is None:
            is_paid = self._accounts.claim(self._budget, self._costs[provider], now)
            self._claimed = provider if is_paid else None
        return self._claimed is not None

    def sent(self, provider: str) -> None:
        """Use the claim for a request that was sent, or pay for it now."""
        if self._claimed is None:
            self._accounts.pay(self._budget, self._costs.get(provider, 1.0))
        self._claimed = None

    def close(self) -> None:
        """Return a claim that was not sent; the turn is over."""
        if self._claimed is not None:
            self._accounts.pay_back(self._budget, self._costs[self._claimed])
            self._claimed = None


@dataclass(frozen=True, slots=True)
class BudgetRule:
    """Puts off what the budget has no room for; a ``LaunchRule``.

    What is put off is sent when there is room, or when the last request has been silent for so
    long that it is lost and not slow.

    Parameters:
        usual: When to hedge, if there is room then.
        budget: What the turn spends.
        silent_secs: By provider, the silence after which a request is lost and is replaced
            without credit; twice as long where the provider answers other requests.
        is_answering: Whether a provider has begun to answer a request sent after the first time,
            or any request after the second. Such a provider is slow, not silent.
    """

    usual: LaunchRule
    budget: TurnBudget
    silent_secs: Mapping[str, float]
    is_answering: Callable[[str, float, float], bool] = lambda provider, since, recently: False

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Launch as usual, or as soon as there is room; see ``LaunchRule``."""
        decision = self.usual.next_launch(waiting)
        if decision.at is None:
            return decision
        last, now = waiting.in_flight[-1], waiting.now
        heard_at = last.launched_at if last.last_token_at is None else last.last_token_at
        silent_secs = self.silent_secs[last.provider]
        if decision.at > now:
            lost_at = heard_at + SLOW_FACTOR * silent_secs
            if lost_at > now:
                return replace(decision, at=min(decision.at, lost_at))
            reason = f"silent for {now - heard_at:.2g} s, whatever it saves"
            return LaunchDecision(lost_at, reason, is_put_off=True)
        if self.budget.claim(waiting.next_provider, now):
            return decision
        if self.is_answering(last.provider, heard_at, now - RECENT * silent_secs):
            silent_secs *= SLOW_FACTOR
        reason = f"put off, the budget has no room for more at once: {decision.reason}"
        return LaunchDecision(max(heard_at + silent_secs, decision.at), reason, is_put_off=True)
