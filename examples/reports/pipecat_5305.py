"""A voice's socket that is half-open: https://github.com/pipecat-ai/pipecat/issues/5305.

    python -m examples.reports.pipecat_5305

After the first answer the socket takes text and sends nothing more, not even a pong. The caller
waits, and asks "are you here?". Some 20 seconds, without a key.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from pipecat.services.cartesia.tts import CartesiaTTSService
from pipecat.services.tts_service import TTSService

from examples.reports.call import Call, secs, show, voice_of
from pipecat_hedge import HedgedTTSService, ProviderStats, Voice
from pipecat_hedge.testing import Say, ScriptedLLMService
from pipecat_hedge.tools.simulator import Simulator

ANSWERS = (
    "Where do you like to be?",
    "That's important! What do you usually do in your room to relax?",
    "Yes, I am here.",
)
PATIENCE_SECS = 8.0


@dataclass
class Heard:
    """What became of a call: seconds to each answer, and what is remembered but was not heard."""

    waits: list[float | None]
    unheard: list[str]


async def call(*, is_hedged: bool) -> Heard:
    """Hold the call."""
    async with AsyncExitStack() as last, Simulator(voice=voice_of(ANSWERS)) as provider:
        url = provider.cartesia_url

        def connection(model: str) -> CartesiaTTSService:
            settings = CartesiaTTSService.Settings(model=model, voice="any")
            return CartesiaTTSService(api_key="any", url=url, settings=settings)

        tts: TTSService = connection("sonic-3?region=first")
        if is_hedged:
            second = Voice("second", connection("sonic-3?region=second"), same_voice=True)
            tts = HedgedTTSService([Voice("first", tts), second], stats=ProviderStats())
        llm = ScriptedLLMService(*([Say(answer)] for answer in ANSWERS))
        # The provider ends first: a half-open socket answers no close.
        line = await last.enter_async_context(Call(llm, tts))
        waits = [await line.ask("Hello!", 3.0)]
        provider.set_conditions("sonic-3?region=first", fault="half_open")
        waits.append(await line.ask("It's my room, because I feel comfortable.", PATIENCE_SECS))
        waits.append(await line.ask("Are you here?", PATIENCE_SECS))
        told = [number for number, text in enumerate(ANSWERS) if text in line.remembered]
        return Heard(waits, [ANSWERS[number] for number in told if number not in line.heard])


async def main() -> None:
    """Hold the call twice at once, and print both."""
    bare, hedged = await asyncio.gather(call(is_hedged=False), call(is_hedged=True))
    labels = ("first answer", "answer on the half-open socket", 'answer to "are you here?"')
    rows = {label: (secs(bare.waits[n]), secs(hedged.waits[n])) for n, label in enumerate(labels)}
    counts = [f"{len(each.unheard)} of {len(ANSWERS)}" for each in (bare, hedged)]
    rows["answers in the context that were not heard"] = counts[0], counts[1]
    show("pipecat #5305, a half-open socket: seconds to the sound of each answer", rows)


if __name__ == "__main__":
    asyncio.run(main())
