"""Whether requests wait in a provider's queue, as their first tokens tell. Pure.

Law: what was sent before the last cut says nothing of what is in flight since.

Waiting for slow answers would be waiting for the queue to be long: so a request counts as late as
soon as it has been in flight for ``LATE`` standard deviations longer than usual. That half of those
in flight are late is not enough: where a tail is long they often are, since what is slow stays in
flight and what was in time has left. So each request also counts once, as late or in time, as soon
as that is known, and the counts are weighed as in a test (``queue_test.py``), but begun anew
whenever they speak against a queue (E. Page's cumulative sum, 1954: of all rules with as few false
alarms the quickest). When both say so, or when the first tokens of requests sent since the last cut
are later than usual by more than ``SUSPECT`` and than chance, it is tested whether there is a
queue: hardly anything is left in flight for a while.

A provider that is late even so is slow for reasons of its own, and asking it less helps nobody:
slow is usual from then on, and as much as before may be in flight. If it was a queue, it is known
of for ``KNOWN_SECS`` after it was seen last. Then only ``TOLERANCE`` is tolerated, and what is left
in flight is what is really being served; but where first tokens are as late as at first, or long
after the last test, it is tested again, since a crowd may be followed by slowness.

Means are geometric, because one answer in a hundred takes ten times as long as usual without any
queue. Long prompts take longer to read, so a time is compared with the long run of its own class of
sizes only.

Sources: Netflix concurrency-limits (Gradient2: a tolerance, a long run of 600 samples); BBR (N.
Cardwell et al., 2016: what is served times the time without a queue). Below ``FINE_SECS``, the
better of the targets for a first token in voice, nothing is late. The rest is from a fleet of eight
processes in virtual time, ``tests/test_fleet_load.py``: with a smaller ``SUSPECT`` providers that
are twice as slow are tested, and with a larger ``TOLERANCE`` the queue of a known crowd is longer.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

from pipecat_hedge.queue_test import (
    LATE_WEIGHS,
    ON_TIME_WEIGHS,
    Found,
    QueueTests,
    TestCounts,
)
from pipecat_hedge.usual_times import LongRun, Round, Served

__all__ = ["FewerOrMore", "QueueWatch"]

SETTLES_SECS = 1.0
"""What was done about a queue takes so long to show."""
SHORT = 0.1
"""The weight of the latest time in the recent mean."""
FINE_SECS = 0.5
LATE, LEAST_LATE = 1.5, 3
ALARM = 6.0
"""The logarithm of how many times as likely as by chance it has to be that so many were late."""
LEAST_OF_A_ROUND, FULL_ROUND = 3, 12
SUSPECT, TOLERANCE, KNOWN_SECS = 2.25, 1.1, 60.0
"""So many times as long as usual first tokens may take; and where a queue is known of, so many
times, for so long after it was seen last."""
AS_USUAL = 1.5
"""Beyond that a time in flight is more than it takes to be served."""
SERVED_OVER_SECS, LATELY_SECS = 3.0, 1.0
"""What is served is counted over so long; and for a test, over what is left of it lately."""


@dataclass(frozen=True, slots=True)
class FewerOrMore:
    """What is to become of a limit.

    Parameters:
        why: For a queue that is known of, at most that many; for a test, at most that many, too;
            after one that has found a queue, at least; after one that has found none, or nothing
            at all, at least, and it grows as at first.
        limit: So many requests in flight.
    """

    why: Literal["queue", "test", "tested", "slow", "untested"]
    limit: float


class QueueWatch:
    """One provider's first tokens, as one process sees them.

    Attributes:
        cut_at: When the limit was cut last, for whatever reason.
        recent: The logarithm of how many times as long as usual first tokens take lately.
    """

    def __init__(self):
        """Begin with nothing seen."""
        self.cut_at = -math.inf
        self.recent = 0.0
        self._round = Round()
        self._evidence = 0.0
        self._known_until = -math.inf
        self._tests = QueueTests()
        self._served = Served()
        self._long_runs: dict[Hashable, LongRun] = {}

    @property
    def late_secs(self) -> float:
        """After so long without a first token a request is late, whatever its prompt's size."""
        runs = self._long_runs.values() or (LongRun(),)
        return max(FINE_SECS, *(math.exp(run.mean_log + LATE * run.spread) for run in runs))

    @property
    def tested(self) -> TestCounts:
        """What has been counted here, in tests."""
        return self._tests.counts

    @property
    def others(self) -> int:
        """How many other processes ask the provider, as far as is known."""
        return self._tests.others

    @property
    def is_testing(self) -> bool:
        """Whether there is a test."""
        return self._tests.is_on

    def heard(
        self,
        ttft_secs: float,
        flying: int,
        now: float,
        *,
        size_class: Hashable,
        was_overdue: bool,
        is_told: bool,
    ) -> FewerOrMore | None:
        """Take a first token.

        Args:
            ttft_secs: Its time, from the permit.
            flying: Requests in flight.
            now: When it came.
            size_class: The class of its prompt's size.
            was_overdue: Whether ``overdue`` was told of its request.
            is_told: Whether the server tells of its queue itself, and nothing has to be guessed.
        """
        log_secs = math.log(max(ttft_secs, 1e-3))
        long_run = self._long_runs.get(size_class)
        if long_run is None:
            long_run = self._long_runs[size_class] = LongRun()
        ratio = log_secs - long_run.mean_log
        self.recent += SHORT * (ratio - self.recent)
        sent_at = now - ttft_secs
        if is_told:
            long_run.add(log_secs)
            return None
        is_late = ratio > LATE * long_run.spread and ttft_secs > FINE_SECS
        if self._tests.is_on:
            found = self._tests.heard(ratio, sent_at, now, is_late=is_late, was_overdue=was_overdue)
            return self._go_by(found, now)
        if sent_at >= self.cut_at:  # it was sent under the limit as it is
            self._round.add(ratio, ttft_secs)
            if not was_overdue:
                self._weigh(is_late)
        tolerance = TOLERANCE if now < self._known_until else SUSPECT
        if not self._round.is_late(long_run.spread, tolerance):
            long_run.add(log_secs)  # a queue is not to become what is usual
            if self._round.count >= FULL_ROUND:
                self._round = Round()
        elif self._round.worst_secs > FINE_SECS and self._round.count >= LEAST_OF_A_ROUND:
            is_plain = self._round.is_late(long_run.spread, SUSPECT)
            return self._suspect(flying, now, is_plain=is_plain)
        return None

    def overdue(self, sent_at: float, now: float) -> FewerOrMore | None:
        """Take note of a request that has waited for ``late_secs`` without a word; once for each.

        Args:
            sent_at: Since when.
            now: The time.
        """
        if self._tests.is_on:
            return self._go_by(self._tests.overdue(now), now) if self._tests.has(sent_at) else None
        if sent_at >= self.cut_at:
            self._weigh(True)
        return None

    def notice_late(self, late: int, flying: int, now: float) -> FewerOrMore | None:
        """Take note of requests in flight that are late; also where none is, which ends a test.

        Args:
            late: How many have waited for ``late_secs``, sent since ``cut_at``, without a word.
            flying: All that are in flight.
            now: The time.
        """
        if (order := self._go_by(self._tests.run_out(now), now)) is not None:
            return order
        if late < LEAST_LATE or 2 * late < flying:
            return None
        return self._suspect(flying, now, is_plain=True)

    def hear_tests(
        self, others: int, counts: TestCounts, flying: int, now: float, *, is_full: bool
    ) -> FewerOrMore | None:
        """Take note of other processes' tests.

        Args:
            others: How many of them ask the provider.
            counts: What all of them have counted since they told the last time.
            flying: Requests in flight.
            now: The time.
            is_full: Whether these are as many as may be.
        """
        self._tests.others = others
        if self._tests.is_on:
            return self._go_by(self._tests.hear_others(counts, now), now)
        is_believed = self._tests.is_believed(counts.begun, now) or (counts.begun and is_full)
        if is_believed and flying and self._tests.is_due(now, is_plain=True):
            return self._test(flying, now, is_joined=True)
        return None

    def hear_cut(self, now: float) -> None:
        """Take note that another process has had its limit cut; a known queue is still there."""
        if now < self._known_until:
            self._known_until = now + KNOWN_SECS

    def answered(self, held_secs: float, now: float) -> None:
        """Take an answer.

        Args:
            held_secs: How long its request was in flight.
            now: When it was complete.
        """
        self._served.add(now, held_secs if self.recent < math.log(AS_USUAL) else None)

    def forget(self, now: float) -> None:
        """Begin again after an outage; what is usual stays known.

        Args:
            now: The time.
        """
        self.cut_at, self._known_until = now, -math.inf
        self.recent, self._round, self._evidence = 0.0, Round(), 0.0
        self._tests.drop()

    def _weigh(self, is_late: bool) -> None:
        weight = LATE_WEIGHS if is_late else ON_TIME_WEIGHS
        self._evidence = max(self._evidence + weight, 0.0)

    def _suspect(self, flying: int, now: float, *, is_plain: bool) -> FewerOrMore | None:
        if now - self.cut_at < SETTLES_SECS or self._tests.is_on:
            return None
        if self._evidence < ALARM and now >= self._known_until:
            return None
        if self._tests.is_due(now, is_plain=is_plain):
            return self._test(flying, now)
        self._known_until = now + KNOWN_SECS
        self._begin_round(now)
        return FewerOrMore("queue", self._served.at_once(now, SERVED_OVER_SECS))

    def _test(self, flying: int, now: float, *, is_joined: bool = False) -> FewerOrMore:
        served = min(self._served.at_once(now, secs) for secs in (SERVED_OVER_SECS, LATELY_SECS))
        is_known = now < self._known_until
        self._begin_round(now)
        limit = self._tests.begin(flying, served, now, is_known=is_known, is_joined=is_joined)
        return FewerOrMore("test", limit)

    def _go_by(self, found: Found | None, now: float) -> FewerOrMore | None:
        if found is None:
            return None
        self._begin_round(now)
        if found.verdict == "queue":
            self._known_until = now + KNOWN_SECS
            return FewerOrMore("tested", found.limit)
        if found.verdict == "nothing":
            return FewerOrMore("untested", found.limit)
        for long_run in self._long_runs.values():
            long_run.raise_by(found.late)
        self._served.held_secs *= math.exp(found.late)
        self.recent, self._known_until = 0.0, -math.inf
        return FewerOrMore("slow", found.limit)

    def _begin_round(self, now: float) -> None:
        self.cut_at, self._round, self._evidence = now, Round(), 0.0
