"""Decides which providers a request may be sent to, from breakers, limits and ``Retry-After``.

Hedges and warm-up prompts may be ineligible. A caller's turn, or an inference that the host awaits,
is sent at once in any case, to the provider that can best take it. Only with ``admission="shed"``
do limits and open breakers end a turn.

One registry serves every session of a process. Its lock is held for microseconds, never during an
await. It has no background task.
"""

from __future__ import annotations

import math
import random
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable

from pipecat_hedge.limits.circuit_breaker import DEFAULTS, BreakerState, CircuitBreakerSettings
from pipecat_hedge.limits.concurrency_limit import OPEN_BOUNDS, LimitBounds
from pipecat_hedge.limits.loop_holds import LoopHolds
from pipecat_hedge.limits.permits import BY_TIER, OPTIONAL, Permit, Terms
from pipecat_hedge.limits.priority import WorkClass
from pipecat_hedge.limits.provider_health import BreakerChange, ProviderHealth
from pipecat_hedge.limits.server_queue import LoadReadings
from pipecat_hedge.limits.shared_outage import SharedOutage
from pipecat_hedge.limits.verdict import Verdict
from pipecat_hedge.policy.backends import MOST_PROVIDERS
from pipecat_hedge.race.reports import TIERS, Tier

UNMEASURED_AFTER = 3
"""After this many requests in a row without a token, as others were faster, a provider's latency is
unknown. The next loser is observed, to find out whether it is slow or silent."""
OBSERVED_LOSER_INTERVAL = 70
"""At most one attempt in this many becomes an observed loser: an extra cost of 1.4 %."""
TIER_SECS = 60.0
"""How long room is reserved for a tier after one of its turns."""
QUEUE_ROOM = 20
"""How many more requests a server without a queue may get before its load is read again."""
QUEUE_VALID_SECS = 2.0
"""How long a reading of a server's queue is valid."""


