"""The race in Pipecat's own traces: an LLM span for each attempt, side by side under the turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
)

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.simulator import Simulator
from tests.line import Line
from tests.simulated import close, simulated

pytestmark = pytest.mark.live


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


async def traced(
    spans: InMemorySpanExporter, policy: HedgePolicy, *behaviours: str, interrupt: bool = False
) -> dict[str, ReadableSpan]:
    """The LLM spans of one turn by provider."""
    async with Simulator(port=0) as sim:
        wires = ("openai", "anthropic")
        members = [simulated(w, sim, b) for w, b in zip(wires, behaviours, strict=True)]
        llm = HedgedLLMService(
            [Provider(name, member) for name, member in zip("ab", members, strict=True)],
            policy=policy,
        )
        async with Line(llm, tracing=True) as line:
            await line.send(UserStartedSpeakingFrame(), UserStoppedSpeakingFrame())
            if interrupt:
                asking = asyncio.create_task(line.ask())
                await sim.ledger.wait_until(lambda ledger: len(ledger.open) == 2, 5)
                await line.interrupt()
                await asking
            else:
                await line.ask()
            await line.report()
            await line.send(BotStartedSpeakingFrame(), BotStoppedSpeakingFrame())
        await close(*members)
    found = [span for span in spans.get_finished_spans() if span.name == "llm"]
    return {str((span.attributes or {}).get("hedge.provider")): span for span in found}


def told(span: ReadableSpan) -> tuple[object, ...]:
    attributes = span.attributes or {}
    names = ("hedge.attempt", "hedge.launch_reason", "hedge.outcome")
    return tuple(attributes.get(name) for name in names)


async def test_attempts_are_siblings_under_the_turn(spans: InMemorySpanExporter) -> None:
    """Each says why it was launched and what became of it; none is the other's parent."""
    found = await traced(
        spans, HedgePolicy.race(2), "fixed@ttft=2", "fixed@ttft=0.05,answer=Good%20day."
    )
    assert told(found["a"]) == (0, "primary", "superseded")
    assert told(found["b"]) == (1, "hedge", "won")
    (turn,) = (span for span in spans.get_finished_spans() if span.name == "turn")
    for span in found.values():
        assert span.parent is not None
        assert turn.context is not None
        assert span.parent.span_id == turn.context.span_id


async def test_an_interrupted_attempt_is_not_blamed(spans: InMemorySpanExporter) -> None:
    """Its span says so, and has no error."""
    found = await traced(spans, HedgePolicy.race(2), "fixed@ttft=5", "fixed@ttft=5", interrupt=True)
    assert {told(span)[2] for span in found.values()} == {"interrupted"}
    assert all(span.status.is_unset for span in found.values())


async def test_a_failed_attempt_and_its_replacement(spans: InMemorySpanExporter) -> None:
    """The service's own span carries the error; the replacement says why it came."""
    found = await traced(spans, HedgePolicy.fallback(), "fixed@fault=529", "fixed@ttft=0.05")
    assert told(found["a"])[:2] == (0, "primary")
    assert not found["a"].status.is_ok
    assert told(found["b"]) == (1, "failure", "won")
