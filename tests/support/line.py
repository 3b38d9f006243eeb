"""A phone line for tests: a pipeline around one service, spoken to and listened to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pipecat.clocks.base_clock import BaseClock
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.observers.base_observer import BaseObserver
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.ai_service import AIService

from pipecat_hedge import TurnReport
from pipecat_hedge.tools.bench import run_worker

FrameT = TypeVar("FrameT", bound=Frame)


class _LoopClock(BaseClock):
    """The pipeline's clock is the loop's, which may be a virtual one."""

    def start(self) -> None:
        pass

    def get_time(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e9)


class _Ear(FrameProcessor):
    """Notes every frame that passes it in one direction, and when."""

    def __init__(self, direction: FrameDirection):
        super().__init__(enable_direct_mode=True)
        self._direction = direction
        self.heard: list[tuple[float, Frame]] = []
        self._of_kind: dict[type[Frame], tuple[int, list[Any]]] = {}
        self.changed = asyncio.Condition()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if direction is self._direction:
            self.heard.append((asyncio.get_running_loop().time(), frame))
            async with self.changed:
                self.changed.notify_all()
        await self.push_frame(frame, direction)

    def frames(self, kind: type[FrameT]) -> list[FrameT]:
        """The frames of a kind so far; in a long call only what is new is looked at."""
        seen, found = self._of_kind.get(kind, (0, []))
        found = [*found, *(f for _, f in self.heard[seen:] if isinstance(f, kind))]
        self._of_kind[kind] = len(self.heard), found
        return list(found)

    def forget(self) -> None:
        self.heard.clear()
        self._of_kind.clear()


class Line:
    """Runs a service in a pipeline for the length of an ``async with``.

    ``nested`` stands in the pipeline in place of the service that is inside it.
    The line listens behind ``processors``, and before what comes ``after``.

    Attributes:
        service: The service.
        worker: The pipeline's worker.
        reports: Every turn report so far, if the service makes any.
    """

    def __init__(
        self,
        service: AIService,
        *,
        before: Sequence[FrameProcessor] = (),
        processors: Sequence[FrameProcessor] = (),
        after: Sequence[FrameProcessor] = (),
        tracing: bool = False,
        nested: FrameProcessor | None = None,
        observers: Sequence[BaseObserver] = (),
    ):
        self._up, self._down = _Ear(FrameDirection.UPSTREAM), _Ear(FrameDirection.DOWNSTREAM)
        self.worker = PipelineWorker(
            Pipeline([self._up, *before, nested or service, *processors, self._down, *after]),
            cancel_on_idle_timeout=False,
            enable_rtvi=False,
            enable_tracing=tracing,
            observers=list(observers),
            clock=_LoopClock() if observers else None,
            params=PipelineParams(enable_metrics=True, enable_usage_metrics=True),
        )
        self.service = service
        self.reports: list[TurnReport] = []
        self._reported = asyncio.Condition()
        if "on_turn_report" in service._event_handlers:
            service.add_event_handler("on_turn_report", self._take_report)

    async def _take_report(self, _: object, report: TurnReport) -> None:
        self.reports.append(report)
        async with self._reported:
            self._reported.notify_all()

    async def __aenter__(self) -> Line:
        self._running = await asyncio.wait_for(run_worker(self.worker), 5)
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            await self.worker.queue_frame(EndFrame())
        else:
            await self.worker.cancel()
        await asyncio.wait_for(self._running, 10)

    async def send(self, *frames: Frame) -> None:
        """Put frames into the pipeline's beginning."""
        for frame in frames:
            await self.worker.queue_frame(frame)

    async def interrupt(self) -> None:
        """Have the caller speak into the answer."""
        await self.send(InterruptionFrame())

    async def ask(self, text: str = "Hello?", context: LLMContext | None = None) -> LLMContext:
        """Send a turn and wait for the end of its answer."""
        context = context or LLMContext([{"role": "user", "content": text}])
        ends = len(self.frames(LLMFullResponseEndFrame)) + 1
        await self.send(LLMContextFrame(context))
        await self.until(lambda: len(self.frames(LLMFullResponseEndFrame)) >= ends)
        return context

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds; it is looked at whenever a frame has passed."""
        if condition():
            return
        tasks = [asyncio.create_task(self._until(ear, condition)) for ear in (self._down, self._up)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _until(self, ear: _Ear, condition: Callable[[], bool]) -> None:
        async with ear.changed:
            await ear.changed.wait_for(condition)

    async def report(self, number: int = 1) -> TurnReport:
        """The report of the ``number``-th turn, once it is there."""
        async with self._reported:
            await self._reported.wait_for(lambda: len(self.reports) >= number)
        return self.reports[number - 1]

    def frames(self, kind: type[FrameT]) -> list[FrameT]:
        """The frames of a kind that came out downstream so far."""
        return self._down.frames(kind)

    def times(self, kind: type[Frame]) -> list[float]:
        """When the frames of a kind came out downstream, in the loop's time."""
        return [at for at, f in self._down.heard if isinstance(f, kind)]

    @property
    def heard(self) -> list[tuple[float, Frame]]:
        """Every frame that came out downstream, and when."""
        return list(self._down.heard)

    def forget(self) -> None:
        """Forget what was heard and reported so far."""
        self._up.forget()
        self._down.forget()
        self.reports.clear()

    def upstream(self, kind: type[FrameT]) -> list[FrameT]:
        """The frames of a kind that went upstream so far."""
        return self._up.frames(kind)

    @property
    def errors(self) -> list[ErrorFrame]:
        """The error frames that went upstream."""
        return self.upstream(ErrorFrame)

    @property
    def text(self) -> str:
        """All answer text so far."""
        return "".join(f.text for f in self.frames(LLMTextFrame))

    @property
    def framing(self) -> list[str]:
        """The answers' frames in order: ``<`` start, ``t`` text, ``>`` end."""
        signs = {LLMFullResponseStartFrame: "<", LLMTextFrame: "t", LLMFullResponseEndFrame: ">"}
        return [signs[type(f)] for _, f in self._down.heard if type(f) in signs]
