"""A registry of how providers are doing: who is left alone, who rests, and what they have said.

Law: one entry for a provider, however many sessions come and go; all behind one lock, which is held
for microseconds and never while anything is awaited.
"""

from __future__ import annotations

import math
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable

from pipecat_hedge.policies.circuit_breaker import BreakerState
from pipecat_hedge.provider_health import BreakerChange, ProviderHealth

__all__ = ["ProviderRegistry"]

UNHEARD = 3
"""After so many requests in a row that others overtook before a word came, a provider is unheard:
the next one is let run on, to find out whether it is slow or silent."""
ROOM = 20
"""So many more requests a server without a queue is sent before the next look at it."""
QUEUE_NEWS_SECS = 2.0
"""For how long a look at a server's queue counts."""


class ProviderRegistry:
    """How each provider is doing, as far as it may be asked at all.

    Attributes:
        lock: Held by whoever reads or changes an entry.
        introduces: Called with the lock held for each entry that is made; None for nobody.
    """

    def __init__(self, dice: random.Random | None = None):
        """Begin with nobody.

        Args:
            dice: Spreads the recoveries of many processes; None rolls its own.
        """
        self.lock = threading.Lock()
        self.introduces: Callable[[str, ProviderHealth], None] | None = None
        self._dice = dice or random.Random()
        self._entries: dict[str, ProviderHealth] = {}
        self._changes: deque[BreakerChange] = deque(maxlen=100)

    def of(self, key: str) -> ProviderHealth:
        """A provider's entry, made when it is first asked for; call it with the lock held.

        Args:
            key: What its statistics are kept under, see ``Backend.key``.
        """
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = ProviderHealth(self._dice)
            if self.introduces is not None:
                self.introduces(key, entry)
        return entry

    def entries(self) -> dict[str, ProviderHealth]:
        """All entries by key; call it with the lock held."""
        return dict(self._entries)

    # ---- who may be asked

    def state(self, key: str, now: float) -> BreakerState:
        """A provider's breaker.

        Args:
            key: The provider.
            now: The time.
        """
        with self.lock:
            return self._state(key, now)

    def standings(self, keys: Iterable[str], now: float) -> list[tuple[BreakerState, float]]:
        """Each provider's breaker, and for how many seconds yet it has asked to be left alone.

        Args:
            keys: The providers.
            now: The time.
        """
        with self.lock:
            found: list[tuple[BreakerState, float]] = []
            for key in keys:
                entry = self.of(key)
                state, rests_until = entry.breaker.state(now), entry.rests_until
                if state != "closed":
                    self._note(key)
                found.append((state, rests_until - now if rests_until > now else 0.0))
            return found

    def are_well(self, keys: Iterable[str], now: float) -> bool:
        """Whether none of them is left alone, nor has asked to be: the quick way to know.

        Args:
            keys: The providers.
            now: The time.
        """
        with self.lock:
            return all(self.of(key).is_well(now) for key in keys)

    def told(self, key: str, now: float) -> str:
        """Why a provider is left alone, for a person to read; empty if it is not."""
        with self.lock:
            return "" if self._state(key, now) == "closed" else self.of(key).opened_because

    def claim_probe(self, key: str, now: float) -> bool:
        """Claim the one request that may try a half-open provider.

        Args:
            key: The provider.
            now: The time.

        Returns:
            Whether it is yours. Then either its permit comes back, or ``drop_probe`` is called.
        """
        with self.lock:
            claimed = self.of(key).breaker.claim_probe(now)
            self._note(key)
            return claimed

    def drop_probe(self, key: str, now: float) -> None:
        """Give up a claim whose request was never made."""
        with self.lock:
            self.of(key).breaker.record("dropped", now, probe=True)

    def rest(self, key: str, until: float) -> None:
        """Leave a provider alone for a while, as it asked with ``Retry-After``; the longer counts.

        Args:
            key: The provider.
            until: The time from which on it may be asked again.
        """
        with self.lock:
            entry = self.of(key)
            entry.rests_until = max(entry.rests_until, until)

    def rests_secs(self, key: str, now: float) -> float:
        """How long a provider is to be left alone yet, as it asked, in seconds."""
        with self.lock:
            entry = self._entries.get(key)
            return 0.0 if entry is None else max(entry.rests_until - now, 0.0)

    def allow(self, key: str, more: int, until: float, *, sent_at: float) -> None:
        """Take a provider's word for what its rate limit leaves; see ``ConcurrencyLimit.allow``.

        Args:
            key: The provider.
            more: How many requests may still be begun.
            until: For how long this is news.
            sent_at: When the request was sent that was answered so.
        """
        with self.lock:
            self.of(key).limit.allow(more, until, sent_at=sent_at)

    def hear_queue(self, key: str, running: int, waiting: int, now: float) -> None:
        """Take a server's word for its queue in place of what was learned of its limit.

        Without a long queue there is room for more, whatever was guessed from its latency. As many
        as wait beyond those that are served are not to be joined by further ones from here.

        Args:
            key: The provider.
            running: Requests that it works on, of everybody.
            waiting: Requests in its queue.
            now: The time.
        """
        with self.lock:
            limit = self.of(key).limit
            too_many = waiting - running
            at_most = limit.in_flight - too_many if too_many > 0 else limit.in_flight + ROOM
            limit.believe(at_most, now + QUEUE_NEWS_SECS)

    def answered_since(self, key: str) -> float:
        """When the latest request was sent that a provider has begun to answer."""
        entry = self._entries.get(key)
        return -math.inf if entry is None else entry.answered_since

    def word_at(self, key: str) -> float:
        """When a provider has begun to answer the last time, to anybody."""
        entry = self._entries.get(key)
        return -math.inf if entry is None else entry.word_at

    def is_unheard(self, key: str) -> bool:
        """Whether a provider has not been heard lately, because others were always faster."""
        with self.lock:
            return self.of(key).unheard >= UNHEARD

    def take_changes(self) -> tuple[BreakerChange, ...]:
        """The breakers' changes that nobody has been told of yet, the oldest first."""
        if not self._changes:
            return ()
        with self.lock:
            changes = tuple(self._changes)
            self._changes.clear()
        return changes

    def occupancy(self, key: str, now: float) -> tuple[int, int]:
        """A provider's requests in flight from this process, and the limit of them."""
        with self.lock:
            limit = self.of(key).limit
            return limit.in_flight, limit.limit(now)

    # ---- with the lock held

    def _state(self, key: str, now: float) -> BreakerState:
        state = self.of(key).breaker.state(now)
        if state != "closed":
            self._note(key)
        return state

    def _has_closed(self, keys: tuple[str, ...], now: float) -> bool:
        return any(self._state(key, now) == "closed" for key in keys)

    def _note(self, key: str) -> None:
        entry = self.of(key)
        for event in entry.breaker.take_events():
            entry.opened_because = event.reason
            if event.after == "closed":
                entry.limit.recover(event.at)
            self._changes.append(BreakerChange(key, event))
