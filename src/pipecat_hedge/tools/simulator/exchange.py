"""Serves one request: plays a plan's steps onto the socket, each at its time, and keeps the ledger.

Times are absolute, from when the request has a place (at once, unless the capacity is bounded), so
that a late step does not push the next ones. The task is cancelled by aiohttp as soon as the
client's socket closes; that is how an abort gets into the ledger.
"""

import asyncio
import socket
import struct

from aiohttp import web

from pipecat_hedge.tools.simulator.ledger import Ledger, LedgerEntry
from pipecat_hedge.tools.simulator.plan import Plan
from pipecat_hedge.tools.simulator.timeline import (
    Cut,
    End,
    Event,
    Finished,
    Garbage,
    Headers,
    InBandError,
    KeepAlive,
    Opened,
    Refusal,
    Reset,
    Signal,
    Silence,
    Text,
    Thought,
    ToolArguments,
    ToolStart,
)
from pipecat_hedge.tools.simulator.wire import Encoder, Wire, dumps

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 seconds


class Exchange:
    """One request and its response."""

    def __init__(self, request: web.Request, wire: Wire, ledger: Ledger, entry: LedgerEntry):
        """Initialize the exchange.

        Args:
            request: The request.
            wire: Its protocol.
            ledger: Where to write down what happens.
            entry: The request's entry there.
        """
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._request = request
        self._wire = wire
        self._ledger = ledger
        self.entry = entry
        self._response: web.StreamResponse | None = None
        self._is_whole = False
        self._rate_limit_headers: dict[str, str] = {}

    def left(self) -> None:
        """The client has gone: an abort, unless it had the whole answer already."""
        self._ledger.ended(self.entry, "completed" if self._is_whole else "aborted")

    def begin(self) -> None:
        """The request has a place to be served: its times count from here."""
        self._began = self._loop.time()
        self.entry.began_secs = self._ledger.clock()

    async def play(self, plan: Plan, encoder: Encoder) -> web.StreamResponse:
        """Serve the request as planned.

        Args:
            plan: What is sent when.
            encoder: Writes the response in the request's protocol.
        """
        held: list[Event] | None = None if self.entry.stream else []
        if plan.rate_limit is not None:
            self._rate_limit_headers = self._wire.rate_limit_headers(plan.rate_limit)
        for step in plan.steps:
            await self._until(step.at_secs)
            match step.act:
                case Headers() | Refusal() | Reset() | Cut() | Silence() | End() as signal:
                    response = await self._signal(signal, plan, encoder, held)
                    if response is not None:
                        return response
                case event if held is None:
                    await self._write(encoder.encode(event))
                    self._count(event)
                case InBandError(status):
                    return await self.refuse(status or 500, None, None)  # no band to be in
                case event:
                    held.append(event)
                    await self._whole(event, held, encoder)
        raise AssertionError("a plan ends with a signal or never")

    async def refuse(
        self, status: int, message: str | None, retry_after_secs: float | None
    ) -> web.Response:
        """Answer with an error status in the protocol's form."""
        error = self._wire.error(status, message, self.entry.id, retry_after_secs)
        self.entry.status = error.status
        self.entry.headers_secs = self.entry.first_byte_secs = self._ledger.clock()
        self._ledger.ended(self.entry, "failed")
        return web.Response(
            status=error.status,
            body=dumps(error.body),
            headers={
                "content-type": "application/json",
                **error.headers,
                **self._rate_limit_headers,
            },
        )

    async def _until(self, at_secs: float) -> None:
        # A burst yields to the loop too: in one process the client runs on it.
        await asyncio.sleep(max(0.0, self._began + at_secs - self._loop.time()))

    async def _signal(
        self, signal: Signal, plan: Plan, encoder: Encoder, held: list[Event] | None
    ) -> web.StreamResponse | None:
        match signal:
            case Headers():
                if held is None:
                    await self._start("text/event-stream; charset=utf-8", encoder)
                return None
            case Refusal(status):
                return await self.refuse(status, None, plan.retry_after_secs)
            case Reset():
                self._reset()
            case Cut():
                if held is not None:
                    await self._write_half(held, encoder)
                self._cut()
            case Silence():
                pass
            case End():
                assert self._response is not None
                await self._response.write_eof()
                is_failure = plan.fault is not None and plan.fault.is_failure
                self._ledger.ended(self.entry, "failed" if is_failure else "completed")
                return self._response
        # Nothing more is sent. The client's leaving, or the connection's end, cancels this task.
        await self._loop.create_future()
        return None

    async def _start(self, content_type: str, encoder: Encoder) -> None:
        headers = {
            "content-type": content_type,
            "cache-control": "no-cache",
            **encoder.headers,
            **self._rate_limit_headers,
        }
        self._response = web.StreamResponse(headers=headers)
        await self._response.prepare(self._request)
        self.entry.status = 200
        self.entry.headers_secs = self._ledger.clock()
        self._ledger.announce()

    async def _write(self, data: bytes) -> None:
        if data:
            assert self._response is not None
            await self._response.write(data)
            if self.entry.first_byte_secs is None:
                self.entry.first_byte_secs = self._ledger.clock()
                self._ledger.announce()

    def _count(self, event: Event) -> None:
        entry = self.entry
        entry.tokens_sent += isinstance(event, Text | Thought | ToolArguments)
        is_answer = event.is_answer if isinstance(event, Text) else isinstance(event, ToolStart)
        if is_answer and entry.first_token_secs is None:
            entry.first_token_secs = self._ledger.clock()
            self._ledger.announce()
        self._is_whole = isinstance(event, Finished)

    async def _whole(self, event: Event, held: list[Event], encoder: Encoder) -> None:
        """Send an answer that is not streamed, when its last event has come."""
        match event:
            case Finished():
                body = encoder.whole([e for e in held if not isinstance(e, Opened)])
            case Garbage():
                body = b'{"id":"broken","choi'
            case KeepAlive() | Thought():
                held.pop()  # an endless one must not fill the memory
                return
            case _:
                return
        await self._start("application/json", encoder)
        await self._write(body)
        for each in held:
            self._count(each)

    async def _write_half(self, held: list[Event], encoder: Encoder) -> None:
        sent = [e for e in held if isinstance(e, Text)]
        body = encoder.whole([*sent, Finished("stop")])
        await self._start("application/json", encoder)
        await self._write(body[: len(body) // 2])

    def _reset(self) -> None:
        transport = self._request.transport
        if transport is None:
            return
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._ledger.ended(self.entry, "failed")
        transport.abort()

    def _cut(self) -> None:
        self._ledger.ended(self.entry, "failed")
        if self._request.transport is not None:
            self._request.transport.close()
