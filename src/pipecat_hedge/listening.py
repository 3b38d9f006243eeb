"""Listening to an httpx client: which connection a request takes, and when its parts come and go.

Law: listening changes nothing that is sent or read, and does nothing for each token.

An httpx client lets itself be listened to in public: an event hook sees each request before it is
sent and may put a ``trace`` into it, which httpcore calls when a connection is opened, when TLS is
agreed on, when the request is written, and when the response's headers have come. The first byte of
the body is the one thing that it does not tell; the body is wrapped for that until it has come.
The time that it takes to find the server's address is not told apart from that to connect to it:
httpcore reports both as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from pipecat_hedge.stages import Stages

__all__ = ["listen", "sees_request", "sees_response", "watching"]

# In a context variable, because a client is shared and a request does not say whose it is.
_watched: ContextVar[Stages | None] = ContextVar("watched", default=None)


@contextmanager
def watching(stages: Stages) -> Generator[None, None, None]:
    """Take note of the requests that are made inside, by clients that are listened to.

    Args:
        stages: Where to take note.
    """
    token = _watched.set(stages)
    try:
        yield
    finally:
        _watched.reset(token)


def listen(client: Any) -> None:
    """Listen to an httpx client; once is enough, again does nothing.

    Args:
        client: An ``AsyncClient`` of httpx or httpx2.
    """
    hooks = client.event_hooks
    if sees_request not in hooks["request"]:
        hooks["request"].append(sees_request)
        hooks["response"].append(sees_response)


async def sees_request(request: Any) -> None:
    """Have a request tell of itself; the hook that ``listen`` installs.

    Args:
        request: An httpx request that is about to be sent.
    """
    stages = _watched.get()
    if stages is None:
        return
    stages.asks(request.url.netloc.decode())
    theirs, hears = request.extensions.get("trace"), stages.hear
    if theirs is not None:

        async def hears_too(event: str, info: Mapping[str, Any]) -> None:
            await stages.hear(event, info)
            await theirs(event, info)

        hears = hears_too
    request.extensions = {**request.extensions, "trace": hears}


async def sees_response(response: Any) -> None:
    """Read a response's headers, and have its body tell of its first byte; the other hook.

    Args:
        response: An httpx response whose body has not been read.
    """
    stages = _watched.get()
    if stages is None:
        return
    stages.answered(response.headers)
    base = next((k for k in type(response.stream).__mro__ if k.__name__ == "AsyncByteStream"), None)
    if base is not None:
        response.stream = _listening_body(base)(response.stream, stages)


class _ListeningBody:
    """Tells when the first byte of a body has come.

    From then on each chunk is asked of the body itself: its own awaitable is handed out.
    """

    def __init__(self, body: Any, stages: Stages):
        self._body = body
        self._stages = stages
        self._chunks: Any = None
        self._next: Callable[[], Awaitable[bytes]] = self._first

    def __aiter__(self) -> _ListeningBody:
        self._chunks = self._body.__aiter__()
        self._next = self._first
        return self

    def __anext__(self) -> Awaitable[bytes]:
        return self._next()

    async def _first(self) -> bytes:
        chunk = await self._chunks.__anext__()
        self._next = self._chunks.__anext__
        self._stages.first_byte_at = asyncio.get_running_loop().time()
        return chunk

    async def aclose(self) -> None:
        # httpx ends a body that is left early by closing its iterator, which is this object.
        chunks, self._chunks = self._chunks, None
        if hasattr(chunks, "aclose") and not chunks.ag_running:
            await chunks.aclose()
        await self._body.aclose()

    @property
    def elapsed(self) -> Any:
        """How long the response took, which httpx2 asks of its body."""
        return getattr(self._body, "elapsed", None)


@cache
def _listening_body(base: type) -> type[_ListeningBody]:
    """The same, of a kind that its httpx accepts as a body."""
    return type("ListeningBody", (_ListeningBody, base), {})
