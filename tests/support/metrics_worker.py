"""A server's process among others: so many turns, and then it waits.

A line ends its session, and the end of its input the process.

Run as ``python -m tests.support.metrics_worker TURNS`` with ``PROMETHEUS_MULTIPROC_DIR`` set.
"""

from __future__ import annotations

import asyncio
import sys
import threading

from loguru import logger

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.policy.slo_outcome import Slo
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.telemetry import prometheus, prometheus_process
from pipecat_hedge.telemetry.prometheus import PrometheusRecorder
from pipecat_hedge.telemetry.prometheus_state import StateGauges
from pipecat_hedge.testing import Say, ScriptedLLMService
from pipecat_hedge.tools.bench.timed_pipeline import TimedPipeline


class _Beaten(StateGauges):
    """Whoever waits is told of the first look that begins from now on, when it is written down."""

    asked, told = threading.Event(), threading.Event()

    def refresh(self) -> None:
        asked = self.asked.is_set()
        super().refresh()
        if asked:
            self.asked.clear()
            self.told.set()

    @classmethod
    async def wait(cls) -> None:
        cls.told.clear()
        cls.asked.set()
        assert await asyncio.to_thread(cls.told.wait, 20)


async def _work(turns: int) -> None:
    stats = ProviderStats()
    recorder = PrometheusRecorder(stats=stats, slos={"standard": Slo()})
    llm = HedgedLLMService(
        [Provider("scripted", ScriptedLLMService([Say("Yes.")]))],
        policy=HedgePolicy.adaptive(0.1),
        stats=stats,
    )
    line = TimedPipeline(llm)
    await line.start()
    for _ in range(turns):
        await line.turn()
    await _Beaten.wait()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await line.stop()
    await _Beaten.wait()
    print("idle", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    recorder.close()


if __name__ == "__main__":
    logger.remove()
    prometheus_process.BEAT_SECS = 0.05
    prometheus.StateGauges = _Beaten
    asyncio.run(_work(int(sys.argv[1])))
