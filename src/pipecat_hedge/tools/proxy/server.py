"""The HTTP server: who asks, whether somebody asks the same already, and what is known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aiohttp import web
from loguru import logger

from pipecat_hedge.race import TaskScope
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.telemetry import LIVE_PATH, LiveFeed, is_loopback, routes
from pipecat_hedge.tools.proxy.cache import AnswerCache, Kept, cache_counter, request_key
from pipecat_hedge.tools.proxy.keys import Client, Keys
from pipecat_hedge.tools.proxy.model import ProxiedModel
from pipecat_hedge.tools.proxy.response import Reader, Response
from pipecat_hedge.tools.proxy.settings import ProxySettings
from pipecat_hedge.tools.proxy.upstream import ProxiedRequest
from pipecat_hedge.tools.proxy.wires import ANTHROPIC, OPENAI, Wire

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["ProxyServer"]

MAX_SILENCE_SECS = 10.0
"""The longest time without a byte to the client: its headers come by then, and pings after it."""
BODY_SECS = 30.0
"""How long a client may take to send its request."""
WRITE_SECS = 120.0
"""How long a client may read nothing."""
LINGER_SECS = 1.0
"""How long a refused client may go on to send its request."""
REACH_SECS = 2.0
"""How often upstreams are tried until one has been reached."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ProxyServer:
    """Serves all models.

    Attributes:
        port: The port, once it listens.
    """

    def __init__(self, settings: ProxySettings, stats: ProviderStats):
        """Prepare the server.

        Args:
            settings: The settings.
            stats: What is learned of the upstreams.
        """
        self._settings, self._stats = settings, stats
        self._keys = Keys(settings.keys)
        self._models: dict[str, ProxiedModel] = {}
        self._shared: dict[str, Response] = {}
        self._races = TaskScope()
        self._cache = AnswerCache(settings.cache)
        self._runner: web.AppRunner | None = None
        self._is_draining = False
        self._streams = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._registry = _registry(stats)
        self._count_cache = cache_counter(self._registry)
        self._asked: set[object] = set()
        self.port = 0

    async def __aenter__(self) -> ProxyServer:
        settings = self._settings
        for name, model in settings.models.items():
            self._models[name] = ProxiedModel(
                name, model, self._stats, settings.turn_log, settings.drained_log
            )
        self._stats.hold()
        app = web.Application(client_max_size=int(settings.max_body_mb * 2**20))
        host, port = settings.address
        feed = LiveFeed("proxy")
        for model in self._models.values():
            feed.watch(model)
        app.add_routes(
            [
                web.post("/v1/messages", self._answer(ANTHROPIC)),
                web.post("/v1/messages/count_tokens", self._answer(ANTHROPIC)),
                web.post("/v1/chat/completions", self._answer(OPENAI)),
                web.get("/v1/models", self._list_models),
                web.get("/v1/models/{model}", self._list_models),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                *routes(feed, LIVE_PATH, is_local=is_loopback(host)),
                web.route("*", "/{path:.*}", self._unknown),
            ]
        )
        app.middlewares.append(self._note)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, lingering_time=LINGER_SECS
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]
        self._races.start(self._reach(), name="reaches the upstreams")
        self._races.start(self._close_slow(), name="closes slow connections")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._races.close()
        await self._runner.cleanup()
        for model in self._models.values():
            await model.close()
        await self._cache.close()
        await self._stats.release()
        await asyncio.to_thread(self._stats.save)

    @web.middleware
    async def _note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._asked.add(request.protocol)
        response = await handler(request)
        if self._is_draining:
            response.force_close()
        return response

    async def _close_slow(self) -> None:
        """Close the connections that do not send a request in time; aiohttp does not."""
        assert self._runner is not None
        assert self._runner.server is not None
        waiting: dict[object, float] = {}
        while True:
            await asyncio.sleep(BODY_SECS / 10)
            now, connections = asyncio.get_running_loop().time(), self._runner.server.connections
            self._asked.intersection_update(connections)
            waiting = {c: waiting.get(c, now) for c in connections if c not in self._asked}
            for connection in connections:
                if now - waiting.get(connection, now) > BODY_SECS:
                    connection.force_close()

    async def drain(self, secs: float) -> None:
        """Take no new connections, and let running streams end, for ``secs`` at most."""
        assert self._runner is not None
        self._is_draining = True
        for site in list(self._runner.sites):
            await site.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(secs):
                await self._is_idle.wait()

    # ---- one request

    def _answer(self, wire: Wire) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            client = self._keys.client(request.headers)
            if client is None:
                return _refused(wire, 401, "the key is missing or unknown")
            if client.streams >= client.settings.max_streams:
                return _refused(wire, 429, "too many requests of this key are running")
            client.streams += 1
            self._streams += 1
            self._is_idle.clear()
            try:
                return await self._handle(wire, request, client)
            finally:
                client.streams -= 1
                self._streams -= 1
                if not self._streams:
                    self._is_idle.set()

        return handle

    async def _handle(self, wire: Wire, request: web.Request, client: Client) -> web.StreamResponse:
        try:
            async with asyncio.timeout(BODY_SECS):
                body = await request.read()
            found = json.loads(body)
            name = found["model"]
            model = self._models.get(name) if isinstance(name, str) else None
        except TimeoutError:
            return _refused(wire, 408, f"the request took longer than {BODY_SECS:g} s")
        except web.HTTPRequestEntityTooLarge:
            most = self._settings.max_body_mb
            return _refused(wire, 413, f"the request is larger than {most:g} MB")
        except (ValueError, KeyError, TypeError, RecursionError):
            return _refused(wire, 400, "the request must be a JSON object with a model")
        allowed = client.settings.models
        if model is None or model.wire is not wire or (allowed and name not in allowed):
            known = [n for n, m in self._models.items() if m.wire is wire]
            known = [n for n in known if not allowed or n in allowed]
            return _refused(wire, 404, f"model {name!r} is not known here: {', '.join(known)}")
        asked = ProxiedRequest(request.path_qs, dict(request.headers), body, found)
        return await self._respond(request, asked, model, client)

    async def _respond(
        self, request: web.Request, asked: ProxiedRequest, model: ProxiedModel, client: Client
    ) -> web.StreamResponse:
        settings, path = model.settings, request.path
        control = request.headers.get("Cache-Control", "")
        caches = settings.cache_secs > 0 and path == model.wire.path and "no-store" not in control
        caches = caches and (settings.cache_tools or not asked.has_tools)
        idempotency = request.headers.get("Idempotency-Key")
        shares = settings.coalesce or path.endswith("/count_tokens") or idempotency is not None
        key = ""
        if caches or shares:
            key = request_key(client.settings.name, asked.path, asked.body, asked.headers)
        if caches and "no-cache" not in control:
            if (kept := await self._cache.get(key)) is not None:
                self._count_cache("hits")
                return await _replay(request, kept)
            self._count_cache("misses")
        shared_as = f"{key} {idempotency}" if shares else None
        response = None if shared_as is None else self._shared.get(shared_as)
        if response is None:
            keep_as = key if caches else None
            response = self._start(asked, model, client, shared_as, keep_as)
        async with response.reading() as reader:
            return await self._relay(request, asked, model.wire, response, reader, caches=caches)

    def _start(
        self,
        asked: ProxiedRequest,
        model: ProxiedModel,
        client: Client,
        shared_as: str | None,
        keep_as: str | None,
    ) -> Response:
        """Start a race in a task of its own, which ends when its last client has left.

        Args:
            asked: The request.
            model: The model.
            client: Who asks.
            shared_as: The key under which others may join; None for nobody.
            keep_as: The key of the answer in the cache; None does not keep it.
        """
        keeps = shared_as is not None or keep_as is not None
        response = Response(keeps=keeps, abandoned=lambda: task.cancel())
        clock = asyncio.get_running_loop().time

        async def race() -> None:
            try:
                report = await model.race(
                    asked, response, client.settings.tier, may_hedge=client.may_hedge(clock())
                )
                client.spend(report, clock())
                if keep_as is not None and response.is_whole and report.winner is not None:
                    kept = Kept(response.status, response.headers, tuple(response.chunks))
                    await self._cache.put(keep_as, kept, model.settings.cache_secs)
            except Exception as error:
                logger.opt(exception=error).error(f"{model.name}: a request failed")
                if not response.has_begun:
                    response.refuse(500, _body(model.wire.error(500, "the proxy failed")))
            finally:
                if not response.has_begun:
                    response.refuse(503, _body(model.wire.error(503, "the proxy is stopping")))
                response.end(is_whole=response.is_whole)
                if shared_as is not None:
                    del self._shared[shared_as]

        task = self._races.start(race(), name=f"races {model.name}")
        if shared_as is not None:
            self._shared[shared_as] = response
        return response

    async def _relay(
        self,
        request: web.Request,
        asked: ProxiedRequest,
        wire: Wire,
        response: Response,
        reader: Reader,
        *,
        caches: bool,
    ) -> web.StreamResponse:
        is_stream = asked.is_stream
        began = await reader.begun(MAX_SILENCE_SECS if is_stream else None)
        status, headers = response.status, dict(response.headers)
        if not began:
            status, headers = 200, {"content-type": "text/event-stream; charset=utf-8"}
            headers["cache-control"] = "no-cache"
        if is_stream:
            headers["x-accel-buffering"] = "no"  # nginx would hold events back
        if caches:
            headers["x-hedge-cache"] = "miss"
        out = web.StreamResponse(status=status, headers=headers)
        await out.prepare(request)
        if not began:
            await out.write(wire.ping)
        while (chunk := await reader.next(MAX_SILENCE_SECS if is_stream else None)) is not None:
            if not began and response.status not in (0, 200):
                chunk = await _as_event(wire, chunk, reader)
            try:
                async with asyncio.timeout(WRITE_SECS):
                    await out.write(chunk or wire.ping)
            except TimeoutError:  # the client does not read
                if request.transport is not None:
                    request.transport.abort()
                return out
        await out.write_eof()
        return out

    # ---- everything else

    async def _list_models(self, request: web.Request) -> web.Response:
        client, wire = self._keys.client(request.headers), _wire_of(request)
        if client is None:
            return _refused(wire, 401, "the key is missing or unknown")
        allowed = client.settings.models
        listed = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "pipecat-hedge",
                "type": "model",
                "display_name": name,
                "created_at": "1970-01-01T00:00:00Z",
            }
            for name in self._models
            if not allowed or name in allowed
        ]
        if (name := request.match_info.get("model")) is not None:
            one = next((each for each in listed if each["id"] == name), None)
            missing = f"model {name!r} is not known here"
            return web.json_response(one) if one else _refused(wire, 404, missing)
        ends = {"first_id": listed[0]["id"], "last_id": listed[-1]["id"]} if listed else {}
        return web.json_response({"object": "list", "data": listed, "has_more": False, **ends})

    async def _unknown(self, request: web.Request) -> web.Response:
        return _refused(_wire_of(request), 404, f"{request.method} {request.path} is not proxied")

    async def _health(self, _: web.Request) -> web.Response:
        reached = {
            name: [u.name for u in model.upstreams if u.was_reached]
            for name, model in self._models.items()
        }
        is_ready = not self._is_draining and any(reached.values())
        state = "draining" if self._is_draining else "ready" if is_ready else "no upstream reached"
        found = {"status": state, "reached": reached, "streams": self._streams}
        return web.json_response(found, status=200 if is_ready else 503)

    async def _metrics(self, _: web.Request) -> web.Response:
        if self._registry is None:
            return web.Response(status=404, text='pip install "pipecat-hedge[prometheus]"\n')
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _reach(self) -> None:
        while not all(any(u.was_reached for u in m.upstreams) for m in self._models.values()):
            for model in self._models.values():
                await model.reach()
            await asyncio.sleep(REACH_SECS)


