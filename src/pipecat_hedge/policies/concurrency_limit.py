"""How many requests a provider may have in flight from here, found out as it goes. Pure.

Law: in flight never exceeds the limit; a permit that was given comes back exactly once, and what
was ended by somebody else teaches nothing.

The problem: nobody tells a client how many requests a provider will serve at once, and the number
changes. Too many, and the provider refuses them (429, 529) or, like a server of one's own, queues
them silently, so that every caller waits for all others. The naive answer, a fixed limit, is wrong
as soon as it is right: set for a good hour it does harm in a bad one.

Ours begins high, since without a sign of load any limit does harm. A refusal or a time-out cuts it
(but not the loss of a single request, while those that came later are answered) to ``BACKOFF`` of
what was in flight, which is what the provider was really given, once in
``SETTLES_SECS`` however many requests it hits, since all of them were sent under the same limit. An
answer that comes as usual lets it grow, and only while the limit is really used: an idle hour
proves nothing. It grows by one for each answer until it was first cut, then by one for a round of
them, shared by all processes that ask, and for a while after a queue by a small part of that.

A queue that no refusal tells of is seen in time to first token, see ``queue_watch.py``. Where one
is suspected, hardly anything is left in flight for a few seconds, to find out whether there is one
or the provider is slow by itself. If it is a queue, the limit is what is really being served,
whatever was in flight. What waits beyond the limit is better recalled than left to wait: in a
provider's queue a premium caller stands behind everybody, in ours not. If there is none, it is what
it was before, and grows as at first. So it does when a provider is found well that was left alone,
since what cut the limit was no load: from at least ``RETURNS`` of what was usually in flight, so
that two rounds of answers bring it back however many there were.

Where a provider says it, it is believed for as long as that is news. A server that tells its own
queue is believed in both directions: what it will take is the limit, and time to first token
teaches nothing meanwhile, since nothing is left to be guessed. A rate limit is of another kind: it
counts requests begun, not requests in flight, so what its headers leave over is counted down beside
the limit, and at none left none is begun until more is given.

Left out: fairness among processes; each finds its own share. ``LEAST`` is one, so that a provider
is never out of reach for good.

Sources: Netflix concurrency-limits (AIMD: backoff 0.9, growth only above half of the limit);
failsafe-go's adaptive limiter (a refusal is not a sample of latency); RFC 5681 (slow start; a cut
goes by what is in flight, not by what would have been allowed, and leaves two). Above
``SLOW_SECS``, the worse of the targets for a first token in voice, the limit grows only if that is
usual.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from pipecat_hedge.ending import LimitVerdict
from pipecat_hedge.errors import ConfigurationError
from pipecat_hedge.queue_test import TestCounts
from pipecat_hedge.queue_watch import FewerOrMore, QueueWatch

__all__ = ["ConcurrencyLimit"]

LEAST, MOST, AT_FIRST = 1, 1000, 100
BACKOFF, CUT_LEAST = 0.9, 2.0
"""What a refusal leaves of what was in flight, and what it leaves at least: one that hits a request
that was nearly alone is not for the number of them."""
SETTLES_SECS, SLOW_SECS = 1.0, 1.0
WARY, WARY_SECS = 30.0, 30.0
"""So many times as slowly, and for so long, it grows after there was a queue."""
LOST, LOST_WEIGHS = 0.1, 1 / 50
"""The share of requests that may be lost for no reason of load, and the weight of the latest."""
RETURNS, USUAL = 0.25, 1 / 50
"""What may be in flight at once after an outage, of what usually was; and the weight of the latest
number in that."""
UNAWARE_SECS = 12.0
"""Other processes may not know for so long that the provider has recovered."""


class ConcurrencyLimit:
    """One provider's limit, shared by all sessions of a process.

    Example::

        if limit.acquire(now):
            ...
            limit.heard(0.4, soon, size_class=2)
            limit.release("answered", later, ttft_secs=0.4, held_secs=1.2)

    Attributes:
        in_flight: Permits that are out.
        cuts: How many times it was cut for a refusal of its own or a queue that it has found: what
            concerns whoever else asks the provider.
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
        self._watch = QueueWatch()
        self._cut_at = self._followed_at = self._wary_from = -math.inf
        self._recovered_at = -math.inf
        self._has_shortened = False
        self._is_starting = True
        self._told: tuple[int, float] | None = None
        self._allowed: tuple[int, float] | None = None
        self._allowed_at = -math.inf
        self._has_moved = self._has_found = False
        self._lost = 0.0
        self._usual = 0.0
        self.in_flight = 0
        self.cuts = 0

    def limit(self, now: float) -> int:
        """The limit at a time, at least ``least``.

        Args:
            now: The time, in seconds.
        """
        if self._told is None or (told := self._news(now)) is None:
            return int(self._limit)
        return min(max(told, self._least), self._most)

    def is_free(self, now: float, *, reserve: int = 0) -> bool:
        """Whether a permit would be given.

        Args:
            now: The time.
            reserve: So many are to be left over for what is more urgent.
        """
        if self._allowed is not None:
            allowed = self._more(now)
            if allowed is not None and allowed <= reserve:
                return False
        return self.in_flight + reserve < self.limit(now)

    def is_at_ease(self, reserved: float) -> bool:
        """Whether a permit would surely be given, with nothing told by the provider to look at.

        Args:
            reserved: The share of the limit that is to be left over for what is more urgent.
        """
        if self._told is not None or self._allowed is not None:
            return False
        limit = int(self._limit)
        return self.in_flight + int(reserved * limit) < limit

    def reason(self, now: float, *, reserve: int = 0) -> str:
        """What there is to say of it, for a person: if no permit is to be had, why.

        Args:
            now: The time.
            reserve: As it was asked for.
        """
        allowed = self._more(now)
        if allowed is None or allowed > reserve:
            return f"{self.in_flight} of {self.limit(now)} requests in flight"
        assert self._allowed is not None
        secs = self._allowed[1] - now
        if allowed == 0:
            return f"its rate limit used up for {secs:.2g} s"
        return f"a rate limit that allows {allowed} more within {secs:.2g} s"

    def acquire(self, now: float, *, reserve: int = 0) -> bool:
        """Take a permit, if there is one.

        Args:
            now: The time.
            reserve: So many are to be left over for what is more urgent.

        Returns:
            Whether it was given; then it has to be released.
        """
        if not self.is_free(now, reserve=reserve):
            return False
        if self._allowed is not None:
            more, until = self._allowed
            self._allowed = (more - 1, until)
        self.in_flight += 1
        return True

    @property
    def late_secs(self) -> float:
        """After so long without a first token a request is late, whatever its prompt's size."""
        return self._watch.late_secs

    def heard(
        self,
        ttft_secs: float,
        now: float,
        *,
        size_class: Hashable = None,
        was_overdue: bool = False,
    ) -> None:
        """Take note of a first token, whatever becomes of its answer.

        Args:
            ttft_secs: Its time, from the permit.
            now: When it came.
            size_class: The class of its prompt's size; times are compared within one only.
            was_overdue: Whether ``overdue`` was told of its request.
        """
        told, flying = self._news(now) is not None, self.in_flight
        order = self._watch.heard(
            ttft_secs, flying, now, size_class=size_class, was_overdue=was_overdue, is_told=told
        )
        self._obey(order, now)

    def overdue(self, sent_at: float, now: float) -> None:
        """Take note of a request that has waited for ``late_secs`` without a word; once for each.

        Args:
            sent_at: Since when.
            now: The time.
        """
        if self._news(now) is None:
            self._obey(self._watch.overdue(sent_at, now), now)

    def notice_late(self, late: int, now: float) -> bool:
        """Take note of requests in flight that are late.

        Args:
            late: How many have waited for ``late_secs``, sent since ``cut_at``, without a word.
            now: The time.

        Returns:
            Whether the limit was cut on that account.
        """
        if self._news(now) is not None:
            return False
        return self._obey(self._watch.notice_late(late, self.in_flight, now), now)

    def hear_tests(self, others: int, counts: TestCounts, now: float) -> None:
        """Take note of other processes' tests for a queue.

        Args:
            others: How many of them ask the provider.
            counts: What all of them have counted since they told the last time.
            now: The time.
        """
        is_full = self._news(now) is None and self.in_flight >= int(self._limit)
        order = self._watch.hear_tests(others, counts, self.in_flight, now, is_full=is_full)
        self._obey(order, now)

    @property
    def tested(self) -> TestCounts:
        """What has been counted here, in tests for a queue."""
        return self._watch.tested

    def take_recall(self) -> bool:
        """Whether what waits beyond the limit is to be called back; once for each cut."""
        was, self._has_shortened = self._has_shortened, False
        return was

    @property
    def cut_at(self) -> float:
        """When it was cut last."""
        return self._watch.cut_at

    def release(
        self,
        verdict: LimitVerdict,
        now: float,
        *,
        ttft_secs: float | None = None,
        held_secs: float = 0.0,
        was_passed: bool = False,
    ) -> None:
        """Give a permit back, with what became of the attempt.

        Args:
            verdict: How the attempt ended.
            now: When.
            ttft_secs: Its time to first token, if it had one.
            held_secs: How long the permit was out.
            was_passed: Whether one that was sent later has begun to be answered: then it did not
                wait in a queue, and has been lost.
        """
        assert self.in_flight > 0, "a permit was released twice"
        flying = self.in_flight
        self.in_flight -= 1
        if verdict in ("answered", "timed_out"):
            self._lost += LOST_WEIGHS * ((verdict == "timed_out") - self._lost)
        if verdict == "busy":
            self.cuts += self._cut(flying, now)
        elif verdict == "timed_out" and not (was_passed and self._lost <= LOST):
            self._cut(flying, now)
        elif verdict == "answered" and ttft_secs is not None:
            self._watch.answered(held_secs, now)
            self._usual += USUAL * (flying - self._usual)
            is_good = ttft_secs <= SLOW_SECS or self._watch.recent <= 0.0
            if self._is_wary(now):
                is_good = self._watch.recent <= 0.0
            if self._news(now) is None and is_good and 2 * flying > self._limit:
                self._set(self._limit + self._step(now))

    def believe(self, at_most: int, until: float) -> None:
        """Take a server's own word for how much it will take, in place of what was learned.

        Args:
            at_most: Requests in flight, of this process; ``least`` and ``most`` still hold.
            until: For how long this is news.
        """
        self._told = (at_most, until)

    def allow(self, more: int, until: float, *, sent_at: float) -> None:
        """Take a provider's word for how many requests may still be begun; newer replaces older.

        It is as old as the request that it answers: a provider counts when a request comes, and may
        tell much later, with the answer's beginning.

        Args:
            more: So many; each that is begun uses one up, and at none left none is begun.
            until: For how long this is news.
            sent_at: When the request was sent that was answered so; what is older than what was
                heard before is no news.
        """
        if sent_at >= self._allowed_at:
            self._allowed, self._allowed_at = (max(more, 0), until), sent_at

    @property
    def learned(self) -> int | None:
        """Where it is, if anything seen here has cut it; None if nothing has, or for a test."""
        return int(self._limit) if self._has_found and not self._watch.is_testing else None

    @property
    def surplus(self) -> int:
        """How many are in flight beyond what was learned, since it was cut."""
        return max(self.in_flight - int(self._limit), 0) if self._has_moved else 0

    def begin_with(self, limit: int) -> None:
        """Begin at what others have learned; where it has moved already, it stays.

        Args:
            limit: Their limit; ``least`` and ``most`` still hold.
        """
        if not self._has_moved:
            self._limit = min(max(float(limit), float(self._least)), float(self._most))

    def follow_cut(self, now: float) -> None:
        """Grow no further for now: the provider has refused another process, or keeps it waiting.

        It falls to one more than is in flight and no lower: none of that has been refused, and
        where somebody of a large fleet is refused each second, everybody would end at a single
        request.

        Args:
            now: When that was heard of; within a second of the one before it is the same load.
        """
        if self._watch.is_testing or now - self._recovered_at < UNAWARE_SECS:
            return
        self._watch.hear_cut(now)
        if now - self._followed_at >= SETTLES_SECS:
            self._followed_at = self._wary_from = now
            self._is_starting = False
            self._set(min(self._limit, max(self.in_flight + 1.0, CUT_LEAST)))

    def recover(self, now: float) -> None:
        """Start again from a part of what was usual: what it was cut for is over, and was no queue.

        It doubles with each round that is answered as usual, as at first. Other processes' cuts are
        not followed for a while. What is usual stays known.

        Args:
            now: When the provider was found to be well again.
        """
        self._cut_at = self._recovered_at = now
        self._wary_from = -math.inf
        self._watch.forget(now)
        self._is_starting = True
        if self._has_moved:
            self._set(max(self._limit, RETURNS * self._usual))

    def _news(self, now: float) -> int | None:
        """What the server told of itself, if that is still news."""
        return self._told[0] if self._told is not None and now < self._told[1] else None

    def _more(self, now: float) -> int | None:
        """How many more may be begun by the rate limit; None if nothing is known of one."""
        if self._allowed is not None and now >= self._allowed[1]:
            self._allowed = None
        return None if self._allowed is None else self._allowed[0]

    # ---- what is learned

    def _cut(self, flying: int, now: float) -> bool:
        if now - self._cut_at < SETTLES_SECS:
            return False  # it was sent under the limit that has been cut already
        self._cut_at = self._wary_from = self._watch.cut_at = now
        self._is_starting = False
        cut = min(self._limit, flying) * BACKOFF
        self._set(max(cut, min(self._limit, CUT_LEAST)))
        self._has_found = True
        return True

    def _obey(self, order: FewerOrMore | None, now: float) -> bool:
        """Have fewer in flight, or allow for more; whether it is fewer."""
        if order is None:
            return False
        self._has_found |= order.why != "test"
        self.cuts += order.why in ("queue", "tested")
        if order.why in ("queue", "test"):
            self._is_starting, self._has_shortened = False, True
            self._set(min(self._limit, order.limit))
            if order.why == "queue":
                self._wary_from = now
            return True
        self._set(max(self._limit, order.limit))
        self._is_starting |= order.why in ("slow", "untested")
        if order.why == "slow":
            self._wary_from = self._followed_at = -math.inf
        return False

    def _step(self, now: float) -> float:
        """What an answer that came as usual lets it grow by."""
        if self._is_starting:
            return 1.0
        return 1.0 / (self._limit * (WARY if self._is_wary(now) else 1 + self._watch.others))

    def _is_wary(self, now: float) -> bool:
        """Whether there was a queue a short while ago."""
        return now - self._wary_from < WARY_SECS

    def _set(self, limit: float) -> None:
        self._has_moved = True
        self._limit = min(max(limit, float(self._least)), float(self._most))
