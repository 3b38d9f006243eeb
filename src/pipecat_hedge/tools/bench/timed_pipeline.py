"""A pipeline around one LLM service, and how long its turns take: what the benchmarks time."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pipecat.frames.frames import (
    EndFrame,
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.workers.runner import WorkerRunner

from pipecat_hedge.policy.percentiles import percentile

__all__ = ["TimedPipeline", "TimedTurn", "answered_within", "run_worker"]


@dataclass(frozen=True, slots=True)
class TimedTurn:
    """One turn.

    Parameters:
        ttft_secs: From the context frame to the first text frame; infinite if none came.
        processor_secs: The process's time on a processor until the answer ended.
        text: All of the answer that came.
        is_over: Whether it came to its end in time.
    """

    ttft_secs: float
    processor_secs: float
    text: str
    is_over: bool


def answered_within(secs: Sequence[float], share: float) -> float | None:
    """The time that a share of the turns stays within, the slowest of that share itself.

    Args:
        secs: The turns' times, infinite where no answer came.
        share: The share, above 0 and at most 1.

    Returns:
        The time; None if fewer than that were answered at all.
    """
    value = percentile(secs, share)
    return None if value is None or math.isinf(value) else value


class TimedPipeline(FrameProcessor):
    """Runs a service in a pipeline of its own, and listens behind it."""

    def __init__(self, llm: FrameProcessor):
        """Build the pipeline.

        Args:
            llm: The service, or what stands in its place.
        """
        super().__init__(enable_direct_mode=True)
        self._first_at: float | None = None
        self._text: list[str] = []
        self._over = asyncio.Event()
        self._interrupted = asyncio.Event()
        self._worker = PipelineWorker(
            Pipeline([llm, self]),
            cancel_on_idle_timeout=False,
            enable_rtvi=False,
            params=PipelineParams(enable_metrics=True, enable_usage_metrics=True),
        )

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Take note of the answer's first text and of its end.

        Args:
            frame: The frame.
            direction: Which way it travels.
        """
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMTextFrame):
            if self._first_at is None:
                self._first_at = time.perf_counter()
            self._text.append(frame.text)
        elif isinstance(frame, LLMFullResponseEndFrame):
            self._over.set()
        elif isinstance(frame, InterruptionFrame):
            self._interrupted.set()
        await self.push_frame(frame, direction)

    async def start(self) -> None:
        """Start the pipeline, and return when it is ready for a turn."""
        self._running = await run_worker(self._worker)

    async def turn(self, said: str = "Hello?", give_up_secs: float | None = None) -> TimedTurn:
        """Make a turn.

        Args:
            said: What the user says.
            give_up_secs: How long to wait for the end of the answer; None is for ever.
        """
        self._over.clear()
        self._first_at = None
        self._text.clear()
        context = LLMContext([{"role": "user", "content": said}])
        began, processor_began = time.perf_counter(), time.process_time()
        await self._worker.queue_frame(LLMContextFrame(context))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), give_up_secs)
        spent = time.process_time() - processor_began
        return TimedTurn(
            math.inf if self._first_at is None else self._first_at - began,
            spent,
            "".join(self._text),
            self._over.is_set(),
        )

    async def interrupt(self) -> None:
        """Have the turn that is running given up, and return when it is."""
        self._interrupted.clear()
        await self._worker.queue_frame(InterruptionFrame())
        await self._interrupted.wait()

    async def stop(self) -> None:
        """End the pipeline."""
        await self._worker.queue_frame(EndFrame())
        await self._running


async def run_worker(worker: PipelineWorker) -> asyncio.Task[None]:
    """Run a pipeline's worker, and return once the pipeline has started.

    Args:
        worker: The worker, which nobody runs yet.

    Returns:
        The task that runs it, to be awaited after the pipeline has been ended.
    """
    started = asyncio.Event()

    @worker.event_handler("on_pipeline_started")
    async def on_started(_: object, __: object) -> None:
        started.set()

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    await started.wait()
    return running
