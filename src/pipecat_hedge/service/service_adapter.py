"""Hosts a Pipecat LLM service outside any pipeline, so that it can take part in a race.

An instance carries one attempt at a time; its output reaches the pipeline only through the race.
The service is driven through its public interface: it is set up without the pipeline's observer, a
tap on each side replaces its neighbours, and a turn is its ``process_frame(LLMContextFrame(...))``,
run in a task of the race. Tool calls are intercepted where the service would run them.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from loguru import logger
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
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
    LLMThoughtTextFrame,
    LLMUpdateSettingsFrame,
    MetricsFrame,
    StartFrame,
    SystemFrame,
)
from pipecat.metrics.metrics import LLMUsageMetricsData
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import (
    FrameCallback,
    FrameDirection,
    FrameProcessor,
    FrameProcessorSetup,
)
from pipecat.services.llm_service import FunctionCallRegistryItem, LLMService
from pipecat.services.settings import LLMSettings
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge.providers.permits import NotSent
from pipecat_hedge.providers.server_queue import ReportsServerLoad
from pipecat_hedge.race.driver import AttemptSink
from pipecat_hedge.race.errors import INCOMPLETE_CALL, AttemptError
from pipecat_hedge.race.reports import ServerLoad
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.race.usable import InlineThought, is_usable_text, is_wait_marker
from pipecat_hedge.service.attempt_stats import AttemptStats
from pipecat_hedge.service.connection_warmth import WarmConnection
from pipecat_hedge.service.pipecat_private import remove_system_instruction, tool_handlers
from pipecat_hedge.service.portable import Messages, portable
from pipecat_hedge.service.provider import Provider
from pipecat_hedge.service.provider_client import (
    AcquirePermit,
    SupportsPromptWarmUp,
    attempt_error,
    dialect_of,
    keep_connections_open,
    read_stream_in_one_task,
    switch_off_hidden_retries,
    trace_client,
)
from pipecat_hedge.service.sentences import MAX_CHARS, SentenceFinder, is_whole_sentence
from pipecat_hedge.service.stages import Stages
from pipecat_hedge.service.token_budget import TokenBudget, answer_limit


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """The complete tool calls of an answer, not yet run."""

    calls: Sequence[FunctionCallFromLLM]


Piece: TypeAlias = Frame | ToolCalls
"""A piece of an answer: a frame from the service, or its tool calls."""

RESPONSE_FRAMES = (LLMFullResponseStartFrame, LLMFullResponseEndFrame)
CUT_OFF = AttemptError(ErrorCategory.CONNECTIVITY.value, "the stream ended before the answer")
"""A body that ends in good order, but without its end mark: our own network does not do that."""
ABORTED = AttemptError(ErrorCategory.SERVER.value, "the server ended the answer early")
"""An answer that its server ended, as vLLM does when it is stopped."""
CUT_CALL = AttemptError(INCOMPLETE_CALL, "the answer ended within a tool call")
"""A call that was cut, or that the service cannot read: possibly by the model's own fault."""


