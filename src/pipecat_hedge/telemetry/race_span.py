"""The race in the turn's trace: a span of the race, the attempts side by side below it.

Law: a race is traced as it runs, so that whatever else makes spans finds its place; what costs
something is done once a turn or once an attempt, never for a token.

With Pipecat's tracing on, the race's span stands below the turn's, and the services make their own
spans below the race's, because the members' tracing context names the race's span as that of the
turn. They are told what part they play. Without it, and only where ``own_spans`` asks for it, the
attempts' spans are made here, and the race's stands below whatever span is current: none, mostly.

Commit, rescue, break-off, failures and fillers are events of the race's span. It stays open until
the turn is summed up, and so do the attempts' spans: only then it is known what became of them.
They are given the moment at which their request ended.
"""

from __future__ import annotations

import asyncio
import copy
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.utils.tracing.tracing_context import TracingContext

from pipecat_hedge.race.attempt import Attempt
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.events import Commit, Continue, Launch, StreamBroken
from pipecat_hedge.race.reports import FillerReport, TurnReport
from pipecat_hedge.service.service_adapter import ServiceAdapter
from pipecat_hedge.telemetry.own_spans import OwnSpans
from pipecat_hedge.telemetry.span_attributes import (
    Attributes,
    attempt_attributes,
    filler_attributes,
    race_attributes,
)
from pipecat_hedge.telemetry.spans import AttemptSpan

try:
    from opentelemetry import trace
except ModuleNotFoundError:  # it comes with the extra "tracing", ours or Pipecat's
    trace = None

__all__ = ["RaceSpan", "RaceTracer"]


