"""What the spans of a turn cost, by themselves: a race and its attempts.

The spans go to OpenTelemetry's batch processor, as in production; its thread, which writes and
sends them, is not the loop's and not counted. Beside it stands what OpenTelemetry's SDK alone takes
to make as many spans and be told as much: nobody who makes them can be quicker than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipecat.clocks.system_clock import SystemClock
from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.utils.tracing.tracing_context import TracingContext

from pipecat_hedge.attempt import Attempt
from pipecat_hedge.contender import Contender
from pipecat_hedge.facts import Commit, Launch, Seat
from pipecat_hedge.quickest import quickest
from pipecat_hedge.race_span import RaceTracer
from pipecat_hedge.reports import AttemptReport, StageReport, TurnReport
from pipecat_hedge.span_attributes import attempt_attributes, race_attributes
from pipecat_hedge.testing import ScriptedLLMService

try:
    from opentelemetry import trace
except ModuleNotFoundError:  # it comes with the extra "tracing"
    trace = None

__all__ = ["SpanCost", "measure_spans"]

REQUEST = {
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "gpt-4.1",
    "gen_ai.operation.name": "chat",
    "gen_ai.output.type": "text",
    "gen_ai.request.stream": True,
}
"""What a span of one's own says of a request at its beginning."""


@dataclass(frozen=True, slots=True)
class SpanCost:
    """What the spans of a turn cost, in processor time.

    Parameters:
        own_secs: The race's and the attempts', where Pipecat makes none.
        own_sdk_secs: What of that OpenTelemetry's SDK takes.
        added_secs: What is added to Pipecat's own spans of the attempts: the race's, and what
            became of them.
        added_sdk_secs: What of that OpenTelemetry's SDK takes.
    """

    own_secs: float
    own_sdk_secs: float
    added_secs: float
    added_sdk_secs: float


async def measure_spans(
    requests: int, *beside: Callable[[], Awaitable[None]], rounds: int = 200
) -> tuple[SpanCost | None, list[float]]:
    """Measure what the spans of a turn cost.

    Args:
        requests: How many requests there are in it, one or two; over connections that were open.
        *beside: What else to time, turn and turn about with them.
        rounds: How many batches of turns to time.

    Returns:
        The cost, None where OpenTelemetry's SDK is not installed; and how long what is beside it
        takes, in seconds.
    """
    try:
        from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
        from opentelemetry.sdk.trace.export import (
            BatchSpanProcessor,
            SpanExporter,
            SpanExportResult,
        )
    except ModuleNotFoundError:
        return None, await quickest(*beside, rounds=rounds)

    class Drops(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Drops(), max_queue_size=1 << 16))
    try:
        return await _measure(provider, requests, beside, rounds)
    finally:
        await asyncio.to_thread(provider.shutdown)


async def _measure(
    provider: Any, requests: int, beside: Sequence[Callable[[], Awaitable[None]]], rounds: int
) -> tuple[SpanCost, list[float]]:
    own = RaceTracer(own_spans=True, provider=provider)
    added, off = RaceTracer(provider=provider), RaceTracer()
    added.setup(
        FrameProcessorSetup(
            SystemClock(),
            task_manager=None,  # pyright: ignore[reportArgumentType]
            pipeline_worker=None,  # pyright: ignore[reportArgumentType]
            enable_tracing=True,
            tracing_context=TracingContext(),
        )
    )
    plain = provider.get_tracer("plain")
    turn, watched = _Played(requests, plain), _Played(requests, plain)
    for member in watched.members:
        member.span.watch()
    with_own, own_sdk, with_none, with_added, added_sdk, pipecats, *others = await quickest(
        lambda: turn.raced(own),
        turn.own_plainly,
        lambda: turn.raced(off),
        lambda: watched.raced_in_pipecats(added),
        turn.added_plainly,
        lambda: turn.raced_in_pipecats(off),
        *beside,
        rounds=rounds,
    )
    cost = SpanCost(with_own - with_none, own_sdk, with_added - pipecats, added_sdk - pipecats)
    return cost, others


class _Played:
    """A turn of so many requests, over and over."""

    def __init__(self, requests: int, plain: Any):
        self.members = [Contender(ScriptedLLMService([])) for _ in range(requests)]
        self._plain = plain
        self._report = replace(_REPORT, attempts=_REPORT.attempts[:requests])
        self._told = [attempt_attributes(a, n) for n, a in enumerate(self._report.attempts)]
        self._summed = _BEGUN | race_attributes(self._report)

    async def raced(self, tracer: RaceTracer) -> None:
        """As its service tells the tracer of it."""
        span = tracer.begin(1, "adaptive(0.1)", "standard")
        for number, member in enumerate(self.members):
            with span.asking(Launch(number, "ab"[number], "primary"), member):
                pass
        span.obey(Commit(0, "first_sentence"), Attempt(0, Seat("a"), "primary", 0.0))
        tracer.end(span, self._report)

    async def raced_in_pipecats(self, tracer: RaceTracer) -> None:
        """The same, with a span of Pipecat's for each request."""
        span = tracer.begin(1, "adaptive(0.1)", "standard")
        for number, member in enumerate(self.members):
            with (
                span.asking(Launch(number, "ab"[number], "primary"), member),
                self._plain.start_as_current_span("llm"),
            ):
                await member.service.start_ttfb_metrics()
        span.obey(Commit(0, "first_sentence"), Attempt(0, Seat("a"), "primary", 0.0))
        tracer.end(span, self._report)

    async def own_plainly(self) -> None:
        """What the SDK is told in ``raced``, by nobody."""
        assert trace is not None
        race = self._plain.start_span("race")
        inside, client = trace.set_span_in_context(race), trace.SpanKind.CLIENT
        spans = [self._plain.start_span("chat", inside, client, REQUEST) for _ in self._told]
        race.add_event("hedge.commit", _COMMIT, 1)
        for span, told in zip(spans, self._told, strict=True):
            span.set_attributes(told)
            span.end()
        race.set_attributes(self._summed)
        race.end()

    async def added_plainly(self) -> None:
        """What the SDK is told in ``raced_in_pipecats``, by nobody."""
        race = self._plain.start_span("race")
        for member, told in zip(self.members, self._told, strict=True):
            with self._plain.start_as_current_span("llm") as span:
                await member.service.start_ttfb_metrics()
                span.set_attributes(told)
        race.add_event("hedge.commit", _COMMIT, 1)
        race.set_attributes(self._summed)
        race.end()


_STAGES = StageReport(False, None, None, None, 0.01, 0.3, 0.31, 0.32, 0.25, "openai-processing-ms")
_REPORT = TurnReport(
    turn=1,
    winner="a",
    outcome="answered",
    ttft_secs=0.33,
    ttfs_secs=0.6,
    duration_secs=0.0,
    attempts=tuple(
        AttemptReport(
            provider=name,
            model="scripted",
            launched_secs=0.0,
            launch_reason="primary",
            ttft_secs=0.33,
            ended_secs=0.0,
            outcome="won",
            input_tokens=1200,
            output_tokens=40,
            usd=0.004,
            ttfs_secs=0.6,
            sent_secs=0.0,
            stages=_STAGES,
        )
        for name in "ab"
    ),
    hedge_reason="another request would save 0.31 s, worth 0.15 s",
    prompt_tokens=1200,
)
_BEGUN = {"hedge.turn": 1, "hedge.policy": "adaptive(0.1)", "hedge.tier": "standard"}
_COMMIT = {"hedge.provider": "a", "hedge.attempt": 0, "hedge.commit_reason": "first_sentence"}
