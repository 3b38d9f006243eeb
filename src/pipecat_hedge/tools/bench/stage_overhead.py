"""What listening to an HTTP client costs, by itself, for a turn of two requests.

The client is played: what is timed is what listening to it adds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipecat_hedge.service.http_listener import sees_request, sees_response, watching
from pipecat_hedge.service.stages import Stages
from pipecat_hedge.tools.bench.quickest import quickest

__all__ = ["StageCost", "measure_stages"]

CHUNKS = 500
_EVENTS = (
    "connection.connect_tcp.started",
    "connection.connect_tcp.complete",
    "connection.start_tls.started",
    "connection.start_tls.complete",
    "http11.send_request_headers.started",
    "http11.send_request_headers.complete",
    "http11.send_request_body.started",
    "http11.send_request_body.complete",
    "http11.receive_response_headers.started",
    "http11.receive_response_headers.complete",
    "http11.receive_response_body.started",
    "http11.receive_response_body.complete",
    "http11.response_closed.started",
    "http11.response_closed.complete",
)
"""What httpcore tells of a request over a new connection: the most that there is."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """What listening to a client costs, in processor time.

    Parameters:
        turn_secs: A turn of two requests, both over new connections.
        token_secs: Each piece of an answer.
    """

    turn_secs: float
    token_secs: float


async def measure_stages(rounds: int = 100) -> StageCost:
    """Measure what listening to the HTTP clients of a turn costs.

    Args:
        rounds: How many batches of turns to time.
    """
    listened, unheard = await quickest(lambda: _listened(0), lambda: _unheard(0), rounds=rounds)
    request = listened - unheard
    listened, unheard = await quickest(
        lambda: _listened(CHUNKS), lambda: _unheard(CHUNKS), rounds=rounds, batch=4
    )
    return StageCost(2 * request, (listened - unheard - request) / CHUNKS)


# ---- a client that is played

_CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt",'
    b'"choices":[{"index":0,"delta":{"content":" well"},"finish_reason":null}]}\n\n'
)


@dataclass(frozen=True)
class _Url:
    netloc: bytes = b"api.openai.com"


@dataclass
class _Request:
    url: _Url = _Url()
    extensions: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class _Response:
    chunks: int
    headers: Mapping[str, str] = field(
        default_factory=lambda: {"content-type": "text/event-stream", "openai-processing-ms": "25"}
    )

    async def aiter_bytes(self) -> AsyncGenerator[bytes, None]:
        """The body, a token a chunk."""
        for _ in range(self.chunks):
            yield _CHUNK


async def _listened(chunks: int) -> None:
    stages, request, response = Stages(), _Request(), _Response(chunks)
    with watching(stages):
        await sees_request(request)
        tell = request.extensions["trace"]
        for event in _EVENTS:
            await tell(event, {})
        await sees_response(response)
        async for _ in response.aiter_bytes():
            pass
        stages.token_came()
    stages.report(0.0)


async def _unheard(chunks: int) -> None:
    async for _ in _Response(chunks).aiter_bytes():
        pass
