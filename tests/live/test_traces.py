"""The race in Pipecat's own traces, and on its way to a collector by OTLP over HTTP."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
)

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.telemetry import WithoutText
from pipecat_hedge.tools.simulator import Simulator
from tests.support.line import Line
from tests.support.otlp_receiver import otlp_receiver
from tests.support.otlp_receiver import said as told_by
from tests.support.recorded_spans import (
    id_of,
    parent_of,
    recorded_spans,
    said,
    secs_into,
)
from tests.support.simulated import close, simulated

pytestmark = pytest.mark.live

SLOW = "fixed@ttft=2"
QUICK = "fixed@ttft=0.05,answer=Good%20day."


async def call(*behaviours: str, tracing: bool = True, own_spans: bool = False) -> None:
    """One turn of a call, with Pipecat's tracing on or off."""
    async with Simulator(port=0) as sim:
        wires = ("openai", "anthropic")
        members = [simulated(w, sim, b) for w, b in zip(wires, behaviours, strict=True)]
        providers = list(map(Provider, "ab", members))
        llm = HedgedLLMService(providers, policy=HedgePolicy.race(2), own_spans=own_spans)
        async with Line(llm, tracing=tracing) as line:
            await line.send(UserStartedSpeakingFrame(), UserStoppedSpeakingFrame())
            await line.ask("My name is Quimby.")
            await line.report()
            await line.send(BotStartedSpeakingFrame(), BotStoppedSpeakingFrame())
        await close(*members)


async def test_race_is_in_the_turn_with_its_attempts_side_by_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spans end when their requests did, although the outcome is known only later."""
    with recorded_spans(monkeypatch) as spans:
        await call(SLOW, QUICK)
    found = spans.of_providers("llm")
    (turn,), (race,) = spans.named("turn"), spans.named("race")
    assert parent_of(race) == id_of(turn)
    assert {parent_of(span) for span in found.values()} == {id_of(race)}
    assert said(race)["gen_ai.conversation.id"] == said(turn)["conversation.id"]
    assert said(race)["hedge.winner"] == "b"
    (commit,) = race.events
    assert (commit.name, said(commit)["hedge.provider"]) == ("hedge.commit", "b")
    assert secs_into(race, commit) == pytest.approx(said(race)["hedge.ttft_secs"], abs=0.05)
    assert all("Quimby" in span.to_json() for span in found.values())  # as Pipecat makes them
    assert "Quimby" not in race.to_json()
    assert "Good day" not in race.to_json()

    won, lost = said(found["b"]), said(found["a"])
    assert (lost["hedge.launch_reason"], lost["hedge.outcome"]) == ("primary", "superseded")
    assert (won["hedge.launch_reason"], won["hedge.outcome"]) == ("hedge", "won")
    assert won["gen_ai.provider.name"] == "anthropic"
    assert won["gen_ai.usage.output_tokens"] > 0
    assert won["hedge.ttft_secs"] > 0.04
    assert won["hedge.stage.headers_secs"] < won["gen_ai.response.time_to_first_chunk"]
    assert "hedge.stage.new_connection" in won
    assert lost["hedge.tokens_estimated"]
    assert lost["gen_ai.usage.input_tokens"] > 0
    assert "hedge.ttft_secs" not in lost
    for span in found.values():
        assert (race.start_time or 0) <= (span.start_time or 0)
        assert (span.start_time or 0) < (span.end_time or 0) < (race.end_time or 0)


@pytest.mark.parametrize("tracing", [True, False], ids=["Pipecat's tracing", "own spans"])
async def test_collector_gets_the_race(monkeypatch: pytest.MonkeyPatch, tracing: bool) -> None:
    """By OTLP over HTTP: the same tree with either kind of spans, and no text of the call."""
    with otlp_receiver() as collector:
        provider = TracerProvider()
        monkeypatch.setattr(
            trace, "get_tracer", lambda name, tracer_provider=None: provider.get_tracer(name)
        )
        url = f"http://127.0.0.1:{collector.port}/v1/traces"
        provider.add_span_processor(BatchSpanProcessor(WithoutText(OTLPSpanExporter(url))))
        fails = "fixed@fault=500,headers=0.2"
        await call(fails, QUICK, tracing=tracing, own_spans=not tracing)
        await asyncio.to_thread(provider.shutdown)
    assert set(collector.requests) == {("/v1/traces", "application/x-protobuf")}
    (race,) = collector.named("race")
    attempts = [s for s in collector.spans if "hedge.attempt" in told_by(s.attributes)]
    assert len(attempts) == 2
    assert {span.parent_span_id for span in attempts} == {race.span_id}
    assert len({span.trace_id for span in collector.spans}) == 1
    won = next(s for s in attempts if told_by(s.attributes)["hedge.provider"] == "b")
    assert told_by(won.attributes)["gen_ai.usage.output_tokens"] > 0
    assert told_by(won.attributes)["gen_ai.provider.name"] == "anthropic"
    assert "hedge.commit" in [event.name for event in race.events]
    assert b"Quimby" not in collector.raw
    assert b"Good day" not in collector.raw
