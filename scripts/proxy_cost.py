"""Measures what the proxy adds to a request, beside direct access and the plainest pass-through.

First one stream at a time, in turn through each: the time to the first text, without the time that
the upstream took itself, and the processor time per request. Then many streams at once, which begin
one after the other: the same time, how late each event is, counted from its sending, and the
processor time per event, with what a stream's beginning and end take. ``x`` is in times of the
pass-through. ``first response`` stands in for the rule of a published proxy that hedges: two
requests, of which the first response wins and the other runs on.
``--bodies-mb 20`` then measures the streams through the proxy again, beside requests of 20 MB that
go to their upstream directly, and beside the same requests through the proxy.
``--also NAME=COMMAND`` measures a further proxy in the same run: it is started with the upstream's
address in ``ANTHROPIC_BASE_URL``, and has to listen on ``PORT``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import io
import json
import logging
import multiprocessing
import operator
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
from aiohttp import web
from loguru import logger
from scripts.other_proxy import other_proxy

from pipecat_hedge.service import ProviderStats
from pipecat_hedge.tools.proxy import ProxyServer, ProxySettings, tune_gc

PATH = "/v1/messages"
BASE = "pass-through"
POLICIES = {"proxy": "adaptive(0.1)", "proxy, race(2)": "race(2)"}
JSON = {"content-type": "application/json"}
TTFT_SECS, REST_SECS = 0.02, 0.01
SENT, TOOK = b'"sent": ', b'"took": '


def event(kind: str, **more: Any) -> bytes:
    """An event of the wire."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n".encode()


async def answer(request: web.Request) -> web.StreamResponse:
    """Stream as many events as the request says, each with its time and the server's own time."""
    found, came = await request.json(), time.monotonic()
    out = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await out.prepare(request)
    usage = {"input_tokens": 9, "output_tokens": 1}
    await out.write(event("message_start", message={"id": "m", "content": [], "usage": usage}))
    await asyncio.sleep(TTFT_SECS)
    for _ in range(found["events"]):
        sent = time.monotonic()
        delta = {"type": "text_delta", "text": "word ", "took": sent - came, "sent": sent}
        await out.write(event("content_block_delta", index=0, delta=delta))
        await asyncio.sleep(found["pause_secs"])
    await out.write(event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage))
    await out.write(event("message_stop"))
    return out


async def swallow(request: web.Request) -> web.Response:
    """Read a request and answer it."""
    async for _ in request.content.iter_any():
        pass
    return web.json_response({"content": [{"type": "text", "text": "Yes."}]})


async def pass_through(request: web.Request) -> web.StreamResponse:
    """What every proxy on aiohttp has to do."""
    session, body = request.app["session"], await request.read()
    async with session.post(request.app["url"] + PATH, data=body) as upstream:
        return await relay(request, upstream)


