"""The order in which requests wait for room at a provider. Pure; time is an argument.

Requests wait only where a provider has refused for load, or where the host asked for it
(``admission="shed"``). The order is: what the request is for (``work.py``), then the caller's tier,
then the deadline, then who came first. A request names every provider that would do, the preferred
first, and takes the first place that one of them has.

Source: the order is that of WeChat's overload control (H. Zhou et al., Overload Control for Scaling
WeChat Microservices, SoCC 2018).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from pipecat_hedge.limits.concurrency_limit import OPEN_BOUNDS, LimitBounds
from pipecat_hedge.limits.priority import TIERS, WORK_CLASSES, Tier, WorkClass

__all__ = ["MAX_WAIT_SECS", "OPTIONAL", "RESERVED", "PermitQueue", "Ticket"]

MAX_WAIT_SECS = 3.0
"""How long a turn waits for room: after as long a silence an answer counts as broken off."""
RESERVED: dict[WorkClass, float] = {"hedge": 0.1, "warm_up": 0.25}
"""The share of a provider's limit that a class of work leaves to what is more urgent."""
OPTIONAL = frozenset(RESERVED)
"""Work that nobody waits for: it may be dropped. All other work is some caller's or some host's."""
_WORK_PLACES = {work: place for place, work in enumerate(WORK_CLASSES)}
_TIER_PLACES = {tier: place for place, tier in enumerate(TIERS)}


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A place in the queue.

    Parameters:
        work: What the request is for.
        tier: Whose it is.
        deadline: Until when it may wait.
        candidates: The providers that would do, the preferred first.
        joined_at: When it was drawn.
        session: The session that asks.
        bounds: Where a provider's limit may lie.
        sheds: Whether limits and open breakers end the request (``admission="shed"``).
        ignores_breakers: Whether the turn was planned as if every breaker were closed.
        probe: Which candidate is half-open and may be tried by this request; it comes after those
            that are well.
        has_first_token: Whether the answer tells when it begins, so that it can be late.
    """

    work: WorkClass
    tier: Tier
    deadline: float
    candidates: tuple[str, ...]
    joined_at: float
    session: Hashable = None
    bounds: LimitBounds = OPEN_BOUNDS
    sheds: bool = False
    ignores_breakers: bool = False
    probe: str | None = None
    has_first_token: bool = True

    @property
    def is_optional(self) -> bool:
        """Whether nobody waits for it, so that it may be dropped."""
        return self.work in OPTIONAL

    @property
    def rank(self) -> tuple[int, int, float, float]:
        """By what to order tickets: the smallest is the most urgent."""
        return (_WORK_PLACES[self.work], _TIER_PLACES[self.tier], self.deadline, self.joined_at)


class PermitQueue:
    """The tickets that wait for any provider, the most urgent first."""

    def __init__(self) -> None:
        """Begin empty."""
        self._tickets: list[Ticket] = []

    def __len__(self) -> int:
        """How many wait."""
        return len(self._tickets)

    def join(self, ticket: Ticket) -> None:
        """Take a place."""
        insort(self._tickets, ticket, key=lambda waiting: waiting.rank)

    def leave(self, ticket: Ticket) -> None:
        """Give up a place; one that is not held is no mistake."""
        if ticket in self._tickets:
            self._tickets.remove(ticket)

    def waiting_for(self, provider: str) -> Iterator[Ticket]:
        """The tickets that would take a place at a provider, the most urgent first."""
        return (ticket for ticket in list(self._tickets) if provider in ticket.candidates)

    def is_behind(self, ticket: Ticket, provider: str) -> bool:
        """Whether a more urgent ticket waits for the same provider.

        Who waits for a limit of ``admission="shed"`` is in no caller's way who has no such limit.

        Args:
            ticket: The ticket; it may wait itself.
            provider: The provider.
        """
        rank, heeds_all = ticket.rank, ticket.sheds or ticket.is_optional
        for other in self._tickets:
            if other is ticket or other.rank >= rank:
                return False
            if provider in other.candidates and (heeds_all or not other.sheds):
                return True
        return False
