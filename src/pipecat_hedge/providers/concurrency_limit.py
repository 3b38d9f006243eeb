"""The limit of this process's requests in flight to a provider.

What the provider's own queue metrics say holds, where it has any (the *stated* limit). Else the
lower of two bounds does. The *inferred* limit comes from time to first token: it shrinks when most
requests of a round, from several sessions, took over ``TOLERANCE`` times the typical time, and
grows otherwise. A late request counts at once, before its first token. The other bound is cut by
each rejection for load (429, 529).
By default the limit bounds hedges and warm-up prompts, and only ranks providers for callers.

The inferred limit spreads turns over providers that queue without saying so: with it their p95 is
10.3 s, without it 21.6 s (``pipecat-hedge drill crowded --processes 4 --variants hedged``).

Sources: Netflix concurrency-limits, Gradient2 (tolerance, long run of 600 samples); RFC 5681 (a cut
relative to what is in flight).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from pipecat_hedge.providers.verdict import Verdict
from pipecat_hedge.race.attempt import UNSURE_LAG_SECS
from pipecat_hedge.race.errors import ConfigurationError

ROUND = 5
"""Requests per round, or twice the floor if that is more."""
MIN_ROUND = 3
"""A round is as small as the limit, but not smaller than this."""
SESSIONS = 5
"""A round must come from this many sessions to shrink the limit: one may have slow prompts."""
TOLERANCE = 2.0
"""Requests that take longer than this multiple of the typical time are late."""
FINE_SECS = 0.5
"""Below this time to first token no queue matters: the strict target for voice."""
SHRINKS_TO = 0.25
"""The limit falls to this share of the requests in flight."""
CUT_SHOWS_SECS = 1.0
"""After a cut the next round starts this much later, when its effect shows."""
GROWS_BY = 1.1
"""A round without most late grows the limit by a tenth and one, while it is in use."""
ASSUMED_SECS = 0.8
"""The typical time to first token before any measurement; typical of hosted models."""
ASSUMED_COUNT = 5
"""How many measurements the assumed time counts as."""
MEASURED = 20
"""Below this many measurements, the tolerance is squared."""
LONG_RUN = 600
"""Measurements in the long run that defines the typical time (Gradient2)."""
REJECTED_BACKOFF = 0.9
"""A rejection for load leaves this share of the requests in flight."""
REJECTED_MIN = 2
"""Callers keep this many: a rejection of a nearly lone request is not about concurrency."""
REJECTED_AT_ONCE_SECS = 1.0
"""Rejections within this time count as one."""
REJECTED_GROWS = 1.0
"""The requests per second by which the limit grows back after a rejection."""
REJECTED_SECS = 60.0
"""How long a rejection counts: most rate limits are per minute."""


@dataclass(frozen=True, slots=True)
class LimitBounds:
    """Bounds of the inferred limit.

    Parameters:
        floor: The requests in flight that are always allowed; at least 1.
        ceiling: The most requests in flight.
        start: The limit before anything was observed; infinite is unlimited.
    """

    floor: int
    ceiling: int
    start: float = math.inf

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: If a bound is not a whole number from 1, or the floor exceeds the
                ceiling.
        """
        for name, value in (("min_in_flight", self.floor), ("max_in_flight", self.ceiling)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"{name} must be a whole number from 1, got {value!r}")
        if self.floor > self.ceiling:
            raise ConfigurationError(
                f"min_in_flight must not exceed max_in_flight, got {self.floor} and {self.ceiling}"
            )


OPEN_BOUNDS = LimitBounds(10, 1000)
"""Ten requests in flight are safe at any provider."""
SHED_BOUNDS = LimitBounds(1, 200, start=10)
"""With ``admission="shed"`` the limit starts low and finds the capacity itself."""


@dataclass(slots=True)
class _TypicalTime:
    """The typical time to first token for one prompt-size class, as a mean of logarithms."""

    log_secs: float = math.log(ASSUMED_SECS)
    count: int = ASSUMED_COUNT

    @property
    def late_secs(self) -> float:
        """The time after which a request is late."""
        times = TOLERANCE if self.count >= MEASURED else TOLERANCE * TOLERANCE
        return max(times * math.exp(self.log_secs), FINE_SECS)

    def add(self, secs: float) -> None:
        """Add a time. Late times weigh little, so that a queue does not become typical at once."""
        is_quick = secs <= self.late_secs and self.count < LONG_RUN
        self.count += 1
        weight = 1 / self.count if is_quick else 1 / LONG_RUN
        self.log_secs += (math.log(max(secs, 1e-3)) - self.log_secs) * weight


