"""A Pipecat LLM service, hosted outside any pipeline so that it can take part in a race.

Law: a contender carries one attempt at a time, and nothing that it says reaches the pipeline
except through the race.

The service is driven by its public surface alone: it is set up like any processor, but without
the pipeline's observer; a tap stands on each side of it in place of neighbours; and a turn is its
own ``process_frame(LLMContextFrame(...))``, run in a task of the race. Whatever the service
pushes, the tap hands to the race at once. Tool calls are taken where the service would run them.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from loguru import logger
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    ErrorFrame,
    Frame,
    FunctionCallFromLLM,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    MetricsFrame,
    StartFrame,
    SystemFrame,
)
from pipecat.metrics.metrics import LLMTokenUsage, LLMUsageMetricsData
from pipecat.processors.aggregators.llm_context import LLMContext, LLMSpecificMessage
from pipecat.processors.frame_processor import (
    FrameCallback,
    FrameDirection,
    FrameProcessor,
    FrameProcessorSetup,
)
from pipecat.services.llm_service import LLMService
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge.errors import AttemptError
from pipecat_hedge.policies.usable import is_usable_text
from pipecat_hedge.racing import Post

__all__ = ["Contender", "Piece", "Tally", "ToolCalls"]


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """The complete tool calls of an answer, not yet run."""

    calls: Sequence[FunctionCallFromLLM]


Piece: TypeAlias = Frame | ToolCalls
"""A piece of an answer: a frame that the service pushed, or the tools that it wants run."""


@dataclass(slots=True)
class Tally:
    """What one attempt has produced so far.

    Parameters:
        usage: The provider's own count of tokens, once it has sent one.
        text_chars: Characters of answer text and of tool arguments.
        completed: Whether the answer ended by itself, so that ``usage`` is final.
    """

    usage: LLMTokenUsage | None = None
    text_chars: int = 0
    completed: bool = False


class Contender:
    """One service instance under the race's control."""

    def __init__(self, service: LLMService[Any]):
        """Take charge of a service.

        Args:
            service: A request/response LLM service that is in no pipeline.
        """
        self.service = service
        self._post: Post[Piece] | None = None
        self._tally = Tally()
        self._failed = False
        self._busy = asyncio.Lock()
        before, after = _Tap(service, self._heard), _Tap(service, self._heard)
        before.link(service)
        service.link(after)
        service.run_function_calls = self._heard_tool_calls
        service.add_event_handler("on_completion_timeout", self._timed_out)
        _switch_off_hidden_retries(service)

    @property
    def model(self) -> str | None:
        """The model that the service asks for, or None if it names none."""
        model = self.service.settings.model
        return model if isinstance(model, str) and model else None

    async def setup(self, setup: FrameProcessorSetup) -> None:
        """Set the service up as its host was, unseen by the pipeline's observers.

        Args:
            setup: The host's own setup.
        """
        mine = copy.copy(setup)
        mine.observer = None
        mine.enable_metrics = setup.enable_tracing  # the tracing decorator reads them
        mine.enable_usage_metrics = True  # reports count tokens whether the pipeline does or not
        await self.service.setup(mine)

    async def control(self, frame: StartFrame | EndFrame | CancelFrame | Frame) -> None:
        """Hand the service a frame that is not a turn: start, end, cancel, settings.

        Args:
            frame: The frame; what the service pushes in answer goes nowhere.
        """
        await self.service.process_frame(frame, FrameDirection.DOWNSTREAM)

    async def cleanup(self) -> None:
        """Release the service's resources."""
        await self.service.cleanup()

    async def answer(self, context: LLMContext, post: Post[Piece], tally: Tally) -> None:
        """Have the service answer one turn.

        Waits for an earlier attempt of this instance that is still closing.

        Args:
            context: The conversation; the service gets a copy.
            post: Where to tell what comes.
            tally: Counts what the attempt produces.
        """
        async with self._busy:
            self._post, self._tally, self._failed = post, tally, False
            try:
                # A fresh frame: speculation is the host's to gate.
                frame = LLMContextFrame(context=self._own_copy(context))
                await self.service.process_frame(frame, FrameDirection.DOWNSTREAM)
                # Some services report a time-out by an event alone, whose handler is a task.
                await asyncio.sleep(0)
                tally.completed = not self._failed
            finally:
                self._post = None

    def _own_copy(self, context: LLMContext) -> LLMContext:
        """Copy the context, without the messages that only another kind of service can read."""
        mine = self.service.get_llm_adapter().id_for_llm_specific_messages
        messages = [
            m for m in context.messages if not isinstance(m, LLMSpecificMessage) or m.llm == mine
        ]
        return LLMContext(messages, tools=context.tools, tool_choice=context.tool_choice)

    # ---- what the service says

    def _heard(self, frame: Frame, direction: FrameDirection) -> None:
        post = self._post
        if isinstance(frame, LLMTextFrame):
            if post is not None:
                self._tally.text_chars += len(frame.text)
                post.piece(frame, usable=is_usable_text(frame.text))
        elif isinstance(frame, MetricsFrame):
            for data in frame.data:
                if isinstance(data, LLMUsageMetricsData):
                    self._tally.usage = data.value
        elif post is None:
            return
        elif isinstance(frame, LLMFullResponseStartFrame):
            post.opened()
        elif isinstance(frame, ErrorFrame):
            self._fail(_attempt_error(frame))
        elif isinstance(frame, LLMFullResponseEndFrame) or direction is FrameDirection.UPSTREAM:
            return  # the end is when process_frame returns; the host sends its own End
        elif not isinstance(frame, SystemFrame):
            post.piece(frame, usable=False)

    async def _heard_tool_calls(self, function_calls: Sequence[FunctionCallFromLLM]) -> None:
        if self._post is not None and function_calls:
            self._tally.text_chars += sum(len(str(call.arguments)) for call in function_calls)
            self._post.piece(ToolCalls(tuple(function_calls)), usable=True)

    async def _timed_out(self, service: LLMService[Any]) -> None:
        message = f"{service}: the provider sent nothing for longer than its client waits"
        self._fail(AttemptError(ErrorCategory.CONNECTIVITY.value, message))

    def _fail(self, error: AttemptError) -> None:
        if self._post is not None and not self._failed:
            self._failed = True
            self._post.failed(error)


class _Tap(FrameProcessor):
    """Stands in for a hosted service's neighbour and passes on what it is handed, at once."""

    def __init__(self, service: LLMService[Any], heard: Callable[[Frame, FrameDirection], None]):
        super().__init__(name=f"{service.name}::tap")
        self._heard = heard

    async def queue_frame(
        self,
        frame: Frame,
        direction: FrameDirection = FrameDirection.DOWNSTREAM,
        callback: FrameCallback | None = None,
    ) -> None:
        self._heard(frame, direction)


def _attempt_error(frame: ErrorFrame) -> AttemptError:
    category = frame.category or ErrorCategory.UNKNOWN
    return AttemptError(
        category=category.value,
        message=frame.error,
        permanent=category.is_permanent,
        exception=frame.exception,
    )


def _switch_off_hidden_retries(service: LLMService[Any]) -> None:
    """Have the provider's SDK report a failure at once, so that the race can replace it.

    The OpenAI and Anthropic SDKs retry twice by themselves. Both offer ``with_options`` for this;
    Pipecat keeps the client in ``_client`` and has no public way to it.
    """
    client = getattr(service, "_client", None)
    if getattr(client, "max_retries", 0) and hasattr(client, "with_options"):
        service._client = client.with_options(max_retries=0)  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
        logger.debug(f"{service}: SDK retries switched off, the race replaces what fails")