class RaceTracer:
    """Makes the spans of a service's races."""

    def __init__(self, *, own_spans: bool = False, provider: Any = None):
        """Say whether spans are wanted where Pipecat makes none.

        Args:
            own_spans: Whether they are.
            provider: Where the spans go; None is where the process's own go.

        Raises:
            ConfigurationError: If they are, and OpenTelemetry is not installed.
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
        self._told_filler: FillerReport | None = None

    def setup(self, setup: FrameProcessorSetup) -> FrameProcessorSetup:
        """Learn whether Pipecat traces, and have the members' spans stand below the race's.

        Args:
            setup: The pipeline's configuration.

        Returns:
            The same for the members.
        """
        is_pipecats = setup.enable_tracing and trace is not None
        self._is_on = is_pipecats or self._own_spans
        if not is_pipecats:
            return setup
        mine = copy.copy(setup)
        self._context = mine.tracing_context = _RaceContext(setup.tracing_context)
        return mine

    def begin(self, turn: int, policy: str, tier: str) -> RaceSpan:
        """Open the span of a race, if races are traced.

        Args:
            turn: The turn's number.
            policy: What the policy is called.
            tier: Whose turn it is.
        """
        if not self._is_on or trace is None:
            return _NO_SPAN
        if self._tracer is None:
            self._tracer = trace.get_tracer("pipecat_hedge", tracer_provider=self._provider)
        tracer, context, now = self._tracer, self._context, time.time_ns()
        told: Attributes = {"hedge.turn": turn, "hedge.policy": policy, "hedge.tier": tier}
        if context is None:
            return RaceSpan(tracer.start_span("race", start_time=now), now, told, tracer)
        if (call := context.conversation_id) is not None:
            told["gen_ai.conversation.id"] = call
        span = tracer.start_span("race", context=context.around, start_time=now)
        race = RaceSpan(span, now, told)
        context.enter(race, span)
        return race

    def end(self, span: RaceSpan, report: TurnReport) -> None:
        """Close the span of a race.

        Args:
            span: The span.
            report: What came of the race.
        """
        if self._context is not None:
            self._context.leave(span)
        told, self._told_filler = self._told_filler, report.filler
        span.end(report, None if report.filler is told else report.filler)


class RaceSpan:
    """The span of one race; none at all where races are not traced."""

    def __init__(
        self,
        span: Any = None,
        began_ns: int = 0,
        told: Attributes | None = None,
        tracer: Any = None,
    ):
        """Take charge of the open span of a race that begins now.

        Args:
            span: The span; None is no span.
            began_ns: When it begins, in nanoseconds since the epoch.
            told: What is known of the race; it is told at its end with all else, which costs less.
            tracer: Makes the spans of its attempts, where Pipecat makes none.
        """
        self._span = span if span is not None and span.is_recording() else None
        if self._span is None:
            return
        self._own = None if tracer is None else OwnSpans(tracer, self._span)
        self._told: Attributes = told or {}
        self._pipecats: dict[int, AttemptSpan] = {}
        self._loop = asyncio.get_running_loop()
        self._began_at, self._began_ns = self._loop.time(), began_ns

    def asking(self, launch: Launch, contender: ServiceAdapter) -> AbstractContextManager[None]:
        """Make the request that is made inside part of the trace.

        Args:
            launch: Who is asked, and why.
            contender: Who asks.
        """
        if self._span is None:
            return _INSIDE
        if self._own is not None:
            return self._own.open(launch.attempt, launch.provider, contender, self._now())
        contender.span.issue(launch)
        self._pipecats[launch.attempt] = contender.span
        return _INSIDE

    def obey(self, order: Commit | Continue | StreamBroken, attempt: Attempt) -> None:
        """Tell of the race's order as it is obeyed.

        Args:
            order: The order.
            attempt: Whom it concerns.
        """
        if self._span is None:
            return
        told: Attributes = {
            "hedge.provider": attempt.provider,
            "hedge.attempt": attempt.number,
        }
        if isinstance(order, Commit):
            name = "hedge.commit"  # for what reason the race's span says
        elif isinstance(order, Continue):
            name, told["hedge.launch_reason"] = "hedge.rescue", attempt.reason
        else:
            name = "hedge.break_off"
        self._span.add_event(name, told, self._now())

    def end(self, report: TurnReport, filler: FillerReport | None) -> None:
        """Say what came of the race, and close its spans.

        Args:
            report: The turn.
            filler: What was done about the silence, where it has not been told before.
        """
        if self._span is None or trace is None:
            return
        for number, attempt in enumerate(report.attempts):
            failed = attempt.outcome == "failed"
            if failed and attempt.error_category is not None:
                what = {
                    "hedge.provider": attempt.provider,
                    "hedge.attempt": number,
                    "error.type": attempt.error_category,
                }
                self._span.add_event("hedge.failure", what, self._at(attempt.ended_secs))
            told = attempt_attributes(attempt, number)
            if self._own is not None:
                self._own.close(number, told, self._at(attempt.ended_secs), failed=failed)
            elif number in self._pipecats:
                self._pipecats[number].close(told)
        if filler is not None and filler.spoken_secs is not None:
            # A tool's filler was spoken before this race began.
            secs = 0.0 if filler.cause == "tool" else filler.spoken_secs
            self._span.add_event("hedge.filler", filler_attributes(filler), self._at(secs))
        self._told.update(race_attributes(report))
        self._span.set_attributes(self._told)
        if report.outcome == "failed":
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end(max(self._now(), self._at(report.duration_secs)))

    def _now(self) -> int:
        """This moment, as spans tell the time."""
        return self._at(self._loop.time() - self._began_at)

    def _at(self, secs: float) -> int:
        """A moment of the turn, as spans tell the time."""
        return self._began_ns + round(secs * 1e9)


_INSIDE = nullcontext()
_NO_SPAN = RaceSpan()


class _RaceContext(TracingContext):
    """The pipeline's tracing context, in which the race stands in the turn's place."""

    def __init__(self, host: TracingContext | None):
        super().__init__()
        self._host = host or TracingContext()
        self._race: RaceSpan | None = None
        self._inside: Any = None

    @property
    def around(self) -> Any:
        """What a race stands below, an earlier one that has not been summed up notwithstanding."""
        return self._host.get_turn_context() or self._host.get_conversation_context()

    def enter(self, race: RaceSpan, span: Any) -> None:
        assert trace is not None
        self._race, self._inside = race, trace.set_span_in_context(span)

    def leave(self, race: RaceSpan) -> None:
        if race is self._race:
            self._race = self._inside = None

    def get_turn_context(self) -> Any:
        return self._host.get_turn_context() if self._inside is None else self._inside

    def get_conversation_context(self) -> Any:
        return self._host.get_conversation_context()

    @property
    def conversation_id(self) -> str | None:
        return self._host.conversation_id
