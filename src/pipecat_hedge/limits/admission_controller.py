"""How the providers of a process are doing, and which of them a request may be sent to.

Protection may drop hedges and prompts sent ahead. It never rejects or delays a caller's turn, or an
inference that a host awaits, unless the provider has refused for load itself and no other can be
asked; then the request waits in the order of tiers, and is sent when its time is up. Only a session
with ``admission="shed"`` has limits and open breakers end its turns.

One registry serves every session of a process, behind one lock that is held for microseconds and
never while anything is awaited. Nothing happens by itself, so nothing has to be stopped.
"""

from __future__ import annotations

import math
import random
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable

from pipecat_hedge.limits.circuit_breaker import BreakerState
from pipecat_hedge.limits.concurrency_limit import OPEN_BOUNDS, LimitBounds
from pipecat_hedge.limits.permit_queue import RESERVED, PermitQueue, Ticket
from pipecat_hedge.limits.provider_health import BreakerChange, Permit, ProviderHealth
from pipecat_hedge.limits.shared_outage import SharedOutage
from pipecat_hedge.limits.verdict import Verdict
from pipecat_hedge.policy.backends import MOST_PROVIDERS

__all__ = ["LATENCY_PROBE_INTERVAL", "AdmissionController"]

UNMEASURED_AFTER = 3
"""After so many requests in a row that others overtook before a token came, a provider is without_token:
the next one is let run on, to find out whether it is slow or silent."""
LATENCY_PROBE_INTERVAL = 70
"""At most one attempt in so many is let run on after it lost."""
QUEUE_ROOM = 20
"""So many more requests a server without a queue is sent before the next look at it."""
QUEUE_VALID_SECS = 2.0
"""For how long a look at a server's queue counts."""
ALL_BREAKERS_OPEN = "every breaker is open"


