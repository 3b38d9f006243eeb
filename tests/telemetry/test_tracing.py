"""Exported traces hold times, counts and names, and no text of the call."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from opentelemetry.trace import Link, SpanKind, StatusCode, Tracer

from pipecat_hedge.telemetry.tracing import WithoutText, leave_out
from tests.support.recorded_spans import id_of, parent_of, said

SECRET = "my card number is 4929-XK"


def exporting(*keep: str) -> tuple[Tracer, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(WithoutText(exporter, keep=keep)))
    return provider.get_tracer("tests"), exporter


def exported(attributes: Mapping[str, Any], *keep: str) -> dict[str, Any]:
    """The attributes of a span that are exported."""
    tracer, exporter = exporting(*keep)
    tracer.start_span("llm", attributes=attributes).end()
    (span,) = exporter.get_finished_spans()
    return dict(said(span))


@pytest.mark.parametrize(
    "name",
    ["input", "output", "tools", "gen_ai.system_instructions", "transcript", "text", "tool.result"],
)
def test_texts_of_pipecat_are_not_exported(name: str) -> None:
    assert exported({name: SECRET, "metrics.ttfb": 0.25}) == {"metrics.ttfb": 0.25}
    assert exported({name: "s1"}, name) == {name: "s1"}, "unless it is to be kept"


@settings(deadline=None)
@given(st.text(min_size=1))
def test_text_under_an_unknown_name_is_not_exported(name: str) -> None:
    found = exported({f"{name}.new": SECRET, f"{name}.many": [SECRET], f"{name}.count": 3})
    assert found.pop(f"{name}.count") == 3
    assert found == {} or name.startswith("hedge.")


def test_exception_keeps_only_its_type() -> None:
    """A provider's error may quote the request, in its message and in the span's status."""
    tracer, exporter = exporting()
    with pytest.raises(ValueError, match="4929-XK"), tracer.start_as_current_span("llm"):
        raise ValueError(SECRET)
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    (event,) = span.events
    assert dict(said(event)) == {"exception.type": "ValueError"}
    assert "4929-XK" not in span.to_json()


def test_tree_times_and_links_are_kept() -> None:
    tracer, exporter = exporting()
    with tracer.start_as_current_span("turn", attributes={"turn.number": 3}) as outer:
        link = Link(outer.get_span_context(), {"why": SECRET, "hedge.turn": 3})
        attributes = {"hedge.winner": "b"}
        inner = tracer.start_span("race", attributes=attributes, links=[link], start_time=5)
        inner.add_event("hedge.commit", {"hedge.provider": "b", "said": SECRET}, timestamp=7)
        inner.end(9)
    race, turn = exporter.get_finished_spans()
    assert (race.name, race.start_time, race.end_time) == ("race", 5, 9)
    assert parent_of(race) == outer.get_span_context().span_id == id_of(turn)
    assert dict(said(race)) == {"hedge.winner": "b"}
    (event,) = race.events
    assert (event.timestamp, dict(said(event))) == (7, {"hedge.provider": "b"})
    (kept,) = race.links
    assert kept.context == outer.get_span_context()
    assert dict(kept.attributes or {}) == {"hedge.turn": 3}
    assert dict(said(turn)) == {"turn.number": 3}


async def test_scrapes_of_the_process_are_not_traced() -> None:
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


def test_export_traces_leaves_scrapes_out() -> None:
    """In a process of its own: a tracer provider can be set only once."""
    code = """
from opentelemetry import trace
from pipecat_hedge.telemetry import export_traces
export_traces("bot")
print(trace.get_tracer_provider().sampler.get_description())
"""
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout.strip().endswith("without /metrics")


def test_other_spans_are_left_to_the_sampler() -> None:
    """Reading a vLLM server's metrics is not a scrape of this process."""
    asks = {"kind": SpanKind.CLIENT, "attributes": {"url.path": "/metrics"}}
    for sampler, is_recorded in ((ALWAYS_ON, True), (ALWAYS_OFF, False)):
        provider = TracerProvider(sampler=sampler)
        leave_out(provider, ())
        assert provider.sampler is sampler
        leave_out(provider, ["/metrics"])
        span = provider.get_tracer("bot").start_span("GET", **asks)
        assert span.is_recording() is is_recorded
    leave_out(trace.NoOpTracerProvider(), ["/metrics"])
