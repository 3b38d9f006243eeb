"""One provider's breaker, limit and whatever else is known of how it is doing."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pipecat_hedge.limits.circuit_breaker import BreakerEvent, CircuitBreaker
from pipecat_hedge.limits.concurrency_limit import ConcurrencyLimit
from pipecat_hedge.limits.fleet_advice import Advice, Finding
from pipecat_hedge.limits.verdict import Verdict

__all__ = ["BreakerChange", "Permit", "ProviderHealth"]


@dataclass(frozen=True, slots=True)
class BreakerChange:
    """A change of one provider's breaker.

    Parameters:
        key: Whose.
        event: From what to what, and why.
    """

    key: str
    event: BreakerEvent


@dataclass(slots=True, eq=False)
class Permit:
    """One request in flight.

    Parameters:
        key: At which provider.
        taken_at: Since when.
        is_probe: Whether it is the one that may try a provider that was left alone.
        waited_secs: How long was waited for it.
        is_active: Whether it has not come back yet.
        has_token: Whether its answer has begun.
    """

    key: str
    acquired_at: float
    is_probe: bool = False
    waited_secs: float = 0.0
    is_active: bool = True
    has_token: bool = False


class ProviderHealth:
    """One provider's breaker, limit and whatever else is known of how it is doing.

    Attributes:
        breaker: Whether it fails.
        limit: How many requests it should have in flight.
        retry_after_until: Until when it has asked to be left alone.
        answered_since: When the latest request was sent that it has begun to answer.
        last_token_at: When it has begun to answer the last time.
        without_token: Requests in a row of which no token came, be it that they were overtaken before.
        overtaken: Of them, those that were when they were late, since one was waited for in vain
            the last time.
    """

    def __init__(self, rng: random.Random):
        """Begin with a provider that is well.

        Args:
            rng: Spreads the recoveries of many processes.
        """
        self.breaker = CircuitBreaker(rng)
        self.limit = ConcurrencyLimit()
        self.retry_after_until = float("-inf")
        self.answered_since = self.last_token_at = float("-inf")
        self.without_token = self.overtaken = 0
        self.open_reason = ""

    def is_healthy(self, now: float) -> bool:
        """Whether its breaker is closed, and it has not asked to be left alone."""
        return self.breaker.state(now) == "closed" and now >= self.retry_after_until

    def count_without_token(
        self, verdict: Verdict, was_overtaken: bool, was_late: bool, has_begun: bool
    ) -> int:
        """Take note of whether a request that is over was heard.

        Args:
            verdict: What its end says of the provider.
            was_overtaken: Whether it was given up before a token came.
            was_late: Whether it was waited for then longer than is usual, or one that was sent
                after it has won.
            has_begun: Whether its answer had begun.

        Returns:
            Of how many requests in a row its end tells: one that was waited for in vain tells of
            those before it, too, that nobody waited for.
        """
        if verdict == "silent" and not has_begun:
            count, self.overtaken = self.overtaken + 1, 0
            self.without_token += 1
            return count
        if was_overtaken:
            self.overtaken += was_late
            self.without_token += 1
        elif has_begun or verdict not in ("dropped", "silent"):
            self.without_token = self.overtaken = 0
        return 1

    # ---- in a fleet

    def finding(self, now: float) -> Finding:
        """What this process has found out by itself."""
        breaker = self.breaker
        return Finding(breaker.found(now), breaker.open_secs(now), breaker.reason, breaker.closings)

    def follow(self, advice: Advice, now: float) -> None:
        """Go by what others have found out.

        Args:
            advice: What to make of it.
            now: The time.
        """
        if advice.try_it:
            self.breaker.follow_closed(now, "the fleet: another process got an answer")
        elif advice.open_secs is not None:
            self.breaker.follow_open(advice.open_secs, now, advice.reason)
