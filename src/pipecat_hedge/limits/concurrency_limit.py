"""How many requests a provider should have in flight from this process. Pure; time is an argument.

Two bounds, and the lower one holds:

- *Inferred* from time to first token. Each round of requests is compared with what is usual for
  prompts of that size. If most of them took more than ``TOLERANCE`` times as long, and they came
  from several sessions, the limit shrinks. Otherwise it grows, while it is used. Most have to be
  late, so a heavy tail or a model that sometimes thinks is no queue. A request that is late counts
  at once, before its first token: waiting for slow answers would be to wait for the queue to grow.
- *Stated* by the provider: a refusal for load (429, 529), the rate limit in its headers, the queue
  in its own metrics. These are facts, so they may fall to 0.

What the limit is used for is decided elsewhere (``health.py``). By default it bounds hedges and
prompts sent ahead. For callers' turns it only chooses among providers.

Sources: Netflix concurrency-limits, Gradient2 (a tolerance of the long-run latency, a long run of
600 samples, shrinking by at most half); RFC 5681 (a cut goes by what is in flight).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from pipecat_hedge.limits.verdict import Verdict
from pipecat_hedge.race.errors import ConfigurationError

__all__ = ["OPEN_BOUNDS", "SHED_BOUNDS", "ConcurrencyLimit", "LimitBounds"]

ROUND, MIN_ROUND, SESSIONS = 5, 3, 5
"""Requests in a round: twice the floor, so many at least, but no more than the limit; and the
sessions that they must come from to shrink it, all of them where the round is smaller."""
TOLERANCE = 2.0
FINE_SECS = 0.5
"""Below this median, the better of the targets for a first token in voice, no queue matters."""
SHRINKS_TO, SETTLES_SECS, GROWS_BY = 0.25, 1.0, 1.1
"""The limit falls to a quarter of what is in flight, then waits until that shows. A calm round lets
it grow by a tenth and one, while it is used."""
ASSUMED_SECS, ASSUMED_COUNT = 0.8, 5
"""What is taken to be usual at first, and for how many first tokens that stands."""
SETTLED, LONG_RUN = 20, 600
"""First tokens from which on the tolerance holds, twice of it before; and of the long run that says
what is usual."""
REFUSED_BACKOFF, REFUSED_MIN, REFUSED_SETTLES_SECS = 0.9, 2, 1.0
"""A refusal leaves nine tenths of what was in flight, once a second, and callers two at least:
a refusal of a request that was nearly alone is not about the number of requests."""
REFUSED_GROWS, REFUSED_SECS = 1.0, 60.0
"""Requests by which the refused limit grows each second, and for how long a refusal counts."""


@dataclass(frozen=True, slots=True)
class LimitBounds:
    """Where the inferred limit may lie.

    Parameters:
        floor: Requests in flight that are always safe to send; at least 1.
        ceiling: The most that are ever allowed.
        start: Where it begins, before anything has been seen; infinite is without a bound.
    """

    floor: int
    ceiling: int
    start: float = math.inf

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: If they are no whole numbers from 1, or not in order.
        """
        for name, value in (("min_in_flight", self.floor), ("max_in_flight", self.ceiling)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"{name} must be a whole number from 1, got {value!r}")
        if self.floor > self.ceiling:
            raise ConfigurationError(
                f"min_in_flight must not exceed max_in_flight, got {self.floor} and {self.ceiling}"
            )


OPEN_BOUNDS = LimitBounds(10, 1000)
"""Ten requests in flight are safe to send to any provider."""
SHED_BOUNDS = LimitBounds(1, 200, start=4)


@dataclass(slots=True)
class _Usual:
    """What is usual for one class of prompt sizes: the mean of the logarithm of times."""

    log_secs: float = math.log(ASSUMED_SECS)
    count: int = ASSUMED_COUNT

    @property
    def late_secs(self) -> float:
        """After how long a request is late."""
        times = TOLERANCE if self.count >= SETTLED else TOLERANCE * TOLERANCE
        return max(times * math.exp(self.log_secs), FINE_SECS)

    def add(self, secs: float) -> None:
        """Take a time; a late one counts little, so that a queue does not become usual at once."""
        is_quick = secs <= self.late_secs and self.count < LONG_RUN
        self.count += 1
        weight = 1 / self.count if is_quick else 1 / LONG_RUN
        self.log_secs += (math.log(max(secs, 1e-3)) - self.log_secs) * weight


