"""How long first tokens usually take, and whether those of a while are later than that.

Means are geometric: of a hundred answers one takes ten times as long as usual, and says nothing.
Where the constants come from stands in ``queue_watch.py``, which is what they are for.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

__all__ = ["LongRun", "Round", "Served"]

LONG = 1 / 600
"""The weight of the latest time in the long-run mean."""
SETTLED = 100
"""Times from which on a long run moves as slowly as that."""
ASSUMED_SECS, ASSUMED_SPREAD, ASSUMED_COUNT = 0.8, 0.7, 5
"""What is assumed where nothing is known, and for how many times that stands."""
SHORT = 0.1
"""The weight of the latest time in flight."""
LEAST_SPREAD = 0.3
"""The least standard deviation of the logarithms of times."""
SURELY = 2.0
"""First tokens are late if chance would make them so in one round of forty at most."""


@dataclass(slots=True)
class LongRun:
    """The mean of the logarithms of one class's times, and how far they lie apart.

    Parameters:
        mean_log: The mean of the logarithms of seconds.
        variance: Their variance.
        count: How many times were taken.
    """

    mean_log: float = math.log(ASSUMED_SECS)
    variance: float = ASSUMED_SPREAD**2
    count: int = 0

    def add(self, log_secs: float) -> None:
        """Take a time.

        Args:
            log_secs: The logarithm of its seconds.
        """
        self.count += 1
        weight = LONG if self.count > SETTLED else 1 / (self.count + ASSUMED_COUNT)
        off = log_secs - self.mean_log
        self.mean_log += off * weight
        self.variance += (off * off * (1 - weight) - self.variance) * weight

    def raise_by(self, late: float) -> None:
        """Begin again with times that are longer, and soon go by those that come.

        Args:
            late: The logarithm of how many times as long.
        """
        self.mean_log += late
        self.count = 0

    @property
    def spread(self) -> float:
        """The standard deviation of the logarithms."""
        return max(math.sqrt(self.variance), LEAST_SPREAD)


@dataclass(slots=True)
class Round:
    """First tokens of requests that were sent since the limit was cut: how late they are.

    Parameters:
        mean: The mean of the logarithms of how many times as long as usual they took.
        count: How many came.
        worst_secs: The longest.
    """

    mean: float = 0.0
    count: int = 0
    worst_secs: float = 0.0

    def add(self, ratio: float, secs: float) -> None:
        """Take a first token.

        Args:
            ratio: The logarithm of how many times as long as usual it took.
            secs: How long.
        """
        self.count += 1
        self.mean += (ratio - self.mean) / self.count
        self.worst_secs = max(self.worst_secs, secs)

    def is_late(self, spread: float, tolerance: float) -> bool:
        """Whether they are later than usual by more than is tolerated, and than chance.

        Args:
            spread: The standard deviation of the logarithms of usual times.
            tolerance: So many times as long as usual they may take.
        """
        chance = SURELY * spread / math.sqrt(max(self.count, 1))
        return self.count > 0 and self.mean > math.log(tolerance) + chance


@dataclass(slots=True)
class Served:
    """How many requests are really being served at once, by what has been answered lately.

    Parameters:
        held_secs: How long a request is in flight that does not wait.
    """

    held_secs: float = 0.0
    _answered_at: deque[float] = field(default_factory=lambda: deque[float](maxlen=256))

    def add(self, now: float, held_secs: float | None) -> None:
        """Take an answer.

        Args:
            now: When it was complete.
            held_secs: How long it was in flight; None if that is no measure.
        """
        self._answered_at.append(now)
        if held_secs is not None:
            weight = max(SHORT, 1 / len(self._answered_at))
            self.held_secs += weight * (held_secs - self.held_secs)

    def at_once(self, now: float, over_secs: float) -> float:
        """How many: answers a second times the seconds of each (Little's law).

        Args:
            now: The time.
            over_secs: So long answers are counted.
        """
        since = now - over_secs
        return sum(at > since for at in self._answered_at) / over_secs * self.held_secs