class ConcurrencyLimit:
    """One provider's limit, shared by all sessions of a process.

    Attributes:
        in_flight: The number of requests in flight.
    """

    def __init__(self) -> None:
        """Create a limit without observations."""
        self.in_flight = 0
        self._inferred: float | None = None
        self._typical: dict[Hashable, _TypicalTime] = {}
        self._late: list[bool] = []
        self._sessions: set[Hashable] = set()
        self._round_from = -math.inf
        self._silent: dict[Hashable, tuple[float, Hashable, int]] = {}
        self._rejected: float | None = None
        self._rejected_at = -math.inf
        self._stated: tuple[int, float] | None = None

    def limit(self, now: float, bounds: LimitBounds = OPEN_BOUNDS) -> int:
        """The limit at ``now``, at least 0."""
        stated = self._stated_limit(now)
        if stated is not None:
            return max(min(stated, bounds.ceiling), 0)
        inferred = self._start(bounds) if self._inferred is None else self._inferred
        inferred = min(max(inferred, bounds.floor), bounds.ceiling)
        rejected = self._rejected_limit(now)
        return int(inferred if rejected is None else min(inferred, rejected))

    def has_room(self, limit: int, *, reserved: float = 0.0) -> bool:
        """Whether one more request is within a limit.

        Args:
            limit: The limit now; see ``limit``.
            reserved: The share of the limit to keep free, from 0 to 1.
        """
        return self.in_flight < max(int((1 - reserved) * limit), min(limit, 1))

    def is_rejecting(self, now: float) -> bool:
        """Whether the provider has just rejected requests with as many in flight as now."""
        rejected = self._rejected_limit(now)
        return rejected is not None and self.in_flight >= max(int(rejected), REJECTED_MIN)

    def acquire(
        self,
        request: Hashable,
        now: float,
        *,
        session: Hashable = None,
        bounds: LimitBounds | None = OPEN_BOUNDS,
        lag_secs: float = 0.0,
    ) -> None:
        """Count a request that is sent now.

        Args:
            request: Identifies the request until ``release``.
            now: The time.
            session: The request's session.
            bounds: Bounds of the inferred limit; None if the request gives no time to first token,
                so that nothing is inferred from it.
            lag_secs: How far the event loop is behind.
        """
        self._count_late(now - lag_secs)
        if bounds is not None:
            if self._inferred is None and bounds.start < math.inf:
                self._inferred = self._start(bounds)
            self._silent[request] = now, session, bounds.floor
        self.in_flight += 1

    def release(
        self, request: Hashable, verdict: Verdict, now: float, *, lag_secs: float = 0.0
    ) -> None:
        """Count a request that has ended.

        Args:
            request: The request, as acquired.
            verdict: How it ended.
            now: When it ended.
            lag_secs: How far the event loop is behind.
        """
        assert self.in_flight > 0, "a permit was released twice"
        self._count_late(now - lag_secs)
        self._silent.pop(request, None)
        if verdict == "busy" and now - self._rejected_at >= REJECTED_AT_ONCE_SECS:
            # Rejections within one second are of requests sent under the same limit.
            before = self._rejected_limit(now)
            self._rejected = REJECTED_BACKOFF * min(
                self.in_flight, math.inf if before is None else before
            )
            self._rejected_at = now
        self.in_flight -= 1

    def record_first_token(
        self,
        request: Hashable,
        ttft_secs: float,
        now: float,
        *,
        size_class: Hashable = None,
        lag_secs: float = 0.0,
    ) -> None:
        """Record a request's time to first token.

        Args:
            request: The request, as acquired.
            ttft_secs: Its time to first token.
            now: When the token came.
            size_class: The class of the prompt's size; only times of one class are compared.
            lag_secs: How much longer it may have taken: the delay of the event loop.
        """
        self._count_late(now)
        typical = self._typical.setdefault(size_class, _TypicalTime())
        if (silent := self._silent.pop(request, None)) is not None:  # else it was counted as late
            session, floor = silent[1:]
            is_late = ttft_secs > typical.late_secs
            if is_late or ttft_secs + lag_secs <= typical.late_secs:
                self._count(is_late, session, floor, now)
        if lag_secs < UNSURE_LAG_SECS:
            typical.add(ttft_secs)

    def set_queue(self, at_most: int, until: float) -> None:
        """Use a server's own load metrics in place of the inferred limit.

        Args:
            at_most: The most requests in flight from this process.
            until: When the reading expires.
        """
        self._stated = (at_most, until)

    def recover(self) -> None:
        """Discard the inferred limit and rejections, because the provider is healthy again."""
        self._inferred, self._rejected = None, None
        self._begin_round(-math.inf)

    # ---- inside

    def _start(self, bounds: LimitBounds) -> float:
        """The initial inferred limit: not below the requests that are already in flight."""
        return max(bounds.start, self.in_flight + 1.0)

    def _count_late(self, now: float) -> None:
        """Count the requests that are late and have no first token yet."""
        # The size class is known only with the first token, so use the largest time.
        late_secs = max(
            (u.late_secs for u in self._typical.values()), default=_TypicalTime().late_secs
        )
        while self._silent:
            request, (sent_at, session, floor) = next(iter(self._silent.items()))
            if now - sent_at <= late_secs:
                return
            del self._silent[request]
            self._count(True, session, floor, now)

    def _count(self, is_late: bool, session: Hashable, floor: int, now: float) -> None:
        """Count a request in the round, and end the round when it is full."""
        if now < self._round_from or self._stated_limit(now) is not None:
            return
        self._late.append(is_late)
        self._sessions.add(session)
        inferred = math.inf if self._inferred is None else self._inferred
        size = int(min(max(inferred, MIN_ROUND), max(2 * floor, ROUND)))
        if len(self._late) < size:
            return
        next_from = self._round_from
        if 2 * sum(self._late) <= size:
            if 2 * self.in_flight >= inferred:
                self._inferred = inferred * GROWS_BY + 1
        elif len(self._sessions) >= min(SESSIONS, size):
            self._inferred = max(min(inferred, self.in_flight) * SHRINKS_TO, float(floor))
            next_from = now + CUT_SHOWS_SECS
        self._begin_round(next_from)

    def _begin_round(self, since: float) -> None:
        self._late, self._sessions = [], set()
        self._round_from = since

    def _stated_limit(self, now: float) -> int | None:
        return self._stated[0] if self._stated is not None and now < self._stated[1] else None

    def _rejected_limit(self, now: float) -> float | None:
        if self._rejected is None:
            return None
        age = now - self._rejected_at
        if age >= REJECTED_SECS:
            self._rejected = None
            return None
        return self._rejected + REJECTED_GROWS * age