class ServiceAdapter:
    """Hosts one service instance.

    Attributes:
        service: The service.
        connection: Its connection to the provider, which can be kept open between turns.
        retries: How many times its SDK would repeat a failed request.
        answers: The number of answers that it has completed.
        budget: The most tokens of its requests.
    """

    _marking: ClassVar[set[tuple[str | None, str | None]]] = set()
    """The hosts and models that have sent an end mark to this process. Some servers send none, so
    the first answer of each is believed to be whole."""

    def __init__(self, service: LLMService[Any], provider: Provider, *, is_alone: bool = False):
        """Host a service.

        Args:
            service: A request/response LLM service that is in no pipeline.
            provider: The provider that it belongs to.
            is_alone: Whether it is the only one in its race.
        """
        self.service = service
        self._provider = provider
        self.answers = 0
        self.budget = TokenBudget()
        self._sink: AttemptSink[Piece] | None = None
        self._stats = AttemptStats()
        self._failed = self._has_lost_end = False
        self._thought = InlineThought()
        self._finder: SentenceFinder | None = None
        self._tail = ""
        self._required: Mapping[str, Sequence[str]] = {}
        self._busy = asyncio.Lock()
        self._server = service if isinstance(service, ReportsServerLoad) else None
        self._warming: asyncio.Task[Any] | None = None
        self._answering: asyncio.Task[Any] | None = None
        self._yields = False
        self._addition: str | None = None
        self._offered: set[str] = set()
        before, after = _Tap(service, self._on_frame), _Tap(service, self._on_frame)
        before.link(service)
        service.link(after)
        service.run_function_calls = self._take_tool_calls
        service.add_event_handler("on_completion_timeout", self._on_timeout)
        self.retries = switch_off_hidden_retries(service, is_alone=is_alone)
        read_stream_in_one_task(service)
        keep_connections_open(service)
        trace_client(service)
        self.connection = WarmConnection(service)

    @property
    def model(self) -> str | None:
        """The service's model, or None if it has none."""
        model = self.service.settings.model
        return model if isinstance(model, str) and model else None

    @property
    def is_usable(self) -> bool:
        """Whether Pipecat reports the service as usable."""
        return self.service.is_usable

    @property
    def is_observed(self) -> bool:
        """Whether an attempt that has lost still runs on to its first token."""
        return self._yields and self._answering is not None and not self._stats.has_answer

    @property
    def is_thinking(self) -> bool:
        """Whether that attempt produces output that is no answer yet."""
        return self.is_observed and self._stats.stages.deltas.delta_at is not None

    @property
    def server_load(self) -> ServerLoad | None:
        """The load of the service's server; None without a recent reading."""
        return None if self._server is None else self._server.server_load

    @property
    def registered_functions(self) -> Mapping[str | None, FunctionCallRegistryItem]:
        """The service's tool handlers, by the tool's name; None is the handler of all others."""
        return tool_handlers(self.service)

    async def setup(self, setup: FrameProcessorSetup) -> None:
        """Set up the service like its host, hidden from the pipeline's observers."""
        mine = copy.copy(setup)
        mine.observer = None
        mine.tracing_context = None  # its spans are children of the current span, the attempt's
        mine.enable_metrics = setup.enable_tracing  # needed by the tracing decorator
        mine.enable_usage_metrics = True  # reports count tokens in any case
        await self.service.setup(mine)

    async def control(self, frame: StartFrame | EndFrame | CancelFrame | Frame) -> None:
        """Send the service a frame that is not a turn: start, end, cancel, settings.

        Args:
            frame: The frame. What the service pushes in response is dropped.
        """
        await self.service.process_frame(frame, FrameDirection.DOWNSTREAM)

    async def cleanup(self) -> None:
        """Release the service's resources."""
        await self.service.cleanup()

    async def update_settings(self, delta: LLMSettings) -> None:
        """Change the service's settings.

        Args:
            delta: The changes. Settings that only the service's own class has may be among its
                ``extra``: there the host finds them, in a frame with a mapping.
        """
        own: Any = type(self.service.settings)
        is_mapping = type(delta) is LLMSettings and delta.extra
        changes = own.from_mapping(delta.given_fields()) if is_mapping else delta
        await self.control(LLMUpdateSettingsFrame(delta=changes))

    async def limit(self, budget: TokenBudget) -> None:
        """Bound the tokens of requests and answers; call it after the service has started."""
        self.budget = budget
        if budget.answer is not None:
            await self.update_settings(answer_limit(self.service, budget.answer))

    def instruct(self, addition: str | None) -> None:
        """Set the text that is appended to the service's system instruction; None removes it."""
        if self._addition is not None:  # Pipecat has no public way to remove it
            remove_system_instruction(self.service, self._addition)
        if addition is not None:
            self.service.append_system_instruction(addition)
        self._addition = addition

    def offer(self, tools: Mapping[str, FunctionSchema]) -> None:
        """Offer the model the host's built-in tools, in addition to the context's.

        Args:
            tools: The built-in tools of the host's adapter, by name.
        """
        mine = self.service.get_llm_adapter().builtin_tools
        for name in self._offered - tools.keys():
            mine.pop(name, None)
        self._offered = {name for name in tools if name not in mine or name in self._offered}
        mine.update({name: tools[name] for name in self._offered})

    async def warm(self, context: LLMContext | None, acquire_permit: AcquirePermit) -> None:
        """Prepare the first turn: warm up the prompt if the service can, or open the connection.

        A request for an answer cancels it.

        Args:
            context: The conversation so far; None if it is unknown.
            acquire_permit: The permit to warm up the prompt.
        """
        self._warming = asyncio.current_task()
        try:
            if context is not None and isinstance(self.service, SupportsPromptWarmUp):
                try:
                    async with self.connection.in_use(Stages()):
                        copied = self._own_copy(context, most_tokens=self.budget.prompt)
                        await self.service.warm(copied, acquire_permit)
                    return
                except NotSent as reason:
                    logger.debug(f"{self.service}: prompt not warmed up: {reason}")
            await self.connection.open()
        except Exception as error:  # the first turn will report it
            logger.debug(f"{self.service}: could not be warmed up: {type(error).__name__}")
        finally:
            self._warming = None

    async def answer(
        self,
        context: LLMContext,
        sink: AttemptSink[Piece],
        stats: AttemptStats,
        *,
        addition: Messages = (),
        language: str | None = None,
        may_wait: bool = False,
    ) -> None:
        """Have the service answer one turn.

        Waits for an earlier attempt of this instance that is closing, and cancels one that runs on
        after it lost.

        Args:
            context: The conversation; the service gets a copy.
            sink: Receives the attempt's events.
            stats: Counts what the attempt produces.
            addition: Messages for this attempt only, after the conversation.
            language: The language of the sentence rules; None is English.
            may_wait: Whether an "incomplete turn" marker counts as an answer.
        """
        if self._warming is not None:
            TaskScope.cancel(self._warming)
        if self._yields and self._answering is not None:
            TaskScope.cancel(self._answering)
        async with self._busy:
            self._answering, self._yields = asyncio.current_task(), False
            self._sink, self._stats, self._failed = sink, stats, False
            self._thought, self._finder = InlineThought(), SentenceFinder(language)
            was_usable, self._tail = self.service.is_usable, ""
            self._has_lost_end = False
            try:
                # A new frame: the host controls speculation.
                copied = self._own_copy(context, addition, most_tokens=self.budget.prompt)
                self._required = _required_arguments(copied)
                length = len(copied.messages)
                frame = LLMContextFrame(context=copied)
                self._watch_first_token(stats.stages)
                in_use = self.connection.in_use(
                    stats.stages, lambda: self._failed or self._has_lost_end
                )
                async with in_use:
                    await self.service.process_frame(frame, FrameDirection.DOWNSTREAM)
                # Some services report a timeout only by an event, whose handler is a task.
                await asyncio.sleep(0)
                if held := self._thought.finish():
                    await self._answer_text(LLMTextFrame(held), sink)
                if cut := await self._find_cut(language):
                    self._fail(cut)
                stats.mended_context = len(copied.messages) < length
                stats.completed = not self._failed
                self.answers += stats.completed
                if may_wait and stats.is_empty and is_wait_marker(stats.silent_text):
                    stats.record_answer()
                    await sink.piece(LLMTextFrame(""), usable=True)
            finally:
                self._sink = self._answering = None
                if was_usable or stats.completed:  # a rejected request is for the race to judge
                    await self.service.set_usable(True)
                is_lost = not stats.completed and _has_lost_connection(stats.error)
                if is_lost or self._has_lost_end:
                    self.connection.reopen(stats.stages)
                vars(self.service).pop("stop_ttfb_metrics", None)

    async def infer(
        self, context: LLMContext, options: Mapping[str, Any], stats: AttemptStats
    ) -> str | None:
        """Have the service answer outside the pipeline.

        Args:
            context: The conversation.
            options: Further arguments of ``LLMService.run_inference``.
            stats: Counts what the attempt produces.
        """
        try:
            copied = self._own_copy(context)
            async with self.connection.in_use(stats.stages):
                answer = await self.service.run_inference(copied, **options)
            stats.completed = True
            if answer is not None and answer.strip():
                stats.record_answer()
            return answer
        finally:
            if not stats.has_answer:
                self.connection.reopen(stats.stages)

    def run_on(self) -> None:
        """Let the current attempt, which has lost, run on; the next one cancels it.

        A second connection is opened for the next one.
        """
        self._yields = True
        self.connection.reopen(self._stats.stages)

    def _own_copy(
        self, context: LLMContext, addition: Messages = (), *, most_tokens: int | None = None
    ) -> LLMContext:
        """Copy the context as this member's provider accepts it."""
        provider = self._provider
        dialect = dialect_of(self.service, provider.name, has_short_ids=provider.short_tool_ids)
        messages = portable(context.messages, dialect, most_tokens=most_tokens, addition=addition)
        return LLMContext(messages, tools=context.tools, tool_choice=context.tool_choice)

    # ---- the service's output

    def _watch_first_token(self, stages: Stages) -> None:
        """Record the first piece of any kind, when the service stops its own TTFB metric.

        The hook removes itself after the first call, so later pieces cost nothing.
        """
        service = self.service

        async def stop_ttfb_metrics(**kwargs: Any) -> None:
            stages.record_token()
            vars(service).pop("stop_ttfb_metrics", None)
            await service.stop_ttfb_metrics(**kwargs)

        service.stop_ttfb_metrics = stop_ttfb_metrics

    async def _on_frame(self, frame: Frame, direction: FrameDirection) -> None:
        sink = self._sink
        if isinstance(frame, LLMTextFrame):
            if sink is not None:
                self._stats.chars += len(frame.text)
                if self._thought.is_over:
                    await self._answer_text(frame, sink)
                    return
                thought, answer = self._thought.feed(frame.text)
                if thought:
                    await sink.piece(LLMThoughtTextFrame(thought), usable=False)
                if answer:
                    await self._answer_text(LLMTextFrame(answer), sink)
        elif isinstance(frame, MetricsFrame):
            for data in frame.data:
                if isinstance(data, LLMUsageMetricsData):
                    self._stats.usage = data.value
        elif sink is None:
            return
        elif isinstance(frame, ErrorFrame):
            self._take_error(attempt_error(frame, has_begun=self._stats.has_begun))
        elif isinstance(frame, RESPONSE_FRAMES) or direction is FrameDirection.UPSTREAM:
            return  # the answer ends when process_frame returns
        elif not isinstance(frame, SystemFrame):
            if isinstance(frame, LLMThoughtTextFrame):
                self._stats.chars += len(frame.text)
            await sink.piece(frame, usable=False)

    async def _answer_text(self, frame: LLMTextFrame, sink: AttemptSink[Piece]) -> None:
        text, stats = frame.text, self._stats
        self._tail = (self._tail + text)[-MAX_CHARS:]
        if stats.keeps_text:
            stats.text += text
        usable = is_usable_text(text)
        if usable:
            stats.record_answer()
        elif not stats.has_answer:
            stats.silent_text += text
        await sink.piece(frame, usable=usable)
        if self._finder is not None and await self._finder.feed(text):
            self._finder = None  # only the first sentence matters
            await sink.speakable()

    async def _take_tool_calls(self, function_calls: Sequence[FunctionCallFromLLM]) -> None:
        if self._sink is None or not function_calls:
            return
        if cut := self._find_cut_call(function_calls):
            self._fail(cut)
        else:
            self._stats.chars += sum(len(str(call.arguments)) for call in function_calls)
            self._stats.tool_calls += [(c.function_name, c.arguments) for c in function_calls]
            self._stats.record_answer()
            await self._sink.tools(ToolCalls(tuple(function_calls)))

    @property
    def _route(self) -> tuple[str | None, str | None]:
        return self._stats.stages.host, self.model

    def _find_cut_call(self, function_calls: Sequence[FunctionCallFromLLM]) -> AttemptError | None:
        """Why tool calls are not whole; None if they are.

        A service makes a call of what came, even of nothing, and drops one that it cannot parse.
        """
        deltas = self._stats.stages.deltas
        if not deltas.knows_format or deltas.has_ended:
            return None
        is_marking = self._route in self._marking
        is_cut = not _are_whole(deltas.calls, function_calls)
        if not all(deltas.calls):  # some tools have no arguments, and some servers no end mark
            is_cut = is_cut or is_marking or self._lack_arguments(function_calls)
        if is_cut:
            return CUT_OFF if is_marking else CUT_CALL
        return None

    async def _find_cut(self, language: str | None) -> AttemptError | None:
        """Why the answer is not whole, by its stream; None if it is.

        There are four cases: 1. The service made calls, which were checked then. 2. The server says
        that it ended the answer early. 3. Calls came, and the service made none of them. 4. There
        is no end mark, the provider sends them, and the text does not end like an answer.
        """
        stats, deltas = self._stats, self._stats.stages.deltas
        if deltas.has_ended:
            self._marking.add(self._route)
        is_believed = deltas.has_ended or self._route not in self._marking
        if stats.tool_calls:
            return None
        if deltas.was_aborted:
            return ABORTED
        if deltas.calls:
            return CUT_CALL if is_believed else CUT_OFF
        if is_believed:
            return None
        if not stats.has_answer:
            return None if is_wait_marker(stats.silent_text) else CUT_OFF
        finder = SentenceFinder(language)
        await finder.feed(self._tail)
        return None if is_whole_sentence(finder.open, language) else CUT_OFF

    def _lack_arguments(self, function_calls: Sequence[FunctionCallFromLLM]) -> bool:
        """Whether a call lacks a required argument."""
        return any(
            name not in call.arguments
            for call in function_calls
            for name in self._required.get(call.function_name, ())
        )

    async def _on_timeout(self, service: LLMService[Any]) -> None:
        message = f"{service}: the provider sent nothing for longer than its client waits"
        self._take_error(AttemptError(ErrorCategory.CONNECTIVITY.value, message))

    def _take_error(self, error: AttemptError) -> None:
        """Fail, unless the connection was lost and the text is whole, as its stream says.

        A call that it has sent was not made.
        """
        deltas = self._stats.stages.deltas
        is_whole = self._stats.has_answer and not deltas.calls and deltas.has_ended
        if is_whole and _has_lost_connection(error):
            self._has_lost_end = True
        else:
            self._fail(error)

    def _fail(self, error: AttemptError) -> None:
        if self._sink is not None and not self._failed:
            self._failed, self._stats.error = True, error
            self._sink.failed(error)


