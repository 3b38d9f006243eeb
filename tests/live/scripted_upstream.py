"""An upstream that answers as a test says, and records what it was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from aiohttp import web
from multidict import CIMultiDictProxy

SSE = "text/event-stream; charset=utf-8"


@dataclass
class Asked:
    """A request, as it came.

    Attributes:
        method: Its method.
        path: Its path, with the query.
        headers: Its headers; a name that came several times has all values.
        body: Its body, as it was sent.
    """

    method: str
    path: str
    headers: CIMultiDictProxy[str]
    body: bytes


@dataclass
class Scripted:
    """A server.

    Attributes:
        url: Its address.
        asked: The requests so far, without the proxy's GETs of the root.
    """

    url: str = ""
    asked: list[Asked] = field(default_factory=list[Asked])


Script: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def scripted(script: Script, *, max_field_size: int = 8190) -> AsyncIterator[Scripted]:
    """Start an upstream that answers every request but a GET of its root by a script.

    Args:
        script: The script.
        max_field_size: The longest header of a request.
    """
    upstream = Scripted()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "GET" and request.path in ("/", "/v1"):
            return web.Response()
        body = await request.read()
        upstream.asked.append(Asked(request.method, request.path_qs, request.headers, body))
        return await script(request)

    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", answer)
    # A body is recorded as it was sent.
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=0.1,
        handler_cancellation=True,
        auto_decompress=False,
        max_field_size=max_field_size,
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield upstream
    finally:
        await runner.cleanup()


def replying(*chunks: bytes, status: int = 200, **headers: str) -> Script:
    """A script that always answers the same; ``_`` in a header's name is written ``-``."""

    async def script(request: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        out = web.StreamResponse(status=status, headers={"content-type": SSE, **named})
        await out.prepare(request)
        for chunk in chunks:
            await out.write(chunk)
        return out

    return script


def cutting(*chunks: bytes) -> Script:
    """A script that loses the connection behind its chunks."""

    async def script(request: web.Request) -> web.StreamResponse:
        out = await replying(*chunks)(request)
        assert request.transport is not None
        request.transport.abort()
        return out

    return script
