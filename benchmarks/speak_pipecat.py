"""Pipecat's services and this library's, each in a pipeline per call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from loguru import logger
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    EndFrame,
    Frame,
    FunctionCallsStartedFrame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.llm_switcher import LLMSwitcher
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.service_switcher import ServiceSwitcher, ServiceSwitcherStrategyFailover
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import NOT_GIVEN, LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.cartesia.tts import CartesiaTTSService
from pipecat.services.deepgram.stt import DeepgramSTTService
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.workers.runner import WorkerRunner

from benchmarks.harness import RATE, Ask, Heard, NewCaller, main, speech
from benchmarks.sections import ARGUMENTS, PROVIDERS, RECOGNISERS, SPEAKERS, TOOL, Section
from pipecat_hedge import (
    HedgedLLMService,
    HedgedSTTService,
    HedgedTTSService,
    HedgePolicy,
    ProviderStats,
    Voice,
)

STRINGS = {name: {"type": "string"} for name in ARGUMENTS}
SCHEMA = FunctionSchema(TOOL, "Books a table.", properties=STRINGS, required=list(STRINGS))
POLICIES = {
    "race(2)": HedgePolicy.race(2),
    "adaptive(0.05)": HedgePolicy.adaptive(0.05),
    "adaptive(0.1)": HedgePolicy.adaptive(0.1),
}


class Ear(FrameProcessor):
    """The pipeline's last processor: what reaches it is heard."""

    def __init__(self, end: type[Frame]) -> None:
        super().__init__()
        self.end = end
        self.heard: Heard | None = None
        self.over, self.called, self.interrupted = (asyncio.Event() for _ in range(3))
        self.is_calling = False

    def begin(self, heard: Heard) -> None:
        """Listen to the next turn."""
        self.heard, self.is_calling = heard, False
        for event in (self.over, self.called, self.interrupted):
            event.clear()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Take the frame in."""
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMTextFrame) and self.heard is not None:
            self.heard.say(frame.text)
        elif isinstance(frame, FunctionCallsStartedFrame):
            self.is_calling = True
        elif isinstance(frame, TTSAudioRawFrame) and self.heard is not None:
            self.heard.sound(frame.audio, frame.sample_rate)
        elif isinstance(frame, TranscriptionFrame) and self.heard is not None:
            self.heard.say(frame.text)
            self.over.set()
        elif isinstance(frame, self.end):
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
    stats, (what, _, how) = ProviderStats(), kind.partition(" ")
    root = url.removesuffix("/v1")

    def service(model: str) -> Any:
        if what == "llm":
            settings = OpenAILLMService.Settings(model=model)
            return OpenAILLMService(api_key="any", base_url=url, settings=settings)
        if what == "tts":
            voice = CartesiaTTSService.Settings(model=model, voice="any")
            address = root.replace("http", "ws", 1) + "/tts/websocket"
            return CartesiaTTSService(api_key="any", url=address, settings=voice)
        ear = DeepgramSTTService.Settings(model=model)
        return DeepgramSTTService(api_key="any", base_url=root, settings=ear)

    def processor() -> Any:
        models = {"llm": PROVIDERS, "tts": SPEAKERS, "stt": RECOGNISERS}[what]
        if how == "bare":
            return service(models[0])
        if how == "switcher":
            kind = LLMSwitcher if what == "llm" else ServiceSwitcher
            return kind([service(model) for model in models], ServiceSwitcherStrategyFailover)
        if what == "stt":
            return HedgedSTTService(lambda: service(models[0]), service(models[1]), stats=stats)
        if what == "tts":
            second = Voice("b", service(models[1]), same_voice=True)
            voices = [Voice("a", service(models[0])), second]
            return HedgedTTSService(voices, stats=stats)
        services = [service(model) for model in models]
        return HedgedLLMService(services, policy=POLICIES[how], stats=stats)

    @asynccontextmanager
    async def new_caller() -> AsyncIterator[Ask]:
        ear, asked = Ear(TTSStoppedFrame if what == "tts" else LLMFullResponseEndFrame), processor()
        if what == "llm":
            asked.register_function(TOOL, ear.book)
        async with pipeline(asked, ear) as worker:

            async def ask(heard: Heard) -> None:
                ear.begin(heard)
                asking = asyncio.create_task(ASK[what](worker, heard))
                try:
                    await ear.over.wait()
                    if ear.is_calling:
                        await ear.called.wait()
                except asyncio.CancelledError:  # the caller speaks, or leaves
                    await worker.queue_frame(InterruptionFrame())
                    await ear.interrupted.wait()
                    raise
                finally:
                    asking.cancel()

            yield ask

    yield new_caller


async def chat(worker: PipelineWorker, heard: Heard) -> None:
    """Ask a model."""
    messages: Any = [{"role": "user", "content": heard.prompt}]
    tools = ToolsSchema([SCHEMA]) if heard.section.has_tools else NOT_GIVEN
    await worker.queue_frame(LLMContextFrame(LLMContext(messages, tools)))


async def speak(worker: PipelineWorker, heard: Heard) -> None:
    """Have a sentence spoken."""
    text = LLMTextFrame(heard.prompt)
    await worker.queue_frames([LLMFullResponseStartFrame(), text, LLMFullResponseEndFrame()])


async def listen(worker: PipelineWorker, heard: Heard) -> None:
    """Speak, with the frames of a VAD, until something is understood."""
    was_speech = False

    async def hear(piece: bytes, is_speech: bool) -> None:
        nonlocal was_speech
        if is_speech != was_speech:
            kind = VADUserStartedSpeakingFrame if is_speech else VADUserStoppedSpeakingFrame
            await worker.queue_frame(kind())
        was_speech = is_speech
        await worker.queue_frame(InputAudioRawFrame(piece, RATE, 1))

    await speech(hear, heard)


ASK = {"llm": chat, "tts": speak, "stt": listen}


if __name__ == "__main__":
    logger.remove()
    main(peer)