async def relay(request: web.Request, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    """Pass a response on."""
    kind = {"content-type": upstream.headers["content-type"]}
    out = web.StreamResponse(status=upstream.status, headers=kind)
    await out.prepare(request)
    async for chunk in upstream.content.iter_any():
        await out.write(chunk)
    return out


async def first_response(request: web.Request) -> web.StreamResponse:
    """Ask twice and pass the first response on; the other one is read to its end."""
    session, body = request.app["session"], await request.read()
    won: asyncio.Future[aiohttp.ClientResponse] = asyncio.get_running_loop().create_future()

    async def ask() -> None:
        async with session.post(request.app["url"] + PATH, data=body) as upstream:
            if won.done():
                await upstream.read()
            else:
                won.set_result(upstream)
                await passed.wait()

    passed, asked = asyncio.Event(), request.app["asked"]
    for task in (asyncio.create_task(ask()), asyncio.create_task(ask())):
        asked.add(task)
        task.add_done_callback(asked.discard)
    try:
        return await relay(request, await won)
    finally:
        passed.set()


def serve(kind: str, upstream: str, large: str, ready: Connection) -> None:
    """Run a server for ever; a process's target."""
    logger.remove()
    logging.disable()  # losers' connections are cut
    tune_gc()  # as the proxy's command does

    async def main() -> None:
        if kind in POLICIES:
            urls, models = {"m": upstream, "large": large}, dict[str, Any]()
            for model, url in urls.items():
                names = (f"{model} a", f"{model} b")
                upstreams = [{"name": n, "base_url": url, "model": model} for n in names]
                policy = POLICIES[kind]
                models[model] = {"wire": "anthropic", "policy": policy, "upstreams": upstreams}
            settings = ProxySettings.model_validate({"listen": "127.0.0.1:0", "models": models})
            async with ProxyServer(settings, ProviderStats()) as server:
                ready.send(server.port)
                await asyncio.Event().wait()
        app = web.Application()
        app["url"], app["asked"] = upstream, set[asyncio.Task[None]]()
        app["session"] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        handlers = {"direct": answer, "large": swallow, BASE: pass_through}
        app.router.add_post(PATH, handlers.get(kind, first_response))
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        ready.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    import uvloop

    uvloop.run(main())


@contextmanager
def server(kind: str, upstream: str = "", large: str = "") -> Iterator[tuple[str, int]]:
    """A server in a process of its own: its address and its process."""
    new = multiprocessing.get_context("spawn")  # as one that is started by its command
    here, there = new.Pipe()
    process = new.Process(target=serve, args=(kind, upstream, large, there), daemon=True)
    process.start()
    there.close()  # else a process that ends at once is waited for
    yield f"http://127.0.0.1:{here.recv()}", process.pid or 0
    process.terminate()
    process.join()


def send_bodies(url: str, mb: int) -> None:
    """Send large requests, one after another, for ever; a process's target."""

    async def main() -> None:
        words = [{"role": "user", "content": "A few words. " * 50}]
        body = {"model": "large", "max_tokens": 9, "messages": words * (mb * 2**20 // 700)}
        content = json.dumps(body).encode()
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.post(url + PATH, data=io.BytesIO(content), headers=JSON) as got:
                    await got.read()

    asyncio.run(main())


@contextmanager
def bodies(url: str, mb: int) -> Iterator[None]:
    """Large requests beside what is measured."""
    process = multiprocessing.get_context("spawn").Process(target=send_bodies, args=(url, mb))
    process.start()
    time.sleep(2.0)  # it has begun
    yield
    process.terminate()
    process.join()


def cpu_secs(pid: int) -> float:
    """The processor time of a process so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ask(
    session: aiohttp.ClientSession, url: str, events: int, pause_secs: float, at: float = 0.0
) -> tuple[float, list[float]]:
    """Ask once: what the first text took on its way, and how late each event was, in seconds."""
    messages = [{"role": "user", "content": "Hello"}]
    body = {"model": "m", "stream": True, "max_tokens": 9, "messages": messages}
    body |= {"events": events, "pause_secs": pause_secs}
    content = json.dumps(body, separators=(",", ":"))  # as SDKs send it
    await asyncio.sleep(at)
    began, first, late = time.monotonic(), 0.0, list[float]()
    async with session.post(url + PATH, data=content, headers=JSON) as found:
        async for line in found.content:
            if SENT in line:
                now = time.monotonic()
                first = first or now - began - float(line.partition(TOOK)[2].split(b",")[0])
                late.append(now - float(line.partition(SENT)[2].split(b"}")[0]))
    return first, late


def quantile(values: list[float], share: float) -> float:
    """The value, in milliseconds, below which a share of the values lies."""
    return 1000 * sorted(values)[min(int(share * len(values)), len(values) - 1)]


def times(values: dict[str, float], name: str) -> str:
    """A target's value in times of the pass-through's."""
    return f"{values[name]:6.2f} ({values[name] / values[BASE]:4.1f} x)"


async def measure(
    targets: dict[str, tuple[str, int]], large: str, args: argparse.Namespace
) -> None:
    """Measure all targets and print a table."""
    proxies = [name for name in targets if name != "direct"]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        firsts: dict[str, list[float]] = {name: [] for name in targets}
        used = dict.fromkeys(targets, 0.0)
        for number in range(-20, args.requests):
            for name, (url, pid) in targets.items():
                if number == 0 and pid:
                    used[name] = -cpu_secs(pid)
                # What a request leaves to be done does not slow the next one.
                first, _ = await ask(session, url, 3, 0.002, REST_SECS)
                if number >= 0:
                    firsts[name].append(first)
        added = {
            name: 1000 * statistics.median(map(operator.sub, firsts[name], firsts["direct"]))
            for name in proxies
        }
        each = {n: 1000 * (used[n] + cpu_secs(targets[n][1])) / args.requests for n in proxies}
        print(f"one stream at a time, {args.requests} requests:")
        for name in proxies:
            print(
                f"  {name:14} adds {times(added, name)} ms at p50 before the first text,"
                f" processor {times(each, name)} ms a request"
            )
        print(f"{args.streams} streams at once, {1 / args.pause_secs:g} events/s each:")
        begins = [args.begin_secs * number / args.streams for number in range(args.streams)]
        p50s = dict[str, float]()

        async def stream(name: str, url: str, pid: int) -> None:
            began = cpu_secs(pid)
            asked = (ask(session, url, args.events, args.pause_secs, at) for at in begins)
            found = await asyncio.gather(*asked)
            late = [each for _, lates in found for each in lates]
            p50 = 1000 * statistics.median(first for first, _ in found)
            p50s[name] = p50 - p50s.get("direct", 0.0)
            adds = f"adds {times(p50s, name)} ms" if BASE in p50s else f"takes {p50:5.2f} ms      "
            print(
                f"  {name:14} {adds}, late p50 {quantile(late, 0.5):6.2f}"
                f"  p99 {quantile(late, 0.99):6.2f}  max {quantile(late, 1):6.2f} ms,"
                f" processor {1e6 * (cpu_secs(pid) - began) / len(late):4.0f} us an event"
            )

        for name, (url, pid) in targets.items():
            await stream(name, url, pid)
        url, pid = targets["proxy"]
        if args.bodies_mb:
            print(f"the same beside requests of {args.bodies_mb} MB:")
            for name, sent_to in (("direct ones", large), ("proxied ones", url)):
                with bodies(sent_to, args.bodies_mb):
                    await stream(name, url, pid)


def main() -> None:
    """Start the servers and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--events", type=int, default=300, help="events of each stream")
    parser.add_argument("--pause-secs", type=float, default=0.05, help="between two events")
    parser.add_argument("--begin-secs", type=float, default=5.0, help="in which all streams begin")
    parser.add_argument("--bodies-mb", type=int, default=0, help="size of requests beside them")
    parser.add_argument("--also", metavar="NAME=COMMAND", action="append", default=[])
    args = parser.parse_args()
    with ExitStack() as stack:
        targets = {"direct": stack.enter_context(server("direct"))}
        url = targets["direct"][0]
        large, _ = stack.enter_context(server("large"))
        for kind in (BASE, "first response", *POLICIES):
            targets[kind] = stack.enter_context(server(kind, url, large))
        for name, _, command in (each.partition("=") for each in args.also):
            targets[name] = stack.enter_context(other_proxy(command, url))
        gc.disable()  # a full collection here would look like a late event
        asyncio.run(measure(targets, large, args))


if __name__ == "__main__":
    main()
