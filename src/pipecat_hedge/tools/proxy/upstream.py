"""An upstream of a model: sends a request as it came and returns the answer's bytes."""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
from multidict import CIMultiDict

from pipecat_hedge.limits import parse_rate_limits
from pipecat_hedge.race import ConfigurationError, ServerLoad, TaskScope
from pipecat_hedge.service import AttemptStats, Stages
from pipecat_hedge.tools.proxy.settings import UpstreamSettings
from pipecat_hedge.tools.proxy.wires import Wire, parsed, with_model

__all__ = ["ProxiedRequest", "Reply", "Upstream", "UpstreamRefused", "connect"]

_OWN_HEADERS = {
    *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer"),
    *("upgrade", "proxy-authorization", "proxy-connection", "expect", "accept-encoding", "cookie"),
    *("authorization", "x-api-key", "api-key", "idempotency-key", "cache-control"),
    *("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"),
}
"""Headers that end at the proxy: a client's key above all."""
MAX_ERROR_BYTES = 2**20
LINGER_SECS = 1.0
"""How long a connection may take to end its response after the last event."""
_THEIR_HEADERS = {
    *("content-length", "transfer-encoding", "content-encoding", "connection", "keep-alive"),
    *("set-cookie", "alt-svc", "server", "date", "trailer", "upgrade"),
}


@dataclass(frozen=True, slots=True)
class ProxiedRequest:
    """A client's request.

    Parameters:
        path: Its path at the proxy, with the query.
        headers: Its headers.
        body: Its JSON, byte for byte.
        found: The same, parsed.
    """

    path: str
    headers: Mapping[str, str]
    body: bytes
    found: Mapping[str, Any]

    @property
    def forwarded(self) -> dict[str, str]:
        """The headers that go on to an upstream."""
        return {k: v for k, v in self.headers.items() if k.lower() not in _OWN_HEADERS}

    @property
    def is_stream(self) -> bool:
        """Whether the answer is to be streamed."""
        return self.found.get("stream") is True

    @property
    def has_tools(self) -> bool:
        """Whether the model may call tools."""
        return bool(self.found.get("tools") or self.found.get("functions"))


