"""The bot's server: its page, metrics, the simulator, and a quick shutdown."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from aioice import ice
from fastapi import FastAPI, Response
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from examples.voice_bot.choices import SettingError
from pipecat_hedge.telemetry import LIVE_PATH, LiveFeed

__all__ = [
    "Calls",
    "add_live",
    "add_metrics",
    "add_page",
    "free_port",
    "guard",
    "offer_loopback",
    "surround",
]

PAGE = Path(__file__).parent / "page"


class Calls:
    """The running calls, so that a shutdown can end them.

    uvicorn shuts down gracefully: it waits for running requests. Pipecat's runner holds each call
    inside the request that offered it, and closes calls only after that wait, so a connected caller
    would keep the server alive for ever. So the calls are ended as soon as the signal arrives.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._hung_up: set[asyncio.Task[Any]] = set()

    def is_known(self, pc_id: str) -> bool:
        """Whether a call with that connection id is running."""
        return pc_id in self._known

    @contextmanager
    def held(self, pc_id: str) -> Iterator[None]:
        """Register the current task as a call while entered."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._known.add(pc_id)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._hung_up:
                raise
        finally:
            self._known.discard(pc_id)
            self._tasks.discard(task)
            self._hung_up.discard(task)

    def hang_up(self) -> None:
        """Cancel every call."""
        for task in self._tasks - self._hung_up:
            self._hung_up.add(task)
            task.cancel()

    @contextmanager
    def hung_up_by_signals(self) -> Iterator[None]:
        """Cancel all calls on SIGINT and SIGTERM, then run the previous handler."""
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def handle(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self.hang_up)
            previous = before[signal.Signals(number)]
            if callable(previous):
                previous(number, frame)

        for number in before:
            signal.signal(number, handle)
        try:
            yield
        finally:
            for number, previous in before.items():
                signal.signal(number, previous)


def surround(
    app: FastAPI,
    calls: Calls,
    companion: AbstractAsyncContextManager[Any],
    ready: Callable[[], None],
) -> None:
    """Start and stop a companion with an application.

    Args:
        app: The application that Pipecat's runner serves.
        calls: Cancelled when the process gets a signal to end.
        companion: Entered before the first caller, left after the last.
        ready: Called once everything has started.
    """
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with companion, inner(app) as state:
            with calls.hung_up_by_signals():
                ready()
                yield state

    app.router.lifespan_context = lifespan


def guard(app: FastAPI, gate: Callable[[Any], Any]) -> None:
    """Put a gate before the whole application, including the runner's middleware.

    Args:
        app: The application that Pipecat's runner serves.
        gate: Creates the gate from the application that it wraps.
    """
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: gate(build())


def add_page(app: FastAPI, parts: Mapping[str, Any]) -> None:
    """Serve the bot's page at `/`. Must precede the runner's routes, which redirect from there.

    Args:
        app: The application that Pipecat's runner serves.
        parts: The services that answer calls, which the page names.
    """

    @app.get("/", include_in_schema=False)
    async def index() -> FileResponse:
        return FileResponse(PAGE / "index.html", headers={"Cache-Control": "no-cache"})

    @app.get("/parts", include_in_schema=False)
    async def named_parts() -> JSONResponse:
        return JSONResponse(dict(parts), headers={"Cache-Control": "no-store"})

    app.mount("/page", StaticFiles(directory=PAGE))


def add_metrics(app: FastAPI) -> None:
    """Serve Prometheus metrics at `/metrics`."""

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        body = await asyncio.to_thread(generate_latest)
        return Response(body, headers={"content-type": CONTENT_TYPE_LATEST})


def add_live(app: FastAPI, feed: LiveFeed) -> None:
    """Serve the live feed for `make top`."""

    @app.get(LIVE_PATH, include_in_schema=False)
    async def live(after: int = 0) -> JSONResponse:
        return JSONResponse(feed.snapshot(after), headers={"Cache-Control": "no-store"})


def offer_loopback(*, alone: bool) -> None:
    """Offer 127.0.0.1 to callers on this machine; aioice excludes it.

    Without it nothing connects on an offline machine. Other addresses are offered too, because a
    browser may not use loopback.

    Args:
        alone: Offer only loopback, so that no packet of a call leaves this machine.
    """
    addresses = ice.get_host_addresses

    def with_loopback(use_ipv4: bool, use_ipv6: bool) -> list[str]:
        others = [] if alone else addresses(use_ipv4, use_ipv6)
        return ["127.0.0.1", *others] if use_ipv4 else others

    ice.get_host_addresses = with_loopback


def free_port(host: str, port: int) -> int:
    """Check that a port is available.

    Args:
        host: The address to listen on.
        port: The port; 0 picks a free one.

    Returns:
        The port.

    Raises:
        SettingError: If it is not available; the message has the remedy.
    """
    remedy = f"choose another one: make bot PORT={port + 1 if port < 65535 else 7860}"
    if not 0 <= port <= 65535:
        raise SettingError(f"port {port} does not exist: choose one from 1 to 65535")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
            return probe.getsockname()[1]
    except socket.gaierror:
        raise SettingError(f"host {host} is not known: write --host 127.0.0.1") from None
    except PermissionError:
        raise SettingError(f"port {port} needs more rights; {remedy}") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise SettingError(f"port {port} on {host} is not available ({why}); {remedy}") from None
