"""Limits how many extra requests are sent at once, with a token bucket. Pure.

When a provider turns slow, every waiting turn reaches its hedge time together; the account in
``hedge_budget.py`` bounds only the average over hundreds of turns. Each turn adds ``SLACK`` times
its budget, each extra request takes one token. The bucket holds ``MOST_TOKENS`` tokens.
Without ``SLACK`` the p99 of the "jagged" profile is a third longer (``tests/support/crowd.py``).
See ``docs/design/when-to-hedge.md``.
"""

from __future__ import annotations

from collections.abc import Callable

from pipecat_hedge.race.events import LaunchDecision, LaunchRule, Waiting

MOST_TOKENS = 4.0
"""Tokens of a process, which knows nothing of the others' bursts. With 2 the p99 of a provider that
stalls in a turn of twenty is 3.4 instead of 1.4 s (``tests/service/test_turn_order.py``)."""
SLACK = 2.0
"""Tokens per turn, in units of the budget. At 1 the bucket is half empty in calm times and delays
hedges; above 2 the bursts of eight processes exceed chance (``tests/support/crowd.py``)."""
REFILL_SECS = 4.0
"""A process gains one token in this time, for those with few turns."""
ONE_TOKEN = 1.0 - 1e-9
"""One token, less the rounding of floating-point sums."""


class HedgeBurst:
    """The token bucket of all services in the process that have the same budget."""

    def __init__(self, budget: float):
        """Start with a full bucket.

        Args:
            budget: Extra requests per turn, on average.
        """
        self._budget = budget
        self._tokens = MOST_TOKENS
        self._now: float | None = None

    def begin_turn(self, now: float) -> None:
        """Add a turn's tokens at ``now``, in seconds."""
        self._fill(now)
        self._tokens = min(self._tokens + SLACK * self._budget, MOST_TOKENS)

    def spend(self, cost: float, now: float) -> None:
        """Take the tokens of an extra request, down to a debt of one full bucket.

        Args:
            cost: Cost in units of the turn's first request.
            now: Time in seconds.
        """
        self._fill(now)
        self._tokens = max(self._tokens - cost, -MOST_TOKENS)

    def pay_back(self, cost: float) -> None:
        """Return the tokens of an extra request that was not sent.

        Args:
            cost: Its cost in units of the turn's first request.
        """
        self._tokens = min(self._tokens + cost, MOST_TOKENS)

    def permits(self, cost: float, now: float) -> bool:
        """Return whether an extra request may be sent now.

        Args:
            cost: Cost in units of the turn's first request. A free request may always be sent. One
                that costs more than the bucket holds may be sent when the bucket is full.
            now: Time in seconds.
        """
        self._fill(now)
        return cost <= 0 or self._tokens >= ONE_TOKEN * min(cost, MOST_TOKENS)

    def _fill(self, now: float) -> None:
        """Add tokens for the time since the last call; clocks of several event loops may differ."""
        secs = 0.0 if self._now is None else max(now - self._now, 0.0)
        self._tokens = min(self._tokens + secs / REFILL_SECS, MOST_TOKENS)
        self._now = now


class BurstBound:
    """Postpones a turn's hedges when the budget has no room; a ``LaunchRule``.

    A due hedge is paid for when it is decided, because many turns are often due in the same
    instant. ``close`` refunds a hedge that was paid for and not sent.
    """

    def __init__(
        self,
        rule: LaunchRule,
        claim: Callable[[str, float], bool],
        pay_back: Callable[[str], None],
    ):
        """Wrap the launch rule of one turn.

        Args:
            rule: The rule that sets the hedge time.
            claim: Takes a provider and the time. Withdraws the cost of a request to the provider
                and returns True, or returns False when there is no room.
            pay_back: Refunds the cost of a claimed request to a provider.
        """
        self._rule = rule
        self._claim = claim
        self._pay_back = pay_back
        self._claimed: str | None = None

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Return the wrapped rule's decision, postponed without room; see ``LaunchRule``."""
        decision = self._rule.next_launch(waiting)
        if decision.at is None or decision.at > waiting.now:
            return decision
        if self._claimed is not None or self._claim(waiting.next_provider, waiting.now):
            # Claimed even if no provider is free yet: it is sent as soon as one is.
            self._claimed = self._claimed or waiting.next_provider
            return decision
        reason = f"put off, the budget has no room for more at once: {decision.reason}"
        return LaunchDecision(None, reason, is_put_off=True)

    def take_claim(self) -> bool:
        """Return whether the request that is launched now has been paid for; use up the claim."""
        was_claimed, self._claimed = self._claimed is not None, None
        return was_claimed

    def close(self) -> None:
        """Refund a hedge that was paid for and not sent, at the turn's end."""
        if self._claimed is not None:
            self._pay_back(self._claimed)
            self._claimed = None
