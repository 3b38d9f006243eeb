"""How many requests are served at once, and who waits: a server's queue.

Law: at most `limit` requests have a place; the others wait in the order in which they came. One
that leaves, served or not, makes room at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

__all__ = ["Capacity"]


class Capacity:
    """The places of one server, on one loop."""

    def __init__(self, limit: int | None = None):
        """Open the server.

        Args:
            limit: How many requests are served at once; None is as many as come.

        Raises:
            ValueError: If the limit is not at least 1.
        """
        self.busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._limit = checked_limit(limit)

    @property
    def limit(self) -> int | None:
        """How many requests are served at once; None is as many as come."""
        return self._limit

    @limit.setter
    def limit(self, limit: int | None) -> None:
        # Fewer places than before: nobody is thrown out, the next ones wait.
        self._limit = checked_limit(limit)
        self._call_next()

    @property
    def waiting(self) -> int:
        """How many requests wait for a place."""
        return len(self._waiting)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place, have it, and give it back."""
        if self._is_full or self._waiting:
            await self._wait()
        else:
            self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            self._call_next()

    @property
    def _is_full(self) -> bool:
        return self._limit is not None and self.busy >= self._limit

    async def _wait(self) -> None:
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(called)
        try:
            await called
        except asyncio.CancelledError:
            if called.cancelled():
                with suppress(ValueError):  # passed over already
                    self._waiting.remove(called)
            else:  # called, and gone before it came
                self.busy -= 1
                self._call_next()
            raise

    def _call_next(self) -> None:
        while self._waiting and not self._is_full:
            called = self._waiting.popleft()
            if not called.done():  # else its waiter is being cancelled, and has not run yet
                self.busy += 1
                called.set_result(None)


def checked_limit(limit: int | None) -> int | None:
    """The limit, if it is one.

    Args:
        limit: How many requests are served at once; None is as many as come.

    Raises:
        ValueError: If it is not a whole number of at least 1.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"capacity: expected a whole number, 1 or more, or none, got {limit!r}")
    return limit
