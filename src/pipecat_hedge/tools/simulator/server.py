"""The simulator on a loop: starts, tells its addresses, stops fast even with open streams."""

import asyncio
import errno
import socket
from types import TracebackType
from typing import Self

from aiohttp import web

from pipecat_hedge.tools.simulator.capacity import checked_limit
from pipecat_hedge.tools.simulator.dead_ends import DeadEnds, http_url
from pipecat_hedge.tools.simulator.ledger import Ledger
from pipecat_hedge.tools.simulator.routes import Routes

_REMEDIES = {
    errno.EADDRINUSE: "is in use; stop the other process or choose another port (0: a free one)",
    errno.EACCES: "needs more rights; choose a port above 1023 (0: a free one)",
    errno.EADDRNOTAVAIL: "cannot be had: this machine does not have that address; use 127.0.0.1",
}


class Simulator:
    """LLM providers on loopback: OpenAI, Anthropic and Google on one port.

    ::

        async with Simulator(port=0, seed=1) as sim:
            llm = OpenAILLMService(api_key="any", base_url=sim.openai_url, ...)

    Args:
        port: The port to listen on; 0 picks a free one.
        host: The address to listen on.
        seed: The n-th request to a model name gets the same draw for the same seed.
        capacity: How many requests are served at once; further ones wait in their order, and
            their times begin when they have a place. None is as many as come.

    Raises:
        ValueError: If the port or the capacity is none.
        OSError: On entering, if the address cannot be had; the message names it and the remedy.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        seed: int = 0,
        capacity: int | None = None,
    ):
        if not isinstance(port, int) or not 0 <= port <= 65535:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"port: expected a number from 0 to 65535, got {port!r}")
        self._asked_port = port
        self._host = host
        self._seed = seed
        self._capacity = checked_limit(capacity)
        self._port: int | None = None
        self._runner: web.AppRunner | None = None
        self._routes: Routes | None = None
        self._ledger: Ledger | None = None
        self._dead_ends = DeadEnds(host)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        started = loop.time()
        self._ledger = Ledger(lambda: loop.time() - started)
        self._routes = Routes(self._ledger, self._seed, self._capacity)
        self._runner = web.AppRunner(
            self._routes.application(),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=0.1,
        )
        sock = _listening(self._host, self._asked_port)
        self._port = sock.getsockname()[1]
        await self._runner.setup()
        await web.SockSite(self._runner, sock).start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._runner is not None
        assert self._routes is not None
        self._routes.close()
        await self._runner.cleanup()
        self._dead_ends.close()

    @property
    def port(self) -> int:
        """The port it listens on."""
        if self._port is None:
            raise RuntimeError("the simulator is not running: use it in an async with statement")
        return self._port

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return http_url(self._host, self.port)

    @property
    def openai_url(self) -> str:
        """The ``base_url`` for OpenAI's SDK and Pipecat's OpenAI services."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """The ``base_url`` for Anthropic's SDK."""
        return self.url

    @property
    def google_url(self) -> str:
        """The ``base_url`` of ``HttpOptions`` for Google's SDK and Pipecat's Google service."""
        return self.url

    @property
    def refused_url(self) -> str:
        """An address where connections are refused at once. Append ``/v1`` for OpenAI's SDK."""
        return self._dead_ends.refused_url

    @property
    def hanging_url(self) -> str:
        """An address where connections are never established. Append ``/v1`` for OpenAI's SDK."""
        return self._dead_ends.hanging_url

    @property
    def ledger(self) -> Ledger:
        """What became of every request."""
        if self._ledger is None:
            raise RuntimeError("the simulator is not running: use it in an async with statement")
        return self._ledger

    async def wait_idle(self, timeout_secs: float = 5.0) -> None:
        """Wait until no request is open.

        Args:
            timeout_secs: How long to wait.

        Raises:
            TimeoutError: If requests are still open; names them.
        """
        await self.ledger.wait_until(lambda ledger: not ledger.open, timeout_secs)


def _listening(host: str, port: int) -> socket.socket:
    """A bound socket, or an error that says what to do."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(1024)
    except OSError as error:
        sock.close()
        why = _REMEDIES.get(error.errno or 0, f"cannot be had: {error.strerror or error}")
        raise OSError(error.errno, f"port {port} on {host} {why}") from None
    return sock
