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

from pipecat_hedge.race.attempt import Attempt
from pipecat_hedge.race.events import Commit, Launch, Slot
from pipecat_hedge.race.reports import AttemptReport, StageReport, TurnReport
from pipecat_hedge.service.service_adapter import ServiceAdapter
from pipecat_hedge.telemetry.race_span import RaceTracer
from pipecat_hedge.telemetry.span_attributes import attempt_attributes, race_attributes
from pipecat_hedge.testing import ScriptedLLMService
from pipecat_hedge.tools.bench.quickest import quickest

try:
    from opentelemetry import trace
except ModuleNotFoundError:  # it comes with the extra "tracing"
    trace = None

__all__ = ["SpanCost", "measure_spans", "played_turn"]

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
    plain = provider.get_tracer("plain")
    call = TracingContext()
    call.set_conversation_context(plain.start_span("conversation").get_span_context(), "call")
    call.set_turn_context(plain.start_span("turn").get_span_context())
    own = RaceTracer(own_spans=True, provider=provider)
    added, off = RaceTracer(provider=provider), RaceTracer()
    added.setup(
        FrameProcessorSetup(
            SystemClock(),
            task_manager=None,  # pyright: ignore[reportArgumentType]
            pipeline_worker=None,  # pyright: ignore[reportArgumentType]
            enable_tracing=True,
            tracing_context=call,
        )
    )
    turn, watched = _Played(requests, plain, call), _Played(requests, plain, call)
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

    def __init__(self, requests: int, plain: Any, call: TracingContext):
        self.members = [ServiceAdapter(ScriptedLLMService([])) for _ in range(requests)]
        self._plain, self._call = plain, call
        self._report = played_turn(requests)
        self._won = requests - 1
        self._told = [attempt_attributes(a, n) for n, a in enumerate(self._report.attempts)]
        self._summed = _BEGUN | race_attributes(self._report)

    async def raced(self, tracer: RaceTracer) -> None:
        """As its service tells the tracer of it."""
        span = tracer.begin(1, "adaptive(0.1)", "standard")
        for number, member in enumerate(self.members):
            with span.asking(_LAUNCHES[number], member):
                pass
        span.obey(Commit(self._won, "first_sentence"), _ATTEMPTS[self._won])
        tracer.end(span, self._report)

    async def raced_in_pipecats(self, tracer: RaceTracer) -> None:
        """The same, with a span of Pipecat's for each request."""
        span = tracer.begin(1, "adaptive(0.1)", "standard")
        for number, member in enumerate(self.members):
            with (
                span.asking(_LAUNCHES[number], member),
                self._plain.start_as_current_span("llm"),
            ):
                await member.service.start_ttfb_metrics()
        span.obey(Commit(self._won, "first_sentence"), _ATTEMPTS[self._won])
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
        race = self._plain.start_span("race", self._call.get_turn_context())
        for member, told in zip(self.members, self._told, strict=True):
            with self._plain.start_as_current_span("llm") as span:
                await member.service.start_ttfb_metrics()
                span.set_attributes(told)
        race.add_event("hedge.commit", _COMMIT, 1)
        race.set_attributes(self._summed | _IN_CALL)
        race.end()


_STAGES = StageReport(False, None, None, None, 0.01, 0.3, 0.31, 0.32, 0.25, "openai-processing-ms")
_ALONE = AttemptReport(
    *("a", "gpt-4.1", 0.0, "primary", 0.33, 0.9, "won"),
    input_tokens=1200,
    output_tokens=40,
    usd=0.004,
    ttfs_secs=0.6,
    sent_secs=0.0,
    stages=_STAGES,
)
_HEDGED = (
    AttemptReport(
        *("a", "gpt-4.1", 0.0, "primary", None, 1.32, "superseded"),
        input_tokens=1200,
        output_tokens=0,
        tokens_estimated=True,
        usd=0.0024,
        sent_secs=0.0,
        stages=StageReport(False, written_secs=0.01, headers_secs=0.3, first_byte_secs=0.31),
    ),
    replace(
        _ALONE,
        provider="b",
        launched_secs=0.72,
        launch_reason="hedge",
        ended_secs=1.62,
        launch_detail="a silent 0.72 s",
        sent_secs=0.72,
    ),
)


def played_turn(requests: int) -> TurnReport:
    """The turn that is measured.

    Args:
        requests: One request that is answered, or two: one that is silent, and a hedge that wins.
    """
    attempts = (_ALONE,) if requests == 1 else _HEDGED
    won = attempts[-1]
    return TurnReport(
        *(1, won.provider, "answered"),
        ttft_secs=won.launched_secs + 0.33,
        ttfs_secs=won.launched_secs + 0.6,
        duration_secs=won.ended_secs,
        attempts=attempts,
        commit_on="first_sentence",
        commit_reason="first_sentence",
        hedge_reason="another request would save 0.31 s, worth 0.15 s",
        prompt_tokens=1200,
    )


_LAUNCHES = Launch(0, "a", "primary"), Launch(1, "b", "hedge")
_ATTEMPTS = tuple(Attempt(n, Slot("ab"[n]), _LAUNCHES[n].reason, 0.0) for n in range(2))
_BEGUN = {"hedge.turn": 1, "hedge.policy": "adaptive(0.1)", "hedge.tier": "standard"}
_IN_CALL = {"gen_ai.conversation.id": "call"}
_COMMIT = {"hedge.provider": "b", "hedge.attempt": 1}
