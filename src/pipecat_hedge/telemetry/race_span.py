"""The race in the turn's trace: a span of the race, with the attempts side by side below it.

With Pipecat's tracing on, the services make the attempts' spans themselves: their tracing context
names the race's span as the turn's. Without it, and only with ``own_spans``, the attempts' spans
are made here. Spans stay open until the turn is reported, and end with their request's time.
"""

from __future__ import annotations

import asyncio
import copy
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.utils.tracing.service_attributes import add_llm_span_attributes
from pipecat.utils.tracing.tracing_context import TracingContext

from pipecat_hedge.race.attempt import Attempt
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.events import Commit, Continue, Launch, StreamBroken
from pipecat_hedge.race.reports import FillerReport, TurnReport
from pipecat_hedge.service.service_adapter import ServiceAdapter
from pipecat_hedge.telemetry.span_attributes import (
    Attributes,
    attempt_attributes,
    filler_attributes,
    race_attributes,
)
from pipecat_hedge.telemetry.spans import AttemptSpan

try:
    from opentelemetry import trace
except ModuleNotFoundError:  # it comes with the extra "tracing", this package's or Pipecat's
    trace = None

__all__ = ["RaceSpan", "RaceTracer"]


class RaceTracer:
    """Makes the spans of a service's races."""

    def __init__(self, *, own_spans: bool = False, provider: Any = None):
        """Create a tracer.

        Args:
            own_spans: Whether to make spans where Pipecat's tracing is off.
            provider: The tracer provider; None is the process's own.

        Raises:
            ConfigurationError: If ``own_spans`` is on and OpenTelemetry is not installed.
        """
        if own_spans and trace is None:
            raise ConfigurationError(
                "own_spans needs OpenTelemetry, which is not installed: pip install "
                '"pipecat-hedge[tracing]"'
            )
        self._own_spans = own_spans
        self._provider = provider
        self._tracer: Any = None
        self._context: _RaceContext | None = None
        self._is_on = own_spans
        self._last_filler: FillerReport | None = None

    def setup(self, setup: FrameProcessorSetup) -> FrameProcessorSetup:
        """Place the hosted services' spans below the race's, if Pipecat traces the pipeline.

        Args:
            setup: The pipeline's configuration.

        Returns:
            The configuration for the hosted services.
        """
        is_traced = setup.enable_tracing and trace is not None
        self._is_on = is_traced or self._own_spans
        if not is_traced:
            return setup
        setup = copy.copy(setup)
        self._context = setup.tracing_context = _RaceContext(setup.tracing_context)
        return setup

    def begin(self, turn: int, policy: str, tier: str) -> RaceSpan:
        """Open the span of a race, if races are traced.

        Args:
            turn: The turn's number.
            policy: The policy's name.
            tier: The caller's tier.
        """
        if not self._is_on or trace is None:
            return RaceSpan()
        if self._tracer is None:
            self._tracer = trace.get_tracer("pipecat_hedge", tracer_provider=self._provider)
        attributes: Attributes = {"hedge.turn": turn, "hedge.policy": policy, "hedge.tier": tier}
        now_ns, context = time.time_ns(), self._context
        if context is None:
            span = self._tracer.start_span("race", start_time=now_ns)
            return RaceSpan(span, now_ns, attributes, self._tracer)
        if context.conversation_id is not None:
            attributes["gen_ai.conversation.id"] = context.conversation_id
        span = self._tracer.start_span("race", context=context.outer, start_time=now_ns)
        race = RaceSpan(span, now_ns, attributes)
        context.enter(race, span)
        return race

    def end(self, span: RaceSpan, report: TurnReport) -> None:
        """Close the spans of a race.

        Args:
            span: The race's span.
            report: The turn's report.
        """
        if self._context is not None:
            self._context.leave(span)
        is_new = report.filler is not self._last_filler  # a tool's filler is in two reports
        self._last_filler = report.filler
        span.end(report, report.filler if is_new else None)


class RaceSpan:
    """The span of one race; does nothing where races are not traced."""

    def __init__(
        self,
        span: Any = None,
        began_ns: int = 0,
        attributes: Attributes | None = None,
        tracer: Any = None,
    ):
        """Take over the open span of a race that begins now.

        Args:
            span: The span; None for no span.
            began_ns: Its start, in nanoseconds since the epoch.
            attributes: The race's attributes, which are set at its end.
            tracer: Makes the attempts' spans; None where Pipecat makes them.
        """
        self._span = span if span is not None and span.is_recording() else None
        if self._span is None:
            return
        self._tracer = tracer
        self._attributes = attributes or {}
        self._pipecat_spans: dict[int, AttemptSpan] = {}
        self._own_spans: dict[int, tuple[Any, int]] = {}
        self._loop = asyncio.get_running_loop()
        self._began_at, self._began_ns = self._loop.time(), began_ns

    def asking(self, launch: Launch, contender: ServiceAdapter) -> AbstractContextManager[Any]:
        """Trace the request that is made inside.

        Args:
            launch: The race's command.
            contender: The service that makes the request.
        """
        if self._span is None or trace is None:
            return nullcontext()
        if self._tracer is None:
            contender.span.issue(launch)
            self._pipecat_spans[launch.attempt] = contender.span
            return nullcontext()
        now_ns = self._now()
        span = self._tracer.start_span(
            f"chat {contender.model or launch.provider}",
            context=trace.set_span_in_context(self._span),
            kind=trace.SpanKind.CLIENT,
            start_time=now_ns,
            attributes={"gen_ai.request.stream": True},
        )
        service = type(contender.service).__name__
        add_llm_span_attributes(span, service, contender.model or "unknown")
        self._own_spans[launch.attempt] = span, now_ns
        return trace.use_span(span, record_exception=False, set_status_on_exception=False)

    def obey(self, order: Commit | Continue | StreamBroken, attempt: Attempt) -> None:
        """Add an event for a command of the race.

        Args:
            order: The command.
            attempt: The attempt it concerns.
        """
        if self._span is None:
            return
        attributes: Attributes = {
            "hedge.provider": attempt.provider,
            "hedge.attempt": attempt.number,
        }
        name = "hedge.commit"
        if isinstance(order, StreamBroken):
            name = "hedge.stream_broken"
        elif isinstance(order, Continue):
            name = "hedge.continuation"
            attributes["hedge.launch_reason"] = attempt.reason
        self._span.add_event(name, attributes, self._now())

    def end(self, report: TurnReport, filler: FillerReport | None) -> None:
        """Close the spans of the race and its attempts.

        Args:
            report: The turn's report.
            filler: Its filler, unless an earlier race had it.
        """
        if self._span is None or trace is None:
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
            # A tool's filler was spoken before this race began.
            secs = 0.0 if filler.cause == "tool" else filler.spoken_secs
            self._span.add_event("hedge.filler", filler_attributes(filler), self._at(secs))
        self._span.set_attributes(self._attributes | race_attributes(report))
        if report.outcome == "failed":
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end(max(self._now(), self._at(report.duration_secs)))

    def _now(self) -> int:
        return self._at(self._loop.time() - self._began_at)

    def _at(self, secs: float) -> int:
        """A moment of the turn, in nanoseconds since the epoch."""
        return self._began_ns + round(secs * 1e9)


class _RaceContext(TracingContext):
    """The pipeline's tracing context, in which the race's span stands for the turn's."""

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
        assert trace is not None
        self._race, self._race_context = race, trace.set_span_in_context(span)

    def leave(self, race: RaceSpan) -> None:
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
