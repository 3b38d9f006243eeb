"""What stages and spans cost, by themselves: their own work for a turn of two attempts, timed.

Counted is processor time of the loop's thread. The spans go to OpenTelemetry's batch processor, as
in production; its thread, which writes and sends them, is not the loop's and not counted. The HTTP
client is played: what is timed is what listening to it adds.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipecat_hedge.attempt import Attempt
from pipecat_hedge.contender import Contender
from pipecat_hedge.facts import Commit, Launch, Seat
from pipecat_hedge.listening import sees_request, sees_response, watching
from pipecat_hedge.race_span import RaceTracer
from pipecat_hedge.reports import AttemptReport, StageReport, TurnReport
from pipecat_hedge.stages import Stages
from pipecat_hedge.testing import ScriptedLLMService

__all__ = ["StageCost", "measure_spans", "measure_stages"]

BATCH = 50
"""Turns that are timed together."""
CHUNKS = 500
_EVENTS = (
    "connection.connect_tcp.started",
    "connection.connect_tcp.complete",
    "connection.start_tls.started",
    "connection.start_tls.complete",
    "http11.send_request_headers.started",
    "http11.send_request_headers.complete",
    "http11.send_request_body.started",
    "http11.send_request_body.complete",
    "http11.receive_response_headers.started",
    "http11.receive_response_headers.complete",
    "http11.receive_response_body.started",
    "http11.receive_response_body.complete",
    "http11.response_closed.started",
    "http11.response_closed.complete",
)
"""What httpcore tells of a request over a new connection: the most that there is."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """What listening to a client costs.

    Parameters:
        turn_secs: A turn of two requests, both over new connections.
        token_secs: Each piece of an answer.
    """

    turn_secs: float
    token_secs: float


async def measure_stages(rounds: int = 40) -> StageCost:
    """Measure what listening to the HTTP clients of a turn costs.

    Args:
        rounds: How many batches of turns to time.
    """
    turn = await _timed(lambda: _listened(0), lambda: _unheard(0), rounds)
    answer = await _timed(lambda: _listened(CHUNKS), lambda: _unheard(CHUNKS), rounds, batch=1)
    return StageCost(turn_secs=2 * turn, token_secs=(answer - turn) / CHUNKS)


async def measure_spans(rounds: int = 40) -> float | None:
    """Measure what the spans of a turn cost: the race's and two attempts'.

    Args:
        rounds: How many batches of turns to time.

    Returns:
        Seconds a turn; None where OpenTelemetry's SDK is not installed.
    """
    try:
        from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
        from opentelemetry.sdk.trace.export import (
            BatchSpanProcessor,
            SpanExporter,
            SpanExportResult,
        )
    except ModuleNotFoundError:
        return None

    class Drops(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Drops(), max_queue_size=1 << 16))
    try:
        members = [Contender(ScriptedLLMService([])) for _ in range(2)]
        traces, does_not = RaceTracer(own_spans=True, provider=provider), RaceTracer()
        return await _timed(
            lambda: _traced(traces, members), lambda: _traced(does_not, members), rounds
        )
    finally:
        await asyncio.to_thread(provider.shutdown)


async def _traced(tracer: RaceTracer, members: list[Contender]) -> None:
    span = tracer.begin(1, "adaptive(0.1)", "standard")
    for number, member in enumerate(members):
        with span.asking(Launch(number, "ab"[number], "primary"), member):
            pass
    span.obey(Commit(0, "first_sentence"), Attempt(0, Seat("a"), "primary", 0.0))
    tracer.end(span, _REPORT)


_STAGES = StageReport(True, None, 0.02, 0.03, 0.06, 0.3, 0.31, 0.32, 0.25, "openai-processing-ms")
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


# ---- a client that is played


class AsyncByteStream:
    """A body of so many chunks; by its name listening knows it for one of httpx's."""

    def __init__(self, chunks: int):
        """Make a body."""
        self._count = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self._count):
            yield b"data: {}"

    async def aclose(self) -> None:
        """End."""


@dataclass
class _Request:
    extensions: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class _Response:
    stream: Any
    headers: Mapping[str, str] = field(
        default_factory=lambda: {"content-type": "text/event-stream", "openai-processing-ms": "25"}
    )


async def _listened(chunks: int) -> None:
    stages, request, response = Stages(), _Request(), _Response(AsyncByteStream(chunks))
    with watching(stages):
        await sees_request(request)
        tell = request.extensions["trace"]
        for event in _EVENTS:
            await tell(event, {})
        await sees_response(response)
        async for _ in response.stream:
            pass
        stages.token_came()
    stages.report(0.0)


async def _unheard(chunks: int) -> None:
    response = _Response(AsyncByteStream(chunks))
    async for _ in response.stream:
        pass


async def _timed(
    work: Callable[[], Awaitable[None]],
    beside: Callable[[], Awaitable[None]],
    rounds: int,
    batch: int = BATCH,
) -> float:
    """The median over the rounds of what one thing takes longer than another."""
    found: list[float] = []
    for _ in range(rounds):
        times: list[float] = []
        for each in (work, beside):
            began = time.thread_time()
            for _ in range(batch):
                await each()
            times.append((time.thread_time() - began) / batch)
        found.append(times[0] - times[1])
    return statistics.median(found)
