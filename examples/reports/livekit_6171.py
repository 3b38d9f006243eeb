"""A model that sends keep-alives and no token: https://github.com/livekit/agents/issues/6171.

    python -m examples.reports.livekit_6171

LiveKit's `FallbackAdapter` hands `attempt_timeout` to OpenAI's client, whose timeout begins again
with each event: the script's client does the same, LiveKit itself is not run. The same client asks
through the proxy, and a Pipecat service is asked alone and hedged. Some 25 seconds, without a key.
"""

from __future__ import annotations

import asyncio
import math
from time import perf_counter
from typing import Any

from loguru import logger
from openai import AsyncOpenAI
from pipecat.services.llm_service import LLMService
from pipecat.services.openai.llm import OpenAILLMService

from examples.reports.call import secs, show
from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, ProviderStats
from pipecat_hedge.tools.bench import TimedPipeline
from pipecat_hedge.tools.proxy import ProxyServer, ProxySettings
from pipecat_hedge.tools.simulator import Simulator

STUCK, WELL = "gpt-4.1?fault=keepalives", "gpt-4.1?ttft=0.6"
ATTEMPT_TIMEOUT_SECS = 5.0
PATIENCE_SECS = 20.0


async def client(url: str, model: str) -> float | None:
    """Ask with OpenAI's client; return the seconds to the first text, None if none comes."""
    began = perf_counter()
    async with AsyncOpenAI(api_key="any", base_url=url, timeout=ATTEMPT_TIMEOUT_SECS) as openai:

        async def first_text() -> float | None:
            stream = await openai.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "Are you open?"}], stream=True
            )
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    return perf_counter() - began
            return None

        try:
            return await asyncio.wait_for(first_text(), PATIENCE_SECS)
        except TimeoutError:
            return None


async def proxied(url: str) -> float | None:
    """Ask with the same client through the proxy."""
    upstreams = [
        {"name": name, "base_url": url, "model": model}
        for name, model in (("stuck", STUCK), ("well", WELL))
    ]
    model = {"wire": "openai", "policy": "adaptive(0.1)", "upstreams": upstreams}
    settings = ProxySettings.model_validate({"listen": "127.0.0.1:0", "models": {"any": model}})
    async with ProxyServer(settings, ProviderStats()) as server:
        return await client(f"http://127.0.0.1:{server.port}/v1", "any")


async def bot(llm: LLMService[Any]) -> float | None:
    """Ask a Pipecat service."""
    pipeline = TimedPipeline(llm)
    await pipeline.start()
    turn = await pipeline.turn("Are you open?", PATIENCE_SECS)
    await pipeline.interrupt()
    await pipeline.stop()
    return None if math.isinf(turn.ttft_secs) else turn.ttft_secs


async def main() -> None:
    """Ask all four at once, and print the seconds."""
    logger.remove()  # what fails is meant to fail
    async with Simulator() as provider:
        url = provider.openai_url

        def model(name: str) -> OpenAILLMService:
            settings = OpenAILLMService.Settings(model=name)
            return OpenAILLMService(api_key="any", base_url=url, settings=settings)

        hedged = HedgedLLMService(
            [Provider("stuck", model(STUCK)), Provider("well", model(WELL))],
            policy=HedgePolicy.adaptive(budget=0.1),
            stats=ProviderStats(),
        )
        found = await asyncio.gather(
            client(url, STUCK), proxied(url), bot(model(STUCK)), bot(hedged)
        )
    alone, through, bare, raced = map(secs, found)
    rows = {
        "OpenAI's client, timeout=5; the proxy": (alone, through),
        "Pipecat's service; HedgedLLMService": (bare, raced),
    }
    show("livekit #6171, keep-alives without a token: seconds to the first text", rows, "alone")


if __name__ == "__main__":
    asyncio.run(main())
