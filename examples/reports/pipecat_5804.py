"""Answers that begin and then dribble: https://github.com/pipecat-ai/pipecat/issues/5804.

    python -m examples.reports.pipecat_5804

Ten calls are well. In the next one the model's first token comes after 1.4 s, as ever, and then one
word every 0.9 s: no sentence ends for 7 s, so nothing is spoken. After 5.5 s the caller speaks
again, which drops the answer, and the next one is as slow. Some 40 seconds, without a key.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from loguru import logger
from pipecat.services.cartesia.tts import CartesiaTTSService
from pipecat.services.llm_service import LLMService
from pipecat.services.openai.llm import OpenAILLMService

from examples.reports.call import Call, secs, show, voice_of
from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, ProviderStats
from pipecat_hedge.tools.simulator import Simulator

ANSWER = "Sorry, did you mean the swim on Sunday?"
FIRST = f"gpt-4.1?ttft=1.4&answer={quote(ANSWER)}"
SECOND = f"claude-haiku-4-5?ttft=0.6&answer={quote(ANSWER)}"
QUESTIONS = ("When is it?", "Where is it?", "May I come?")
PATIENCE_SECS = 5.5
ANSWER_SECS = 1.5


async def call(
    provider: Simulator, stats: ProviderStats | None, questions: int, patience_secs: float
) -> list[float | None]:
    """Hold a call, hedged if there are statistics; return the seconds from each question on."""

    def model(name: str) -> OpenAILLMService:
        settings = OpenAILLMService.Settings(model=name)
        return OpenAILLMService(api_key="any", base_url=provider.openai_url, settings=settings)

    llm: LLMService[Any] = model(FIRST)
    if stats is not None:
        llm = HedgedLLMService(
            [Provider("first", llm), Provider("second", model(SECOND))],
            policy=HedgePolicy.adaptive(budget=0.1),
            stats=stats,
        )
    settings = CartesiaTTSService.Settings(model="sonic-3", voice="any")
    tts = CartesiaTTSService(api_key="any", url=provider.cartesia_url, settings=settings)
    waits = list[float | None]()
    async with Call(llm, tts) as line:
        for question in QUESTIONS[:questions]:
            waits.append(await line.ask(question, patience_secs))
            if waits[-1] is None:
                await line.interrupt()
            else:
                await asyncio.sleep(ANSWER_SECS)
    return waits


async def calls(stats: ProviderStats | None) -> list[float | None]:
    """Hold the call; a hedged one after others that were well, from which it has learned."""
    async with Simulator(voice=voice_of([ANSWER])) as provider:
        if stats is not None:
            await asyncio.gather(*(call(provider, stats, 2, 2.5) for _ in range(10)))
        provider.set_conditions(FIRST, fault="dribble", delay=0.9)
        return await call(provider, stats, len(QUESTIONS), PATIENCE_SECS)


async def main() -> None:
    """Hold all calls twice at once, and print the last ones."""
    logger.remove()  # what fails is meant to fail
    bare, hedged = await asyncio.gather(calls(None), calls(ProviderStats()))
    rows = {
        f"{number + 1}. {question}": (secs(bare[number]), secs(hedged[number]))
        for number, question in enumerate(QUESTIONS)
    }
    show("pipecat #5804, answers that dribble: seconds to the first sound", rows)


if __name__ == "__main__":
    asyncio.run(main())
