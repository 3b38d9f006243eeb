"""A response on its way from a race to one or several clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

__all__ = ["Response"]

JSON_HEADERS: Mapping[str, str] = {"content-type": "application/json"}
MAX_UNREAD_BYTES = 2**20
"""How far a client that reads slowly may fall behind its upstream, which then has to wait."""


class Response:
    """What the race has released so far.

    With one reader its bytes are dropped once they are read. With several, all bytes are kept, so
    that a late one gets the beginning as well.

    Attributes:
        status: The status code; 0 until the response has begun.
        headers: Its headers.
        is_whole: Whether it has ended as it should.
        error: The body of the error with which it ended after its beginning; None if it did not.
    """

    def __init__(self, *, keeps: bool, abandoned: Callable[[], object]):
        """Create a response that has not begun.

        Args:
            keeps: Whether all bytes are kept.
            abandoned: Called when the last reader has left before the end.
        """
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_whole = False
        self.chunks: list[bytes] = []
        self._keeps = keeps
        self._abandoned = abandoned
        self._read = self._unread = 0
        self._readers = 0
        self._is_over = False
        self._changed = asyncio.Event()

    @property
    def has_begun(self) -> bool:
        """Whether the status is known."""
        return self.status > 0

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self._is_over

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Set the status and the headers."""
        self.status, self.headers = status, dict(headers)
        self._notify()

    async def write(self, chunk: bytes) -> None:
        """Add bytes; waits while the only reader is far behind."""
        self.chunks.append(chunk)
        self._unread += len(chunk)
        self._notify()
        while not self._keeps and self._unread > MAX_UNREAD_BYTES:
            await self._changed.wait()

    def refuse(self, status: int, body: bytes, headers: Mapping[str, str] = JSON_HEADERS) -> None:
        """End a response that has not begun, with an error."""
        self.begin(status, headers)
        self.chunks.append(body)
        self.end(is_whole=False)

    def end(self, *, is_whole: bool = True) -> None:
        """End the response."""
        self._is_over, self.is_whole = True, is_whole
        self._notify()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Reader]:
        """Read from the beginning, until the block ends."""
        self._readers += 1
        try:
            yield Reader(self)
        finally:
            self._readers -= 1
            if not self._readers and not self._is_over:
                self._abandoned()

    async def wait(self, secs: float | None) -> None:
        """Wait for a change.

        Raises:
            TimeoutError: If there is none for ``secs``; None waits for ever.
        """
        async with asyncio.timeout(secs):
            await self._changed.wait()

    def take(self, at: int) -> bytes:
        """Return the bytes after ``at`` chunks, and drop them unless they are kept."""
        if self._keeps:
            return b"".join(self.chunks[at:])
        found, self._unread = b"".join(self.chunks), 0
        self.chunks.clear()
        self._notify()
        return found

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Reader:
    """One client's place in a response."""

    def __init__(self, response: Response):
        """Start at the beginning."""
        self._response = response
        self._at = 0

    async def begun(self, secs: float | None) -> bool:
        """Wait until the status is known, for ``secs`` at most (None is for ever); is it?"""
        response = self._response
        try:
            async with asyncio.timeout(secs):
                while not response.has_begun:
                    await response.wait(secs)
        except TimeoutError:
            return False
        return True

    async def next(self, secs: float | None) -> bytes | None:
        """Wait for further bytes.

        Args:
            secs: How long at most; None is for ever.

        Returns:
            The bytes; ``b""`` if none came in time, None at the end.
        """
        response = self._response
        if not self._has_more():
            if response.is_over:
                return None
            try:
                await response.wait(secs)
            except TimeoutError:
                return b""
            if not self._has_more():
                return None if response.is_over else b""
        found = response.take(self._at)
        self._at = len(response.chunks)
        return found

    def _has_more(self) -> bool:
        return len(self._response.chunks) > self._at
