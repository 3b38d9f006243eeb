"""How the providers of a process are doing: who is left alone, and how many requests each may have.

Law: a permit is given only below the limit, only to whom nobody more urgent waits for, and comes
back exactly once, whatever becomes of the request.

One registry for every session, as for latencies: what one caller's turn has found out about a
provider spares the next caller the same. What is decided is the policies'; this keeps one of each
for a provider, and the queue that they share, behind one lock that is held for microseconds and
never while anything is awaited. Nothing happens by itself, so nothing has to be stopped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable

from pipecat_hedge.ending import Ending
from pipecat_hedge.policies.permit_queue import RESERVED, PermitQueue, Ticket, displaces, reserve
from pipecat_hedge.provider_health import Permit, ProviderHealth
from pipecat_hedge.provider_registry import ProviderRegistry
from pipecat_hedge.work import Tier, WorkClass

__all__ = ["Health"]

NOBODY = "everybody who could be asked is left alone"


class Health(ProviderRegistry):
    """The registry with its permits; see ``ProviderRegistry`` for its attributes."""

    def __init__(self, dice: random.Random | None = None):
        """Begin with nobody.

        Args:
            dice: Spreads the recoveries of many processes; None rolls its own.
        """
        super().__init__(dice)
        self._queue = PermitQueue()
        self._granted: dict[Ticket, Callable[[Permit | None], None]] = {}
        self._making_room: dict[Ticket, Permit] = {}

    @property
    def waiting(self) -> int:
        """How many requests wait for a permit."""
        return len(self._queue)

    def refusals(
        self, keys: Iterable[str], work: WorkClass, tier: Tier, now: float
    ) -> dict[str, str]:
        """Which providers would give this work no permit now, and why, for a person to read.

        Args:
            keys: The providers.
            work: What the request is for.
            tier: Whose it is.
            now: The time.
        """
        told: dict[str, str] = {}
        with self.lock:
            # Who comes first matters only where somebody waits.
            ticket = Ticket(work, tier, now, (), now) if self._queue else None
            share = RESERVED.get(work, 0.0)
            for key in keys:
                if ticket is None and self.of(key).is_at_ease(share, now):
                    continue  # as nearly always: the quick way
                if (reason := self._refusal(key, work, ticket, now)) is not None:
                    told[key] = reason
        return told

    def why(self, ticket: Ticket, now: float) -> str:
        """Why none of a ticket's candidates has a permit for it now, for a person to read.

        Args:
            ticket: Who asks.
            now: The time.
        """
        with self.lock:
            work = ticket.work
            told = ((key, self._refusal(key, work, ticket, now)) for key in ticket.candidates)
            known = [f"{_name(key)} {reason}" for key, reason in told if reason is not None]
        return ", ".join(known) or "there was none to be had"

    def take(self, ticket: Ticket, now: float, *, probe: str | None = None) -> Permit | None:
        """Take a permit of the first candidate that has one.

        Args:
            ticket: What for, and whose would do.
            now: The time.
            probe: Of which candidate the probe has been claimed; its breaker lets this one pass.
        """
        with self.lock:
            return self._take(ticket, now, probe)

    def wait(
        self, ticket: Ticket, granted: Callable[[Permit | None], None], now: float
    ) -> str | None:
        """Queue for a permit.

        Args:
            ticket: What for, and whose would do.
            granted: Called once, from any thread and with the lock held: with a permit, or with
                None where somebody more urgent has taken the place.
            now: The time.

        Returns:
            Why there is no use in waiting; or None, and then it has to be ended by ``granted`` or
            by ``leave``.
        """
        with self.lock:
            if not self._has_closed(ticket.candidates, now):
                return NOBODY
            rates = [self.of(key).rate(now) for key in ticket.candidates]
            if self._queue.is_hopeless(ticket, rates, now):
                return f"{len(self._queue)} wait already, it would come too late"
            self._granted[ticket] = granted
            turned_away = self._queue.join(ticket)
            if turned_away is not ticket:
                self._displace(ticket)
            if turned_away is not None:
                self._granted.pop(turned_away)(None)
            return None

    def look_again(self, ticket: Ticket, now: float) -> str | None:
        """Grant what time alone has set free, as when a provider's word is no longer news.

        Args:
            ticket: Who waits.
            now: The time.

        Returns:
            Why there is no use in waiting any longer; or None.
        """
        with self.lock:
            for key in ticket.candidates:
                self._grant(key, now)
            if ticket in self._granted:
                self._displace(ticket)
            return None if self._has_closed(ticket.candidates, now) else NOBODY

    def leave(self, ticket: Ticket) -> None:
        """Stop waiting; also where the ticket has been granted or turned away."""
        with self.lock:
            self._queue.leave(ticket)
            self._granted.pop(ticket, None)
            self._making_room.pop(ticket, None)

    def heard(self, permit: Permit, now: float, *, size_class: Hashable = None) -> None:
        """Take note that a request's answer has begun. The first time counts.

        Args:
            permit: The request's permit.
            now: When.
            size_class: The class of its prompt's size.
        """
        with self.lock:
            if permit.is_out and not permit.is_heard:
                entry = self.of(permit.key)
                entry.heard(permit)
                entry.answered_since = max(entry.answered_since, permit.taken_at)
                entry.word_at = max(entry.word_at, now)
                entry.limit.heard(
                    now - permit.taken_at,
                    now,
                    size_class=size_class,
                    was_overdue=permit.is_overdue,
                )

    def expect_no_word(self, permit: Permit) -> None:
        """Take note that no first token will tell when a request's answer begins.

        Such a request is never late, and is not called back.

        Args:
            permit: The request's permit.
        """
        with self.lock:
            self.of(permit.key).heard(permit)

    def give_back(
        self,
        permit: Permit,
        ending: Ending,
        now: float,
        *,
        ttft_secs: float | None = None,
        was_unheard: bool = False,
    ) -> None:
        """Give a permit back, with what became of its request. The first time counts.

        Args:
            permit: The permit.
            ending: What the request's end says of the provider.
            now: When its connection was closed.
            ttft_secs: Its time to first token, from the permit, if it had one.
            was_unheard: Whether it was given up before a word came, after a while.
        """
        with self.lock:
            if not permit.is_out:
                return
            permit.is_out = False
            entry = self.of(permit.key)
            count = entry.count_unheard(ending, was_unheard, ttft_secs is not None)
            entry.ended(permit)
            held_secs = now - permit.taken_at
            entry.limit.release(
                ending.limit,
                now,
                ttft_secs=ttft_secs,
                held_secs=held_secs,
                was_passed=entry.answered_since > permit.taken_at,
            )
            entry.came_back(now)
            entry.breaker.record(
                ending.breaker, now, probe=permit.is_probe, lived_secs=held_secs, count=count
            )
            self._note(permit.key)
            if self._queue:
                self._grant(permit.key, now)

    # ---- with the lock held

    def _refusal(
        self,
        key: str,
        work: WorkClass,
        ticket: Ticket | None,
        now: float,
        *,
        is_probe: bool = False,
        disturbs: bool = False,
    ) -> str | None:
        """Why a provider has no permit for this work; None if it has, which is the quick way.

        Args:
            key: The provider.
            work: What for.
            ticket: Whom others may be in front of; needed only where somebody waits.
            now: The time.
            is_probe: Whether it is the one that may try a provider that is left alone.
            disturbs: Whether it may ask one that has asked to be left alone.
        """
        entry = self.of(key)
        if not is_probe and entry.breaker.state(now) != "closed":
            self._note(key)
            return f"is left alone ({entry.opened_because})"
        if now < entry.rests_until and not (is_probe or disturbs):
            return f"has asked to be left alone for {entry.rests_until - now:.2g} s"
        limit = entry.limit
        if ticket is not None and self._queue:
            first = self._queue.first_for(key)
            if first is not None and first is not ticket and first.rank < ticket.rank:
                return f"has {limit.reason(now)} and others waiting"
        if not limit.is_free(now, reserve=reserve(work, limit.limit(now))):
            return f"has {limit.reason(now)}"
        return None

    def _take(
        self, ticket: Ticket, now: float, probe: str | None = None, *, disturbs: bool | None = None
    ) -> Permit | None:
        share = RESERVED.get(ticket.work, 0.0)
        for key in ticket.candidates:
            entry, is_probe = self.of(key), key == probe
            self._watch(entry, now)
            refusal = None
            if self._queue or not entry.is_at_ease(share, now):
                if disturbs is None and now < entry.rests_until:
                    disturbs = self._disturbs(ticket)
                refusal = self._refusal(
                    key, ticket.work, ticket, now, is_probe=is_probe, disturbs=bool(disturbs)
                )
            if refusal is None:
                is_given = entry.limit.acquire(now)  # with what had to be left over
                assert is_given
                permit = Permit(key, now, is_probe, now - ticket.joined_at)
                permit.urgency = ticket.urgency
                entry.sent(permit)
                return permit
        return None

    def _disturbs(self, ticket: Ticket) -> bool:
        """Whether somebody is asked who wants to be left alone: nobody else could be in time."""
        return ticket.work not in ("hedge", "warm_up") and all(
            self.of(key).rests_until > ticket.deadline for key in ticket.candidates
        )

    def _watch(self, entry: ProviderHealth, now: float) -> None:
        """Look for a queue at a provider; what waits in it comes back to wait here, in order."""
        entry.limit.notice_late(entry.late(now), now)
        if entry.limit.take_recall():
            for permit in entry.queued():
                assert permit.recall is not None
                permit.recall()

    def _displace(self, ticket: Ticket) -> None:
        """Have the least urgent request on its way make room, unless one does so already."""
        asked = self._making_room.get(ticket)
        if asked is not None and asked.is_out and asked.makes_room and not asked.is_heard:
            return
        less_urgent = (
            permit
            for key in ticket.candidates
            for permit in self.of(key).callable_back()
            if displaces(ticket.urgency, permit.urgency)
        )
        last = max(less_urgent, key=lambda p: (p.urgency, p.taken_at), default=None)
        if last is None:
            return
        assert last.recall is not None
        self._making_room[ticket] = last
        last.is_displaced = True
        last.recall()

    def _grant(self, key: str, now: float) -> None:
        """Give what a provider has to those who wait for it, in their order."""
        while (ticket := self._queue.first_for(key)) is not None:
            own = Ticket(ticket.work, ticket.tier, ticket.deadline, (key,), ticket.joined_at)
            permit = self._take(own, now, disturbs=self._disturbs(ticket))
            if permit is None:
                return
            self._queue.leave(ticket)
            self._granted.pop(ticket)(permit)


def _name(key: str) -> str:
    """The provider's name out of what its statistics are kept under."""
    return key.partition(" | ")[0]
