"""An upstream that fails on request, in both wires: the model's name says how."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

WORDS = ("Gern! ", "Wir haben ", "bis neun ", "geöffnet – ", "schauen Sie ", "vorbei 👋", ".")
PATHS = {"anthropic": "/v1/messages", "openai": "/v1/chat/completions"}
HUGE = 10 * 2**20


def events(wire: str, words: tuple[str, ...] = WORDS) -> list[bytes]:
    """An answer as the events of a wire."""
    if wire == "openai":
        base = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        choices: list[dict[str, Any]] = [
            {"delta": {"role": "assistant", "content": ""}, "finish_reason": None},
            *({"delta": {"content": word}, "finish_reason": None} for word in words),
            {"delta": {}, "finish_reason": "stop"},
        ]
        found = [{**base, "choices": [{"index": 0, **choice}]} for choice in choices]
        usage = {"prompt_tokens": 9, "completion_tokens": len(words), "total_tokens": 16}
        found.append({**base, "choices": [], "usage": usage})
        lines = [json.dumps(each, ensure_ascii=False) for each in found] + ["[DONE]"]
        return [f"data: {line}\n\n".encode() for line in lines]
    message = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": []}
    message |= {"stop_reason": None, "usage": {"input_tokens": 9, "output_tokens": 1}}
    found = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": word},
            }
            for word in words
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
        {"type": "message_stop"},
    ]
    return [
        f"event: {each['type']}\ndata: {json.dumps(each, ensure_ascii=False)}\n\n".encode()
        for each in found
    ]


def error_event(wire: str) -> bytes:
    """An overload, reported in a stream."""
    if wire == "openai":
        return b'data: {"error": {"message": "busy", "code": "overloaded"}}\n\n'
    found = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    return b"event: error\ndata: " + json.dumps(found).encode() + b"\n\n"


@dataclass
class FaultyUpstream:
    """What the upstream has seen.

    Attributes:
        url: Its address.
        running: The requests that are open, by their model.
        seen: The requests' headers and bodies, as they came.
        sent_bytes: The bytes of bodies so far.
        lost_at: The model and the monotonic time of each request that was closed before its end.
    """

    url: str = ""
    running: list[str] = field(default_factory=list[str])
    seen: list[tuple[dict[str, str], bytes]] = field(
        default_factory=list[tuple[dict[str, str], bytes]]
    )
    sent_bytes: int = 0
    lost_at: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer as the request's model says."""
        if request.method == "GET":
            return web.Response()
        body = await request.read()
        found = json.loads(body)
        model = found["model"]
        self.seen.append((dict(request.headers), body))
        self.running.append(model)
        try:
            return await self._answer(request, model, body)
        except asyncio.CancelledError:
            self.lost_at.append((model, time.monotonic()))
            raise
        except ConnectionError:
            self.lost_at.append((model, time.monotonic()))
            return web.Response()
        finally:
            self.running.remove(model)

    async def _answer(self, request: web.Request, model: str, body: bytes) -> web.StreamResponse:
        wire = "anthropic" if request.path.endswith("messages") else "openai"
        assert request.transport is not None
        if model == "529":
            found = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
            return web.json_response(found, status=529)
        if model == "echo":  # as some APIs quote what they reject
            found = {"error": {"type": "invalid_request_error", "message": f"not so: {body!r}"}}
            found["error"]["message"] += f" {dict(request.headers)}"
            return web.json_response(found, status=400)
        if model == "hang":
            await asyncio.Event().wait()
        out = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await out.prepare(request)

        async def send(*parts: bytes, pause_secs: float = 0.0) -> None:
            for part in parts:
                await out.write(part)
                self.sent_bytes += len(part)
                await asyncio.sleep(pause_secs)

        answer = events(wire)
        if model == "silent":
            await send(b": well\n\n")
            await asyncio.Event().wait()
        elif model == "error_first":
            await send(*answer[: 3 if wire == "anthropic" else 1], error_event(wire))
        elif model == "cut_first":
            await send(answer[0])
            request.transport.abort()
        elif model == "cut":
            await send(*answer[:5])
            request.transport.abort()
        elif model == "dribble":
            stream = b"".join(answer)
            for at in range(0, len(stream), 3):
                await send(stream[at : at + 3])
        elif model == "slow_close":
            await send(*answer)
            await asyncio.Event().wait()
        elif model == "huge":
            await send(*events(wire, ("x" * HUGE, " end")))
        elif model == "endless":
            piece = events(wire, ("x" * 10_000,))
            await send(*piece[:-3])
            while True:
                await send(piece[-4] if wire == "anthropic" else piece[1])
        elif model == "blank_flood":
            piece = events(wire, (" " * 100_000,))
            await send(*piece[:-3])
            while True:
                await send(piece[3] if wire == "anthropic" else piece[1])
        elif model == "slow":
            await send(*answer, pause_secs=0.1)
        else:
            await send(*answer, pause_secs=0.002)
        await out.write_eof()
        return out

    async def wait_idle(self, secs: float) -> None:
        """Wait until no request is open, for so long at most."""
        until = time.monotonic() + secs
        while self.running and time.monotonic() < until:
            await asyncio.sleep(0.005)
        assert self.running == []


@asynccontextmanager
async def faulty_upstream() -> AsyncIterator[FaultyUpstream]:
    """Start an upstream."""
    upstream, app = FaultyUpstream(), web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", upstream.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield upstream
    finally:
        await runner.cleanup()
