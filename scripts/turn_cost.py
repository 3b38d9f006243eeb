"""What a turn and a token cost over the bare service, in processor time, in one run.

    python -m scripts.turn_cost [--turns 300] [--profile]

Both services answer from memory. A token's cost is the difference between turns of 41 and of 1
token; a turn's is what is left. ``--profile`` prints where the hedged service spends its time.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import time
from collections.abc import Callable, Sequence

from loguru import logger
from pipecat.frames.frames import EndFrame, Frame, LLMFullResponseEndFrame, LLMRunFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import LLMService
from pipecat.workers.runner import WorkerRunner

from pipecat_hedge import HedgedLLMService, Provider, ProviderStats
from pipecat_hedge.testing import Say, ScriptedLLMService

TOKENS = (1, 41)
ROUNDS = 6
"""Bare and hedged take turns this many times: the machine's speed changes."""


class _Ends(FrameProcessor):
    """Counts responses."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMFullResponseEndFrame):
            self.ended.set()
        await self.push_frame(frame, direction)


def _scripted(tokens: int) -> ScriptedLLMService:
    return ScriptedLLMService([Say("Yes. ")] * tokens)


def _hedged(tokens: int) -> LLMService:
    providers = [Provider(name, _scripted(tokens)) for name in ("a", "b")]
    return HedgedLLMService(providers, stats=ProviderStats(), warm=False)


async def _secs_a_turn(llm: LLMService, turns: int, profile: cProfile.Profile | None) -> float:
    ends = _Ends()
    context = LLMContext([{"role": "user", "content": "Are you open?"}])
    user, assistant = LLMContextAggregatorPair(context)
    worker = PipelineWorker(Pipeline([user, llm, ends, assistant]))
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    secs = 0.0
    for turn in range(turns + 10):
        if turn == 10:
            secs = time.process_time()
            if profile is not None:
                profile.enable()
        del context.messages[1:]
        ends.ended.clear()
        await worker.queue_frames([LLMRunFrame()])
        await ends.ended.wait()
    if profile is not None:
        profile.disable()
    secs = (time.process_time() - secs) / turns
    await worker.queue_frames([EndFrame()])
    await running
    return secs


def _cost(make: Callable[[int], LLMService], turns: int) -> list[float]:
    return [asyncio.run(_secs_a_turn(make(tokens), turns, None)) for tokens in TOKENS]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args(arguments)
    logger.remove()
    turns = options.turns
    found = [(_cost(_scripted, turns), _cost(_hedged, turns)) for _ in range(ROUNDS)]
    for name, side in (("bare", 0), ("hedged", 1)):
        short, long = (min(each[side][column] for each in found) for column in (0, 1))
        token = (long - short) / (TOKENS[1] - TOKENS[0])
        print(f"{name}: {1e6 * (short - token):.0f} µs a turn, {1e6 * token:.1f} µs a token")
    if options.profile:
        profile = cProfile.Profile()
        asyncio.run(_secs_a_turn(_hedged(TOKENS[1]), turns, profile))
        pstats.Stats(profile).sort_stats("tottime").print_stats("pipecat_hedge", 25)


if __name__ == "__main__":
    main()
