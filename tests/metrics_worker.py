"""A server's process among others: so many turns, then it waits for the end of its input.

Run as ``python -m tests.metrics_worker TURNS`` with ``PROMETHEUS_MULTIPROC_DIR`` set.
"""

from __future__ import annotations

import asyncio
import sys

from loguru import logger

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, turn_hooks
from pipecat_hedge.policies.slo import Slo
from pipecat_hedge.prometheus import PrometheusRecorder
from pipecat_hedge.provider_stats import ProviderStats
from pipecat_hedge.testing import Say, ScriptedLLMService
from pipecat_hedge.timed_pipeline import TimedPipeline


async def _work(turns: int) -> None:
    stats = ProviderStats()
    PrometheusRecorder(stats=stats, slos={"standard": Slo()})
    llm = HedgedLLMService(
        [Provider("scripted", ScriptedLLMService([Say("Yes.")]))],
        policy=HedgePolicy.adaptive(0.1),
        stats=stats,
    )
    line = TimedPipeline(llm)
    await line.start()
    for _ in range(turns):
        await line.turn()
    stats.turn_hooks.beat()  # it would by itself, some seconds later
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await line.stop()


if __name__ == "__main__":
    logger.remove()
    turn_hooks.BEAT_SECS = 0.05
    asyncio.run(_work(int(sys.argv[1])))
