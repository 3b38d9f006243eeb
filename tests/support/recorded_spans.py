"""Spans that are kept in memory, and what to ask of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class RecordedSpans:
    """What a tracer provider of the test's own has been given."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def get_tracer(self, name: str, tracer_provider: object = None) -> trace.Tracer:
        """Stands in for the process's own."""
        return self.provider.get_tracer(name)

    def all(self) -> list[ReadableSpan]:
        """Every span that has ended."""
        return list(self._exporter.get_finished_spans())

    def named(self, *names: str) -> list[ReadableSpan]:
        """Those of these names, in the order of their beginning."""
        found = [span for span in self.all() if span.name in names]
        return sorted(found, key=lambda span: span.start_time or 0)

    def of_providers(self, *names: str) -> dict[str, ReadableSpan]:
        """The attempts' spans of these names, by provider."""
        return {str(said(span)["hedge.provider"]): span for span in self.named(*names)}


@contextmanager
def recorded_spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedSpans]:
    """Have the process's spans recorded. A real provider can be set but once in a process."""
    recorded = RecordedSpans()
    monkeypatch.setattr(trace, "get_tracer", recorded.get_tracer)
    yield recorded
    recorded.provider.shutdown()


def said(span: ReadableSpan | Event) -> Mapping[str, Any]:
    """What a span or an event says."""
    return span.attributes or {}


def secs_into(span: ReadableSpan, event: Event) -> float:
    """When an event of a span was, from the span's beginning."""
    return (event.timestamp - (span.start_time or 0)) / 1e9


def parent_of(span: ReadableSpan) -> int | None:
    """The identity of a span's parent."""
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    """The identity of a span."""
    assert span.context is not None
    return span.context.span_id
