"""An upstream of a model: sends a request as it came and returns the answer's bytes."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from pipecat_hedge.race import ConfigurationError, ServerLoad, TaskScope
from pipecat_hedge.service import AttemptStats, Stages, parsed
from pipecat_hedge.tools.proxy.request import (
    MAX_FIELD_BYTES,
    MAX_FIELDS,
    ProxiedRequest,
    named_by_connection,
)
from pipecat_hedge.tools.proxy.settings import UpstreamSettings
from pipecat_hedge.tools.proxy.wires import Wire

MAX_ERROR_BYTES = 2**20
MAX_TAIL_BYTES = 2**20
"""The most that is read behind an answer's end mark."""
LINGER_SECS = 1.0
"""How long a connection may take to end its response after the last event."""
REDIRECTS = {301: "GET", 302: "GET", 303: "GET", 307: "POST", 308: "POST"}
"""How a redirected request is sent, as the SDKs' clients do."""
MAX_REDIRECTS = 10
_SLICE_BYTES = 2**18
_THEIR_HEADERS = {
    *("content-length", "transfer-encoding", "connection", "keep-alive", "trailer", "upgrade"),
    *("set-cookie", "alt-svc", "server", "date"),
}
_UNPACKED = ("gzip", "deflate", "br", "zstd")
"""The encodings that aiohttp unpacks."""
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""What some servers send in a header and aiohttp does not; RFC 9110 replaces it by a blank."""


@dataclass(slots=True)
class Reply:
    """An upstream's response so far.

    Parameters:
        status: Its status code; 0 until it has come.
        headers: Its headers, without those of the connection.
        body: The bytes that were not passed on yet.
        is_whole: Whether all of its body came, or it reported an error itself.
        tail: What follows the end mark, piece by piece; the last piece is empty. None if nothing
            can follow.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False
    tail: asyncio.Queue[bytes] | None = None


class UpstreamError(Exception):
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
        retries: How many times its clients' SDKs would repeat a failed request.
        sends_marks: Whether it has ever ended an answer with the wire's mark.
        was_reached: Whether it has ever responded.
    """

    stall_secs: float | Literal["policy"] | None = "policy"
    retries = 2

    def __init__(self, settings: UpstreamSettings, wire: Wire):
        """Prepare an upstream."""
        self.name, self.model = settings.name, settings.model
        self.usd_per_mtok, self.timeout_secs = settings.usd_per_mtok, settings.timeout_secs
        self.answers = 0
        self.was_reached = self.sends_marks = False
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
        """Send a request and return the body's bytes as they come, after an empty piece.

        Args:
            request: The request.
            reply: Gets the response's status and headers before the first bytes.
            stats: Gets the request's stages and responses.

        Raises:
            UpstreamError: If the status is no success.
            OSError: If the connection fails.
        """

    @abstractmethod
    async def reach(self) -> None:
        """Open a connection; raises if there is none to be had."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""


def connect(settings: UpstreamSettings, wire: Wire) -> Upstream:
    """Make an upstream; call it on the loop, after ``check_packages``."""
    return (_Api if settings.kind == "api" else _Cloud)(settings, wire)


def check_packages(settings: UpstreamSettings, where: str) -> None:
    """Check that what an upstream imports is installed: its SDK, and what finds its credentials.

    Args:
        settings: The upstream's.
        where: Their file and field, for the message.

    Raises:
        ConfigurationError: If a package is missing; the message names its extra.
    """
    packages = list[str]()
    if settings.kind == "bedrock":
        packages = ["anthropic", "botocore"]  # streams are read with botocore
        if not (settings.key_env or os.environ.get("AWS_BEARER_TOKEN_BEDROCK")):
            packages.append("boto3")
    elif settings.kind == "vertex":
        packages = ["anthropic"] if settings.key_env else ["anthropic", "google.auth"]
    for package in packages:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            raise ConfigurationError(
                f"{where}: upstream {settings.name!r} needs {package}: "
                f'pip install "anthropic[{settings.kind}]"'
            ) from None


