"""Whether what comes late has waited in a queue at a provider, or the provider is slow. Pure.

Law: what is counted was sent after the queue had time to drain; what others count is added once.

The problem: from outside a queue and a slow provider look the same, and want the opposite: of a
queue one keeps out, while asking a slow provider less makes callers wait for nothing. The naive
answer, to ask less until it gets better, starves everybody where it never does.

Ours is an experiment: asked for hardly anything, a provider with a queue is in time again, and one
that is slow is not. It takes ``DRAINS_SECS`` until what waited is served or called back. From then
on each request counts once, as in time or as late, and that is known as soon as it is late, long
before it is answered. Wald's sequential test weighs the counts: with a queue gone ``QUEUE_LATE``
of requests are late, a slow provider has ``SLOW_LATE`` of them late or more, and what is between
the two is decided by time. Counts ask nothing of the distribution of times, which has a long tail.

One process of many has one request in flight at such a time, and would learn in half a minute what
all of them know in two seconds. So processes tell each other their counts, which only grow; and
since a queue is everybody's, its test has to be, too: who hears of a test while its own limit holds
it back joins in, as does everybody where ``AT_LEAST`` have begun one, and who has begun waits for
those who began later. One alone whose own network is slow stops nobody.

Of a slow provider the new usual time is what the test's own first tokens took, which nothing was
in the way of; so it is not said to be slow before ``HEARD`` of them have come, and one that does
not answer at all stays at hardly anything until its breaker opens. If they are later than that when
more is in flight again, there is a queue after all, and no further test is needed.

A test of which nothing was counted, as where the last callers have hung up, has found nothing. It
is over when its time is, whoever asks next, and what was in flight before may be again.

Left out: a provider that serves fewer at once than processes ask it has a queue even in a test, and
is found to be slow. So it may be where many processes do not share what they know: none of them can
tell that the queue which is left is the others'.

Sources: A. Wald, Sequential tests of statistical hypotheses (1945); BBR's ProbeRTT (N. Cardwell et
al., 2016: to see the path without one's own queue, have hardly anything in flight for a while).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

__all__ = ["NO_COUNTS", "Found", "QueueTests", "TestCounts"]

QUEUE_LATE, SLOW_LATE = 0.15, 0.5
"""The share of requests that are late: without a queue, with room for some that is left of it; and
at a provider that is slow."""
ENOUGH = 5.0
"""The logarithm of how many times as likely one has to be as the other: wrong in 1 of 150."""
DRAINS_SECS, EXTENDS_SECS = 2.0, 1.5
"""How long a queue takes to drain, from the cut, and from hearing of another process's."""
MOST_SECS = 15.0
"""By then it is decided, whatever is more likely."""
RETEST_SECS, KNOWN_SECS = 10.0, 60.0
"""For how long after a test there is no other: where it is plainly late, and where it is not."""
AT_LEAST, LATELY_SECS = 3, 3.0
"""Processes that have to have begun a test in so long, for one that has no reason of its own."""
HEARD = 3
"""So many first tokens make a new usual time."""
HALF = 0.5
"""The share of what is served that is left in flight, by all together."""

LATE_WEIGHS = math.log(SLOW_LATE / QUEUE_LATE)
ON_TIME_WEIGHS = math.log((1 - SLOW_LATE) / (1 - QUEUE_LATE))


@dataclass(frozen=True, slots=True)
class TestCounts:
    """What was counted in tests, ever.

    Parameters:
        begun: Tests that were begun, without those that were joined.
        on_time: Requests that were heard in time.
        late: Those that were not.
        heard: First tokens, late or not.
        lateness: The sum of the logarithms of how many times as long as usual they took.
    """

    __test__ = False

    begun: int = 0
    on_time: int = 0
    late: int = 0
    heard: int = 0
    lateness: float = 0.0

    def __add__(self, other: TestCounts) -> TestCounts:
        """Both together."""
        return TestCounts(
            self.begun + other.begun,
            self.on_time + other.on_time,
            self.late + other.late,
            self.heard + other.heard,
            self.lateness + other.lateness,
        )

    def since(self, before: TestCounts) -> TestCounts:
        """What has been added.

        Args:
            before: What it was.
        """
        return TestCounts(
            self.begun - before.begun,
            self.on_time - before.on_time,
            self.late - before.late,
            self.heard - before.heard,
            self.lateness - before.lateness,
        )


NO_COUNTS = TestCounts()


@dataclass(frozen=True, slots=True)
class Found:
    """The end of a test.

    Parameters:
        verdict: What it was.
        limit: How many may be in flight from then on, at least.
        late: The logarithm of how many times as long as before is usual now.
    """

    verdict: Literal["queue", "slow", "nothing"]
    limit: float
    late: float = 0.0


@dataclass(slots=True)
class _Test:
    counts_from: float
    ends_at: float
    served: float
    counts: TestCounts = NO_COUNTS


