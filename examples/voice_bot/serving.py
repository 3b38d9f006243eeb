"""What surrounds the bot while it is served: its page, the simulator, and a quick end."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
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
    """The calls that are being held, so that all can be hung up when the server is to end.

    uvicorn ends gracefully: it waits for the requests that are still running. Pipecat's runner
    holds each call inside the request that offered it, and closes calls only after that wait, so a
    caller who stays on the line keeps the server alive for ever. Hence the calls are hung up as
    soon as the signal comes, and the wait is short.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._hung_up: set[asyncio.Task[Any]] = set()

    def is_known(self, pc_id: str) -> bool:
        """Whether there is a call with that connection."""
        return pc_id in self._known

    @contextmanager
    def held(self, pc_id: str) -> Iterator[None]:
        """Count what runs in this block, in this task, as a call."""
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
        """End every call; each closes what it has opened."""
        for task in self._tasks - self._hung_up:
            self._hung_up.add(task)
            task.cancel()

    @contextmanager
    def hung_up_by_signals(self) -> Iterator[None]:
        """Hang up when the process is told to end; then do what was to be done before."""
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
    """Have an application start and end with what belongs to it.

    Args:
        app: The application that Pipecat's runner serves.
        calls: Hung up when the process is told to end.
        companion: Entered before the first caller, left after the last.
        ready: Called once all is there.
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
    """Have a gate stand before everything, the runner's own middleware too.

    Args:
        app: The application that Pipecat's runner serves.
        gate: Makes the gate of what it stands before.
    """
    build = app.build_middleware_stack
    app.build_middleware_stack = lambda: gate(build())


def add_page(app: FastAPI) -> None:
    """Serve the bot's own page at `/`. Comes before the runner's routes, which redirect from there.

    Args:
        app: The application that Pipecat's runner serves.
    """

    @app.get("/", include_in_schema=False)
    async def index() -> FileResponse:
        return FileResponse(PAGE / "index.html", headers={"Cache-Control": "no-cache"})

    app.mount("/page", StaticFiles(directory=PAGE))


def add_metrics(app: FastAPI) -> None:
    """Serve Prometheus metrics at `/metrics`.

    Args:
        app: The application that Pipecat's runner serves.
    """

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        body = await asyncio.to_thread(generate_latest)
        return Response(body, headers={"content-type": CONTENT_TYPE_LATEST})


def add_live(app: FastAPI, feed: LiveFeed) -> None:
    """Serve what `make top` reads.

    Args:
        app: The application that Pipecat's runner serves.
        feed: What is shown.
    """

    @app.get(LIVE_PATH, include_in_schema=False)
    async def live(after: int = 0) -> JSONResponse:
        return JSONResponse(feed.snapshot(after), headers={"Cache-Control": "no-store"})


def offer_loopback(*, alone: bool) -> None:
    """Let callers on this machine reach the bot over 127.0.0.1, which aioice leaves out.

    Without it nothing connects on a machine that is offline: no other address is left. The other
    addresses are offered too, since a browser may not use loopback.

    Args:
        alone: Offer nothing but loopback, so that no packet of a call leaves this machine.
    """
    addresses = ice.get_host_addresses

    def with_loopback(use_ipv4: bool, use_ipv6: bool) -> list[str]:
        others = [] if alone else addresses(use_ipv4, use_ipv6)
        return ["127.0.0.1", *others] if use_ipv4 else others

    ice.get_host_addresses = with_loopback


def free_port(host: str, port: int) -> int:
    """Check that a port can be had.

    Args:
        host: The address to listen on.
        port: The port; 0 picks a free one.

    Returns:
        The port.

    Raises:
        SettingError: If it cannot be had; the message has the remedy.
    """
    remedy = f'choose another one: make bot ARGS="--port {port + 1 if port < 65535 else 7860}"'
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
        raise SettingError(f"port {port} on {host} cannot be had ({why}); {remedy}") from None
