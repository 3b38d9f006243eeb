"""Tells our own network's failures from a provider's. Pure; time is an argument.

A provider's host fails alone. If connections to two or more hosts fail (DNS, refused, reset,
connect timeout) within ``WITHIN_SECS``, the network between us and all of them has failed, and no
provider is to blame. So a connection failure is held back for that long before it counts.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

__all__ = ["SharedOutage"]

WITHIN_SECS = 2.0

_T = TypeVar("_T")


class SharedOutage(Generic[_T]):
    """The connection failures of the last moments."""

    def __init__(self) -> None:
        """Begin with none."""
        self._pending: deque[tuple[float, str, _T]] = deque()
        self._failed_at: dict[str, float] = {}

    def add(self, host: str, now: float, request: _T) -> None:
        """Take a connection failure.

        Args:
            host: The host that was not reached.
            now: When it failed, in seconds.
            request: The request that failed.
        """
        self._pending.append((now, host, request))
        self._failed_at[host] = now

    def settle(self, now: float) -> list[tuple[float, _T, bool]]:
        """The failures that have been settled.

        Returns:
            When each was, its request, and whether it was our own network's.
        """
        settled: list[tuple[float, _T, bool]] = []
        while self._pending and self._pending[0][0] <= now - WITHIN_SECS:
            at, host, request = self._pending.popleft()
            others = (then for other, then in self._failed_at.items() if other != host)
            settled.append((at, request, any(then >= at - WITHIN_SECS for then in others)))
        if not self._pending:
            self._failed_at.clear()
        return settled
