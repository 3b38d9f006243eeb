"""The order in which requests wait for room at a provider.

Requests wait only where a provider rejects requests for load, or with ``admission="shed"``. The
order is: work class (``priority.py``), tier, deadline, arrival. A request names its candidates in
order of preference and takes the first one with room.

Source: H. Zhou et al., Overload Control for Scaling WeChat Microservices, SoCC 2018.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from pipecat_hedge.limits.concurrency_limit import OPEN_BOUNDS, LimitBounds
from pipecat_hedge.limits.priority import WORK_CLASSES, WorkClass
from pipecat_hedge.race.reports import TIERS, Tier

__all__ = ["MAX_WAIT_SECS", "OPTIONAL", "RESERVED", "PermitQueue", "Ticket"]

MAX_WAIT_SECS = 3.0
"""How long a turn waits for room. After as long a silence, an answer counts as stalled."""
RESERVED: dict[WorkClass, float] = {"hedge": 0.1, "warm_up": 0.25}
"""The share of a provider's limit that a work class keeps free for more urgent ones."""
OPTIONAL = frozenset(RESERVED)
"""Work that may be dropped. All other work is awaited by a caller or a host."""
_WORK_PLACES = {work: place for place, work in enumerate(WORK_CLASSES)}
_TIER_PLACES = {tier: place for place, tier in enumerate(TIERS)}


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A request's place in the queue.

    Parameters:
        work: The work class.
        tier: The session's tier.
        deadline: How long it may wait.
        candidates: The possible providers, in order of preference.
        joined_at: When it was created.
        session: The request's session.
        bounds: Bounds of a provider's limit.
        sheds: Whether limits and open breakers reject the request (``admission="shed"``).
        ignores_breakers: Whether the turn was planned as if every breaker were closed.
        probe: The candidate that is half-open and that this request may probe, after healthy ones.
        has_first_token: Whether the answer gives a time to first token, so that it can be late.
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
        """Whether the request may be dropped."""
        return self.work in OPTIONAL

    @property
    def rank(self) -> tuple[int, int, float, float]:
        """The sort key of tickets: the smallest is the most urgent."""
        return (_WORK_PLACES[self.work], _TIER_PLACES[self.tier], self.deadline, self.joined_at)


class PermitQueue:
    """The waiting tickets of all providers, most urgent first."""

    def __init__(self) -> None:
        """Create an empty queue."""
        self._tickets: list[Ticket] = []

    def __len__(self) -> int:
        """The number of waiting tickets."""
        return len(self._tickets)

    def join(self, ticket: Ticket) -> None:
        """Add a ticket."""
        insort(self._tickets, ticket, key=lambda waiting: waiting.rank)

    def leave(self, ticket: Ticket) -> None:
        """Remove a ticket; does nothing if it is not queued."""
        if ticket in self._tickets:
            self._tickets.remove(ticket)

    def waiting_for(self, provider: str) -> Iterator[Ticket]:
        """The tickets with a provider among their candidates, most urgent first."""
        return (ticket for ticket in list(self._tickets) if provider in ticket.candidates)

    def is_behind(self, ticket: Ticket, provider: str) -> bool:
        """Whether a more urgent ticket waits for the same provider.

        Tickets that wait for a limit of ``admission="shed"`` do not delay other callers' tickets.
        """
        rank, heeds_all = ticket.rank, ticket.sheds or ticket.is_optional
        for other in self._tickets:
            if other is ticket or other.rank >= rank:
                return False
            if provider in other.candidates and (heeds_all or not other.sheds):
                return True
        return False
