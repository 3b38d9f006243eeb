"""Traces a race: one span for the race, with its attempts' spans as children.

With Pipecat's tracing on, the hosted services create the attempts' spans; their tracing context
makes the race's span the parent. Otherwise, and only with ``own_spans``, they are created here.
Spans stay open until the turn is reported, and end with their request's end time.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from opentelemetry import trace
from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.services.llm_service import LLMService
from pipecat.utils.tracing.service_attributes import add_llm_span_attributes
from pipecat.utils.tracing.tracing_context import TracingContext

from pipecat_hedge.race.attempt import Attempt
from pipecat_hedge.race.events import Commit, Continue, Launch, StreamBroken
from pipecat_hedge.race.reports import FillerReport, TurnReport
from pipecat_hedge.service.tracer import RaceTrace, Tracer
from pipecat_hedge.telemetry.span_attributes import (
    Attributes,
    attempt_attributes,
    filler_attributes,
    race_attributes,
)

__all__ = ["RaceSpan", "RaceTracer"]


class RaceTracer(Tracer):
    """Creates the spans of a service's races."""

    def __init__(self, *, own_spans: bool = False):
        """Create a tracer.

        Args:
            own_spans: Whether to create spans when Pipecat's tracing is off.
        """
        self._own_spans = own_spans
        self._tracer: Any = None
        self._context: _RaceContext | None = None
        self._is_on = own_spans
        self._last_filler: FillerReport | None = None
        self._pipecat_spans: dict[LLMService[Any], _AttemptSpan] = {}

    def setup(
        self, setup: FrameProcessorSetup, services: Iterable[LLMService[Any]]
    ) -> FrameProcessorSetup:
        """Make the hosted services' spans children of the race's, if Pipecat traces the pipeline.

        Args:
            setup: The pipeline's configuration.
            services: The hosted services, before their own setup.

        Returns:
            The configuration for the hosted services.
        """
        self._is_on = setup.enable_tracing or self._own_spans
        if not setup.enable_tracing:
            return setup
        self._pipecat_spans = {service: _AttemptSpan(service) for service in services}
        setup = copy.copy(setup)
        self._context = setup.tracing_context = _RaceContext(setup.tracing_context)
        return setup

    def begin(self, turn: int, policy: str, tier: str) -> RaceTrace:
        """Open the span of a race, if races are traced."""
        if not self._is_on:
            return RaceTrace()
        if self._tracer is None:
            self._tracer = trace.get_tracer("pipecat_hedge")
        attributes: Attributes = {"hedge.turn": turn, "hedge.policy": policy, "hedge.tier": tier}
        now_ns, context = time.time_ns(), self._context
        if context is None:
            span = self._tracer.start_span("race", start_time=now_ns)
            return RaceSpan(self, span, now_ns, attributes, self._tracer)
        if context.conversation_id is not None:
            attributes["gen_ai.conversation.id"] = context.conversation_id
        span = self._tracer.start_span("race", context=context.outer, start_time=now_ns)
        race = RaceSpan(self, span, now_ns, attributes, None)
        context.enter(race, span)
        return race

    def pipecat_span(self, service: LLMService[Any]) -> _AttemptSpan:
        """Return the span that Pipecat creates for a hosted service's request."""
        return self._pipecat_spans[service]

    def race_ended(self, race: RaceSpan, report: TurnReport) -> FillerReport | None:
        """Detach a race that has ended.

        Returns:
            Its filler, unless an earlier race reported it: a tool's filler is in two reports.
        """
        if self._context is not None:
            self._context.race_ended(race)
        is_new = report.filler is not self._last_filler
        self._last_filler = report.filler
        return report.filler if is_new else None


