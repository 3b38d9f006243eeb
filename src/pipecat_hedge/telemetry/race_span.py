"""Traces a race: one span for the race, with its attempts' spans as children.

With Pipecat's tracing on, the race is in Pipecat's turn, and the span that Pipecat makes for a
hosted service's request is a child of its attempt's. Otherwise there are spans only with
``own_spans``. Spans stay open until the turn is reported, and end with their request's end time.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry import trace
from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.services.llm_service import LLMService
from pipecat.utils.tracing.service_attributes import add_llm_span_attributes
from pipecat.utils.tracing.tracing_context import TracingContext

from pipecat_hedge.race.attempt import Attempt
from pipecat_hedge.race.events import Commit, Continue, StreamBroken
from pipecat_hedge.race.reports import FillerReport, TurnReport
from pipecat_hedge.service.tracer import RaceTrace, Tracer
from pipecat_hedge.telemetry.span_attributes import (
    Attributes,
    attempt_attributes,
    filler_attributes,
    race_attributes,
    usage_attributes,
)


class RaceTracer(Tracer):
    """Creates the spans of a service's races.

    Attributes:
        tracer: OpenTelemetry's tracer.
        has_pipecat_spans: Whether Pipecat, too, makes a span for each request. It states the
            provider, model and tokens under the names that backends add up.
    """

    def __init__(self, *, own_spans: bool = False):
        """Create a tracer.

        Args:
            own_spans: Whether to create spans when Pipecat's tracing is off.
        """
        self.tracer = trace.get_tracer("pipecat_hedge")
        self.has_pipecat_spans = False
        self._is_on = own_spans
        self._pipeline = TracingContext()
        self._last_filler: FillerReport | None = None

    def setup(self, setup: FrameProcessorSetup) -> None:
        """Put the races into Pipecat's turns, if Pipecat traces the pipeline."""
        if setup.enable_tracing:
            self._is_on = self.has_pipecat_spans = True
            self._pipeline = setup.tracing_context or self._pipeline

    def begin(self, turn: int, policy: str, tier: str) -> RaceTrace:
        """Open the span of a race, if races are traced."""
        if not self._is_on:
            return RaceTrace()
        attributes: Attributes = {"hedge.turn": turn, "hedge.policy": policy, "hedge.tier": tier}
        if self._pipeline.conversation_id is not None:
            attributes["gen_ai.conversation.id"] = self._pipeline.conversation_id
        parent = self._pipeline.get_turn_context() or self._pipeline.get_conversation_context()
        now_ns = time.time_ns()
        span = self.tracer.start_span("race", parent, attributes=attributes, start_time=now_ns)
        return RaceSpan(self, span, now_ns)

    def new_filler(self, report: TurnReport) -> FillerReport | None:
        """Return a turn's filler, unless an earlier one had it: a tool's filler is in two."""
        is_new = report.filler is not self._last_filler
        self._last_filler = report.filler
        return report.filler if is_new else None


class RaceSpan(RaceTrace):
    """The span of one race and of its attempts."""

    def __init__(self, races: RaceTracer, span: trace.Span, began_ns: int):
        """Take over the open span of a race that begins now.

        Args:
            races: The tracer of the service's races.
            span: The span.
            began_ns: Its start, in nanoseconds since the epoch.
        """
        self._races = races
        self._span = span
        self._attempts: dict[int, tuple[trace.Span, int]] = {}
        self._loop = asyncio.get_running_loop()
        self._began_at, self._began_ns = self._loop.time(), began_ns

    def request(
        self, attempt: Attempt, service: LLMService[Any], model: str | None
    ) -> AbstractContextManager[Any]:
        """See ``RaceTrace``."""
        now_ns = self._now()
        span = self._races.tracer.start_span(
            f"chat {model or attempt.provider}",
            trace.set_span_in_context(self._span),
            trace.SpanKind.CLIENT,
            start_time=now_ns,
        )
        if not self._races.has_pipecat_spans:
            add_llm_span_attributes(span, type(service).__name__, model or "unknown")
            span.set_attribute("gen_ai.request.stream", True)
        self._attempts[attempt.number] = span, now_ns
        return trace.use_span(span, record_exception=False, set_status_on_exception=False)

    def command(self, command: Commit | Continue | StreamBroken, attempt: Attempt) -> None:
        """See ``RaceTrace``."""
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
        for number, attempt in enumerate(report.attempts):
            attributes = attempt_attributes(attempt, number)
            ended_ns, failed = self._at(attempt.ended_secs), attempt.outcome == "failed"
            if failed and attempt.error_category is not None:
                names = ("hedge.provider", "hedge.attempt", "error.type")
                failure = {name: attributes[name] for name in names}
                self._span.add_event("hedge.failure", failure, ended_ns)
            if number not in self._attempts:  # it was never sent
                continue
            span, began_ns = self._attempts[number]
            span.set_attributes(attributes)
            if not self._races.has_pipecat_spans:
                span.set_attributes(usage_attributes(attempt))
            if failed:
                span.set_status(trace.StatusCode.ERROR)
            span.end(max(ended_ns, began_ns))
        filler = self._races.new_filler(report)
        if filler is not None and filler.spoken_secs is not None:
            # A filler during a tool call was spoken before this race began.
            secs = 0.0 if filler.cause == "tool" else filler.spoken_secs
            self._span.add_event("hedge.filler", filler_attributes(filler), self._at(secs))
        self._span.set_attributes(race_attributes(report))
        if report.outcome == "failed":
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end(max(self._now(), self._at(report.duration_secs)))

    def _now(self) -> int:
        return self._at(self._loop.time() - self._began_at)

    def _at(self, secs: float) -> int:
        """Convert a time of the turn to nanoseconds since the epoch."""
        return self._began_ns + round(secs * 1e9)
