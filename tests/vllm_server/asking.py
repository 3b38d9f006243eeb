"""What the tests ask of a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from scripts.vllm.server import VLLMProcess

from pipecat_hedge import VLLMService
from pipecat_hedge.vllm.server import Counts, read_counts

SYSTEM = "You take orders in a restaurant. The kitchen closes at nine, and the oven is warm. "


def service(server: VLLMProcess, *, tokens: int | None = None, **extra: Any) -> VLLMService:
    """A service on a server; with ``tokens`` its answers have exactly so many."""
    settings = VLLMService.Settings()
    body: dict[str, Any] = dict(extra)
    if tokens is not None:
        settings.max_tokens = tokens
        body["min_tokens"] = tokens
    settings.extra = {"extra_body": body} if body else {}
    return VLLMService(base_url=server.base_url, settings=settings)


async def _metrics(server: VLLMProcess) -> str:
    url = server.base_url.removesuffix("/v1") + "/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()


async def counts(server: VLLMProcess) -> Counts:
    """What a server counts now, asked directly."""
    found = read_counts(await _metrics(server))
    assert found is not None, "these are not the metrics of a vLLM"
    return found


async def completed(server: VLLMProcess) -> float:
    """How many answers a server has given to their ends; aborted ones are not among them."""
    lines = (await _metrics(server)).splitlines()
    return sum(float(x.split()[-1]) for x in lines if x.startswith("vllm:request_success_total{"))


async def until(server: VLLMProcess, holds: Callable[[Counts], bool], secs: float = 20) -> None:
    """Wait until a server's counts are as wanted."""
    async with asyncio.timeout(secs):
        while not holds(await counts(server)):
            await asyncio.sleep(0.005)


@asynccontextmanager
async def busy(server: VLLMProcess, requests: int) -> AsyncIterator[None]:
    """Keep a server at work on so many long answers."""
    models = f"{server.base_url}/models"
    async with aiohttp.ClientSession() as session:
        async with session.get(models) as listed:
            model = (await listed.json())["data"][0]["id"]
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "Go on and on."}],
            "stream": True,
            "min_tokens": 4000,
            "max_tokens": 4000,
        }
        open_ones = [
            asyncio.ensure_future(session.post(f"{server.base_url}/chat/completions", json=body))
            for _ in range(requests)
        ]
        try:
            await until(server, lambda c: c.running + c.waiting >= requests)
            yield
        finally:
            for request in open_ones:
                request.cancel()
            answers = await asyncio.gather(*open_ones, return_exceptions=True)
            for answer in answers:
                if isinstance(answer, aiohttp.ClientResponse):
                    answer.close()
    await until(server, lambda c: c.running + c.waiting == 0)
