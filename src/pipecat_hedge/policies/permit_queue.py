"""Who gets the next permit when there are fewer than are asked for. Pure; time is an argument.

Law: nobody gets a permit while somebody more urgent waits for the same one; nobody waits beyond a
deadline, nor behind more than ``MOST_WAITING`` others.

The problem: a provider takes so many requests at once and no more. The naive answer, first come
first served, lets a hedge or a summary keep a caller waiting, and under a lasting overload it
serves everybody late: each answer goes to somebody who has given up.

Ours is ordered by what the request is for (``work.py``), then by the caller's tier, then by
deadline, and turns away from the end: the least urgent first. A request names all providers that
would do, the preferred first, and gets the first permit that one of them has to give. What is less
urgent than a turn leaves some room (``RESERVED``), so that a turn that comes in the next moment
need not wait: a hedge does not displace a caller.

Order in the queue is not enough where a permit comes back once a second: who is first in it waits
for that. So a request of a better tier has one of a lower tier called back that has not been heard
yet (``displaces``), and whoever a caller waits for has a hedge or a summary called back. The one
called back keeps its place among its own.

Whoever cannot be served in time is told at once rather than at the deadline: with ``ahead`` others
before, and permits coming back at ``rate`` a second, the wait is about ``(ahead + 1) / rate``. A
caller hears a sentence to bridge it now, which is worth more than the same sentence after three
seconds of silence.

Sources: the order and the turning away from the end as in WeChat's overload control (H. Zhou et
al., Overload Control for Scaling WeChat Microservices, SoCC 2018); Little's law for the wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipecat_hedge.work import TIERS, WORK_CLASSES, Tier, WorkClass

__all__ = ["MOST_WAITING", "MOST_WAIT_SECS", "RESERVED", "PermitQueue", "Ticket", "reserve"]

MOST_WAITING = 100
MOST_WAIT_SECS = 3.0
"""How long a turn waits for a permit where its policy has no deadline: the silence after which an
answer counts as broken off is as long."""
RESERVED: dict[WorkClass, float] = {"hedge": 0.1, "warm_up": 0.25, "background": 0.25}
"""The share of a provider's limit that a class of work leaves to what is more urgent."""
AWAITED_BEFORE = WORK_CLASSES.index("hedge")
"""For the classes before this one a caller waits who has nothing else to wait for."""
_WORK_PLACES = {work: place for place, work in enumerate(WORK_CLASSES)}
_TIER_PLACES = {tier: place for place, tier in enumerate(TIERS)}
SURELY = 1.5
"""A wait is called hopeless when it is expected to last so many times as long as it may."""


def reserve(work: WorkClass, limit: int) -> int:
    """How many permits a class of work leaves to what is more urgent.

    Args:
        work: The class.
        limit: How many there are.
    """
    return int(RESERVED.get(work, 0.0) * limit)


def displaces(urgency: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether a request may take the place of one that is on its way and has not been heard.

    Only a better tier's, or one that a caller waits for of one that nobody does: of two callers of
    the same tier the one who was first is not sent back.

    Args:
        urgency: Of the request that waits, as ``Ticket.urgency``.
        other: Of the one on its way.
    """
    if urgency >= other:
        return False
    return urgency[1] < other[1] or urgency[0] < AWAITED_BEFORE <= other[0]


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A place in the queue.

    Parameters:
        work: What the request is for.
        tier: Whose it is.
        deadline: Until when it is worth having.
        candidates: The providers that would do, the preferred first.
        joined_at: When it was drawn.
    """

    work: WorkClass
    tier: Tier
    deadline: float
    candidates: tuple[str, ...]
    joined_at: float

    @property
    def urgency(self) -> tuple[int, int]:
        """What for and for whom: the smallest is the most urgent."""
        return (_WORK_PLACES[self.work], _TIER_PLACES[self.tier])

    @property
    def rank(self) -> tuple[int, int, float, float]:
        """By what to order tickets: the smallest is the most urgent."""
        return (*self.urgency, self.deadline, self.joined_at)


class PermitQueue:
    """The tickets that wait for any provider's permit."""

    def __init__(self, most: int = MOST_WAITING):
        """Begin with nobody.

        Args:
            most: So many may wait, at least 1.
        """
        self._most = most
        self._tickets: list[Ticket] = []

    def __len__(self) -> int:
        """How many wait."""
        return len(self._tickets)

    def join(self, ticket: Ticket) -> Ticket | None:
        """Take a place.

        Args:
            ticket: The place.

        Returns:
            Who has to go because there are too many, the least urgent; or None.
        """
        self._tickets.append(ticket)
        self._tickets.sort(key=lambda waiting: waiting.rank)
        return self._tickets.pop() if len(self._tickets) > self._most else None

    def leave(self, ticket: Ticket) -> None:
        """Give up a place; one that is not held is no mistake.

        Args:
            ticket: The place.
        """
        if ticket in self._tickets:
            self._tickets.remove(ticket)

    def first_for(self, provider: str) -> Ticket | None:
        """The most urgent who would take a provider's permit.

        Args:
            provider: The provider.
        """
        return next((t for t in self._tickets if provider in t.candidates), None)

    def is_hopeless(self, ticket: Ticket, rates: Iterable[float], now: float) -> bool:
        """Whether a ticket's deadline will be over before its turn comes.

        Args:
            ticket: The ticket, before it has joined.
            rates: How many permits a second come back, of each of its candidates; none of them if
                that is not known.
            now: The time.
        """
        rate = sum(rates)
        if not rate:
            return False
        ahead = sum(
            t.rank <= ticket.rank and not set(t.candidates).isdisjoint(ticket.candidates)
            for t in self._tickets
        )
        return (ahead + 1) / rate > SURELY * (ticket.deadline - now)