class AdmissionController:
    """The registry of a process.

    Attributes:
        lock: Protects the entries.
        loads: The readings of servers' load, shared with other processes.
        holds: What is given back if its event loop is closed: permits, claims.
    """

    def __init__(
        self, rng: random.Random | None = None, lag_secs: Callable[[], float] = lambda: 0.0
    ):
        """Create an empty registry.

        Args:
            rng: Spreads the recoveries of many processes; None creates one.
            lag_secs: Returns how far the event loop is behind, in seconds. Responses of that time
                have not been read yet and are not late.
        """
        self.lock = threading.Lock()
        self.loads = LoadReadings()
        self.holds = LoopHolds()
        self._rng = rng or random.Random()
        self._lag_secs = lag_secs
        self._entries: OrderedDict[str, ProviderHealth] = OrderedDict()
        self._breaker_settings: OrderedDict[str, CircuitBreakerSettings] = OrderedDict()
        self._changes: deque[BreakerChange] = deque(maxlen=100)
        self._outage = SharedOutage[Permit]()
        self._panics = 0
        self._shed_at: dict[Tier, float] = {}  # when a turn that sheds asked, by its tier
        self._attempts = OBSERVED_LOSER_INTERVAL
        self._observed_losers: set[str] = set()

    def entry(self, key: str) -> ProviderHealth:
        """A provider's entry, created on first use. The lock must be held.

        Args:
            key: The key of its statistics; see ``Backend.key``.
        """
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= MOST_PROVIDERS:
                self._forget_one()
            settings = self._breaker_settings.get(_name_of(key), DEFAULTS)
            entry = self._entries[key] = ProviderHealth(self._rng, settings)
        else:
            self._entries.move_to_end(key)
        return entry

    def _forget_one(self) -> None:
        """Remove the least recently used provider without requests in flight."""
        idle = (key for key, entry in self._entries.items() if not entry.limit.in_flight)
        if (oldest := next(idle, None)) is not None:
            del self._entries[oldest]

    def entries(self) -> dict[str, ProviderHealth]:
        """All entries by key. The lock must be held."""
        return dict(self._entries)

    # ---- breakers

    def configure_breaker(self, provider: str, settings: CircuitBreakerSettings) -> None:
        """Set when a provider's breaker opens, whatever its model. The latest settings count."""
        with self.lock:
            self._breaker_settings[provider] = settings
            self._breaker_settings.move_to_end(provider)
            if len(self._breaker_settings) > MOST_PROVIDERS:
                self._breaker_settings.popitem(last=False)
            for key, entry in self._entries.items():
                if _name_of(key) == provider:
                    entry.breaker.settings = settings

    def state(self, key: str, now: float) -> BreakerState:
        """The state of a provider's breaker."""
        with self.lock:
            return self._state(key, now)

    def breaker_states(self, keys: Iterable[str], now: float) -> list[tuple[BreakerState, float]]:
        """Each provider's breaker state, and the seconds left of its ``Retry-After``."""
        with self.lock:
            self._settle(now)
            return [
                (self._state(key, now), max(self.entry(key).retry_after_until - now, 0.0))
                for key in keys
            ]

    def are_healthy(self, keys: Iterable[str], now: float) -> bool:
        """Whether all breakers are closed and no ``Retry-After`` applies."""
        with self.lock:
            self._settle(now)
            return all(self.entry(key).is_healthy(now) for key in keys)

    def open_reason(self, key: str, now: float) -> str:
        """Why a provider's breaker is not closed; empty if it is."""
        with self.lock:
            return "" if self._state(key, now) == "closed" else self.entry(key).open_reason

    def claim_probe(self, key: str, now: float) -> bool:
        """Claim the half-open provider's only recovery request.

        Returns:
            Whether the claim succeeded. It ends with the release of its permit or ``drop_probe``.
        """
        with self.lock:
            claimed = self.entry(key).breaker.claim_probe(now)
            self._note(key)
            return claimed

    def drop_probe(self, key: str, now: float) -> None:
        """Drop a claim whose request was not sent."""
        with self.lock:
            self.entry(key).breaker.record("dropped", now, probe=True)

    def count_panic_turn(self) -> int:
        """Return a number that grows with each turn planned while every breaker is open.

        It spreads the first choices of these turns over the providers.
        """
        with self.lock:
            self._panics += 1
            return self._panics

    def take_changes(self) -> tuple[BreakerChange, ...]:
        """Return the breakers' changes since the last call, oldest first."""
        if not self._changes:
            return ()
        with self.lock:
            changes = tuple(self._changes)
            self._changes.clear()
        return changes

    # ---- limits that providers state

    def set_retry_after(self, key: str, until: float) -> None:
        """Record a ``Retry-After``: no requests before ``until``. The latest time counts."""
        with self.lock:
            entry = self.entry(key)
            entry.retry_after_until = max(entry.retry_after_until, until)

    def retry_after_secs(self, key: str, now: float) -> float:
        """The seconds left of a provider's ``Retry-After``."""
        with self.lock:
            entry = self._entries.get(key)
            return 0.0 if entry is None else max(entry.retry_after_until - now, 0.0)

    def set_used_up(self, key: str, until: float) -> None:
        """Record that a rate limit is used up: no hedges before ``until``. The latest time counts.

        Callers' requests go to another provider, if one has room.
        """
        with self.lock:
            entry = self.entry(key)
            entry.used_up_until = max(entry.used_up_until, until)

    def set_queue(self, key: str, running: int, waiting: int, now: float) -> None:
        """Use a server's own load metrics in place of the inferred limit.

        Without a long queue there is room for more. If more requests wait than run, this process
        sends that many fewer.

        Args:
            key: The provider.
            running: The requests that the server works on, from all clients.
            waiting: The requests in its queue.
            now: The time.
        """
        with self.lock:
            limit = self.entry(key).limit
            too_many = waiting - running
            at_most = limit.in_flight - too_many if too_many > 0 else limit.in_flight + QUEUE_ROOM
            limit.set_queue(at_most, now + QUEUE_VALID_SECS)

    # ---- observations

    def answered_since(self, key: str) -> float:
        """When the latest request was sent whose answer has begun."""
        entry = self._entries.get(key)
        return -math.inf if entry is None else entry.answered_since

    def last_token_at(self, key: str) -> float:
        """When an answer of the provider last began, in any session."""
        entry = self._entries.get(key)
        return -math.inf if entry is None else entry.last_token_at

    def last_ttft_secs(self, key: str) -> float:
        """The time to first token of the provider's latest answer, in any session; 0 without."""
        entry = self._entries.get(key)
        return 0.0 if entry is None else entry.last_ttft_secs

    def is_unmeasured(self, key: str) -> bool:
        """Whether a provider's latency is unknown, because others were always faster."""
        with self.lock:
            return self.entry(key).without_token >= UNMEASURED_AFTER

    def claim_observed_loser(self, key: str) -> bool:
        """Claim an observed loser: an attempt that has lost runs on to its first token.

        It shows whether a provider that always loses is slow or silent. A provider has one at a
        time, and at most one attempt in ``OBSERVED_LOSER_INTERVAL`` becomes one.

        Returns:
            Whether the claim succeeded; ``release_observed_loser`` ends it.
        """
        with self.lock:
            if key in self._observed_losers or self._attempts < OBSERVED_LOSER_INTERVAL:
                return False
            self._attempts = 0
            self._observed_losers.add(key)
            return True

    def release_observed_loser(self, key: str) -> None:
        """End a claim of ``claim_observed_loser``."""
        with self.lock:
            self._observed_losers.discard(key)

    def occupancy(self, key: str, now: float, bounds: LimitBounds = OPEN_BOUNDS) -> tuple[int, int]:
        """A provider's requests in flight from this process, and their limit."""
        self.holds.settle()
        with self.lock:
            limit = self.entry(key).limit
            return limit.in_flight, limit.limit(now, bounds)

    # ---- permits

    def refusals(
        self, keys: Iterable[str], work: WorkClass, terms: Terms, now: float
    ) -> dict[str, str]:
        """Which providers have no room for a request now, and why."""
        with self.lock:
            found = ((key, self._refusal(key, work, terms, now)) for key in keys)
            return {key: reason for key, reason in found if reason is not None}

    def reluctance(self, keys: Iterable[str], terms: Terms, now: float) -> dict[str, int]:
        """How much to avoid each provider for a caller's request now; 0 is not listed.

        Returns:
            1 without room or with a half-open breaker, 2 with an open breaker, 3 during a
            ``Retry-After`` or rejections for load.
        """
        found: dict[str, int] = {}
        with self.lock:
            for key in keys:
                entry = self.entry(key)
                if now < entry.retry_after_until or entry.limit.is_refusing(now):
                    found[key] = 3
                elif (state := self._state(key, now)) != "closed":
                    found[key] = 1 if state == "half_open" else 2
                elif self._refusal(key, "rescue", terms, now) is not None:
                    found[key] = 1
        return found

    def first_choice(
        self, keys: Iterable[str], work: WorkClass, terms: Terms, now: float
    ) -> str | None:
        """The provider of a turn's first request.

        Args:
            keys: The candidates in order of preference; at least one.
            work: The work class.
            terms: The turn's terms.
            now: The time.

        Returns:
            The first with room. Without any, the first that rejects nothing, those with an open
            breaker last; else the one whose ``Retry-After`` ends first. None if the turn sheds.
        """
        keys = list(keys)
        with self.lock:
            if terms.sheds:
                self._shed_at[terms.tier] = now
            for key in keys:
                if self._refusal(key, work, terms, now) is None:
                    return key
            if terms.sheds:
                return None
            places = {"closed": 0, "half_open": 1, "open": 2}

            def rank(key: str) -> tuple[float, bool, int]:
                entry = self.entry(key)
                left_secs = max(entry.retry_after_until - now, 0.0)
                return left_secs, entry.limit.is_refusing(now), places[self._state(key, now)]

            return min(keys, key=rank)

    def issue(
        self, key: str, work: WorkClass, terms: Terms, now: float, *, is_probe: bool = False
    ) -> Permit:
        """Issue the permit of a request that is sent now. It must be released.

        Args:
            key: The provider.
            work: The work class.
            terms: The turn's terms.
            now: The time.
            is_probe: Whether it is the claimed recovery request of a half-open provider.
        """
        with self.lock:
            permit = Permit(key, now, is_probe)
            self.entry(key).limit.acquire(
                permit,
                now,
                session=terms.session,
                bounds=terms.bounds if terms.has_first_token else None,
                lag_secs=self._lag_secs(),
            )
            self._attempts += work != "warm_up"
            return permit

    def record_first_token(
        self, permit: Permit, now: float, *, size_class: Hashable = None, is_sure: bool = True
    ) -> None:
        """Record that a request's answer has begun. Later calls for the same permit are ignored.

        Args:
            permit: The request's permit.
            now: When the first token came.
            size_class: The class of the prompt's size.
            is_sure: Whether ``now`` is exact; if not, it is a lower bound.
        """
        with self.lock:
            if permit.is_active and not permit.has_token:
                permit.has_token = True
                entry = self.entry(permit.key)
                entry.answered_since = max(entry.answered_since, permit.acquired_at)
                entry.last_token_at = max(entry.last_token_at, now)
                ttft_secs = entry.last_ttft_secs = now - permit.acquired_at
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
        """Release a permit and record the request's outcome. Later calls are ignored.

        Args:
            permit: The permit.
            verdict: How the request ended.
            now: When its connection was closed.
            host: The request's destination, as ``host:port``; None if it is unknown.
            has_begun: Whether its answer had begun.
            was_overtaken: Whether it was superseded before its first token.
            was_late: Whether it was then later than usual, or lost to a request that was sent after
                it.
        """
        with self.lock:
            if not permit.is_active:
                return
            permit.is_active = False
            entry = self.entry(permit.key)
            count = entry.count_without_token(verdict, was_overtaken, was_late, has_begun)
            entry.limit.release(permit, verdict, now, lag_secs=self._lag_secs())
            # A superseded attempt cannot outlive a timeout, so it does not disprove one.
            age_secs = math.inf if verdict == "silent" else now - permit.acquired_at
            self._settle(now)
            if verdict == "not_connected":
                # Our own network may have failed; connections to other hosts will show.
                self._outage.add(host or permit.key, now, permit)
            else:
                self._record(permit, verdict, now, age_secs, count)

    # ---- with the lock held

    def _refusal(self, key: str, work: WorkClass, terms: Terms, now: float) -> str | None:
        """Why a provider has no room for a request; None if it has."""
        entry = self.entry(key)
        if not terms.ignores_breakers and self._state(key, now) != "closed":
            return f"is excluded by its breaker ({entry.open_reason})"
        if now < entry.retry_after_until:
            return f"has sent Retry-After, {entry.retry_after_until - now:.2g} s left"
        if now < entry.used_up_until:
            return f"has its rate limit used up for {entry.used_up_until - now:.2g} s"
        if not entry.limit.has_room(now, terms.bounds, reserved=self._reserved(work, terms, now)):
            return f"has {entry.limit.reason(now, terms.bounds)}"
        return None

    def _reserved(self, work: WorkClass, terms: Terms, now: float) -> float:
        """The share of a provider's limit that a request leaves to more urgent ones."""
        if work in OPTIONAL or not terms.sheds:
            return OPTIONAL.get(work, 0.0)
        better = TIERS if work == "background" else TIERS[: TIERS.index(terms.tier)]
        last_at = max((self._shed_at.get(tier, -math.inf) for tier in better), default=-math.inf)
        share = max(BY_TIER.values()) if work == "background" else BY_TIER[terms.tier]
        return share if now - last_at < TIER_SECS else 0.0

    def _record(
        self, permit: Permit, verdict: Verdict, at: float, age_secs: float, count: int
    ) -> None:
        """Record a request's outcome with its provider's breaker."""
        breaker = self.entry(permit.key).breaker
        breaker.record(verdict, at, probe=permit.is_probe, age_secs=age_secs, count=count)
        self._note(permit.key)

    def _settle(self, now: float) -> None:
        """Record connection failures once it shows whether our own network failed."""
        for at, permit, is_shared in self._outage.settle(now):
            if is_shared and not permit.is_probe:
                continue  # it says nothing about the provider
            # If a later request was answered, this is not one of several failures in a row.
            count = 1 if self.entry(permit.key).answered_since < at else 0
            self._record(permit, "dropped" if is_shared else "failed", at, 0.0, count)

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
    """The provider's name in a statistics key."""
    return key.partition(" | ")[0]