class QueueTests:
    """One process's part in the tests of one provider.

    Attributes:
        counts: What has been counted here.
        others: How many other processes are known to ask the provider.
    """

    def __init__(self):
        """Begin without one."""
        self.counts = NO_COUNTS
        self.others = 0
        self._test: _Test | None = None
        self._ended_at = -math.inf
        self._flew = 0.0
        self._begun: deque[float] = deque(maxlen=AT_LEAST)

    @property
    def is_on(self) -> bool:
        """Whether there is one."""
        return self._test is not None

    def is_due(self, now: float, *, is_plain: bool) -> bool:
        """Whether there should be one, now that something is late.

        Args:
            now: The time.
            is_plain: Whether it is much later than usual.
        """
        rests_secs = RETEST_SECS if is_plain else KNOWN_SECS
        return self._test is None and now >= self._ended_at + rests_secs

    def is_believed(self, begun: int, now: float) -> bool:
        """Whether so many others have begun one lately that it is not the fault of one of them.

        Args:
            begun: How many have since it was asked last.
            now: The time.
        """
        self._begun.extend([now] * min(begun, AT_LEAST))
        return begun > 0 and len(self._begun) == AT_LEAST and now - self._begun[0] <= LATELY_SECS

    def begin(
        self, flying: int, served: float, now: float, *, is_known: bool, is_joined: bool = False
    ) -> float:
        """Begin one.

        Args:
            flying: Requests in flight.
            served: How many of them are being served, as far as is known.
            now: The time.
            is_known: Whether a queue has kept the limit low before.
            is_joined: Whether another process has begun it.

        Returns:
            How many may be in flight while it lasts; at least one has to be.
        """
        self._flew = max(self._flew if is_known else 0.0, float(flying))
        self._test = _Test(now + DRAINS_SECS, now + MOST_SECS, served)
        self.counts += TestCounts(begun=not is_joined)
        return HALF * served / (1 + self.others)

    def heard(
        self, ratio: float, sent_at: float, now: float, *, is_late: bool, was_overdue: bool
    ) -> Found | None:
        """Take a first token.

        Args:
            ratio: The logarithm of how many times as long as usual it took.
            sent_at: When its request was sent.
            now: When it came.
            is_late: Whether that is late.
            was_overdue: Whether ``overdue`` was told of it.

        Returns:
            The end, if that is it.
        """
        if not self.has(sent_at):
            return None
        is_new = not was_overdue
        return self._count(TestCounts(0, is_new and not is_late, is_new and is_late, 1, ratio), now)

    def overdue(self, now: float) -> Found | None:
        """Take note of one of the test's requests that is late and not heard yet; once for each.

        Args:
            now: The time.

        Returns:
            The end, if that is it.
        """
        return self._count(TestCounts(late=1), now)

    def has(self, sent_at: float) -> bool:
        """Whether a request is one of the test's.

        Args:
            sent_at: When it was sent.
        """
        return self._test is not None and sent_at >= self._test.counts_from

    def run_out(self, now: float) -> Found | None:
        """End it if its time is over, although nobody has been heard since.

        Args:
            now: The time.

        Returns:
            The end, if that is it.
        """
        return self._end(now) if self._test is not None and now >= self._test.ends_at else None

    def drop(self) -> None:
        """End it with nothing found."""
        self._test = None

    def hear_others(self, counts: TestCounts, now: float) -> Found | None:
        """Add what other processes have counted since they told the last time.

        Args:
            counts: That, of all of them.
            now: The time.

        Returns:
            The end, if that is it.
        """
        test = self._test
        if test is None:
            return None
        if now >= test.counts_from:
            test.counts += counts
            return self._end(now)
        if counts.begun:
            test.counts_from = max(test.counts_from, now + EXTENDS_SECS)
        return None

    def _count(self, counts: TestCounts, now: float) -> Found | None:
        assert self._test is not None
        self.counts += counts
        self._test.counts += counts
        return self._end(now)

    def _end(self, now: float) -> Found | None:
        assert self._test is not None
        counts, is_over = self._test.counts, now >= self._test.ends_at
        evidence = counts.late * LATE_WEIGHS + counts.on_time * ON_TIME_WEIGHS
        found: Found | None = None
        if is_over and not counts.on_time + counts.late:
            self._test = None  # and there may be another one at once
            return Found("nothing", self._flew)
        if evidence >= ENOUGH or (is_over and evidence > 0):
            if counts.heard >= (1 if is_over else HEARD):
                late = max(counts.lateness / counts.heard, 0.0)
                found = Found("slow", self._flew, late)
        elif evidence <= -ENOUGH or is_over:
            found = Found("queue", min(self._test.served, self._flew))
        if found is not None:
            self._test, self._ended_at = None, now
        return found
