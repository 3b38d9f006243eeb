"""Listening to an httpx client: which connection a request takes, and when its parts come and go.

Law: listening changes nothing that is sent or read.

An httpx client lets itself be listened to in public: an event hook sees each request before it is
sent and may put a ``trace`` into it, which httpcore calls when a connection is opened, when TLS is
agreed on, when the request is written, and when the response's headers have come. What it does not
tell is what comes of the body, so its chunks are read along, after they have been decompressed.
The time that it takes to find the server's address is not told apart from that to connect to it:
httpcore reports both as one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from pipecat_hedge.service.stages import Stages

__all__ = ["install_hooks", "recording", "trace_request", "trace_response"]

# In a context variable, because a client is shared and a request does not say whose it is.
_watched: ContextVar[Stages | None] = ContextVar("watched", default=None)


@contextmanager
def recording(stages: Stages) -> Generator[None, None, None]:
    """Take note of the requests that are made inside, by clients that are listened to.

    Args:
        stages: Where to take note.
    """
    token = _watched.set(stages)
    try:
        yield
    finally:
        _watched.reset(token)


def install_hooks(client: Any) -> None:
    """Listen to an httpx client; once is enough, again does nothing.

    Args:
        client: An ``AsyncClient`` of httpx or httpx2.
    """
    hooks = client.event_hooks
    if trace_request not in hooks["request"]:
        hooks["request"].append(trace_request)
        hooks["response"].append(trace_response)


async def trace_request(request: Any) -> None:
    """Have a request tell of itself; the hook that ``listen`` installs.

    Args:
        request: An httpx request that is about to be sent.
    """
    stages = _watched.get()
    if stages is None:
        return
    stages.record_request(request.url.netloc.decode())
    inner, trace = request.extensions.get("trace"), stages.record_event
    if inner is not None:

        async def trace_both(event: str, info: Mapping[str, Any]) -> None:
            await stages.record_event(event, info)
            await inner(event, info)

        trace = trace_both
    request.extensions = {**request.extensions, "trace": trace}


async def trace_response(response: Any) -> None:
    """Read a response's headers, and have its body read along; the other hook.

    Args:
        response: An httpx response whose body has not been read.
    """
    stages = _watched.get()
    if stages is None:
        return
    stages.record_headers(response.headers)
    response.aiter_bytes = partial(_record_chunks, response.aiter_bytes, stages)


async def _record_chunks(
    read: Callable[..., AsyncGenerator[bytes, None]], stages: Stages, *args: Any, **options: Any
) -> AsyncGenerator[bytes, None]:
    async with aclosing(read(*args, **options)) as chunks:
        async for chunk in chunks:
            stages.record_chunk(chunk)
            yield chunk
