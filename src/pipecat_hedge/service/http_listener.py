"""Traces an httpx client: which connection a request uses, and when its stages end.

Tracing changes nothing that is sent or read. A public event hook adds httpcore's ``trace``
extension to each request, which reports connecting, TLS, writing and the response's headers. It
reports nothing of the body, so its decompressed chunks are recorded as they are read. httpcore
reports the DNS lookup and the TCP connect as one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from pipecat_hedge.providers.backends import SIMULATED_HEADER
from pipecat_hedge.service.stages import Stages

# A context variable, because a client is shared and a request does not name its attempt.
_watched: ContextVar[Stages | None] = ContextVar("watched", default=None)


@contextmanager
def recording(stages: Stages) -> Generator[None, None, None]:
    """Record the requests of traced clients within the context."""
    token = _watched.set(stages)
    try:
        yield
    finally:
        _watched.reset(token)


def install_hooks(client: Any) -> None:
    """Trace an httpx client; repeated calls do nothing.

    Args:
        client: An ``AsyncClient`` of httpx or httpx2.
    """
    hooks = client.event_hooks
    if trace_request not in hooks["request"]:
        hooks["request"].append(trace_request)
        hooks["response"].append(trace_response)


def record_mark(headers: Mapping[str, str]) -> None:
    """Record whether a client that cannot be traced has a simulator's response."""
    if (stages := _watched.get()) is not None:
        stages.is_simulated |= SIMULATED_HEADER in {name.lower() for name in headers}


async def trace_request(request: Any) -> None:
    """Add the trace extension to a request; a hook of ``install_hooks``."""
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
    """Record a response's headers, and its body as it is read; a hook of ``install_hooks``."""
    stages = _watched.get()
    if stages is None:
        return
    stages.record_headers(response.headers, is_redirect=response.has_redirect_location)
    response.aiter_bytes = partial(_record_chunks, response.aiter_bytes, stages)


async def _record_chunks(
    read: Callable[..., AsyncGenerator[bytes, None]], stages: Stages, *args: Any, **options: Any
) -> AsyncGenerator[bytes, None]:
    async with aclosing(read(*args, **options)) as chunks:
        async for chunk in chunks:
            stages.record_chunk(chunk)
            yield chunk
