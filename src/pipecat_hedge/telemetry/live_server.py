"""Serves a ``LiveFeed`` over HTTP, for bots that have no web server of their own."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from aiohttp import web

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.telemetry.live import LIVE_PATH, LiveFeed
from pipecat_hedge.telemetry.origins import AllowedOrigins, is_loopback

__all__ = ["LiveServer", "routes"]


def routes(feed: LiveFeed, path: str = LIVE_PATH, *, is_local: bool = False) -> list[web.RouteDef]:
    """The route for an application of aiohttp's: ``app.add_routes(routes(feed))``.

    Other web pages are refused.

    Args:
        feed: What is shown.
        path: Where.
        is_local: Whether it is served to this machine alone; then who asks has to know it by a name
            of this machine.
    """
    allowed = AllowedOrigins()

    async def live(request: web.Request) -> web.Response:
        hosts = request.headers.getall("Host", [])
        refusal = allowed.refusal(request.headers.getall("Origin", []), hosts if is_local else None)
        if refusal is not None:
            raise web.HTTPForbidden(text=refusal)
        after = request.query.get("after", "0")
        if not after.isdecimal():
            raise web.HTTPBadRequest(text="after must be a whole number: the next of an answer")
        return web.json_response(feed.snapshot(int(after)), headers={"Cache-Control": "no-store"})

    return [web.get(path, live)]


class LiveServer:
    """Listens for the length of an ``async with``.

    Example::

        async with LiveServer(feed, port=7870):
            await runner.run()          # pipecat-hedge top http://127.0.0.1:7870

    Attributes:
        url: Where ``pipecat-hedge top`` finds it.
    """

    def __init__(self, feed: LiveFeed, *, port: int = 0, host: str = "127.0.0.1"):
        """Prepare to listen.

        Args:
            feed: What is shown.
            port: The port; 0 picks a free one.
            host: The address. What is shown is nobody's words, but it is not for everybody either,
                and nobody is asked for a password: keep it to loopback or a network of your own.

        Raises:
            ConfigurationError: If the port is none.
        """
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"port must be a number from 0 to 65535, got {port!r}")
        self._feed, self._port, self._host = feed, port, host
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.add_routes(routes(self._feed, is_local=is_loopback(self._host)))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            why = error.strerror or type(error).__name__
            raise ConfigurationError(
                f"port {self._port} on {self._host} cannot be had ({why}): choose another, or 0"
            ) from None
        port = self._runner.addresses[0][1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()
