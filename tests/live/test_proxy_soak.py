"""Many turns at once: each ends, memory comes back, and large bodies delay no other turn."""

from __future__ import annotations

import asyncio
import gc
import io
import itertools
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pipecat_hedge.service import ProviderRace, ProviderStats
from pipecat_hedge.tools.proxy import ProxyServer, ProxySettings
from pipecat_hedge.tools.proxy.proxied_turn import ProxiedTurn
from pipecat_hedge.tools.proxy.request import ProxiedRequest
from pipecat_hedge.tools.proxy.response import Response
from tests.live.faulty_upstream import PATHS, FaultyUpstream, events, faulty_upstream
from tests.live.scripted_upstream import asking, proxied, scripted
from tests.live.test_proxy_passing import Answer, answering, gpt_stream
from tests.live.test_proxy_passing import chunk as gpt_chunk

pytestmark = pytest.mark.live

FAULTS = ["silent", "hang", "error_first", "529", "cut_first", "cut", "dribble", "slow_close"]
HEALTHY = ["well", "slow"]
STREAMS = 200
END_SECS = 60.0


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


@asynccontextmanager
async def proxy_process(upstream: FaultyUpstream, folder: Path) -> AsyncIterator[tuple[str, int]]:
    """A proxy in a process of its own that races each fault with a sound upstream."""
    lines = ['listen = "127.0.0.1:0"']
    for wire, name in itertools.product(PATHS, [*FAULTS, *HEALTHY]):
        root = upstream.url + ("" if wire == "anthropic" else "/v1")
        lines += [
            f'[models.{wire}-{name}]\nwire = "{wire}"\npolicy = "race(2)"\nupstreams = [',
            f'{{ name = "{name}1", base_url = "{root}", model = "{name}" }},',
            f'{{ name = "{name}2", base_url = "{root}", model = "well" }}]',
        ]
    path = folder / "hedge.toml"
    path.write_text("\n".join(lines))
    command = [sys.executable, "-m", "pipecat_hedge.cli", "proxy", str(path)]
    env = {**os.environ, "PIPECAT_HEDGE_STATS": "off"}
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=null, env=env)
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        yield line.decode().split(": ", 1)[1].strip(), process.pid
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_2400_faulty_turns_end_and_their_memory_comes_back(tmp_path: Path) -> None:
    async with (
        faulty_upstream() as upstream,
        proxy_process(upstream, tmp_path) as (url, pid),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):

        async def ask(wire: str, name: str) -> str:
            """How a turn ended, as its client sees it."""
            body, found = asking(wire, stream=True, model=f"{wire}-{name}"), b""
            try:
                async with (
                    asyncio.timeout(END_SECS),
                    session.post(url + PATHS[wire], json=body) as answer,
                ):
                    async for piece in answer.content.iter_any():
                        found += piece
            except TimeoutError:
                return f"no end, {len(found)} bytes"
            if answer.status != 200:
                return f"status {answer.status}"
            if found.endswith(events(wire)[-1]):
                return "whole"
            return "cut" if b'"error"' in found else "half"

        async def ask_all(names: list[str], count: int) -> Counter[tuple[str, str]]:
            """A ledger: how many turns of each fault have ended in which way."""
            kinds, ledger = itertools.cycle(itertools.product(PATHS, names)), Counter[Any]()
            left = iter(range(count))

            async def go_on() -> None:
                for _ in left:
                    wire, name = next(kinds)
                    ledger[name, await ask(wire, name)] += 1

            await asyncio.gather(*(go_on() for _ in range(STREAMS)))
            return ledger

        assert set(await ask_all(HEALTHY, 600)) == {(name, "whole") for name in HEALTHY}
        before_mb = rss_mb(pid)
        ledger = await ask_all([*FAULTS, *HEALTHY], 2400)
        print(f"{before_mb:.0f} MB before, {rss_mb(pid):.0f} MB after; {dict(ledger)}")
        ends = {end for (name, end) in ledger if name != "cut"}
        assert ends == {"whole"}
        assert {end for (name, end) in ledger if name == "cut"} <= {"whole", "cut"}
        assert sum(ledger.values()) == 2400
        assert rss_mb(pid) < 1.2 * before_mb
        await upstream.wait_idle(30.0)  # a loser may run on, to learn its latency


