"""The HTTP server: checks keys, joins equal requests, answers from the cache, runs the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from loguru import logger

from pipecat_hedge.race import ConfigurationError, TaskScope
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.telemetry import LIVE_PATH, AllowedOrigins, LiveFeed, is_loopback, routes
from pipecat_hedge.tools.proxy.cache import AnswerCache, Kept, cache_counter, request_key
from pipecat_hedge.tools.proxy.keys import Client, Keys
from pipecat_hedge.tools.proxy.model import ProxiedModel
from pipecat_hedge.tools.proxy.request import (
    MAX_FIELD_BYTES,
    MAX_FIELDS,
    ProxiedRequest,
    read_request,
)
from pipecat_hedge.tools.proxy.response import SLICE_BYTES, Reader, Response
from pipecat_hedge.tools.proxy.settings import KeySettings, ProxySettings
from pipecat_hedge.tools.proxy.wires import ANTHROPIC, OPENAI, Wire

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

BODY_SECS = 30.0
"""How long a client may send nothing of its request."""
IDLE_SECS = 75.0
"""How long a connection may take to send its next request; longer than a load balancer's 60 s."""
LINGER_SECS = 1.0
"""How long a rejected client may go on to send its request."""
REACH_SECS = 2.0
"""How often upstreams are tried until one has been reached."""
UNPACKED = {"", "identity", "gzip", "deflate", "br", "zstd"}
"""The encodings of a request's body that the server unpacks."""
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

        Raises:
            ConfigurationError: If the key of an upstream is not set; the message names it.
        """
        if settings.missing_keys:
            raise ConfigurationError(f"not set: {', '.join(settings.missing_keys)}; export it")
        self._settings, self._stats = settings, stats
        self._keys = Keys(settings.keys)
        self._models: dict[str, ProxiedModel] = {}
        self._shared: dict[str, Response] = {}
        self._complete: dict[str, Response] = {}  # until the cache has them
        self._races = TaskScope()
        self._cache = AnswerCache(settings.cache)
        self._runner: web.AppRunner | None = None
        self._is_draining = False
        self._running: dict[asyncio.Task[Any], Client] = {}
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._registry = _registry(stats)
        self._count_cache = cache_counter(self._registry)
        self.port = 0

    async def __aenter__(self) -> ProxyServer:
        settings = self._settings
        for name, model in settings.models.items():
            self._models[name] = ProxiedModel(
                name, model, self._stats, settings.turn_log, settings.drained_log
            )
        self._stats.begin_session()
        host, port = settings.address
        is_local, origins = is_loopback(host), AllowedOrigins()

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            hosts = request.headers.getall("Host", []) if is_local else None
            why = origins.why_forbidden(request.headers.getall("Origin", []), hosts)
            return await handler(request) if why is None else _rejected(_wire_of(request), 403, why)

        app = web.Application(middlewares=[check])
        feed = LiveFeed("proxy")
        for model in self._models.values():
            feed.watch(model)
        app.add_routes(
            [
                web.post("/v1/messages", self._answer(ANTHROPIC)),
                web.post("/v1/messages/count_tokens", self._answer(ANTHROPIC)),
                web.post("/v1/chat/completions", self._answer(OPENAI)),
                web.get("/v1/models", self._list_models),
                web.get("/v1/models/{model:.+}", self._list_models),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                *routes(feed, LIVE_PATH, is_local=is_local),
                web.route("*", "/{path:.*}", self._unknown),
            ]
        )
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=IDLE_SECS,
            lingering_time=LINGER_SECS,
            max_line_size=MAX_FIELD_BYTES,
            max_field_size=MAX_FIELD_BYTES,
            max_headers=MAX_FIELDS,
            logger=_server_log(),
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port, reuse_address=True).start()
        except OSError as error:
            await self.__aexit__()
            raise ConfigurationError(f"listen: {host}:{port} cannot be used: {error}") from None
        self.port = self._runner.addresses[0][1]
        self._races.start(self._reach(), name="reaches the upstreams")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._races.close()
        await self._runner.cleanup()
        for model in self._models.values():
            await model.close()
        await self._cache.close()
        await self._stats.end_session()
        await asyncio.to_thread(self._stats.save)

    def set_keys(self, keys: Sequence[KeySettings]) -> None:
        """Take new keys. A removed key is rejected from now on; its running streams end."""
        gone = self._keys.replace(keys)
        for task, client in list(self._running.items()):
            if client in gone:
                task.cancel()

    async def drain(self) -> None:
        """Prepare to stop: become unhealthy, take no new connections, let running streams end."""
        assert self._runner is not None
        assert self._runner.server is not None
        self._is_draining = True
        await asyncio.sleep(self._settings.leave_secs)
        for site in list(self._runner.sites):
            await site.stop()
        for connection in self._runner.server.connections:
            connection.close()  # at once if it is idle
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_secs):
                await self._is_idle.wait()

    # ---- one request

    def _answer(self, wire: Wire) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            client = self._keys.client(request.headers)
            if client is None:
                return _rejected(wire, 401, "the key is missing or unknown")
            if client.streams >= client.settings.max_streams:
                return _rejected(wire, 429, "too many requests of this key are running")
            task = asyncio.current_task()
            assert task is not None
            client.streams += 1
            self._running[task] = client
            self._is_idle.clear()
            try:
                response = await self._handle(wire, request, client)
                if self._is_draining:
                    response.force_close()
                return response
            finally:
                client.streams -= 1
                del self._running[task]
                if not self._running:
                    self._is_idle.set()

        return handle

    async def _handle(self, wire: Wire, request: web.Request, client: Client) -> web.StreamResponse:
        most_mb = self._settings.max_body_mb
        encodings = request.headers.getall("Content-Encoding", ())
        if ",".join(encodings).lower() not in UNPACKED:
            return _rejected(wire, 415, "the request's Content-Encoding is not understood")
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECS) as late:
                async for chunk in request.content.iter_any():
                    body += chunk
                    late.reschedule(asyncio.get_running_loop().time() + BODY_SECS)
                    if len(body) > most_mb * 2**20:
                        return _rejected(wire, 413, f"the request is larger than {most_mb:g} MB")
            asked = await read_request(request.path_qs, request.headers, body)
        except TimeoutError:
            return _rejected(wire, 408, f"nothing of the request came for {BODY_SECS:g} s")
        except (ValueError, RecursionError, web.RequestPayloadError):
            return _rejected(wire, 400, "the request must be a JSON object with a model")
        name = asked.model
        model = self._models.get(name) if isinstance(name, str) else None
        if model is None or model.wire is not wire or not client.may_use(model.name):
            known = [n for n, m in self._models.items() if m.wire is wire and client.may_use(n)]
            return _rejected(wire, 404, f"model {name!r} is not known here: {', '.join(known)}")
        response, added = await self._find(asked, request, model, client)
        reader = Reader(response, request, wire, added, is_stream=asked.is_stream)
        return await reader.relay()

    async def _find(
        self, asked: ProxiedRequest, request: web.Request, model: ProxiedModel, client: Client
    ) -> tuple[Response, dict[str, str]]:
        """The response to a request, from the cache, a race that runs, or a new one.

        Returns:
            The response, and further headers.
        """
        settings, path, headers = model.settings, request.path, request.headers
        # nginx would hold events back
        added = {"x-accel-buffering": "no"} if asked.is_stream else {}
        control = _values_of(request, "Cache-Control")
        caches = settings.cache_secs > 0 and path == model.wire.path and "no-store" not in control
        caches = caches and (settings.cache_tools or not asked.has_tools)
        once = headers.get("Idempotency-Key")
        shares = settings.coalesce or path.endswith("/count_tokens") or once is not None
        if not (caches or shares):
            return self._start(asked, model, client, None, None), added
        # In a thread: to hash 20 MB takes a tenth of a second.
        key = await asyncio.to_thread(
            request_key, client.settings.name, asked.path, asked.body, headers
        )
        if caches:
            is_fresh = not control.isdisjoint({"no-cache", "max-age=0"})
            found = None if is_fresh else await self._find_kept(key)
            self._count_cache("misses" if found is None else "hits")
            added["x-hedge-cache"] = "miss" if found is None else "hit"
            if found is not None:
                return found, added
        share_as = f"{key} {once}" if shares else None
        running = self._shared.get(share_as or "")
        if running is not None and running.has_all:
            return running, added
        return self._start(asked, model, client, share_as, key if caches else None), added

    def _start(
        self,
        asked: ProxiedRequest,
        model: ProxiedModel,
        client: Client,
        share_as: str | None,
        keep_as: str | None,
    ) -> Response:
        """Start a race in a task of its own, which ends when its last client has left.

        Args:
            asked: The request.
            model: The model.
            client: The client.
            share_as: The key under which others may join; None if none may.
            keep_as: The key of the answer in the cache; None does not keep it.
        """
        keeps = share_as is not None or keep_as is not None
        clock = asyncio.get_running_loop().time

        def forget() -> None:
            if share_as is not None and self._shared.get(share_as) is response:
                del self._shared[share_as]

        def abandon() -> None:
            forget()  # at once: no new request may join a race that is being closed
            task.cancel()

        def keep() -> None:
            if keep_as is not None and response.is_whole and response.has_all:
                self._complete[keep_as] = response
                keeping = self._keep(keep_as, response, model.settings.cache_secs)
                self._races.start(keeping, name=f"keeps an answer of {model.name}")

        response = Response(keeps=keeps, abandoned=abandon, completed=keep)

        async def race() -> None:
            status, problem = 503, "the proxy is stopping"
            try:
                may_hedge = client.may_hedge(clock())
                report = await model.race(
                    asked, response, client.settings.tier, may_hedge=may_hedge
                )
                client.spend(report, clock())
            except Exception as error:
                logger.opt(exception=error).error(f"{model.name}: a request failed")
                status, problem = 500, "the proxy failed"
            finally:
                if not response.has_begun:
                    await response.reject(status, model.wire.error_body(status, problem))
                response.end(is_whole=False, is_cut=not response.is_complete)
                forget()

        task = self._races.start(race(), name=f"races {model.name}")
        if share_as is not None:
            self._shared[share_as] = response
        return response

    async def _find_kept(self, key: str) -> Response | None:
        if (complete := self._complete.get(key)) is not None and complete.has_all:
            return complete
        kept = await self._cache.get(key)
        return None if kept is None else await _replay(kept)

    async def _keep(self, key: str, response: Response, secs: float) -> None:
        """Keep an answer from its end on, with all that follows its end mark."""
        try:
            while not response.is_over:
                await response.changes(LINGER_SECS)
            kept = Kept(response.status, response.headers, response.body)
            if response.has_all:
                await self._cache.put(key, kept, secs)
        finally:
            if self._complete.get(key) is response:
                del self._complete[key]

    # ---- everything else

    async def _list_models(self, request: web.Request) -> web.Response:
        client, wire = self._keys.client(request.headers), _wire_of(request)
        if client is None:
            return _rejected(wire, 401, "the key is missing or unknown")
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
            if client.may_use(name)
        ]
        if (name := request.match_info.get("model")) is not None:
            one = next((each for each in listed if each["id"] == name), None)
            missing = f"model {name!r} is not known here"
            return web.json_response(one) if one else _rejected(wire, 404, missing)
        ends = {"first_id": listed[0]["id"], "last_id": listed[-1]["id"]} if listed else {}
        return web.json_response({"object": "list", "data": listed, "has_more": False, **ends})

    async def _unknown(self, request: web.Request) -> web.Response:
        return _rejected(_wire_of(request), 404, f"{request.method} {request.path} is not proxied")

    async def _health(self, _: web.Request) -> web.Response:
        reached = {
            name: [u.name for u in model.upstreams if u.was_reached]
            for name, model in self._models.items()
        }
        is_ready = not self._is_draining and any(reached.values())
        state = "draining" if self._is_draining else "ready" if is_ready else "no upstream reached"
        found = {"status": state, "reached": reached, "streams": len(self._running)}
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


def _server_log() -> logging.Logger:
    """The HTTP server's log, without what it quotes of a faulty request: maybe a key."""

    def without_quotes(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.msg, record.args = "a request is refused: %s", (type(error).__name__,)
            record.exc_info = None
        return True

    log = logging.getLogger(f"{__name__}.http")
    log.filters = [without_quotes]
    return log


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


def _values_of(request: web.Request, name: str) -> set[str]:
    """The values of a header in all its lines, which are lists."""
    lines = ",".join(request.headers.getall(name, ())).lower()
    return {value.strip() for value in lines.split(",")}


def _rejected(wire: Wire, status: int, message: str) -> web.Response:
    """A rejection by the proxy itself, in the wire's form."""
    return web.json_response(wire.error(status, message), status=status)


async def _replay(kept: Kept) -> Response:
    response = Response(keeps=True)
    response.begin(kept.status, kept.headers)
    for at in range(0, len(kept.body), SLICE_BYTES):
        await response.write(kept.body[at : at + SLICE_BYTES])
    response.end()
    return response
