"""A scripted server on a real socket that answers as a vLLM does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="tiny"}} {running}
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="tiny"}} {waiting}
"""


@dataclass
class FakeVLLM:
    """What the server is to do, and what it was asked.

    Parameters:
        models: What it serves.
        deltas: The deltas of each answer.
        finish_reason: How an answer ends.
        error: What comes in place of its end, or None.
        rejection: The status and the body of the answer to every request, or None.
        rejections: How many more requests are rejected so.
        key: The key that it wants; None wants none.
        silent_secs: How long an answer takes to begin.
        running: What its metrics say.
        waiting: What its metrics say.
        headers: Further headers of its answers and rejections.
        resets: Whether it resets the connection after the deltas.
        drops: How many requests for an answer it closes the connection of, without any.
        keep_alive_secs: For how long it keeps an idle connection.
        bodies: The requests for answers.
        requests: Every request: its path, and the connection over which it came.
        keys: The ``Authorization`` of each request for an answer.
        answered: How many answers it has sent to their end.
        url: Where it is.
    """

    models: list[str] = field(default_factory=lambda: ["tiny"])
    deltas: Sequence[dict[str, Any]] = ({"content": "We are open."},)
    finish_reason: str | None = "stop"
    error: dict[str, Any] | None = None
    rejection: tuple[int, dict[str, Any]] | None = None
    rejections: float = float("inf")
    key: str | None = None
    silent_secs: float = 0.0
    running: int = 0
    waiting: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    resets: bool = False
    drops: int = 0
    keep_alive_secs: float = 75.0
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    requests: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    keys: list[str | None] = field(default_factory=list[str | None])
    answered: int = 0
    url: str = ""

    async def _list(self, request: web.Request) -> web.Response:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return web.json_response({"data": [{"id": m, "max_model_len": 512} for m in self.models]})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=METRICS.format(running=self.running, waiting=self.waiting))

    async def _load(self, request: web.Request) -> web.Response:
        return web.json_response({"server_load": 0})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("Authorization"))
        if self.drops:
            self.drops -= 1
            assert request.transport is not None
            request.transport.close()
        await asyncio.sleep(self.silent_secs)
        if self.rejection is not None and self.rejections > 0:
            self.rejections -= 1
            status, error = self.rejection
            return web.json_response({"error": error}, status=status, headers=self.headers)
        if body["model"] not in self.models:
            error = {"message": f"The model `{body['model']}` does not exist.", "code": 404}
            return web.json_response({"error": error}, status=404)
        if not body.get("stream"):
            text = "".join(d.get("content") or "" for d in self.deltas)
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self.answered += 1
            return web.json_response(_chunk(body["model"], [choice], "chat.completion"))
        headers = {"Content-Type": "text/event-stream", **self.headers}
        answer = web.StreamResponse(headers=headers)
        await answer.prepare(request)
        first = {"role": "assistant", "content": ""}
        await _send(answer, body["model"], first, None)
        for delta in self.deltas:
            await _send(answer, body["model"], delta, None)
        if self.resets:
            assert request.transport is not None
            request.transport.abort()
            return answer
        if self.error is not None:
            await answer.write(f"data: {json.dumps({'error': self.error})}\n\n".encode())
            return answer
        if self.finish_reason is not None:
            await _send(answer, body["model"], {}, self.finish_reason)
        tokens = {"prompt_tokens": 9, "completion_tokens": len(self.deltas), "total_tokens": 9}
        usage = _chunk(body["model"], [], "chat.completion.chunk") | {"usage": tokens}
        await answer.write(f"data: {json.dumps(usage)}\n\n".encode())
        await answer.write(b"data: [DONE]\n\n")
        self.answered += 1
        return answer


def _chunk(model: str, choices: list[Any], kind: str) -> dict[str, Any]:
    return {"id": "1", "object": kind, "created": 1, "model": model, "choices": choices}


async def _send(answer: web.StreamResponse, model: str, delta: Any, reason: str | None) -> None:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    chunk = json.dumps(_chunk(model, [choice], "chat.completion.chunk"))
    await answer.write(f"data: {chunk}\n\n".encode())


@asynccontextmanager
async def fake_vllm(**what: Any) -> AsyncIterator[FakeVLLM]:
    """Run one."""
    fake = FakeVLLM(**what)

    @web.middleware
    async def note(request: web.Request, handler: Any) -> web.StreamResponse:
        fake.requests.append((request.path, request.transport))
        return await handler(request)

    app = web.Application(middlewares=[note])
    app.router.add_get("/v1/models", fake._list)
    app.router.add_get("/metrics", fake._metrics)
    app.router.add_get("/health", fake._health)
    app.router.add_get("/load", fake._load)
    app.router.add_post("/v1/chat/completions", fake._answer)
    runner = web.AppRunner(
        app,
        shutdown_timeout=0.1,
        handler_cancellation=True,
        keepalive_timeout=fake.keep_alive_secs,
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield fake
    finally:
        await runner.cleanup()
