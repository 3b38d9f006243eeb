"""Stand-ins for tests: an LLM service that plays a script, and a loop that skips idle time.

Both run Pipecat's own machinery unchanged. With the two together, a test states what each
provider does at which second, and ends in milliseconds with exact times.
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
    """Be silent for some seconds; ``float("inf")`` is for ever."""

    secs: float


@dataclass(frozen=True, slots=True)
class Say:
    """Stream a piece of text."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """Finish with a tool call."""

    function_name: str
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    tool_call_id: str = "call_1"


@dataclass(frozen=True, slots=True)
class Error:
    """Fail, as a service does that has caught its client's exception."""

    message: str = "scripted failure"
    category: ErrorCategory = ErrorCategory.SERVER


Step: TypeAlias = Wait | Say | Call | Error | Frame
"""What a scripted service does next; a frame is pushed as it is."""


class ScriptedLLMService(LLMService):
    """An LLM service that answers each turn with the next script.

    Example::

        fast = ScriptedLLMService([Wait(0.05), Say("Hello.")])
        slow = ScriptedLLMService([Wait(0.5), Say("Good evening.")])

    Attributes:
        contexts: The context of every turn that it was asked, in order.
        open_requests: How many turns are being answered right now.
        closed_by_cancel: How many turns were cancelled before their script ended.
    """

    def __init__(
        self,
        *scripts: Sequence[Step],
        model: str = "scripted",
        usage: LLMTokenUsage | None = None,
        **kwargs: Any,
    ):
        """Take one script a turn; the last is played again for every further turn.

        Args:
            *scripts: What to do, turn by turn; at least one.
            model: The model's name in metrics and reports.
            usage: Token counts to report at the end of each turn that is not cancelled.
            **kwargs: Further arguments of ``LLMService``.

        Raises:
            ValueError: If there is no script.
        """
        if not scripts:
            raise ValueError("scripts is empty: give at least one, such as [Say('Hello.')]")
        settings = LLMSettings(
            model=model, filter_incomplete_user_turns=False, use_provider_thinking_default=False
        )
        for field in dataclasses.fields(settings):
            if field.name not in (
                "model",
                "extra",
                "filter_incomplete_user_turns",
                "use_provider_thinking_default",
            ):
                setattr(settings, field.name, None)
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
        """Play a script for a context frame, framed as Pipecat's services frame an answer.

        Args:
            frame: The frame to process.
            direction: Which way it travels.
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
    """An event loop on virtual time: when there is nothing left to do, the clock jumps.

    ``loop.time()`` starts at 0 and moves only when every task waits for a timer. Sockets are
    polled but never waited for, so use it for code without I/O.

    Example::

        with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
            runner.run(main())
    """

    def __init__(self) -> None:
        """Make a loop whose clock stands at 0."""
        self._virtual_time = 0.0
        super().__init__(_InstantSelector(self._jump))

    def time(self) -> float:
        """The virtual time in seconds."""
        return self._virtual_time

    def _jump(self, secs: float) -> None:
        self._virtual_time += secs


class _InstantSelector(selectors.DefaultSelector):
    """Reports what is ready now, and has time pass instead of waiting for more."""

    def __init__(self, jump: Callable[[float], None]):
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)  # waits for another thread, or for ever
        ready = super().select(0)
        if not ready and timeout > 0:
            self._jump(timeout)
        return ready