class _Api(Upstream):
    """An HTTP API of the same wire."""

    def __init__(self, settings: UpstreamSettings, wire: Wire):
        super().__init__(settings, wire)
        self._base_url = str(URL(settings.base_url or "")).rstrip("/")
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
            max_line_size=MAX_FIELD_BYTES,
            max_field_size=MAX_FIELD_BYTES,
            max_headers=MAX_FIELDS,
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
        headers = request.forwarded
        headers.update(self._own)
        await _record(stages, "send_request_headers.started")
        try:
            response = await self._post(request, headers, stages)
        except (aiohttp.ServerTimeoutError, aiohttp.ClientError) as error:
            raise ConnectionError(f"no connection: {error}") from error
        try:
            self.was_reached = True
            await _record(stages, "receive_response_headers.complete")
            stages.record_headers(response.headers)
            if 300 <= response.status < 400:  # would lead the client, and what it sends, elsewhere
                raise UpstreamError(response.status, {}, None)
            reply.status, reply.headers = response.status, _passed(response.headers)
            if not response.ok:
                async for chunk in response.content.iter_any():
                    reply.body += chunk
                    if len(reply.body) > MAX_ERROR_BYTES:
                        break
                reply.is_whole = True
                raise UpstreamError(response.status, response.headers, parsed(reply.body))
            yield b""
            async for chunk in response.content.iter_any():
                yield chunk
        except aiohttp.ClientError as error:  # the connection was lost
            raise ConnectionResetError(type(error).__name__) from error.with_traceback(None)
        finally:
            if reply.is_whole and not response.content.at_eof():
                tail = reply.tail = asyncio.Queue[bytes]()
                self._ending.start(_end(response, tail), name=f"ends a response of {self.name}")
            else:
                response.close()

    async def _post(
        self, request: ProxiedRequest, headers: CIMultiDict[str], stages: Stages
    ) -> aiohttp.ClientResponse:
        """Send a request, and follow redirects within the upstream's origin.

        Others would take the key, and with 307 and 308 the prompt, to a server that is not in the
        settings.
        """
        address = self._base_url + self._wire.upstream_path(request.path)
        url, method = URL(address, encoded=True), "POST"
        parts = request.body_for(self.model)
        for _ in range(MAX_REDIRECTS):
            is_post = method == "POST"
            size = {"Content-Length": str(sum(map(len, parts)))} if is_post else {}
            response = await self._session.request(
                method,
                url,
                data=_payload(parts) if is_post else None,
                headers=CIMultiDict([*headers.items(), *size.items()]),
                trace_request_ctx=stages,
                allow_redirects=False,
            )
            target = _target(response)
            if target is None or target.origin() != url.origin():
                return response
            response.release()
            url, method = target, REDIRECTS[response.status] if is_post else method
        raise aiohttp.ClientError("too many redirects")

    async def reach(self) -> None:
        async with self._session.get(self._base_url, headers=self._own, allow_redirects=False):
            self.was_reached = True

    async def close(self) -> None:
        await self._ending.close()
        await self._session.close()


async def _end(response: aiohttp.ClientResponse, tail: asyncio.Queue[bytes]) -> None:
    """Read the end of a response behind its last event, so that its connection is used again."""
    size = 0
    try:
        async with asyncio.timeout(LINGER_SECS):
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size > MAX_TAIL_BYTES:
                    return
                tail.put_nowait(chunk)
    except (TimeoutError, aiohttp.ClientError):
        return
    finally:
        response.close()
        tail.put_nowait(b"")


def _target(response: aiohttp.ClientResponse) -> URL | None:
    """Where a response redirects to; None if it does not, or to what is no address."""
    target = response.headers.get("Location")
    if response.status not in REDIRECTS or target is None:
        return None
    with suppress(ValueError):
        there = response.url.join(URL(target))
        if there.scheme in ("http", "https") and there.host:
            return there
    return None


def _payload(parts: Sequence[memoryview]) -> bytes | AsyncGenerator[memoryview]:
    """A body: in one piece, which goes out with the headers, or in slices if it is large."""
    return b"".join(parts) if sum(map(len, parts)) <= _SLICE_BYTES else _slices(parts)


async def _slices(parts: Sequence[memoryview]) -> AsyncGenerator[memoryview]:
    """The parts of a body in slices, so that other requests' are written between them."""
    for part in parts:
        for at in range(0, len(part), _SLICE_BYTES):
            if at:
                await asyncio.sleep(0)
            yield part[at : at + _SLICE_BYTES]


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
        anthropic = importlib.import_module("anthropic")
        # A proxy waits as long as its client does.
        options: dict[str, Any] = {
            "max_retries": 0,
            "timeout": None,
            "http_client": anthropic.DefaultAsyncHttpxClient(follow_redirects=False),
        }
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
        messages = self._client.messages
        try:
            found = request.found
        except (ValueError, RecursionError):
            status, body = HTTPStatus.BAD_REQUEST, self._wire.error(400, "the body is no JSON")
            raise self._error(reply, status, {}, body) from None
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
            raise self._error(reply, status, headers, body) from error

    def _error(
        self, reply: Reply, status: int, headers: Mapping[str, str], body: Mapping[str, Any]
    ) -> UpstreamError:
        reply.status, reply.is_whole = status, True
        reply.headers = {**_passed(headers), "content-type": "application/json"}
        reply.body = bytearray(json.dumps(body).encode())
        return UpstreamError(status, headers, body)

    def _has_replied(self, reply: Reply, stats: AttemptStats, content_type: str) -> None:
        self.was_reached = True
        reply.status, reply.headers = 200, {"content-type": content_type}
        stats.stages.has_response = True

    async def reach(self) -> None:
        """Nothing: a cloud has no address to try without a request that costs money."""
        self.was_reached = True

    async def close(self) -> None:
        await self._client.close()


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    """A response's headers that go on to the client; of one that is repeated, all values."""
    own = _THEIR_HEADERS | named_by_connection(headers)
    if headers.get("content-encoding", "").lower() in _UNPACKED:
        own.add("content-encoding")
    passed = CIMultiDict[str]()
    for name, value in headers.items():
        if name.lower() not in own:
            value = _CONTROLS.sub(" ", value)
            passed[name] = f"{passed[name]}, {value}" if name in passed else value
    return dict(passed)
