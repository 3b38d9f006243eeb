"""Serves one request: sends a plan's steps on time, and keeps the request's ledger entry.

Times are absolute, from when the request is admitted, so a late step does not delay the next one.
aiohttp cancels the task when the client's socket closes, which is recorded as an abort.
"""

import asyncio
import socket
import struct

from aiohttp import web

from pipecat_hedge.tools.simulator.behaviour import Plan
from pipecat_hedge.tools.simulator.ledger import Ledger, LedgerEntry
from pipecat_hedge.tools.simulator.timeline import (
    ErrorStatus,
    Event,
    Finished,
    Garbage,
    InBandError,
    KeepAlive,
    Signal,
    Text,
    Thought,
    ToolArguments,
    ToolStart,
)
from pipecat_hedge.tools.simulator.wires import GARBAGE, Wire, dumps, error_message

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 seconds


class Exchange:
    """One request and its response.

    Args:
        request: The request.
        wire: Its protocol.
        ledger: The ledger, which gets a new entry.

    Attributes:
        entry: The request's entry in the ledger.
        limit_headers: Rate-limit headers of every response.
        request: The request.
        wire: Its protocol.
    """

    def __init__(self, request: web.Request, wire: type[Wire], ledger: Ledger):
        self.entry: LedgerEntry = ledger.arrived(wire.name)
        self.limit_headers: dict[str, str] = {}
        self.request, self.wire, self._ledger = request, wire, ledger
        self._loop = asyncio.get_running_loop()
        self._response: web.StreamResponse | None = None
        self._is_whole = False

    def abort(self) -> None:
        """Record that the client disconnected: an abort, unless the answer was complete."""
        self._ledger.ended(self.entry, "completed" if self._is_whole else "aborted")

    def reject(
        self, status: int, message: str | None = None, retry_after_secs: float | None = None
    ) -> web.Response:
        """Return an error status in the protocol's format."""
        entry = self.entry
        body = self.wire.error(status, message or error_message(status), entry.id, retry_after_secs)
        headers = {**self.wire.headers(entry.id), **self.limit_headers}
        if retry_after_secs is not None:
            headers["retry-after"] = f"{retry_after_secs:g}"
        entry.status = status
        entry.headers_secs = self._ledger.clock()
        self._ledger.ended(entry, "failed")
        return web.Response(
            status=status, body=dumps(body), headers=headers, content_type="application/json"
        )

    async def play(self, plan: Plan, wire: Wire) -> web.StreamResponse:
        """Serve the request as planned; its times count from this call."""
        began = self._loop.time()
        self.entry.began_secs = self._ledger.clock()
        held: list[Event] = []  # the events of an answer that is not streamed
        for step in plan.steps:
            # Yield even in a burst: a client in the same process shares the loop.
            await asyncio.sleep(max(0.0, began + step.at_secs - self._loop.time()))
            match step.act:
                case ErrorStatus(status):
                    return self.reject(status, None, plan.retry_after_secs)
                case Signal.END:
                    assert self._response is not None
                    await self._response.write_eof()
                    self._ledger.ended(self.entry, "completed" if self._is_whole else "failed")
                    return self._response
                case Signal.HEADERS:
                    if self.entry.stream:
                        await self._start(self.wire.content_type)
                case Signal():
                    await self._break_off(step.act, held, wire)
                case event if self.entry.stream:
                    await self._write(wire.encode(event))
                    self._count(event)
                case InBandError(status):  # not streamed: an error status instead
                    return self.reject(status or 500)
                case KeepAlive() | Thought():  # may be endless: not held in memory
                    pass
                case event:
                    held.append(event)
                    if isinstance(event, Finished | Garbage):
                        await self._write_whole(held, wire)
        raise AssertionError("a plan ends with a signal or never")

    async def _break_off(self, signal: Signal, held: list[Event], wire: Wire) -> None:
        """Reset, cut or fall silent; then wait to be cancelled when the connection closes."""
        transport = self.request.transport
        if signal is Signal.CUT and not self.entry.stream:
            texts: list[Event] = [event for event in held if isinstance(event, Text)]
            body = wire.whole([*texts, Finished("stop")])
            await self._start("application/json")
            await self._write(body[: len(body) // 2])
        if signal is not Signal.SILENCE:
            self._ledger.ended(self.entry, "failed")
        if transport is not None and signal is Signal.CUT:
            transport.close()
        elif transport is not None and signal is Signal.RESET:
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            transport.abort()
        await self._loop.create_future()

    async def _start(self, content_type: str) -> None:
        headers = {
            "content-type": content_type,
            "cache-control": "no-cache",
            **self.wire.headers(self.entry.id),
            **self.limit_headers,
        }
        self._response = web.StreamResponse(headers=headers)
        await self._response.prepare(self.request)
        self.entry.status = 200
        self.entry.headers_secs = self._ledger.clock()
        self._ledger.announce()

    async def _write(self, data: bytes) -> None:
        assert self._response is not None
        if data:
            await self._response.write(data)

    async def _write_whole(self, held: list[Event], wire: Wire) -> None:
        is_garbage = isinstance(held[-1], Garbage)
        await self._start("application/json")
        await self._write(GARBAGE if is_garbage else wire.whole(held))
        for event in held:
            self._count(event)

    def _count(self, event: Event) -> None:
        entry = self.entry
        entry.tokens_sent += isinstance(event, Text | Thought | ToolArguments)
        is_answer = event.is_answer if isinstance(event, Text) else isinstance(event, ToolStart)
        if is_answer and entry.first_token_secs is None:
            entry.first_token_secs = self._ledger.clock()
            self._ledger.announce()
        self._is_whole = isinstance(event, Finished)
