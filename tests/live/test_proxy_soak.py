"""Many turns at once: each ends, memory comes back, and large bodies delay no other turn."""

from __future__ import annotations

import asyncio
import gc
import io
import itertools
import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pipecat_hedge.service import ProviderRace
from pipecat_hedge.tools.proxy.proxied_turn import ProxiedTurn
from pipecat_hedge.tools.proxy.request import ProxiedRequest
from pipecat_hedge.tools.proxy.response import Response
from pipecat_hedge.tools.simulator import Simulator
from tests.live.proxied import PATHS, ProxyProcess, asking, proxied
from tests.live.scripted_upstream import scripted
from tests.live.test_proxy_passing import Answer, answering
from tests.live.wire_streams import chunk as gpt_chunk
from tests.live.wire_streams import gpt_stream

pytestmark = pytest.mark.live

WELL = "fixed@ttft=0.01,tps=400"
HEALTHY = {"well": WELL, "slow": "fixed@ttft=0.1,tps=10"}
FAULTS = {
    name: f"{WELL},fault={fault}"
    for name, fault in {
        "silent": "headers_then_silence",
        "hang": "hang",
        "error first": "error_in_band",
        "529": "529",
        "cut first": "cut,after=0",
        "cut": "cut",
        "dribble": "dribble,delay=0.05",
        "slow close": "slow_close,delay=30",
    }.items()
}
MODELS = HEALTHY | FAULTS
STREAMS = 200
END_SECS = 60.0


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def proxy_process(sim: Simulator, folder: Path) -> ProxyProcess:
    """A proxy in a process of its own that races each fault with a sound upstream."""
    lines = ['listen = "127.0.0.1:0"']
    for wire, (name, model) in itertools.product(PATHS, MODELS.items()):
        root = sim.url + ("" if wire == "anthropic" else "/v1")
        lines += [
            f'[models."{wire} {name}"]\nwire = "{wire}"\npolicy = "race(2)"\nupstreams = [',
            f'{{ name = "{name}1", base_url = "{root}", model = "{model}" }},',
            f'{{ name = "{name}2", base_url = "{root}", model = "{WELL}" }}]',
        ]
    path = folder / "hedge.toml"
    path.write_text("\n".join(lines))
    return ProxyProcess(path, stderr=asyncio.subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_2400_faulty_turns_end_and_their_memory_comes_back(
    sim: Simulator, tmp_path: Path
) -> None:
    async with (
        proxy_process(sim, tmp_path) as faulty,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        url, pid = faulty.url, faulty.process.pid

        async def ask(wire: str, name: str) -> str:
            """How a turn ended, as its client sees it."""
            body, found = asking(wire, stream=True, model=f"{wire} {name}"), b""
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
            if plain(found) == whole[wire]:
                return "whole"
            passed = plain(found).split(b"\n\n")
            is_cut = whole[wire].startswith(b"\n\n".join(passed[:-2])) and b'"error"' in passed[-2]
            return "cut" if is_cut else "half"

        async def direct(wire: str) -> bytes:
            body = asking(wire, stream=True, model=WELL)
            async with session.post(sim.url + PATHS[wire], json=body) as answer:
                return plain(await answer.read())

        async def ask_all(names: Iterable[str], count: int) -> Counter[tuple[str, str]]:
            """A ledger: how many turns of each fault have ended in which way."""
            kinds, ledger = itertools.cycle(itertools.product(PATHS, names)), Counter[Any]()
            left = iter(range(count))

            async def go_on() -> None:
                for _ in left:
                    wire, name = next(kinds)
                    ledger[name, await ask(wire, name)] += 1

            await asyncio.gather(*(go_on() for _ in range(STREAMS)))
            return ledger

        whole = {wire: await direct(wire) for wire in PATHS}
        assert set(await ask_all(HEALTHY, 600)) == {(name, "whole") for name in HEALTHY}
        before_mb = rss_mb(pid)
        ledger = await ask_all(MODELS, 2400)
        print(f"{before_mb:.0f} MB before, {rss_mb(pid):.0f} MB after; {dict(ledger)}")
        ends = {end for (name, end) in ledger if name != "cut"}
        assert ends == {"whole"}
        assert {end for (name, end) in ledger if name == "cut"} <= {"whole", "cut"}
        assert sum(ledger.values()) == 2400
        assert rss_mb(pid) < 1.2 * before_mb
        await sim.wait_idle(30.0)  # a loser may run on, to learn its latency


def plain(stream: bytes) -> bytes:
    """A stream without what differs from one answer to the next, such as pings."""
    pings = rb"(: ping|event: ping\ndata: [^\n]*)\n\n"  # of an upstream that the machine delays
    return re.sub(rb'(chatcmpl-|msg_|req_)\d+|"created":\d+|' + pings, b"", stream)


async def test_a_turn_s_memory_is_free_without_the_garbage_collector(sim: Simulator) -> None:
    policy = {"policy": "race(2, probes=False)"}
    async with AsyncExitStack() as stack, aiohttp.ClientSession() as session:
        urls = [
            await stack.enter_async_context(
                proxied((sim.url, MODELS[name]), (sim.url, WELL), model=policy)
            )
            for name in ("well", "529", "cut", "cut first", "hang", "error first")
        ]
        gc.collect()
        gc.disable()
        try:
            for url, wire in itertools.product(urls, PATHS):
                async with session.post(
                    url + PATHS[wire], json=asking(wire, stream=True)
                ) as answer:
                    await answer.read()
            await sim.wait_idle(2.0)
            await asyncio.sleep(0.1)  # a turn ends after its client's answer
            kinds = (ProxiedTurn, ProviderRace, ProxiedRequest, Response)
            left = Counter(type(o).__name__ for o in gc.get_objects() if isinstance(o, kinds))
        finally:
            gc.enable()
    assert left == Counter()


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
