"""Separates failures of our own network from a provider's.

If connections to two or more hosts fail (DNS, refused, reset, connect timeout) within
``WITHIN_SECS``, our own network has failed and no provider is charged. So a connection failure is
held for that long before it counts.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

WITHIN_SECS = 2.0
"""The connections of one outage fail within this time of each other."""

_T = TypeVar("_T")


class SharedOutage(Generic[_T]):
    """The latest connection failures."""

    def __init__(self) -> None:
        """Start without failures."""
        self._pending: deque[tuple[float, str, _T]] = deque()
        self._failed_at: dict[str, float] = {}

    def add(self, host: str, now: float, request: _T) -> None:
        """Add a connection failure.

        Args:
            host: The host that was not reached.
            now: When it failed, in seconds.
            request: The request that failed.
        """
        self._pending.append((now, host, request))
        self._failed_at[host] = now

    def take_classified(self, now: float) -> list[tuple[float, _T, bool]]:
        """Return the failures that are old enough to be classified.

        Returns:
            For each its time, its request, and whether our own network failed.
        """
        classified: list[tuple[float, _T, bool]] = []
        while self._pending and self._pending[0][0] <= now - WITHIN_SECS:
            at, host, request = self._pending.popleft()
            others = (then for other, then in self._failed_at.items() if other != host)
            classified.append((at, request, any(then >= at - WITHIN_SECS for then in others)))
        if not self._pending:
            self._failed_at.clear()
        return classified