class AdmissionController:
    """The registry.

    Attributes:
        lock: Held by whoever reads or changes an entry.
    """

    def __init__(
        self, rng: random.Random | None = None, lag_secs: Callable[[], float] = lambda: 0.0
    ):
        """Begin with no provider.

        Args:
            rng: Spreads the recoveries of many processes; None rolls its own.
            lag_secs: How far the event loop is behind, in seconds: what has come since is not read
                yet, and is not late.
        """
        self.lock = threading.Lock()
        self._rng = rng or random.Random()
        self._lag_secs = lag_secs
        self._entries: OrderedDict[str, ProviderHealth] = OrderedDict()
        self._changes: deque[BreakerChange] = deque(maxlen=100)
        self._outage = SharedOutage[Permit]()
        self._queue = PermitQueue()
        self._granted: dict[Ticket, Callable[[Permit], None]] = {}
        self._panics = 0
        self._attempts = LATENCY_PROBE_INTERVAL
        self._latency_probes: set[str] = set()

    def entry(self, key: str) -> ProviderHealth:
        """A provider's entry, made when it is first asked for; call it with the lock held.

        Args:
            key: What its statistics are kept under, see ``Backend.key``.
        """
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= MOST_PROVIDERS:
                self._forget_one()
            entry = self._entries[key] = ProviderHealth(self._rng)
        else:
            self._entries.move_to_end(key)
        return entry

    def _forget_one(self) -> None:
        """Forget the provider that has not been used for the longest, but for those in use."""
        idle = (key for key, entry in self._entries.items() if not entry.limit.in_flight)
        if (oldest := next(idle, None)) is not None:
            del self._entries[oldest]

    def entries(self) -> dict[str, ProviderHealth]:
        """All entries by key; call it with the lock held."""
        return dict(self._entries)

    # ---- breakers

    def state(self, key: str, now: float) -> BreakerState:
        """A provider's breaker."""
        with self.lock:
            return self._state(key, now)

    def breaker_states(self, keys: Iterable[str], now: float) -> list[tuple[BreakerState, float]]:
        """Each provider's breaker, and for how many seconds yet it has asked to be left alone."""
        with self.lock:
            self._settle(now)
            return [
                (self._state(key, now), max(self.entry(key).retry_after_until - now, 0.0))
                for key in keys
            ]

    def are_healthy(self, keys: Iterable[str], now: float) -> bool:
        """Whether all breakers are closed, and no provider has asked to be left alone."""
        with self.lock:
            self._settle(now)
            return all(self.entry(key).is_healthy(now) for key in keys)

    def open_reason(self, key: str, now: float) -> str:
        """Why a provider is left alone, for a person to read; empty if it is not."""
        with self.lock:
            return "" if self._state(key, now) == "closed" else self.entry(key).open_reason

    def claim_probe(self, key: str, now: float) -> bool:
        """Claim the one request that may try a half-open provider.

        Returns:
            Whether it is yours. Then either its permit comes back, or ``drop_probe`` is called.
        """
        with self.lock:
            claimed = self.entry(key).breaker.claim_probe(now)
            self._note(key)
            return claimed

    def drop_probe(self, key: str, now: float) -> None:
        """Give up a claim whose request was never made."""
        with self.lock:
            self.entry(key).breaker.record("dropped", now, probe=True)

    def count_panic_turn(self) -> int:
        """A number that grows with each turn planned while every breaker is open.

        It spreads such turns' first choices over the providers.
        """
        with self.lock:
            self._panics += 1
            return self._panics

    def take_changes(self) -> tuple[BreakerChange, ...]:
        """The breakers' changes since the last call, the oldest first."""
        if not self._changes:
            return ()
        with self.lock:
            changes = tuple(self._changes)
            self._changes.clear()
        return changes

    # ---- what providers state themselves

    def set_retry_after(self, key: str, until: float) -> None:
        """Leave a provider alone for a while, as it asked with ``Retry-After``; the longer counts.

        Args:
            key: The provider.
            until: The time from which on it may be asked again.
        """
        with self.lock:
            entry = self.entry(key)
            entry.retry_after_until = max(entry.retry_after_until, until)

    def retry_after_secs(self, key: str, now: float) -> float:
        """How long a provider is to be left alone yet, as it asked, in seconds."""
        with self.lock:
            entry = self._entries.get(key)
            return 0.0 if entry is None else max(entry.retry_after_until - now, 0.0)

    def set_rate_limit(self, key: str, left: int, until: float, *, sent_at: float) -> None:
        """Take what a response says of a rate limit; see ``ConcurrencyLimit.set_rate_limit``.

        Args:
            key: The provider.
            left: Requests that may still be begun.
            until: For how long this holds.
            sent_at: When the request was sent that was answered so.
        """
        with self.lock:
            self.entry(key).limit.set_rate_limit(left, until, sent_at=sent_at)

    def set_queue(self, key: str, running: int, waiting: int, now: float) -> None:
        """Take a server's own metrics in place of what was inferred of its limit.

        Without a long queue there is room for more. As many as wait beyond those that are served
        are not to be joined by further ones from here.

        Args:
            key: The provider.
            running: Requests that it works on, of all its clients.
            waiting: Requests in its queue.
            now: The time.
        """
        with self.lock:
            limit = self.entry(key).limit
            too_many = waiting - running
            at_most = limit.in_flight - too_many if too_many > 0 else limit.in_flight + QUEUE_ROOM
            limit.set_queue(at_most, now + QUEUE_VALID_SECS)

    # ---- what is seen

    def answered_since(self, key: str) -> float:
        """When the latest request was sent that a provider has begun to answer."""
        entry = self._entries.get(key)
        return -math.inf if entry is None else entry.answered_since

    def last_token_at(self, key: str) -> float:
        """When a provider has begun to answer the last time, any session."""
        entry = self._entries.get(key)
        return -math.inf if entry is None else entry.last_token_at

    def is_unmeasured(self, key: str) -> bool:
        """Whether a provider has not been heard lately, because others were always faster."""
        with self.lock:
            return self.entry(key).without_token >= UNMEASURED_AFTER

    def claim_latency_probe(self, key: str) -> bool:
        """Whether an attempt that has lost is let run on to its first token.

        It tells whether a provider that is always overtaken is slow or silent. One attempt at a
        time for each provider, and at most one attempt in ``LATENCY_PROBE_INTERVAL``.

        Returns:
            Whether it is; then ``release_latency_probe`` has to be called.
        """
        with self.lock:
            if key in self._latency_probes or self._attempts < LATENCY_PROBE_INTERVAL:
                return False
            self._attempts = 0
            self._latency_probes.add(key)
            return True

    def release_latency_probe(self, key: str) -> None:
        """End what ``claim_latency_probe`` began."""
        with self.lock:
            self._latency_probes.discard(key)

    def occupancy(self, key: str, now: float, bounds: LimitBounds = OPEN_BOUNDS) -> tuple[int, int]:
        """A provider's requests in flight from this process, and the limit of them.

        Args:
            key: The provider.
            now: The time.
            bounds: Where the inferred limit may lie.
        """
        with self.lock:
            limit = self.entry(key).limit
            return limit.in_flight, limit.limit(now, bounds)

    # ---- permits

    @property
    def waiting(self) -> int:
        """How many requests wait for room."""
        return len(self._queue)

    def refusals(self, keys: Iterable[str], ticket: Ticket, now: float) -> dict[str, str]:
        """Which providers have no room for such a request now, and why, for a person to read."""
        with self.lock:
            found = ((key, self._refusal(key, ticket, now)) for key in keys)
            return {key: reason for key, reason in found if reason is not None}

    def reluctance(self, keys: Iterable[str], ticket: Ticket, now: float) -> dict[str, int]:
        """How little a caller's own request should go to each provider now; 0 is not in it.

        Returns:
            1 if it has no room or its breaker is half-open, 2 if that is open, 3 if the provider
            has asked to be left alone or refuses for load, or has no room for who sheds.
        """
        found: dict[str, int] = {}
        with self.lock:
            for key in keys:
                entry = self.entry(key)
                if now < entry.retry_after_until or entry.limit.is_refusing(now):
                    found[key] = 3
                elif (state := self._state(key, now)) != "closed":
                    found[key] = 1 if state == "half_open" else 2
                elif self._refusal(key, ticket, now) is not None:
                    found[key] = 3 if ticket.sheds else 1
        return found

    def rejection_reason(self, ticket: Ticket, now: float) -> str:
        """Why none of a ticket's candidates has room now, for a person to read."""
        refusals = self.refusals(ticket.candidates, ticket, now)
        return (
            ", ".join(f"{_name_of(key)} {reason}" for key, reason in refusals.items()) or "no room"
        )

    def acquire(self, ticket: Ticket, now: float) -> Permit | None:
        """Count a request as sent, at the first candidate that suits.

        Returns:
            The permit; None if the request has to wait, or to be left out.
        """
        with self.lock:
            return self._acquire(ticket, now)

    def force(self, ticket: Ticket, now: float) -> Permit:
        """Count a request as sent whose time to wait is up, at the candidate that is ready first."""
        with self.lock:
            return self._issue(self._ready_first(ticket), ticket, now)

    def wait(self, ticket: Ticket, granted: Callable[[Permit], None], now: float) -> str | None:
        """Queue for room.

        Args:
            ticket: The request.
            granted: Called once, from any thread and with the lock held, with a permit.
            now: The time.

        Returns:
            Why there is no use in waiting; or None, and then ``leave`` has to be called.
        """
        with self.lock:
            if not self._is_worth_waiting_for(ticket, now):
                return ALL_BREAKERS_OPEN
            self._granted[ticket] = granted
            self._queue.join(ticket)
            return None

    def recheck(self, ticket: Ticket, now: float) -> str | None:
        """Grant what time alone has set free, as when ``Retry-After`` is over.

        Returns:
            Why there is no use in waiting any longer; or None.
        """
        with self.lock:
            for key in ticket.candidates:
                self._grant(key, now)
            return None if self._is_worth_waiting_for(ticket, now) else ALL_BREAKERS_OPEN

    def leave(self, ticket: Ticket) -> None:
        """Stop waiting; also where the ticket has been granted."""
        with self.lock:
            self._queue.leave(ticket)
            self._granted.pop(ticket, None)

    def record_first_token(
        self, permit: Permit, now: float, *, size_class: Hashable = None, is_sure: bool = True
    ) -> None:
        """Take note that a request's answer has begun. The first time counts.

        Args:
            permit: The request's permit.
            now: When.
            size_class: The class of its prompt's size.
            is_sure: Whether that is known; if not it was then at the earliest.
        """
        with self.lock:
            if permit.is_active and not permit.has_token:
                permit.has_token = True
                entry = self.entry(permit.key)
                entry.answered_since = max(entry.answered_since, permit.acquired_at)
                entry.last_token_at = max(entry.last_token_at, now)
                ttft_secs = now - permit.acquired_at
                entry.limit.record_first_token(
                    permit, ttft_secs, now, size_class=size_class, is_sure=is_sure
                )

    def release(
        self,
        permit: Permit,
        verdict: Verdict,
        now: float,
        *,
        host: str | None = None,
        has_begun: bool = False,
        was_overtaken: bool = False,
        was_late: bool = False,
    ) -> None:
        """Count a request as over, with what became of it. The first time counts.

        Args:
            permit: The permit.
            verdict: What the request's end says of the provider.
            now: When its connection was closed.
            host: Where it was sent to, as ``host:port``; None if that is not known.
            has_begun: Whether its answer had begun.
            was_overtaken: Whether it was given up before a token came.
            was_late: Whether it was waited for then longer than is usual, or one that was sent
                after it has won.
        """
        with self.lock:
            if not permit.is_active:
                return
            permit.is_active = False
            entry = self.entry(permit.key)
            count = entry.count_without_token(verdict, was_overtaken, was_late, has_begun)
            entry.limit.release(permit, verdict, now, lag_secs=self._lag_secs())
            # No attempt that somebody else ended outlives a silence, and so refutes it.
            age_secs = math.inf if verdict == "silent" else now - permit.acquired_at
            self._settle(now)
            if verdict == "not_connected":
                # It may be our own network's doing, which is known when others have been looked at.
                self._outage.add(host or permit.key, now, permit)
            else:
                entry.breaker.record(
                    verdict, now, probe=permit.is_probe, age_secs=age_secs, count=count
                )
            self._note(permit.key)
            if self._queue:
                self._grant(permit.key, now)

    # ---- with the lock held

    def _refusal(
        self, key: str, ticket: Ticket, now: float, *, is_probe: bool = False
    ) -> str | None:
        """Why a provider has no room for a request; None if it has."""
        entry = self.entry(key)
        if not (is_probe or ticket.ignores_breakers) and self._state(key, now) != "closed":
            return f"is excluded by its breaker ({entry.open_reason})"
        if now < entry.retry_after_until and not is_probe:
            return f"has sent Retry-After, {entry.retry_after_until - now:.2g} s left"
        limit = entry.limit
        if self._queue and self._queue.is_behind(ticket, key):
            return f"has {limit.reason(now, ticket.bounds)} and others waiting"
        if not limit.has_room(now, ticket.bounds, reserved=RESERVED.get(ticket.work, 0.0)):
            return f"has {limit.reason(now, ticket.bounds)}"
        return None

    def _acquire(self, ticket: Ticket, now: float) -> Permit | None:
        probe = ticket.probe
        for key in ticket.candidates:
            is_probe = key == probe
            if is_probe and len(ticket.candidates) > 1:
                continue
            if self._refusal(key, ticket, now, is_probe=is_probe) is None:
                return self._issue(key, ticket, now, is_probe=is_probe)
        if ticket.is_optional:
            return None
        if all(self.entry(key).retry_after_until > ticket.deadline for key in ticket.candidates):
            return self._issue(self._ready_first(ticket), ticket, now)  # waiting would not help
        if ticket.sheds:
            return None
        # No limit keeps a caller waiting but what a provider has refused itself. A provider whose
        # breaker is open comes last.
        for state in ("closed", "half_open", "open"):
            for key in ticket.candidates:
                entry = self.entry(key)
                if self._state(key, now) == state and not (
                    now < entry.retry_after_until
                    or entry.limit.is_refusing(now)
                    or self._queue.is_behind(ticket, key)
                ):
                    return self._issue(key, ticket, now, is_probe=key == probe)
        return None

    def _ready_first(self, ticket: Ticket) -> str:
        return min(ticket.candidates, key=lambda key: self.entry(key).retry_after_until)

    def _issue(self, key: str, ticket: Ticket, now: float, *, is_probe: bool = False) -> Permit:
        permit = Permit(key, now, is_probe, now - ticket.joined_at)
        limit = self.entry(key).limit
        bounds = ticket.bounds if ticket.has_first_token else None
        limit.acquire(permit, now, session=ticket.session, bounds=bounds, lag_secs=self._lag_secs())
        self._attempts += 1
        return permit

    def _grant(self, key: str, now: float) -> None:
        """Give what a provider has to the requests that wait for it, in their order."""
        is_full = False
        for ticket in self._queue.waiting_for(key):
            if is_full and ticket.sheds:
                continue
            permit = self._acquire(ticket, now)
            if permit is not None:
                self._queue.leave(ticket)
                self._granted.pop(ticket)(permit)
            elif not ticket.sheds:
                return
            else:
                is_full = True  # for who sheds; others may have room all the same

    def _is_worth_waiting_for(self, ticket: Ticket, now: float) -> bool:
        return (
            not ticket.sheds
            or ticket.ignores_breakers
            or any(self._state(key, now) == "closed" for key in ticket.candidates)
        )

    def _settle(self, now: float) -> None:
        """Count the connection failures that were not our own network's."""
        for at, permit, is_shared in self._outage.settle(now):
            entry = self.entry(permit.key)
            if is_shared:
                if permit.is_probe:
                    entry.breaker.record("dropped", at, probe=True)
                continue
            # Where a later request has been answered, it is none of failures in a row.
            count = 1 if entry.answered_since < at else 0
            entry.breaker.record("failed", at, probe=permit.is_probe, count=count)
            self._note(permit.key)

    def _state(self, key: str, now: float) -> BreakerState:
        state = self.entry(key).breaker.state(now)
        if state != "closed":
            self._note(key)
        return state

    def _note(self, key: str) -> None:
        entry = self.entry(key)
        for event in entry.breaker.take_events():
            entry.open_reason = event.reason
            if event.after == "closed":
                entry.limit.recover()
            self._changes.append(BreakerChange(key, event))


def _name_of(key: str) -> str:
    """The provider's name out of what its statistics are kept under."""
    return key.partition(" | ")[0]
