"""One provider's breaker, limit and whatever else is known of how it is doing."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pipecat_hedge.ending import DROPPED, SILENT, Ending
from pipecat_hedge.policies.circuit_breaker import BreakerEvent, CircuitBreaker
from pipecat_hedge.policies.concurrency_limit import ConcurrencyLimit
from pipecat_hedge.policies.fleet import Advice, Finding

__all__ = ["BreakerChange", "Permit", "ProviderHealth"]

RATE_OVER_SECS, RATE_FROM = 5.0, 5
"""Permits that came back within so many seconds say how fast they do, from so many on."""


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
    """Leave to have one request in flight.

    Parameters:
        key: At whom.
        taken_at: Since when.
        is_probe: Whether it is the one that may try a provider that was left alone.
        waited_secs: How long was waited for it.
        is_out: Whether it has not come back yet.
        is_heard: Whether its answer has begun.
        makes_room: Whether it may be called back for somebody more urgent: false once its turn has
            said that it has nobody else to ask.
        is_displaced: Whether it has been called back to make room for somebody more urgent.
        is_overdue: Whether it has been told that nothing was heard of it for too long.
        urgency: How urgent its request is; the largest is the least urgent.
        recall: Called, from any thread, when the request is to be given up because it waits in a
            queue at the provider, which is longer than it should be; None if it cannot be.
    """

    key: str
    taken_at: float
    is_probe: bool = False
    waited_secs: float = 0.0
    is_out: bool = True
    is_heard: bool = False
    makes_room: bool = True
    is_displaced: bool = False
    is_overdue: bool = False
    urgency: tuple[int, int] = (0, 0)
    recall: Callable[[], None] | None = None


class ProviderHealth:
    """One provider's breaker, limit and whatever else is known of how it is doing.

    Attributes:
        breaker: Whether to leave it alone.
        limit: How many requests it may have in flight.
        rests_until: Until when it has asked to be left alone.
        answered_since: When the latest request was sent that it has begun to answer.
        unheard: Requests in a row of which no word came, be it that they were overtaken before.
        overtaken: Of them, those that were, since one was waited for in vain the last time.
        live: The permits that are out, the oldest first.
        silent: Of them, those whose answer has not begun: what is looked for is among them, however
            many others are streaming.
    """

    def __init__(self, dice: random.Random):
        """Begin with a provider that is well.

        Args:
            dice: Spreads the recoveries of many processes.
        """
        self.breaker = CircuitBreaker(dice)
        self.limit = ConcurrencyLimit()
        self.rests_until = float("-inf")
        self.answered_since = self.word_at = float("-inf")
        self.unheard = self.overtaken = 0
        self.live: dict[Permit, None] = {}
        self.silent: dict[Permit, None] = {}
        self.opened_because = ""
        self._came_back: deque[float] = deque(maxlen=64)

    def sent(self, permit: Permit) -> None:
        """Take note of a request that is on its way."""
        self.live[permit] = self.silent[permit] = None

    def heard(self, permit: Permit) -> None:
        """Take note that a request's answer has begun, or that no word of it is waited for."""
        permit.is_heard = True
        self.silent.pop(permit, None)

    def ended(self, permit: Permit) -> None:
        """Take note that a request is over."""
        self.live.pop(permit, None)
        self.silent.pop(permit, None)

    def is_at_ease(self, reserved: float, now: float) -> bool:
        """Whether it may be asked at once, by what is seen at a glance; if not, it may still be.

        Args:
            reserved: The share of its limit that is to be left over for what is more urgent.
            now: The time.
        """
        return self.is_well(now) and self.limit.is_at_ease(reserved)

    def is_well(self, now: float) -> bool:
        """Whether it is not left alone, nor has asked to be.

        Args:
            now: The time.
        """
        return self.breaker.state(now) == "closed" and now >= self.rests_until

    def late(self, now: float) -> int:
        """How many requests that were sent under the present limit are late; it is told of each."""
        if not self.silent:
            return 0
        since, until = self.limit.cut_at, now - self.limit.late_secs
        count = 0
        for permit in self.silent:
            if permit.taken_at > until:
                break
            count += permit.taken_at >= since
            if not permit.is_overdue:
                permit.is_overdue = True
                self.limit.overdue(permit.taken_at, now)
        return count

    def queued(self) -> list[Permit]:
        """The requests beyond the limit that have not been heard, the least urgent and latest."""
        waiting = [p for p in reversed(self.silent) if p.recall is not None]
        waiting.sort(key=lambda permit: permit.urgency, reverse=True)  # of equals, the latest first
        return waiting[: self.limit.surplus]

    def callable_back(self) -> list[Permit]:
        """The requests that may make room: not heard, and not called back yet."""
        return [
            p for p in self.silent if p.makes_room and p.recall is not None and not p.is_displaced
        ]

    def count_unheard(self, ending: Ending, was_overtaken: bool, has_begun: bool) -> int:
        """Take note of whether a request that is over was heard.

        Args:
            ending: What its end says of the provider.
            was_overtaken: Whether it was given up before a word came, after a while.
            has_begun: Whether its answer had begun.

        Returns:
            Of how many requests in a row its end tells: one that was waited for in vain tells of
            those before it, too, that nobody waited for.
        """
        if ending is SILENT and not has_begun:
            count, self.overtaken = self.overtaken + 1, 0
            self.unheard += 1
            return count
        if was_overtaken:
            self.overtaken += 1
            self.unheard += 1
        elif has_begun or ending not in (DROPPED, SILENT):
            self.unheard = self.overtaken = 0
        return 1

    def came_back(self, now: float) -> None:
        """Count a permit that has come back."""
        self._came_back.append(now)

    def rate(self, now: float) -> float:
        """How many permits a second come back; 0 if that is not known."""
        recent = [at for at in self._came_back if at > now - RATE_OVER_SECS]
        span = now - recent[0] if recent else 0.0
        return len(recent) / span if len(recent) >= RATE_FROM and span > 0 else 0.0

    # ---- in a fleet

    def finding(self, now: float) -> Finding:
        """What this process has found out by itself.

        Args:
            now: The time.
        """
        breaker, limit = self.breaker, self.limit
        return Finding(
            breaker.found(now),
            breaker.open_secs(now),
            breaker.reason,
            breaker.closings,
            limit.learned,
            limit.cuts,
            limit.tested,
        )

    def follow(self, advice: Advice, now: float) -> None:
        """Go by what others have found out.

        Args:
            advice: What to make of it.
            now: The time.
        """
        if advice.try_it:
            self.breaker.follow_closed(now, "the fleet: another process had an answer")
        elif advice.open_secs is not None:
            self.breaker.follow_open(advice.open_secs, now, advice.reason)
        if advice.limit is not None:
            self.limit.begin_with(advice.limit)
        if advice.is_busy:
            self.limit.follow_cut(now)
        self.limit.hear_tests(advice.others, advice.tested, now)
