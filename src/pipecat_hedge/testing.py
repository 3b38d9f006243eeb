"""Test doubles: an LLM service that plays a script, and an event loop that skips idle time.

Both run Pipecat's own code unchanged. Together they let a test state what each provider does at
which second; the test runs in milliseconds, with exact times.
"""

from __future__ import annotations

import asyncio
import dataclasses
import selectors
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pipecat.frames.frames import (
    Frame,
    FunctionCallFromLLM,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
)
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import LLMSettings
from pipecat.utils.errors import ErrorCategory

__all__ = ["AutojumpLoop", "Call", "Error", "Say", "ScriptedLLMService", "Step", "Wait"]


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for some seconds; ``float("inf")`` waits for ever."""

    secs: float


@dataclass(frozen=True, slots=True)
class Say:
    """Stream a piece of text."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """End the answer with a tool call."""

    function_name: str
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    tool_call_id: str = "call_1"


@dataclass(frozen=True, slots=True)
class Error:
    """Fail with an error frame, as a service does that has caught its client's exception."""

    message: str = "scripted failure"
    category: ErrorCategory = ErrorCategory.SERVER


Step: TypeAlias = Wait | Say | Call | Error | Frame
"""The next step of a scripted service; a frame is pushed unchanged."""


class ScriptedLLMService(LLMService):
    """An LLM service that answers each turn with the next script.

    Example::

        fast = ScriptedLLMService([Wait(0.05), Say("Hello.")])
        slow = ScriptedLLMService([Wait(0.5), Say("Good evening.")])

    Attributes:
        contexts: The context of every turn, in order.
        open_requests: The number of turns that are being answered now.
        closed_by_cancel: The number of turns that were cancelled before their script ended.
    """

    def __init__(
        self,
        *scripts: Sequence[Step],
        model: str = "scripted",
        usage: LLMTokenUsage | None = None,
        **kwargs: Any,
    ):
        """Create a service with a script per turn; the last one is repeated for further turns.

        Args:
            *scripts: The steps of each turn; at least one script.
            model: The model's name in metrics and reports.
            usage: Token counts to report at the end of each turn that is not cancelled.
            **kwargs: Further arguments of ``LLMService``.

        Raises:
            ValueError: If there is no script.
        """
        if not scripts:
            raise ValueError("scripts is empty: give at least one, such as [Say('Hello.')]")
        fields = dataclasses.fields(LLMSettings)
        unset: dict[str, Any] = {each.name: None for each in fields if each.name != "extra"}
        settings = LLMSettings(**unset)
        settings.model = model
        settings.filter_incomplete_user_turns = settings.use_provider_thinking_default = False
        super().__init__(settings=settings, **kwargs)
        self._scripts = [list(script) for script in scripts]
        self._usage = usage
        self.contexts: list[LLMContext] = []
        self.open_requests = 0
        self.closed_by_cancel = 0

    def can_generate_metrics(self) -> bool:
        """Report metrics, as cloud services do."""
        return True

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Play a script for a context frame, framed like the answers of Pipecat's services.

        Args:
            frame: The frame to process.
            direction: The frame's direction.
        """
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        turn = len(self.contexts)
        self.contexts.append(frame.context)
        self.open_requests += 1
        try:
            await self.push_frame(LLMFullResponseStartFrame())
            await self.start_processing_metrics()
            await self.start_ttfb_metrics()
            await self._play(self._scripts[min(turn, len(self._scripts) - 1)], frame.context)
            if self._usage is not None:
                await self.start_llm_usage_metrics(self._usage)
        except asyncio.CancelledError:
            self.closed_by_cancel += 1
            raise
        finally:
            self.open_requests -= 1
            await self.stop_processing_metrics()
            await self.push_frame(LLMFullResponseEndFrame())

    async def _play(self, script: Sequence[Step], context: LLMContext) -> None:
        for step in script:
            if isinstance(step, Wait):
                if step.secs == float("inf"):
                    await asyncio.get_running_loop().create_future()
                await asyncio.sleep(step.secs)
            elif isinstance(step, Say):
                await self.stop_ttfb_metrics()
                await self._push_llm_text(step.text)
            elif isinstance(step, Call):
                await self.stop_ttfb_metrics()
                call = FunctionCallFromLLM(
                    function_name=step.function_name,
                    tool_call_id=step.tool_call_id,
                    arguments=step.arguments,
                    context=context,
                )
                await self.run_function_calls([call])
            elif isinstance(step, Error):
                await self.push_error(step.message, category=step.category)
                return
            else:
                await self.push_frame(step)


class AutojumpLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time: when no task can run, the clock jumps to the next timer.

    ``loop.time()`` starts at 0 and advances only when every task waits for a timer. Sockets are
    polled but never waited for, so use it for code without I/O.

    Example::

        with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
            runner.run(main())
    """

    def __init__(self) -> None:
        """Create a loop whose clock is at 0."""
        self._virtual_time = 0.0
        super().__init__(_InstantSelector(self._jump))

    def time(self) -> float:
        """The virtual time in seconds."""
        return self._virtual_time

    def _jump(self, secs: float) -> None:
        self._virtual_time += secs


class _InstantSelector(selectors.DefaultSelector):
    """Reports what is ready now and advances the clock instead of waiting."""

    def __init__(self, jump: Callable[[float], None]):
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)  # wait for another thread
        ready = super().select(0)
        if not ready and timeout > 0:
            self._jump(timeout)
        return ready
