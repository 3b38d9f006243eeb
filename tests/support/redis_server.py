"""A real Redis for tests, what stands in it, and a bad line to it."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import cast

import pytest
import redis

from pipecat_hedge.fleet.counts import counts_of
from pipecat_hedge.providers.latency import ALL
from pipecat_hedge.tools.bench.redis_process import MISSING, RedisProcess, has_redis

needs_redis = pytest.mark.skipif(not has_redis(), reason=MISSING)


class RedisServer(RedisProcess):
    """The drill's, with words for what stands in it.

    Attributes:
        control: A connection, which also works after a restart.
    """

    def __init__(self) -> None:
        super().__init__()
        self.control = redis.Redis(port=self.port, decode_responses=True, socket_timeout=20)

    def __exit__(self, *error: object) -> None:
        self.kill()
        self.control.close()

    def hang(self) -> None:
        """Stop it: it accepts connections and does not answer."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue after ``hang``."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def names(self, pattern: str = "*") -> set[str]:
        """The names of its keys."""
        return set(self.control.scan_iter(pattern, count=1000))

    def counted(self, root: str = "{pipecat-hedge}") -> dict[str, int]:
        """The observations of each provider, over all hours."""
        found: dict[str, int] = {}
        for key in self.names(f"{root}:latency:*"):
            name = key.removeprefix(f"{root}:latency:").rpartition(":")[0]
            fields = cast("dict[str, str]", self.control.hgetall(key))
            counts = counts_of({field: int(count) for field, count in fields.items()})
            found[name] = found.get(name, 0) + int(counts[ALL].sum())
        return found


class LossyProxy:
    """Stands between a client and a Redis, and swallows its answers on request.

    Attributes:
        port: Where it listens.
        swallows: How many connections are still to be broken in place of an answer.
        swallowed: How many have been.
    """

    def __init__(self, to_port: int):
        self._to_port = to_port
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0
        self.swallows = self.swallowed = 0

    async def __aenter__(self) -> LossyProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()
        await asyncio.gather(*self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        there = asyncio.create_task(_copy(reader, up_writer))
        try:
            while data := await up_reader.read(65_536):
                if self.swallows and data.startswith(b":"):  # what an exchange is answered
                    self.swallows, self.swallowed = self.swallows - 1, self.swallowed + 1
                    break
                writer.write(data)
        finally:
            there.cancel()
            for each in (writer, up_writer):
                each.close()
                with suppress(OSError):
                    await each.wait_closed()
            with suppress(asyncio.CancelledError, OSError):
                await there


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
    writer.close()