def _registry(stats: ProviderStats) -> CollectorRegistry | None:
    try:
        from prometheus_client import CollectorRegistry
    except ModuleNotFoundError:
        return None
    from pipecat_hedge.telemetry import PrometheusRecorder

    registry = CollectorRegistry()
    PrometheusRecorder(stats=stats, registry=registry)
    return registry


def _wire_of(request: web.Request) -> Wire:
    """The wire whose SDK sends a request that both have."""
    return ANTHROPIC if "anthropic-version" in request.headers else OPENAI


def _body(found: dict[str, Any]) -> bytes:
    return json.dumps(found).encode()


def _refused(wire: Wire, status: int, message: str) -> web.Response:
    """A refusal of the proxy's own, in the wire's form."""
    return web.json_response(wire.error(status, message), status=status)


async def _replay(request: web.Request, kept: Kept) -> web.StreamResponse:
    headers = {**kept.headers, "x-hedge-cache": "hit"}
    out = web.StreamResponse(status=kept.status, headers=headers)
    await out.prepare(request)
    for chunk in kept.chunks:
        await out.write(chunk)
    await out.write_eof()
    return out


async def _as_event(wire: Wire, body: bytes, reader: Reader) -> bytes:
    """A refusal that came after the headers, as an event of the stream."""
    while (more := await reader.next(1.0)) is not None:
        body += more
    try:
        found: Any = json.loads(body)
    except ValueError:
        found = wire.error(502, "no upstream answered")
    return wire.error_event(found)
