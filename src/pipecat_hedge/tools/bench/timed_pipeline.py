"""Runs one LLM service in a pipeline, and times its turns."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
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


@dataclass(frozen=True, slots=True)
class TimedTurn:
    """One turn.

    Parameters:
        ttft_secs: From the context frame to the first text frame; infinite without text.
        text: The answer's text.
        is_over: Whether the response ended in time.
    """

    ttft_secs: float
    text: str
    is_over: bool


class TimedPipeline(FrameProcessor):
    """The last processor of a pipeline around an LLM service; records the text that reaches it."""

    def __init__(self, llm: FrameProcessor):
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
        """Record the response's text and its end, and push every frame on."""
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
        """Start the pipeline; returns when it is ready."""
        self._running = await run_worker(self._worker)

    async def turn(self, text: str = "Hello?", give_up_secs: float | None = None) -> TimedTurn:
        """Run one turn.

        Args:
            text: The user's message.
            give_up_secs: The longest wait for the response's end; None has no limit.
        """
        self._over.clear()
        self._first_at = None
        self._text.clear()
        context = LLMContext([{"role": "user", "content": text}])
        began = time.perf_counter()
        await self._worker.queue_frame(LLMContextFrame(context))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), give_up_secs)
        ttft_secs = math.inf if self._first_at is None else self._first_at - began
        return TimedTurn(ttft_secs, "".join(self._text), self._over.is_set())

    async def interrupt(self) -> None:
        """Interrupt the turn; returns when the interruption has passed the service."""
        self._interrupted.clear()
        await self._worker.queue_frame(InterruptionFrame())
        await self._interrupted.wait()

    async def stop(self) -> None:
        """End the pipeline."""
        await self._worker.queue_frame(EndFrame())
        await self._running


async def run_worker(worker: PipelineWorker) -> asyncio.Task[None]:
    """Run a pipeline's worker; returns when the pipeline has started.

    Returns:
        The task that runs it. Await it after the pipeline has ended.
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
