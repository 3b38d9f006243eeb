"""Several proxies: behind a load balancer, and with one Redis."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from pipecat_hedge.tools.simulator import Simulator
from tests.live.proxied import PATHS, START_SECS, ProxyProcess
from tests.live.scripted_upstream import replying, scripted
from tests.live.wire_streams import events
from tests.support.redis_server import RedisServer, needs_redis
from tests.support.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(180)]

SLOW = "fixed@ttft=0.1,tps=10"


class Instance(ProxyProcess):
    """A proxy of one model."""

    def __init__(
        self,
        upstream: str,
        folder: Path,
        more: str = "",
        stats: str = "off",
        stderr: int | None = None,
    ):
        path = folder / f"{id(self)}.toml"
        path.write_text(
            f'listen = "127.0.0.1:0"\nleave_secs = 0.5\n{more}\n'
            '[models.m]\nwire = "anthropic"\npolicy = "fallback(probes=False)"\ncache_secs = 60\n'
            f'upstreams = [{{ name = "a", base_url = "{upstream}", model = "{SLOW}" }}]\n'
        )
        super().__init__(path, stats=stats, stderr=stderr)

    async def start(self) -> None:
        await super().start()
        await until(self.is_healthy, START_SECS)

    async def is_healthy(self) -> bool:
        with suppress(aiohttp.ClientError):
            async with aiohttp.request("GET", f"{self.url}/health") as answer:
                return answer.status == 200
        return False


@asynccontextmanager
async def load_balancer(instances: list[Instance]) -> AsyncIterator[str]:
    """Passes each connection to the next healthy instance, and asks for their health."""
    healthy: list[Instance] = list(instances)
    tasks: set[asyncio.Task[None]] = set()

    async def check() -> None:
        while True:
            found = [each for each in instances if await each.is_healthy()]
            healthy[:] = found
            await asyncio.sleep(0.05)

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        healthy.append(healthy.pop(0))
        port = urlsplit(healthy[-1].url).port
        there, back = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(pipe(reader, back), pipe(there, writer))
        finally:
            for each in (writer, back):
                each.transport.abort()

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    checking = asyncio.ensure_future(check())
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        checking.cancel()
        server.close()
        await asyncio.gather(checking, *tasks, return_exceptions=True)
        await server.wait_closed()


async def ask(url: str, text: str = "Open?") -> tuple[int, bytes, str | None]:
    """Ask: the status, the answer, and whether it was cached."""
    messages = [{"role": "user", "content": text}]
    body = {"model": "m", "max_tokens": 9, "messages": messages, "stream": True}
    connector = aiohttp.TCPConnector(force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(url + PATHS["anthropic"], json=body) as answer,
    ):
        return answer.status, await answer.read(), answer.headers.get("x-hedge-cache")


@asynccontextmanager
async def running(*instances: Instance) -> AsyncIterator[None]:
    try:
        await asyncio.gather(*(instance.start() for instance in instances))
        yield
    finally:
        for instance in instances:
            await instance.stop()


async def test_a_rolling_restart_behind_a_load_balancer_drops_no_stream(tmp_path: Path) -> None:
    async with Simulator(seed=1) as sim:
        instances = [Instance(sim.url, tmp_path), Instance(sim.url, tmp_path)]
        answers: list[tuple[int, bytes, str | None]] = []
        is_over = False

        async def client(url: str, number: int) -> None:
            turn = 0
            while not is_over:
                answers.append(await ask(url, f"{number} {turn}"))
                turn += 1

        async with running(*instances), load_balancer(instances) as url:
            asking = [asyncio.ensure_future(client(url, number)) for number in range(30)]
            for instance in instances:
                await until(lambda: len(sim.ledger.open) > 10, 10.0)
                assert await instance.stop() == 0
                await instance.start()
            is_over = True
            await asyncio.gather(*asking)
        assert len(answers) > 60
        assert {status for status, _, _ in answers} == {200}
        assert {b"message_stop" in body for _, body, _ in answers} == {True}
        assert {each.outcome for each in sim.ledger.requests} == {"completed"}


async def test_a_second_ctrl_c_waits_for_no_stream(tmp_path: Path) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        await replying(events("anthropic")[0])(request)
        await asyncio.sleep(60)
        raise AssertionError("the request is not closed")

    async with scripted(endless) as upstream:
        instance = Instance(upstream.url, tmp_path, "drain_secs = 60", stderr=PIPE)
        async with running(instance):
            asked = asyncio.ensure_future(ask(instance.url))
            await until(lambda: bool(upstream.asked), 10.0)
            assert instance.process.stderr is not None
            instance.process.send_signal(signal.SIGINT)
            while b"Ctrl-C" not in (line := await instance.process.stderr.readline()):
                assert line
            assert not asked.done()
            instance.process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(instance.process.wait(), START_SECS) == 0
            with pytest.raises(aiohttp.ClientPayloadError):
                await asked


@needs_redis
async def test_proxies_with_one_redis_learn_together_and_share_answers(tmp_path: Path) -> None:
    with RedisServer() as redis:
        cache = f'[cache]\nredis_url = "{redis.url}"'
        async with scripted(replying(*events("anthropic"))) as upstream:
            one, other = (Instance(upstream.url, tmp_path, cache, redis.url) for _ in range(2))
            async with running(other):
                async with running(one):
                    first = await ask(one.url)
                    await until(lambda: redis.names("pipecat-hedge:answers:*"), 10.0)
                    second = await ask(other.url)
                    assert first[:2] == second[:2] == (200, b"".join(events("anthropic")))
                    assert (first[2], second[2]) == ("miss", "hit")
                    assert len(upstream.asked) == 1
                    for instance in (one, other):
                        await asyncio.gather(
                            *(ask(instance.url, f"{instance.url} {n}") for n in range(5))
                        )
                await until(lambda: sum(redis.counted().values()) == 6, 10.0)  # when it stops
                redis.kill()  # no request needs it
                assert (await ask(other.url))[:2] == first[:2]
