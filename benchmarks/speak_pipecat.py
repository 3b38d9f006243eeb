"""Pipecat's services and this library's, each in a pipeline per call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from loguru import logger
from pipecat.adapters.schemas.function_schema import FunctionSchema
from pipecat.adapters.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    EndFrame,
    Frame,
    FunctionCallsStartedFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
)
from pipecat.pipeline.llm_switcher import LLMSwitcher
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.service_switcher import ServiceSwitcherStrategyFailover
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.workers.runner import WorkerRunner

from benchmarks.harness import Ask, Heard, NewCaller, main
from benchmarks.sections import ARGUMENTS, PROVIDERS, TOOL, Section
from pipecat_hedge import HedgedLLMService, HedgePolicy, ProviderStats

STRINGS = {name: {"type": "string"} for name in ARGUMENTS}
SCHEMA = FunctionSchema(TOOL, "Books a table.", properties=STRINGS, required=list(STRINGS))
POLICIES = {
    "race(2)": HedgePolicy.race(2),
    "adaptive(0.05)": HedgePolicy.adaptive(0.05),
    "adaptive(0.1)": HedgePolicy.adaptive(0.1),
}


class Ear(FrameProcessor):
    """The pipeline's last processor: what reaches it is heard."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: Heard | None = None
        self.over, self.called, self.interrupted = (asyncio.Event() for _ in range(3))
        self.is_calling = False

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Take the frame in."""
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMTextFrame) and self.heard is not None:
            self.heard.say(frame.text)
        elif isinstance(frame, FunctionCallsStartedFrame):
            self.is_calling = True
        elif isinstance(frame, LLMFullResponseEndFrame):
            self.over.set()
        elif isinstance(frame, InterruptionFrame):
            self.interrupted.set()
        await self.push_frame(frame, direction)

    async def book(self, params: FunctionCallParams) -> None:
        """The tool."""
        if self.heard is not None:
            self.heard.call(params.function_name, dict(params.arguments))
        await params.result_callback({"booked": True})
        self.called.set()


@asynccontextmanager
async def pipeline(*processors: FrameProcessor) -> AsyncIterator[PipelineWorker]:
    """A pipeline that has started."""
    worker = PipelineWorker(Pipeline(list(processors)), cancel_on_idle_timeout=False)
    started = asyncio.Event()
    worker.add_event_handler("on_pipeline_started", lambda *_: started.set())
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    await started.wait()
    try:
        yield worker
    finally:
        await worker.queue_frame(EndFrame())
        await running


@asynccontextmanager
async def peer(kind: str, url: str, section: Section) -> AsyncIterator[NewCaller]:
    """A pipeline for each call; what is learned of the providers belongs to the process."""
    stats = ProviderStats()

    def service(model: str) -> OpenAILLMService:
        settings = OpenAILLMService.Settings(model=model)
        return OpenAILLMService(api_key="any", base_url=url, settings=settings)

    def llm() -> Any:
        if kind == "bare":
            return service("a")
        services = [service(model) for model in PROVIDERS]
        if kind == "switcher":
            return LLMSwitcher(services, ServiceSwitcherStrategyFailover)
        return HedgedLLMService(services, policy=POLICIES[kind], stats=stats)

    @asynccontextmanager
    async def new_caller() -> AsyncIterator[Ask]:
        ear, answers = Ear(), llm()
        answers.register_function(TOOL, ear.book)
        async with pipeline(answers, ear) as worker:

            async def ask(heard: Heard) -> None:
                ear.heard, ear.is_calling = heard, False
                ear.over.clear()
                ear.called.clear()
                ear.interrupted.clear()
                messages: Any = [{"role": "user", "content": heard.prompt}]
                tools = ToolsSchema([SCHEMA]) if section.has_tools else None
                context = LLMContext(messages, **({"tools": tools} if tools else {}))
                await worker.queue_frame(LLMContextFrame(context))
                try:
                    await ear.over.wait()
                    if ear.is_calling:
                        await ear.called.wait()
                except asyncio.CancelledError:  # the caller speaks, or leaves
                    await worker.queue_frame(InterruptionFrame())
                    await ear.interrupted.wait()
                    raise

            yield ask

    yield new_caller


if __name__ == "__main__":
    logger.remove()
    main(peer)
