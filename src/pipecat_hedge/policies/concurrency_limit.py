"""How many requests a provider may have in flight from here, found out as it goes. Pure.

Law: in flight never exceeds the limit; a permit that was given comes back exactly once, and what
was ended by somebody else teaches nothing.

The problem: nobody tells a client how many requests a provider will serve at once, and the number
changes. Too many, and the provider refuses them (429, 529) or, like a server of one's own, queues
them silently, so that every caller waits for all others. The naive answer, a fixed limit, is wrong
as soon as it is right: set for a good hour it does harm in a bad one.

Ours moves by three signs. A refusal or a time-out cuts the limit by ``BACKOFF``, once in
``SETTLES_SECS`` however many requests it hits, since all of them were sent under the same limit. An
answer that comes as usual lets it grow, by less than one for a round of requests, and only while
the limit is really used: an idle hour proves nothing. And time to first token against its own long
run says that a queue builds up where no refusal does: when the recent ones are more than
``TOLERANCE`` times as long as usual, each answer shrinks the limit a little, a round of requests by
a tenth at most. Long prompts take longer to read, so a time is compared with the long run of its
own class of sizes only.

Where a provider says it, it is believed: a rate-limit header's remaining requests, or a server's
own queue, bound the limit from above for as long as they are news.

Left out: fairness among processes; each finds its own share. ``LEAST`` is one, so that a provider
is never out of reach for good.

Sources: Netflix concurrency-limits (Gradient2: tolerance 1.5, smoothing 0.2, a long run of 600
samples; AIMD: backoff 0.9, growth only above half of the limit); failsafe-go's adaptive limiter (a
refusal is not a sample of latency). The targets for a first token in voice, 0.5 s and 1.0 s, are
where ``FINE_SECS`` and ``SLOW_SECS`` come from: below the one no gradient is worth shrinking for,
above the other the limit does not grow.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pipecat_hedge.errors import ConfigurationError

__all__ = ["ConcurrencyLimit", "LimitVerdict"]

LimitVerdict: TypeAlias = Literal["answered", "failed", "busy", "timed_out", "dropped"]
"""How an attempt ended: answered; failed for a reason that says nothing about load; refused for
load; silent for too long; or ended by somebody else."""

LEAST, MOST, AT_FIRST = 1, 1000, 20
BACKOFF = 0.9
SETTLES_SECS = 1.0
TOLERANCE = 1.5
SMOOTHING = 0.2
SHORT, LONG = 0.2, 1 / 600
"""The weight of the latest time in the recent and in the long-run mean."""
SETTLED = 100
"""Times of a class from which on its long run moves as slowly as that."""
LEARNED_FROM = 20
"""Times of a class before its long run is worth comparing with."""
FINE_SECS, SLOW_SECS = 0.5, 1.0


@dataclass(slots=True)
class _LongRun:
    mean_secs: float = 0.0
    count: int = 0

    def add(self, secs: float) -> None:
        self.count += 1
        weight = LONG if self.count > SETTLED else 1 / self.count
        self.mean_secs += (secs - self.mean_secs) * weight


class ConcurrencyLimit:
    """One provider's limit, shared by all sessions of a process.

    Example::

        if limit.acquire(now):
            ...
            limit.release("answered", later, ttft_secs=0.4, size_class=2)

    Attributes:
        in_flight: Permits that are out.
    """

    def __init__(self, *, at_first: int = AT_FIRST, least: int = LEAST, most: int = MOST):
        """Begin with a guess.

        Args:
            at_first: The limit at the beginning.
            least: It never falls below this.
            most: It never rises above this.

        Raises:
            ConfigurationError: If the three are not in order; the message says so.
        """
        for name, value in (("least", least), ("at_first", at_first), ("most", most)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"{name} must be a whole number from 1, got {value!r}")
        if not least <= at_first <= most:
            raise ConfigurationError(
                f"at_first must lie between least and most, {least} and {most}, got {at_first}"
            )
        self._limit = float(at_first)
        self._least, self._most = least, most
        self._cut_at = -math.inf
        self._recent: float | None = None
        self._long_runs: dict[Hashable, _LongRun] = {}
        self._told: tuple[int, float] | None = None
        self.in_flight = 0

    def limit(self, now: float) -> int:
        """The limit at a time, at least ``least``.

        Args:
            now: The time, in seconds.
        """
        learned = int(self._limit)
        if self._told is not None and now < self._told[1]:
            learned = min(learned, self._told[0])
        return max(learned, self._least)

    def acquire(self, now: float, *, reserve: int = 0) -> bool:
        """Take a permit, if there is one.

        Args:
            now: The time.
            reserve: So many are to be left over for what is more urgent.

        Returns:
            Whether it was given; then it has to be released.
        """
        if self.in_flight + reserve >= self.limit(now) and (self.in_flight or reserve):
            return False
        self.in_flight += 1
        return True

    def release(
        self,
        verdict: LimitVerdict,
        now: float,
        *,
        ttft_secs: float | None = None,
        size_class: Hashable = None,
    ) -> None:
        """Give a permit back, with what became of the attempt.

        Args:
            verdict: How the attempt ended.
            now: When.
            ttft_secs: Its time to first token, if it had one.
            size_class: The class of its prompt's size; times are compared within one only.
        """
        assert self.in_flight > 0, "a permit was released twice"
        is_used = 2 * self.in_flight > self._limit
        self.in_flight -= 1
        if verdict in ("busy", "timed_out"):
            self._cut(now)
        elif verdict == "answered" and ttft_secs is not None:
            self._weigh(ttft_secs, size_class, is_used)

    def believe(self, at_most: int, until: float) -> None:
        """Take a provider's own word for how much it will take.

        Args:
            at_most: Requests in flight, of this process.
            until: For how long this is news.
        """
        self._told = (max(at_most, 0), until)

    # ---- what is learned

    def _cut(self, now: float) -> None:
        if now - self._cut_at < SETTLES_SECS:
            return  # it was sent under the limit that has been cut already
        self._cut_at = now
        self._set(self._limit * BACKOFF)

    def _weigh(self, secs: float, size_class: Hashable, is_used: bool) -> None:
        long_run = self._long_runs.setdefault(size_class, _LongRun())
        gradient = 1.0
        if long_run.count >= LEARNED_FROM:
            ratio = secs / long_run.mean_secs if long_run.mean_secs > 0 else 1.0
            recent = self._recent
            self._recent = ratio if recent is None else recent + SHORT * (ratio - recent)
            if secs > FINE_SECS:
                gradient = min(max(TOLERANCE / self._recent, 0.5), 1.0)
        long_run.add(secs)
        if gradient < 1.0:
            self._set(self._limit + SMOOTHING * (gradient - 1.0))
        elif is_used and secs <= SLOW_SECS:
            self._set(self._limit + 1.0 / self._limit)

    def _set(self, limit: float) -> None:
        self._limit = min(max(limit, float(self._least)), float(self._most))