@dataclass(slots=True)
class Reply:
    """An upstream's response so far.

    Parameters:
        status: Its status code; 0 until it has come.
        headers: Its headers, without those of the connection.
        body: The bytes that were not passed on yet.
        is_whole: Whether all of its body came, or it reported an error itself.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False


class UpstreamRefused(Exception):
    """An error that an upstream has reported, by status or as an event.

    The attributes are those of the providers' SDKs, whose errors the race classifies.
    """

    def __init__(self, status: int, headers: Mapping[str, str], body: object):
        """Record the error."""
        super().__init__(f"status {status}")
        self.status_code = status
        self.response = SimpleNamespace(status_code=status, headers=headers)
        self.body = body


class Upstream(ABC):
    """One instance of a provider: see ``Instance``.

    Attributes:
        name: Its name in reports.
        model: The model to ask for.
        answers: The number of answers that it has completed.
        retries: 0: the client repeats its request, as it would without a proxy.
        was_reached: Whether it has ever responded.
    """

    stall_secs: float | Literal["policy"] | None = "policy"
    retries = 0

    def __init__(self, settings: UpstreamSettings, wire: Wire):
        """Prepare an upstream."""
        self.name, self.model = settings.name, settings.model
        self.usd_per_mtok, self.timeout_secs = settings.usd_per_mtok, settings.timeout_secs
        self.answers = 0
        self.was_reached = False
        self._settings, self._wire = settings, wire

    @property
    def server_load(self) -> ServerLoad | None:
        """None: a server's load is not read."""
        return None

    def run_on(self) -> None:
        """Change nothing: a connection carries one request, and the next takes another."""
        return

    @abstractmethod
    def send(
        self, request: ProxiedRequest, reply: Reply, stats: AttemptStats
    ) -> AsyncGenerator[bytes]:
        """Send a request and return the body's bytes as they come.

        Args:
            request: The request.
            reply: Gets the response's status and headers before the first bytes.
            stats: Gets the request's stages and rate limits.

        Raises:
            UpstreamRefused: If the status is not 200.
            OSError: If the connection fails.
        """

    @abstractmethod
    async def reach(self) -> None:
        """Open a connection; raises if there is none to be had."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""


def connect(settings: UpstreamSettings, wire: Wire) -> Upstream:
    """Make an upstream; call it on the loop.

    Raises:
        ConfigurationError: If its kind needs a package that is not installed.
    """
    return (_Api if settings.kind == "api" else _Cloud)(settings, wire)


class _Api(Upstream):
    """An HTTP API of the same wire."""

    def __init__(self, settings: UpstreamSettings, wire: Wire):
        super().__init__(settings, wire)
        self._base_url = (settings.base_url or "").rstrip("/")
        self._host = urlsplit(self._base_url).netloc
        self._ending = TaskScope()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_secs)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=300),
            timeout=timeout,
            trace_configs=[_trace()],
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent",),
            read_bufsize=2**18,
        )
        key = settings.key
        self._own = {
            "Accept-Encoding": "identity",
            **({} if key is None else wire.auth(key)),
            **settings.headers,
        }

    async def send(
        self, request: ProxiedRequest, reply: Reply, stats: AttemptStats
    ) -> AsyncGenerator[bytes]:
        stages = stats.stages
        stages.is_traced = True
        stages.record_request(self._host)
        headers = CIMultiDict(request.forwarded)
        headers.update(self._own)
        await _record(stages, "send_request_headers.started")
        posted = self._session.post(
            self._base_url + self._wire.upstream_path(request.path),
            data=with_model(request.body, self.model),
            headers=headers,
            trace_request_ctx=stages,
        )
        try:
            response = await posted
        except (aiohttp.ServerTimeoutError, aiohttp.ClientError) as error:
            raise ConnectionError(f"no connection: {error}") from error
        try:
            self.was_reached = True
            await _record(stages, "receive_response_headers.complete")
            reply.status, reply.headers = response.status, _passed(response.headers)
            stages.record_headers(response.headers)
            stats.record_response(parse_rate_limits(response.headers, time.time()))
            if response.status != HTTPStatus.OK:
                async for chunk in response.content.iter_any():
                    reply.body += chunk
                    if len(reply.body) > MAX_ERROR_BYTES:
                        break
                reply.is_whole = True
                raise UpstreamRefused(response.status, response.headers, parsed(reply.body))
            async for chunk in response.content.iter_any():
                yield chunk
        except aiohttp.ClientError as error:  # the connection was lost
            raise ConnectionResetError(type(error).__name__) from error
        finally:
            if reply.is_whole and not response.content.at_eof():
                self._ending.start(_end(response), name=f"ends a response of {self.name}")
            else:
                response.close()

    async def reach(self) -> None:
        async with self._session.get(self._base_url, headers=self._own, allow_redirects=False):
            self.was_reached = True

    async def close(self) -> None:
        await self._ending.close()
        await self._session.close()


async def _end(response: aiohttp.ClientResponse) -> None:
    """Read the end of a response behind its last event, so that its connection is used again."""
    try:
        async with asyncio.timeout(LINGER_SECS):
            async for _ in response.content.iter_any():
                pass
    except (TimeoutError, aiohttp.ClientError):
        return
    finally:
        response.close()


def _trace() -> aiohttp.TraceConfig:
    """Record how long a new connection took in the ``Stages`` of the request that waits for it."""
    trace = aiohttp.TraceConfig()

    async def started(_: object, context: SimpleNamespace, __: object) -> None:
        await _record(context.trace_request_ctx, "connect_tcp.started")

    async def ended(_: object, context: SimpleNamespace, __: object) -> None:
        await _record(context.trace_request_ctx, "connect_tcp.complete")

    trace.on_connection_create_start.append(started)
    trace.on_connection_create_end.append(ended)
    return trace


async def _record(stages: object, event: str) -> None:
    if isinstance(stages, Stages):
        await stages.record_event(f"aiohttp.{event}", {})


class _Cloud(Upstream):
    """Claude on Bedrock or Vertex, through its SDK, whose events are written as SSE again."""

    def __init__(self, settings: UpstreamSettings, wire: Wire):
        super().__init__(settings, wire)
        try:
            anthropic = importlib.import_module("anthropic")
        except ModuleNotFoundError:
            raise ConfigurationError(
                f'upstream {self.name!r} needs anthropic: pip install "anthropic[{settings.kind}]"'
            ) from None
        # A proxy waits as long as its client does.
        options: dict[str, Any] = {"max_retries": 0, "timeout": None}
        if settings.base_url is not None:
            options["base_url"] = settings.base_url
        if settings.kind == "bedrock":
            self._client = anthropic.AsyncAnthropicBedrock(
                aws_region=settings.region, api_key=settings.key, **options
            )
        else:
            self._client = anthropic.AsyncAnthropicVertex(
                region=settings.region,
                project_id=settings.project,
                access_token=settings.key,
                **options,
            )

    async def send(
        self, request: ProxiedRequest, reply: Reply, stats: AttemptStats
    ) -> AsyncGenerator[bytes]:
        stats.stages.record_request(self._settings.kind)
        found, messages = request.found, self._client.messages
        named = {name: found[name] for name in ("messages", "max_tokens") if name in found}
        arguments: dict[str, Any] = {
            **named,
            "model": self.model,
            "extra_body": {k: v for k, v in found.items() if k not in (*named, "model", "stream")},
            "extra_headers": {
                k: v for k, v in request.headers.items() if k.lower() == "anthropic-beta"
            },
        }
        try:
            if not request.is_stream:
                is_count = request.path.partition("?")[0].endswith("/count_tokens")
                ask = messages.count_tokens if is_count else messages.create
                message = await ask(**arguments)
                self._has_replied(reply, stats, "application/json")
                yield message.model_dump_json(exclude_unset=True).encode()
                return
            stream = await messages.create(**arguments, stream=True)
            async with aclosing(stream.__aiter__()) as events:
                self._has_replied(reply, stats, "text/event-stream; charset=utf-8")
                async for event in events:
                    data = event.model_dump_json(exclude_unset=True)
                    chunk = f"event: {event.type}\ndata: {data}\n\n".encode()
                    yield chunk
        except Exception as error:
            status, body = getattr(error, "status_code", None), getattr(error, "body", None)
            if not (isinstance(status, int) and isinstance(body, dict)):
                raise
            headers = getattr(getattr(error, "response", None), "headers", {})
            if status == HTTPStatus.OK:  # it came as an event
                status = self._wire.status_of(body)
            reply.status, reply.is_whole = status, True
            reply.headers = {**_passed(headers), "content-type": "application/json"}
            reply.body = bytearray(json.dumps(body).encode())
            raise UpstreamRefused(status, headers, body) from error

    def _has_replied(self, reply: Reply, stats: AttemptStats, content_type: str) -> None:
        self.was_reached = True
        reply.status, reply.headers = 200, {"content-type": content_type}
        stats.record_response(None)

    async def reach(self) -> None:
        """Nothing: a cloud has no address to try without a request that costs money."""
        self.was_reached = True

    async def close(self) -> None:
        await self._client.close()


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _THEIR_HEADERS}