def _has_lost_connection(error: AttemptError | None) -> bool:
    """Whether a request that did not finish was cancelled or lost, and not rejected."""
    return error is None or error.category == ErrorCategory.CONNECTIVITY.value


def _are_whole(sent: Sequence[str], made: Sequence[FunctionCallFromLLM]) -> bool:
    """Whether the calls that were sent are complete, and those made are among them."""
    try:
        arguments = [json.loads(text or "{}") for text in sent]
    except ValueError:
        return False
    return not sent or all(call.arguments in arguments for call in made)


def _required_arguments(context: LLMContext) -> dict[str, Sequence[str]]:
    """The required arguments of each tool of a context."""
    tools = context.tools
    return (
        {t.name: t.required for t in tools.standard_tools} if isinstance(tools, ToolsSchema) else {}
    )


class _Tap(FrameProcessor):
    """Replaces a hosted service's neighbour and forwards frames at once."""

    def __init__(
        self, service: LLMService[Any], on_frame: Callable[[Frame, FrameDirection], Awaitable[None]]
    ):
        super().__init__(name=f"{service.name}::tap")
        self._on_frame = on_frame

    async def queue_frame(
        self,
        frame: Frame,
        direction: FrameDirection = FrameDirection.DOWNSTREAM,
        callback: FrameCallback | None = None,
    ) -> None:
        await self._on_frame(frame, direction)
