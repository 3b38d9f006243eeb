"""What can go wrong around the providers: the network, the machine, the process's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from tests.support.relay import Relay

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 seconds
_BURN = "import time\nend = time.monotonic() + 600\nwhile time.monotonic() < end: pass"


class Network(Relay):
    """A relay to one provider that can be down: it then resets open and new connections."""

    def __init__(self, to_port: int):
        super().__init__(to_port)
        self._is_down = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, or reset it at once."""
        if self._is_down:
            _reset(writer)
        else:
            await super().serve(reader, writer)

    def go_down(self) -> None:
        """Reset every connection, and each new one from now on."""
        self._is_down = True
        for writer in list(self._open):
            _reset(writer)

    def come_back(self) -> None:
        """Relay again."""
        self._is_down = False

    async def idle(self) -> None:
        """Wait until no connection is open, 2 s at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                while self._open:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.05)


@asynccontextmanager
async def network(to_port: int) -> AsyncIterator[Network]:
    """Run a relay on this loop.

    Args:
        to_port: The provider's port.
    """
    relay = Network(to_port)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        await relay.hang_up()
        await relay.idle()


@contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Have other processes keep this machine's processors busy.

    Args:
        count: How many processes.
    """
    processes = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something on the same event loop meanwhile.

    Args:
        work: It is cancelled at the end.
    """
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def block_loop(block_secs: float, every_secs: float) -> None:
    """Stop the event loop now and then.

    Args:
        block_secs: For how long each time.
        every_secs: From the beginning of one block to the next.
    """
    while True:
        await asyncio.sleep(every_secs - block_secs)
        time.sleep(block_secs)


async def keep_loop_busy(burn_secs: float, rest_secs: float) -> None:
    """Use a share of the event loop's time.

    Args:
        burn_secs: How long it computes in one go.
        rest_secs: How long it leaves the loop to others.
    """
    while True:
        end = time.perf_counter() + burn_secs
        while time.perf_counter() < end:
            pass
        await asyncio.sleep(rest_secs)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and not writer.transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
