"""Proxies in front of the providers, and the two plainest ones: `python -m benchmarks.proxies`.

`pass-through` passes a request on. `two-requests` has the rule of the published hedging proxy: it
sends two, the first response wins, the other one is read to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.sections import PROVIDERS

START_SECS = 60.0

HEDGE = """\
listen = "127.0.0.1:{port}"
[models.a]
wire = "openai"
policy = "adaptive(0.1)"
continue = true
upstreams = [{upstreams}]
"""
UPSTREAM = '{{ name = "{name}", base_url = "{url}", model = "{name}" }}'
LITELLM = """\
model_list: [{models}]
router_settings: {{fallbacks: [{{a: [b]}}]}}
general_settings: {{dangerously_permit_weak_or_unset_master_key: true}}
"""
"""Without keys, as the other proxies."""
MODEL = (
    "{{model_name: {name}, "
    'litellm_params: {{model: "openai/{name}", api_base: "{url}", api_key: any}}}}'
)


@contextmanager
def running(kind: str, environments: Path, url: str) -> Iterator[tuple[str, int]]:
    """Run a proxy; its address, and its process, which leads a session."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "settings.yaml"
        command = [sys.executable, "-m", "benchmarks.proxies", kind, str(port), url]
        if kind == "pipecat-hedge":
            upstreams = ", ".join(UPSTREAM.format(name=name, url=url) for name in PROVIDERS)
            settings.write_text(HEDGE.format(port=port, upstreams=upstreams))
            command = [str(environments / "pipecat/bin/pipecat-hedge"), "proxy", str(settings)]
        elif kind == "litellm":
            models = ", ".join(MODEL.format(name=name, url=url) for name in PROVIDERS)
            settings.write_text(LITELLM.format(models=models))
            command = [str(environments / "litellm/bin/litellm"), "--config", str(settings)]
            command += ["--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[1],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _wait(process, port)
            yield f"http://127.0.0.1:{port}/v1", process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # some wait for their clients
            process.wait()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + START_SECS
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{process.args} does not listen")


def cpu_secs(session: int) -> float:
    """The processor time of a session's processes so far."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rsplit(")", 1)[1].split()
            if int(fields[3]) == session:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def serve(kind: str, port: int, url: str) -> None:
    """Serve for ever."""
    import aiohttp
    from aiohttp import web

    reading = set[asyncio.Task[Any]]()

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        target = url + request.path.removeprefix("/v1")

        async def send() -> aiohttp.ClientResponse:
            headers = {"content-type": "application/json", "authorization": "Bearer any"}
            return await session.post(target, data=body, headers=headers)

        count = 2 if kind == "two-requests" else 1
        sent = {asyncio.create_task(send()) for _ in range(count)}
        done, others = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
        winner = done.pop()
        for other in done | others:
            reading.add(task := asyncio.create_task(read_all(other)))
            task.add_done_callback(reading.discard)
        async with winner.result() as upstream:
            kept = {"content-type": upstream.headers["content-type"]}
            out = web.StreamResponse(status=upstream.status, headers=kept)
            await out.prepare(request)
            async for chunk in upstream.content.iter_any():
                await out.write(chunk)
        return out

    async def read_all(other: asyncio.Task[aiohttp.ClientResponse]) -> None:
        with contextlib.suppress(aiohttp.ClientError):
            async with await other as upstream:
                await upstream.read()

    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
