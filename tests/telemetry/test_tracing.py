"""What leaves the process with a trace: times, counts and names, not what was said."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import Link, SpanKind, StatusCode, Tracer

from pipecat_hedge import HedgeError
from pipecat_hedge.telemetry.tracing import WithoutText, export_traces, leave_out
from tests.support.recorded_spans import id_of, parent_of, said

SECRET = "my card number is 4929"


def exporting(*keep: str) -> tuple[Tracer, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(WithoutText(exporter, keep=keep)))
    return provider.get_tracer("tests"), exporter


@pytest.mark.parametrize(
    "name",
    ["input", "output", "tools", "gen_ai.system_instructions", "transcript", "text", "tool.result"],
)
def test_what_pipecat_notes_of_a_conversation_is_held_back(name: str) -> None:
    """Whatever kind of text it is."""
    tracer, exporter = exporting()
    with tracer.start_as_current_span("llm", attributes={name: SECRET, "metrics.ttfb": 0.25}):
        pass
    (span,) = exporter.get_finished_spans()
    assert dict(said(span)) == {"metrics.ttfb": 0.25}


@given(st.text(min_size=1))
def test_a_text_under_a_name_that_nobody_knows_is_held_back(name: str) -> None:
    """Only names that are known to hold nothing that was said let one through."""
    tracer, exporter = exporting()
    attributes = {f"{name}.new": SECRET, f"{name}.many": [SECRET], f"{name}.count": 3}
    with tracer.start_as_current_span("llm", attributes=attributes):
        pass
    (span,) = exporter.get_finished_spans()
    told = dict(said(span))
    assert told.pop(f"{name}.count") == 3
    assert told == {} or name.startswith("hedge.")


def test_an_exception_keeps_its_kind_alone() -> None:
    """A provider's refusal may quote what it was sent, in its message and in the span's status."""
    tracer, exporter = exporting()
    with pytest.raises(ValueError, match="4929"), tracer.start_as_current_span("llm"):
        raise ValueError(SECRET)
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is None
    (event,) = span.events
    assert dict(said(event)) == {"exception.type": "ValueError"}
    assert "4929" not in span.to_json()


def test_the_tree_and_the_times_stay() -> None:
    """Names, parents, kinds and times are as they were."""
    tracer, exporter = exporting()
    with tracer.start_as_current_span("turn", attributes={"turn.number": 3}) as outer:
        inner = tracer.start_span("race", attributes={"hedge.winner": "b"}, start_time=5)
        inner.add_event("hedge.commit", {"hedge.provider": "b", "said": SECRET}, timestamp=7)
        inner.end(9)
    race, turn = exporter.get_finished_spans()
    assert (race.name, race.start_time, race.end_time) == ("race", 5, 9)
    assert parent_of(race) == outer.get_span_context().span_id == id_of(turn)
    assert dict(said(race)) == {"hedge.winner": "b"}
    (event,) = race.events
    assert (event.timestamp, dict(said(event))) == (7, {"hedge.provider": "b"})
    assert dict(said(turn)) == {"turn.number": 3}


def test_a_link_is_sifted_too() -> None:
    """It leads where it led, and says no more than a span would."""
    tracer, exporter = exporting()
    other = tracer.start_span("call").get_span_context()
    link = Link(other, {"why": SECRET, "hedge.turn": 3, "error.type": "timeout"})
    tracer.start_span("turn", links=[link]).end()
    (span,) = exporter.get_finished_spans()
    (kept,) = span.links
    assert kept.context == other
    assert dict(kept.attributes or {}) == {"hedge.turn": 3, "error.type": "timeout"}
    assert "4929" not in span.to_json()


def test_further_names_can_be_let_through() -> None:
    """By whoever knows what they hold."""
    tracer, exporter = exporting("langfuse.session.id")
    with tracer.start_as_current_span("turn", attributes={"langfuse.session.id": "s1", "x": "y"}):
        pass
    (span,) = exporter.get_finished_spans()
    assert dict(said(span)) == {"langfuse.session.id": "s1"}


def test_ending_reaches_the_exporter_behind_it() -> None:
    """What is left is sent, and the exporter ends with it."""

    class Exporter(SpanExporter):
        told: list[str]

        def export(self, spans: Sequence[ReadableSpan]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            pass

        def shutdown(self) -> None:
            self.told.append("shutdown")

        def force_flush(self, timeout_millis: int = 30000) -> bool:
            self.told.append(f"flush {timeout_millis}")
            return True

    exporter = Exporter()
    exporter.told = []
    outer = WithoutText(exporter)
    assert outer.force_flush(50)
    outer.shutdown()
    assert exporter.told == ["flush 50", "shutdown"]


def test_without_the_exporter_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is set up."""
    name = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(HedgeError, match=r"export_traces .*pipecat-hedge\[tracing\]"):
        export_traces("bot")


async def test_a_scrape_is_not_traced_and_everything_else_is() -> None:
    """FastAPI makes spans of a request and of what it does for it, of that path none."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    leave_out(provider, ["/metrics"])
    app = FastAPI(telemetry={"tracer_provider": provider})
    tracer = provider.get_tracer("bot")

    async def answer() -> str:
        with tracer.start_as_current_span("inside"):
            return "Good day."

    for path in ("/metrics", "/offer"):
        app.get(path)(answer)

    async def asked(path: str) -> list[str]:
        exporter.clear()
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://bot") as client:
            assert (await client.get(path)).json() == "Good day."
        return [span.name for span in exporter.get_finished_spans()]

    assert await asked("/metrics") == []
    assert {"inside", "GET /offer"} <= set(await asked("/offer"))
    with tracer.start_as_current_span("turn"):
        pass
    assert exporter.get_finished_spans()[-1].name == "turn"
    assert provider.sampler.get_description().endswith("without /metrics")


def test_to_ask_somebody_else_for_such_a_path_is_traced() -> None:
    """A vLLM's metrics are read by a client, whose span is none of a server's."""
    provider = TracerProvider()
    leave_out(provider, ["/metrics"])
    asks = {"kind": SpanKind.CLIENT, "attributes": {"url.path": "/metrics"}}
    with provider.get_tracer("bot").start_as_current_span("GET", **asks) as span:
        assert span.is_recording()


def test_exported_traces_are_without_scrapes() -> None:
    """In a process of its own, for a tracer provider is set but once in each."""
    code = """
from opentelemetry import trace
from pipecat_hedge.telemetry.tracing import export_traces
export_traces("bot")
print(trace.get_tracer_provider().sampler.get_description())
"""
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    assert said.stdout.strip().endswith("without /metrics")


def test_what_was_decided_before_still_is() -> None:
    """A sampler that somebody chose decides about all but those paths."""
    provider = TracerProvider(sampler=ALWAYS_OFF)
    leave_out(provider, ["/metrics"])
    with provider.get_tracer("bot").start_as_current_span("turn") as span:
        assert not span.is_recording()


def test_nothing_to_leave_out_and_nobody_who_could() -> None:
    """Then nothing is changed."""
    provider = TracerProvider()
    before = provider.sampler
    leave_out(provider, ())
    assert provider.sampler is before
    leave_out(trace.NoOpTracerProvider(), ["/metrics"])
