"""The record of one provider and model in a process."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pipecat_hedge.providers.circuit_breaker import (
    BreakerEvent,
    CircuitBreaker,
    CircuitBreakerSettings,
)
from pipecat_hedge.providers.concurrency_limit import ConcurrencyLimit
from pipecat_hedge.providers.latency import SILENCES, ProviderLatency
from pipecat_hedge.providers.verdict import Verdict


@dataclass(frozen=True, slots=True)
class BreakerChange:
    """A change of one provider's breaker.

    Parameters:
        key: The provider.
        event: The change.
    """

    key: str
    event: BreakerEvent


class ProviderRecord:
    """The state of one provider and model. Protected by the registry's lock.

    Attributes:
        latencies: Its latency models, by the key of their statistics; see ``Backend.key``.
        breaker: Its circuit breaker.
        limit: Its concurrency limit.
        retry_after_until: When its ``Retry-After`` ends.
        used_up_until: Until when its rate limit is used up.
        answered_since: When the latest request was sent whose answer has begun.
        last_token_at: When an answer last began.
        last_ttft_secs: How long that took.
        without_token: The number of requests in a row without a token, superseded ones included.
        overtaken: Those of them that were superseded when they were already late, since the last
            timeout.
        silent_since: When the latest request was sent that was silent until it was cut.
        is_observed: Whether one of its losers runs on as an observed loser.
        open_reason: The reason of the breaker's last change.
    """

    def __init__(self, rng: random.Random, settings: CircuitBreakerSettings):
        """Create the record of a healthy provider.

        Args:
            rng: Spreads the recoveries of many processes.
            settings: When its breaker opens.
        """
        self.latencies: dict[str, ProviderLatency] = {}
        self.breaker = CircuitBreaker(rng, settings)
        self.limit = ConcurrencyLimit()
        self.retry_after_until = self.used_up_until = float("-inf")
        self.answered_since = self.last_token_at = float("-inf")
        self.silent_since = float("-inf")
        self.last_ttft_secs = 0.0
        self.without_token = self.overtaken = 0
        self.is_observed = False
        self.open_reason = ""

    def __repr__(self) -> str:
        return f"<ProviderRecord: {self.limit.in_flight} in flight, {self.breaker}>"

    def count_without_token(
        self, verdict: Verdict, was_overtaken: bool, was_late: bool, has_begun: bool
    ) -> int:
        """Count a finished request for ``without_token``.

        Args:
            verdict: How it ended.
            was_overtaken: Whether it was superseded before its first token.
            was_late: Whether it was then late, or lost to a request that was sent after it.
            has_begun: Whether its answer had begun.

        Returns:
            How many failures in a row its end stands for: a timeout also stands for the requests
            before it that were superseded when they were late.
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

    def down_since(self, now: float) -> float | None:
        """Since when this process's latest requests have failed or were silent, in a row.

        It grows with each further failure. None if they have not.
        """
        is_silent = any(latency.silences >= SILENCES for latency in self.latencies.values())
        return self.silent_since if is_silent else self.breaker.opened_by_itself(now)

    def has_answered_since(self, since: float, now: float) -> bool:
        """Whether it has begun an answer to this process since then, and is in use."""
        return self.last_token_at >= since and self.breaker.state(now) == "closed"

    def follow(self, reason: str | None, secs: float, now: float) -> None:
        """Open or test its breaker because of what other processes have found.

        Args:
            reason: Why it is down; None if it is not.
            secs: For how long the breaker opens.
            now: The time.
        """
        if reason is not None:
            self.breaker.follow_open(secs, now, f"the fleet: {reason}")
        else:
            self.breaker.follow_closed(now, "the fleet: another process got an answer")
