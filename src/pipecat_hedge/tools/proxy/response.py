"""A response on its way from a race to one or several clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from aiohttp import web

from pipecat_hedge.service import parsed
from pipecat_hedge.tools.proxy.wires import EVENT_ENDS, Wire

JSON_HEADERS: Mapping[str, str] = {"content-type": "application/json"}
STREAM_HEADERS: Mapping[str, str] = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
}
MAX_SILENCE_SECS = 8.0
"""The longest time without a byte to the client: its headers come by then, and pings after it.
LiveKit's plugins give up after 10 s without one."""
WRITE_SECS = 120.0
"""How long a client may read nothing."""
SLICE_BYTES = 2**18
"""As much is written at once: to copy 20 MB would stop all other streams."""
MAX_KEPT_BYTES = 32 * 2**20
"""The most of a shared response that is kept. A longer one cannot be joined, nor is it cached,
and its upstream waits for its slowest client."""


def _nothing() -> None:
    pass


class Response:
    """What a race has released so far.

    It is written to its only client at once. If it is shared, its bytes are kept, so that a late
    client gets the beginning as well.

    Attributes:
        status: The status code; 0 until the response has begun.
        headers: Its headers.
        is_complete: Whether the answer has come. Only what follows its end mark may be missing.
        is_over: Whether nothing more comes.
        is_whole: Whether it has ended as it should.
        is_cut: Whether it has broken off, which the client learns from its connection.
        has_all: Whether all of its bytes are kept.
    """

    def __init__(
        self,
        *,
        keeps: bool,
        abandoned: Callable[[], object] = _nothing,
        completed: Callable[[], object] = _nothing,
    ):
        """Create a response that has not begun.

        Args:
            keeps: Whether its bytes are kept.
            abandoned: Called when the last reader has left before the answer was complete.
            completed: Called when the answer is complete, before any reader can learn of it.
        """
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = self.is_over = self.is_whole = self.is_cut = False
        self.has_all = keeps
        self._keeps, self._abandoned, self._completed = keeps, abandoned, completed
        self._kept: list[bytes] = []
        self._kept_bytes = self._dropped = 0
        self._readers: list[Reader] = []
        self._changed = asyncio.Event()

    @property
    def has_begun(self) -> bool:
        """Whether the status is known."""
        return self.status > 0

    @property
    def body(self) -> bytes:
        """The bytes that are kept."""
        return b"".join(self._kept)

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Set the status and the headers, which readers send at once."""
        self.status, self.headers = status, dict(headers)
        self.notify()

    async def write(self, chunk: bytes) -> None:
        """Write bytes; waits for a client that is far behind."""
        if not self._keeps:
            for reader in self._readers:
                await reader.send(chunk)
            return
        self._kept.append(chunk)
        self._kept_bytes += len(chunk)
        self.notify()
        while self._kept_bytes > MAX_KEPT_BYTES and self._readers:
            self.has_all = False
            read = min(reader.place for reader in self._readers) - self._dropped
            self._kept_bytes -= sum(map(len, self._kept[:read]))
            del self._kept[:read]
            self._dropped += read
            if not read:
                await self._changed.wait()

    async def reject(
        self, status: int, body: bytes, headers: Mapping[str, str] = JSON_HEADERS
    ) -> None:
        """End a response that has not begun, with an error."""
        self.begin(status, headers)
        await self.write(body)
        self.end(is_whole=False)

    def complete(self, *, is_whole: bool) -> None:
        """Note that the answer has come; a second time does nothing."""
        if not self.is_complete:
            self.is_complete, self.is_whole = True, is_whole
            self._completed()
            self._abandoned = self._completed = _nothing  # which refer to what refers to this

    def end(self, *, is_whole: bool = True, is_cut: bool = False) -> None:
        """End the response; a second time does nothing."""
        if not self.is_over:
            self.complete(is_whole=is_whole)
            self.is_over, self.is_cut = True, is_cut
            self.notify()

    def add(self, reader: Reader) -> None:
        """Add a client."""
        self._readers.append(reader)

    def leave(self, reader: Reader) -> None:
        """Remove a client."""
        self._readers.remove(reader)
        self.notify()
        if not self._readers and not self.is_over:
            self._abandoned()

    def read(self, place: int) -> tuple[bytes, int]:
        """The kept bytes from a place, about ``SLICE_BYTES`` at most, and the place behind them."""
        begin = end = place - self._dropped
        size = 0
        while end < len(self._kept) and size < SLICE_BYTES:
            size += len(self._kept[end])
            end += 1
        return b"".join(self._kept[begin:end]), self._dropped + end

    async def changes(self, secs: float) -> None:
        """Wait for a change, for ``secs`` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(secs):
                await self._changed.wait()

    def notify(self) -> None:
        """Wake all tasks that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()


class _Out(web.StreamResponse):
    """A response whose headers go out with its first bytes, in one packet."""

    _send_headers_immediately = False


class Reader:
    """One client of a response.

    Attributes:
        place: How many pieces of a shared response it has got.
    """

    def __init__(
        self,
        response: Response,
        request: web.Request,
        wire: Wire,
        added: Mapping[str, str],
        *,
        is_stream: bool,
    ):
        """Start at the beginning.

        Args:
            response: What to read.
            request: The client's request.
            wire: The API that the client speaks.
            added: Further headers.
            is_stream: Whether it gets signs of life.
        """
        self._response, self._request, self._wire = response, request, wire
        self._added, self._is_stream = added, is_stream
        self._out: web.StreamResponse | None = None
        self._is_early = self._is_writing = False
        self._is_between_events = True
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()
        self.place = 0

    async def relay(self) -> web.StreamResponse:
        """Pass everything on; returns at the end."""
        response = self._response
        response.add(self)
        try:
            while True:
                chunk, place = response.read(self.place)
                if chunk:
                    late = self._loop.call_later(WRITE_SECS, self._let_go)
                    try:
                        await self.send(chunk)
                    finally:
                        late.cancel()
                    self.place = place
                    response.notify()
                    await asyncio.sleep(0)
                elif response.has_begun and self._out is None:
                    await self.send(b"")
                elif response.is_over:
                    break
                else:
                    await self._wait()
            out = self._out or await self._start()
            if response.is_cut:
                self._let_go()
            with suppress(ConnectionError):  # the client has left
                await out.write_eof()
            return out
        finally:
            response.leave(self)

    async def send(self, chunk: bytes) -> None:
        """Write bytes to the client, at once; none but the headers if there are none."""
        if self._is_early and self._response.status >= 300:
            chunk = self._wire.error_event(parsed(chunk) or self._wire.error(502, "no answer"))
        self._sent_at, self._is_writing = self._loop.time(), True
        try:
            out = self._out or await self._start()
            await out.write(chunk)
            if chunk:
                self._is_between_events = chunk.endswith(EVENT_ENDS)
        except ConnectionError:  # the client has left, and its handler is being cancelled
            return
        finally:
            self._is_writing = False

    async def _start(self) -> web.StreamResponse:
        response = self._response
        self._is_early = not response.has_begun
        headers = STREAM_HEADERS if self._is_early else response.headers
        out = _Out(status=response.status or 200, headers={**headers, **self._added})
        self._out = out
        await out.prepare(self._request)
        return out

    async def _wait(self) -> None:
        """Wait for more, and meanwhile show that the connection is alive."""
        most = WRITE_SECS if self._is_writing else MAX_SILENCE_SECS
        left = self._sent_at + most - self._loop.time()
        if left > 0:
            await self._response.changes(left)
        elif self._is_writing:
            self._let_go()
        elif self._is_stream and self._is_between_events:
            await self.send(self._wire.ping)
        else:
            self._sent_at = self._loop.time()

    def _let_go(self) -> None:
        """Close the client's connection; aiohttp then ends its handler."""
        self._sent_at = self._loop.time()
        if self._request.transport is not None:
            self._request.transport.abort()
