"""How many requests came in each second: one number a second, kept for the last hours."""

from __future__ import annotations

from collections import deque

__all__ = ["Arrivals"]

KEPT_SECS = 6 * 3600


class Arrivals:
    """Counts by the whole seconds of a clock."""

    def __init__(self, now: float):
        """Begin to count.

        Args:
            now: What time it is.
        """
        self._counts: deque[int] = deque([0], maxlen=KEPT_SECS)
        self._last = int(now)

    def add(self, now: float) -> None:
        """Count a request.

        Args:
            now: What time it is.
        """
        self._advance(now)
        self._counts[-1] += 1

    def since(self, second: int, now: float) -> tuple[int, list[int]]:
        """The counts of the seconds that are over.

        Args:
            second: From which one on.
            now: What time it is.

        Returns:
            The first second that is told of, which is later than the one asked for if that is
            forgotten; and the counts from there on.
        """
        self._advance(now)
        oldest = self._last - len(self._counts) + 1
        first = min(max(second, oldest), self._last)
        return first, list(self._counts)[first - oldest : -1]

    def _advance(self, now: float) -> None:
        missing = int(now) - self._last
        if missing > 0:
            self._counts.extend([0] * min(missing, KEPT_SECS))
            self._last += missing