class ConcurrencyLimit:
    """One provider's limit, shared by all sessions of a process.

    Attributes:
        in_flight: Requests that are out.
    """

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self.in_flight = 0
        self._inferred: float | None = None
        self._usual: dict[Hashable, _Usual] = {}
        self._late: list[bool] = []
        self._sessions: set[Hashable] = set()
        self._round_from = -math.inf
        self._silent: dict[Hashable, tuple[float, Hashable, int]] = {}
        self._refused: float | None = None
        self._refused_at = -math.inf
        self._stated: tuple[int, float] | None = None
        self._rate_limit: tuple[int, float] | None = None
        self._rate_limit_at = -math.inf

    def limit(self, now: float, bounds: LimitBounds = OPEN_BOUNDS) -> int:
        """The limit at a time, at least 0.

        Args:
            now: The time, in seconds.
            bounds: Where the inferred limit may lie.
        """
        stated = self._stated_limit(now)
        if stated is not None:
            return max(min(stated, bounds.ceiling), 0)
        inferred = self._start(bounds) if self._inferred is None else self._inferred
        inferred = min(max(inferred, bounds.floor), bounds.ceiling)
        refused = self._refused_limit(now)
        return int(inferred if refused is None else min(inferred, refused))

    def has_room(
        self, now: float, bounds: LimitBounds = OPEN_BOUNDS, *, reserved: float = 0.0
    ) -> bool:
        """Whether one more request is within the limit.

        Args:
            now: The time.
            bounds: Where the inferred limit may lie.
            reserved: The share of the limit to leave free.
        """
        limit = self.limit(now, bounds)
        left = self._rate_limit_left(now)
        has_left = left is None or left > (max(int(reserved * left), 1) if reserved else 0)
        return has_left and self.in_flight + int(reserved * limit) < limit

    def is_refusing(self, now: float) -> bool:
        """Whether the provider has refused as many as are in flight now, a moment ago."""
        refused = self._refused_limit(now)
        return refused is not None and self.in_flight >= max(int(refused), REFUSED_MIN)

    def reason(self, now: float, bounds: LimitBounds = OPEN_BOUNDS) -> str:
        """Why there is no room, for a person to read.

        Args:
            now: The time.
            bounds: Where the inferred limit may lie.
        """
        left = self._rate_limit_left(now)
        limit = self.limit(now, bounds)
        if left is None or self.in_flight >= limit:
            return f"{self.in_flight} of {limit} requests in flight"
        assert self._rate_limit is not None
        secs = self._rate_limit[1] - now
        if left == 0:
            return f"its rate limit used up for {secs:.2g} s"
        return f"a rate limit that allows {left} more within {secs:.2g} s"

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
            request: Identifies it, until ``release``.
            now: The time.
            session: The session that asks.
            bounds: Where the inferred limit may lie; None if nothing is inferred from the request,
                because its answer does not tell when it begins.
            lag_secs: How far the event loop is behind.
        """
        self._count_late(now - lag_secs)
        if bounds is not None:
            if self._inferred is None and bounds.start < math.inf:
                self._inferred = self._start(bounds)
            self._silent[request] = now, session, bounds.floor
        self.in_flight += 1
        if self._rate_limit is not None:
            left, until = self._rate_limit
            self._rate_limit = (max(left - 1, 0), until)

    def release(
        self, request: Hashable, verdict: Verdict, now: float, *, lag_secs: float = 0.0
    ) -> None:
        """Count a request that has ended.

        Args:
            request: As it was acquired.
            verdict: How it ended.
            now: When.
            lag_secs: How far the event loop is behind.
        """
        assert self.in_flight > 0, "a permit was released twice"
        self._count_late(now - lag_secs)
        self._silent.pop(request, None)
        if verdict == "busy" and now - self._refused_at >= REFUSED_SETTLES_SECS:
            # Others that are refused in the same second were sent under the same limit.
            before = self._refused_limit(now)
            self._refused = REFUSED_BACKOFF * min(
                self.in_flight, math.inf if before is None else before
            )
            self._refused_at = now
        self.in_flight -= 1

    def record_first_token(
        self,
        request: Hashable,
        ttft_secs: float,
        now: float,
        *,
        size_class: Hashable = None,
        is_sure: bool = True,
    ) -> None:
        """Take a request's first token.

        Args:
            request: As it was acquired.
            ttft_secs: Its time since the request was sent, in seconds.
            now: When it came.
            size_class: The class of its prompt's size; times are compared within one only.
            is_sure: Whether the time is known; if not it took at least so long.
        """
        self._count_late(now)
        usual = self._usual.setdefault(size_class, _Usual())
        if (silent := self._silent.pop(request, None)) is not None:  # else it has been counted
            session, floor = silent[1:]
            is_late = ttft_secs > usual.late_secs
            if is_sure or is_late:
                self._count(is_late, session, floor, now)
        if is_sure:
            usual.add(ttft_secs)

    def set_queue(self, at_most: int, until: float) -> None:
        """Take what a server's own metrics say, in place of what is inferred.

        Args:
            at_most: Requests in flight, of this process.
            until: For how long this holds.
        """
        self._stated = (at_most, until)

    def set_rate_limit(self, left: int, until: float, *, sent_at: float) -> None:
        """Take what a response's headers say of the rate limit; newer replaces older.

        Args:
            left: Requests that may still be begun.
            until: For how long this holds.
            sent_at: When the request was sent that was answered so: the provider counts when a
                request comes, and may say so much later.
        """
        if sent_at >= self._rate_limit_at:
            self._rate_limit, self._rate_limit_at = (max(left, 0), until), sent_at

    def recover(self) -> None:
        """Forget what was inferred and refused: the provider has been found well again."""
        self._inferred, self._refused = None, None
        self._begin_round(-math.inf)

    # ---- inside

    def _start(self, bounds: LimitBounds) -> float:
        """Where the inferred limit begins: not below what is in flight already, of others."""
        return max(bounds.start, self.in_flight + 1.0)

    def _count_late(self, now: float) -> None:
        """Count the requests that are late and have no first token yet."""
        # The time is that of prompts of any size: which it is, its first token will tell.
        late_secs = max((u.late_secs for u in self._usual.values()), default=_Usual().late_secs)
        while self._silent:
            request, (sent_at, session, floor) = next(iter(self._silent.items()))
            if now - sent_at <= late_secs:
                return
            del self._silent[request]
            self._count(True, session, floor, now)

    def _count(self, is_late: bool, session: Hashable, floor: int, now: float) -> None:
        """Take a request into the round, and end the round if that is enough."""
        if now < self._round_from or self._stated_limit(now) is not None:
            return
        self._late.append(is_late)
        self._sessions.add(session)
        inferred = math.inf if self._inferred is None else self._inferred
        size = int(min(max(inferred, MIN_ROUND), max(2 * floor, ROUND)))
        if len(self._late) < size:
            return
        settles_at = self._round_from
        if 2 * sum(self._late) <= size:
            if 2 * self.in_flight >= inferred:
                self._inferred = inferred * GROWS_BY + 1
        elif len(self._sessions) >= min(SESSIONS, size):
            self._inferred = max(min(inferred, self.in_flight) * SHRINKS_TO, float(floor))
            settles_at = now + SETTLES_SECS
        self._begin_round(settles_at)

    def _begin_round(self, since: float) -> None:
        self._late, self._sessions = [], set()
        self._round_from = since

    def _stated_limit(self, now: float) -> int | None:
        return self._stated[0] if self._stated is not None and now < self._stated[1] else None

    def _refused_limit(self, now: float) -> float | None:
        if self._refused is None:
            return None
        age = now - self._refused_at
        if age >= REFUSED_SECS:
            self._refused = None
            return None
        return self._refused + REFUSED_GROWS * age

    def _rate_limit_left(self, now: float) -> int | None:
        if self._rate_limit is not None and now >= self._rate_limit[1]:
            self._rate_limit = None
        return None if self._rate_limit is None else self._rate_limit[0]
