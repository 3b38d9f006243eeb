"""A server of one's own raced against a simulated hosted provider, over real sockets."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from loguru import logger
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.openai.llm import OpenAILLMService

from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.race.reports import TurnReport
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.hedged_service import HedgedLLMService
from pipecat_hedge.service.provider import Provider
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.tools.bench.timed_pipeline import TimedPipeline, answered_within
from pipecat_hedge.tools.simulator.process import SimulatorProcess
from pipecat_hedge.vllm.service import VLLMService

__all__ = ["Raced", "race"]

ANSWER = "Yes, we are open until nine. Do come by!"
ANSWER_TOKENS = 24
BUDGET = 0.05
CALLS = 8
GIVE_UP_SECS = 60.0


@dataclass(frozen=True, slots=True)
class Raced:
    """One arrangement.

    Parameters:
        arrangement: Who was asked, in order.
        turns: How many turns were made.
        p50_secs: The median time to first token, in seconds; so on for the others. None is never.
        p95_secs: The 95th percentile.
        p99_secs: The 99th percentile.
        max_secs: The slowest.
        unanswered: Turns without an answer.
        extra_requests: Requests beyond one a turn, per turn.
        local_share: The share of the turns that the server of one's own has won.
    """

    arrangement: str
    turns: int
    p50_secs: float | None
    p95_secs: float | None
    p99_secs: float | None
    max_secs: float | None
    unanswered: int
    extra_requests: float
    local_share: float


class _Hosted(OpenAILLMService):
    """Closes its connections at the end, since many of it are made in one process."""

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._client.close()


def race(
    base_url: str,
    profile: str,
    *,
    turns: int,
    model: str | None = None,
    api_key: str | None = None,
    seed: int = 1,
    took: Callable[[], None] = lambda: None,
) -> list[Raced]:
    """Measure the hosted provider alone, then both, in either order, under ``adaptive(0.05)``.

    The arrangements follow each other, each with some calls at once and nothing learned before.

    Args:
        base_url: Where the server's OpenAI-compatible API is.
        profile: What the hosted provider is like.
        turns: Turns of each.
        model: What the server is asked for; None for the first that it serves.
        api_key: The server's key.
        seed: Of the simulated provider.
        took: Told of every turn that has ended.
    """
    logger.remove()

    def hosted(url: str) -> OpenAILLMService:
        asked = f"{profile}?answer={quote(ANSWER)}"
        settings = OpenAILLMService.Settings(model=asked)
        return _Hosted(api_key="any", base_url=url, settings=settings)

    def local() -> VLLMService:
        settings = VLLMService.Settings(max_tokens=ANSWER_TOKENS)
        if model is not None:
            settings.model = model
        return VLLMService(base_url=base_url, api_key=api_key, settings=settings)

    def raced(providers: list[Provider], stats: ProviderStats) -> HedgedLLMService:
        return HedgedLLMService(providers, policy=HedgePolicy.adaptive(BUDGET), stats=stats)

    measured: list[Raced] = []
    with SimulatorProcess(seed=seed) as sim:
        url = sim.openai_url
        arrangements: dict[str, Callable[[ProviderStats], FrameProcessor]] = {
            "hosted alone": lambda _: hosted(url),
            "hosted, local": lambda stats: raced(
                [Provider("hosted", hosted(url)), Provider("local", local())], stats
            ),
            "local, hosted": lambda stats: raced(
                [Provider("local", local()), Provider("hosted", hosted(url))], stats
            ),
        }
        for name, build in arrangements.items():
            times, reports = asyncio.run(_calls(build, turns, took))
            measured.append(_sum_up(name, times, reports))
    return measured


async def _calls(
    build: Callable[[ProviderStats], FrameProcessor], turns: int, took: Callable[[], None]
) -> tuple[list[float], list[TurnReport]]:
    """Make the turns in some calls at once, which share what is learned."""
    stats = ProviderStats()
    times: list[float] = []
    reports: list[TurnReport] = []
    left = turns

    async def report(_: object, told: TurnReport) -> None:
        reports.append(told)

    async def call() -> None:
        nonlocal left
        llm = build(stats)
        if isinstance(llm, HedgedLLMService):
            llm.add_event_handler("on_turn_report", report)
        line = TimedPipeline(llm)
        await line.start()
        try:
            while left > 0:
                left -= 1
                times.append((await line.turn("Are you open?", GIVE_UP_SECS)).ttft_secs)
                took()
        finally:
            await line.stop()

    async with TaskScope() as scope:
        tasks = [scope.start(call(), name=f"call {n}") for n in range(CALLS)]
        await asyncio.gather(*tasks)
    return times, reports


def _sum_up(name: str, secs: Sequence[float], reports: Sequence[TurnReport]) -> Raced:
    requests = sum(len(report.attempts) for report in reports)
    return Raced(
        name,
        len(secs),
        answered_within(secs, 0.5),
        answered_within(secs, 0.95),
        answered_within(secs, 0.99),
        answered_within(secs, 1.0),
        sum(math.isinf(value) for value in secs),
        requests / len(reports) - 1 if reports else 0.0,
        sum(report.winner == "local" for report in reports) / len(reports) if reports else 0.0,
    )