class RaceSpan(RaceTrace):
    """The span of one race and of its attempts."""

    def __init__(
        self,
        races: RaceTracer,
        span: Any,
        began_ns: int,
        attributes: Attributes,
        tracer: Any,
    ):
        """Take over the open span of a race that begins now.

        Args:
            races: The tracer of the service's races.
            span: The span.
            began_ns: Its start, in nanoseconds since the epoch.
            attributes: The race's attributes, set when it ends.
            tracer: Creates the attempts' spans; None if Pipecat creates them.
        """
        self._races = races
        self._span = span if span.is_recording() else None
        self._tracer = tracer
        self._attributes = attributes
        self._pipecat_spans: dict[int, _AttemptSpan] = {}
        self._own_spans: dict[int, tuple[Any, int]] = {}
        self._loop = asyncio.get_running_loop()
        self._began_at, self._began_ns = self._loop.time(), began_ns

    def request(
        self, launch: Launch, service: LLMService[Any], model: str | None
    ) -> AbstractContextManager[Any]:
        """See ``RaceTrace``."""
        if self._span is None:
            return nullcontext()
        if self._tracer is None:
            span = self._pipecat_spans[launch.attempt] = self._races.pipecat_span(service)
            span.expect(launch)
            return nullcontext()
        now_ns = self._now()
        span = self._tracer.start_span(
            f"chat {model or launch.provider}",
            context=trace.set_span_in_context(self._span),
            kind=trace.SpanKind.CLIENT,
            start_time=now_ns,
            attributes={"gen_ai.request.stream": True},
        )
        add_llm_span_attributes(span, type(service).__name__, model or "unknown")
        self._own_spans[launch.attempt] = span, now_ns
        return trace.use_span(span, record_exception=False, set_status_on_exception=False)

    def command(self, command: Commit | Continue | StreamBroken, attempt: Attempt) -> None:
        """See ``RaceTrace``."""
        if self._span is None:
            return
        attributes: Attributes = {
            "hedge.provider": attempt.provider,
            "hedge.attempt": attempt.number,
        }
        name = "hedge.commit"
        if isinstance(command, StreamBroken):
            name = "hedge.stream_broken"
        elif isinstance(command, Continue):
            name = "hedge.continuation"
            attributes["hedge.launch_reason"] = attempt.reason
        self._span.add_event(name, attributes, self._now())

    def end(self, report: TurnReport) -> None:
        """See ``RaceTrace``."""
        filler = self._races.race_ended(self, report)
        if self._span is None:
            return
        for number, attempt in enumerate(report.attempts):
            attributes = attempt_attributes(attempt, number)
            ended_ns, failed = self._at(attempt.ended_secs), attempt.outcome == "failed"
            if failed and attempt.error_category is not None:
                names = ("hedge.provider", "hedge.attempt", "error.type")
                failure = {name: attributes[name] for name in names}
                self._span.add_event("hedge.failure", failure, ended_ns)
            if number in self._pipecat_spans:
                self._pipecat_spans[number].close(attributes)
            elif number in self._own_spans:
                span, began_ns = self._own_spans[number]
                span.set_attributes(attributes)
                if failed:
                    span.set_status(trace.StatusCode.ERROR)
                span.end(max(ended_ns, began_ns))
        if filler is not None and filler.spoken_secs is not None:
            # A filler during a tool call was spoken before this race began.
            secs = 0.0 if filler.cause == "tool" else filler.spoken_secs
            self._span.add_event("hedge.filler", filler_attributes(filler), self._at(secs))
        self._span.set_attributes(self._attributes | race_attributes(report))
        if report.outcome == "failed":
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end(max(self._now(), self._at(report.duration_secs)))

    def _now(self) -> int:
        return self._at(self._loop.time() - self._began_at)

    def _at(self, secs: float) -> int:
        """Convert a time of the turn to nanoseconds since the epoch."""
        return self._began_ns + round(secs * 1e9)


class _RaceContext(TracingContext):
    """The pipeline's tracing context, with the race's span in place of the turn's."""

    def __init__(self, host: TracingContext | None):
        super().__init__()
        self._host = host or TracingContext()
        self._race: RaceSpan | None = None
        self._race_context: Any = None

    @property
    def outer(self) -> Any:
        """The parent of a race, also while an earlier race is not reported yet."""
        return self._host.get_turn_context() or self._host.get_conversation_context()

    def enter(self, race: RaceSpan, span: Any) -> None:
        self._race, self._race_context = race, trace.set_span_in_context(span)

    def race_ended(self, race: RaceSpan) -> None:
        if race is self._race:
            self._race = self._race_context = None

    def get_turn_context(self) -> Any:
        context = self._race_context
        return self._host.get_turn_context() if context is None else context

    def get_conversation_context(self) -> Any:
        return self._host.get_conversation_context()

    @property
    def conversation_id(self) -> str | None:
        return self._host.conversation_id


class _AttemptSpan:
    """The span that Pipecat creates for a hosted service's current request.

    The service ends its span with the request, but the attempt's outcome is known only after the
    race. The span ends then, with the time at which the service ended it.
    """

    def __init__(self, service: LLMService[Any]):
        """Intercept the spans of a service's requests."""
        self._launch: Launch | None = None
        self._span: Any = None
        self._ended_ns: int | None = None
        self._is_deferred = False
        # A service starts its TTFB clock inside each request's span.
        start_clock, current_span = service.start_ttfb_metrics, trace.get_current_span

        async def start_ttfb_metrics(**kwargs: Any) -> None:
            self._open(current_span())
            await start_clock(**kwargs)

        service.start_ttfb_metrics = start_ttfb_metrics

    def expect(self, launch: Launch) -> None:
        """Prepare for the service's next request."""
        self.close({})  # of a turn that was never reported
        self._launch = launch

    def close(self, attributes: Attributes) -> None:
        """End the request's span with the attempt's outcome."""
        span, self._span, self._launch = self._span, None, None
        if span is None:
            return
        span.set_attributes(attributes)
        if self._is_deferred:
            del span.end
        if self._ended_ns is not None:
            span.end(self._ended_ns)

    def _open(self, span: Any) -> None:
        if self._launch is None or self._span is not None or not span.is_recording():
            return
        self._span, self._ended_ns, self._is_deferred = span, None, True
        try:
            span.end = self._defer
        except AttributeError:  # not the SDK's span class
            self._is_deferred = False

    def _defer(self, end_time: int | None = None) -> None:
        self._ended_ns = time.time_ns() if end_time is None else end_time
