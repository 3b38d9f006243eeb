"""Sentences without sound: https://github.com/pipecat-ai/pipecat/issues/5601 (a comment).

    python -m examples.reports.pipecat_5601

Ten calls of 56 sentences. For 7 of them, in four of the calls, the voice sends nothing for 7 to
19 s. All calls at once, on Cartesia's wire; some 30 seconds, without a key.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from loguru import logger
from pipecat.services.cartesia.tts import CartesiaTTSService
from pipecat.services.tts_service import TTSService

from examples.reports.call import Call, show, voice_of
from pipecat_hedge import HedgedTTSService, ProviderStats, Voice
from pipecat_hedge.testing import Say, ScriptedLLMService
from pipecat_hedge.tools.simulator import Simulator

SENTENCES = [f"This is sentence {number} of them." for number in range(10, 66)]
TURNS = (3, 3, 3, 3, 3, 3, 3, 3, 2, 2)
"""Of each call; each answer has two sentences."""
SILENT = {3, 4, 20, 23, 32, 33, 45}
TURN_SECS = 8.0


@dataclass
class Heard:
    """What became of a call.

    Parameters:
        heard: The sentences that were heard.
        remembered: Those in the conversation.
        longest_silence_secs: While the caller waited for a sentence.
    """

    heard: set[int]
    remembered: set[int]
    longest_silence_secs: float


async def call(numbers: Sequence[int], stats: ProviderStats, *, is_hedged: bool) -> Heard:
    """Hold a call with these sentences."""
    rng = random.Random(numbers[0])
    script = [
        f"?fault=late&delay={rng.uniform(7, 19):.1f}" if number in SILENT else ""
        for number in numbers
    ]
    speak = voice_of(SENTENCES)
    async with Simulator(voice=speak, voice_script=script) as one, Simulator(voice=speak) as other:

        def connection(provider: Simulator) -> CartesiaTTSService:
            return CartesiaTTSService(
                api_key="any",
                url=provider.cartesia_url,
                settings=CartesiaTTSService.Settings(model="sonic-3", voice="any"),
                reuse_context_id_within_turn=False,  # a context a sentence, as in the report
            )

        tts: TTSService = connection(one)
        if is_hedged:
            second = Voice("second", connection(other), same_voice=True)
            tts = HedgedTTSService([Voice("first", tts), second], stats=stats)
        texts = [SENTENCES[number] for number in numbers]
        answers = [" ".join(texts[at : at + 2]) for at in range(0, len(texts), 2)]
        async with Call(ScriptedLLMService(*([Say(each)] for each in answers)), tts) as line:
            for _ in answers:
                await line.ask("And?", TURN_SECS)
            remembered = {n for n in numbers if SENTENCES[n] in line.remembered}
            return Heard(line.heard & {*numbers}, remembered, line.longest_silence_secs)


async def calls(*, is_hedged: bool) -> list[Heard]:
    """Hold the ten calls, which learn from each other."""
    stats, begin = ProviderStats(), 0
    held = list[asyncio.Task[Heard]]()
    async with asyncio.TaskGroup() as group:
        for turns in TURNS:
            numbers = range(begin, begin := begin + 2 * turns)
            held.append(group.create_task(call(numbers, stats, is_hedged=is_hedged)))
    return [each.result() for each in held]


async def main() -> None:
    """Hold all calls twice at once, and print both."""
    logger.remove()  # what fails is meant to fail
    held = await asyncio.gather(calls(is_hedged=False), calls(is_hedged=True))
    heard = [f"{sum(len(each.heard) for each in kind)} of {len(SENTENCES)}" for kind in held]
    unheard = [f"{sum(len(each.remembered - each.heard) for each in kind)}" for kind in held]
    silence = [f"{max(each.longest_silence_secs for each in kind):.1f} s" for kind in held]
    rows = {
        "sentences that were heard": (heard[0], heard[1]),
        "in the context, and not heard": (unheard[0], unheard[1]),
        "longest silence before a sentence": (silence[0], silence[1]),
    }
    show("pipecat #5601, 7 of 56 sentences come 7 to 19 s late", rows)


if __name__ == "__main__":
    asyncio.run(main())