@pytest.mark.parametrize("name", ["well", "529", "cut", "cut_first", "hang", "error_first"])
async def test_a_turn_s_memory_is_free_without_the_garbage_collector(name: str) -> None:
    async with (
        faulty_upstream() as upstream,
        proxied_race(upstream, name) as url,
        aiohttp.ClientSession() as session,
    ):
        gc.collect()
        gc.disable()
        try:
            for wire in PATHS:
                async with session.post(
                    url + PATHS[wire], json=asking(wire, stream=True)
                ) as answer:
                    await answer.read()
            await upstream.wait_idle(2.0)
            await asyncio.sleep(0.1)  # a turn ends after its client's answer
            kinds = (ProxiedTurn, ProviderRace, ProxiedRequest, Response)
            left = Counter(type(o).__name__ for o in gc.get_objects() if isinstance(o, kinds))
        finally:
            gc.enable()
    assert left == Counter()


@asynccontextmanager
async def proxied_race(upstream: FaultyUpstream, name: str) -> AsyncIterator[str]:
    models = {
        wire: {
            "wire": wire,
            "policy": "race(2, probes=False)",
            "upstreams": [
                {
                    "name": f"{model} {number}",
                    "base_url": upstream.url + ("" if wire == "anthropic" else "/v1"),
                    "model": model,
                }
                for number, model in enumerate((name, "well"))
            ],
        }
        for wire in PATHS
    }
    settings = ProxySettings.model_validate({"listen": "127.0.0.1:0", "models": models})
    async with ProxyServer(settings, ProviderStats()) as server:
        yield f"http://127.0.0.1:{server.port}"


# ---- large bodies


@asynccontextmanager
async def measured_proxy(url: str) -> AsyncIterator[tuple[str, list[float]]]:
    """A proxy on a loop and a thread of its own.

    Yields:
        Its address, and the longest step of its loop so far, in processor time and by the clock. On
        the clock the test's own thread and other processes count as well.
    """
    started, ends, longest = asyncio.Future[str](), threading.Event(), [0.0, 0.0]
    loop = asyncio.get_running_loop()

    async def serve() -> None:
        async with proxied(url, url) as address:
            loop.call_soon_threadsafe(started.set_result, address)
            last = time.thread_time(), time.perf_counter()
            while not ends.is_set():
                await asyncio.sleep(0)
                now = time.thread_time(), time.perf_counter()
                for number in range(2):
                    longest[number] = max(longest[number], now[number] - last[number])
                last = now

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield await started, longest
    finally:
        ends.set()
        await asyncio.to_thread(thread.join)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_bodies_of_20_mb_stop_no_other_stream() -> None:
    message = {"role": "user", "content": 'A "word" or two.'}
    many = json.dumps(asking("openai", stream=False, messages=[message] * 400_000)).encode()
    text = "QUFB" * (5 * 2**20)
    large = json.dumps(asking("openai", stream=False, image=text)).encode()
    small = json.dumps(asking("openai", stream=False)).encode()
    stream = json.dumps(asking("openai", stream=True)).encode()
    whole = json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})
    long_event = gpt_stream(gpt_chunk(content=text), gpt_chunk("stop"))
    many_events = gpt_stream(*[gpt_chunk(content=text[:10_000])] * 2000, gpt_chunk("stop"))
    began = time.thread_time()
    json.loads(many)
    parse_secs = time.thread_time() - began
    for name, body, answer in (
        ("many messages", many, Answer("openai", [b"{}"], is_stream=False)),
        ("one long message", large, Answer("openai", [b"{}"], is_stream=False)),
        ("a whole answer", small, Answer("openai", [whole.encode()], is_stream=False)),
        ("a long event", stream, Answer("openai", long_event)),
        ("many events", stream, Answer("openai", many_events)),
    ):
        async with (
            scripted(answering(answer)) as upstream,
            measured_proxy(upstream.url) as (url, longest),
            aiohttp.ClientSession() as session,
            session.post(url + PATHS["openai"], data=io.BytesIO(body)) as response,
        ):
            found = await response.read()
            assert found == b"".join(answer.parts)
            busy, clock = (f"{1000 * secs:.1f} ms" for secs in longest)
            print(f"{name}: {busy}, {clock} by the clock; a parse: {1000 * parse_secs:.0f} ms")
            assert longest[0] < parse_secs / 2
