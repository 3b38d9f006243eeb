"""Exports traces without conversation text: only known attribute names may carry text.

Pipecat's spans contain the conversation: prompts, answers, transcripts, tools, and exception
messages, which may quote a request. Text is exported only under a name that is known to hold no
conversation. Numbers and booleans are exported under any name.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pipecat.utils.tracing.setup import setup_tracing

from pipecat_hedge.race.errors import missing_extra

try:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
except ModuleNotFoundError:
    raise missing_extra("exporting traces", "OpenTelemetry's SDK and exporter", "tracing") from None

_WITHOUT_TEXT = frozenset(
    {
        "conversation.id",
        "conversation.type",
        "error.type",
        "exception.type",
        "gen_ai.conversation.id",
        "gen_ai.operation.name",
        "gen_ai.output.type",
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "gen_ai.response.model",
        "http.request.method",
        "language",
        "network.protocol.version",
        "server.address",
        "service.operation",
        "settings.language",
        "settings.model",
        "turn.type",
        "url.scheme",
        "voice_id",
    }
)
_OWN_PREFIX = "hedge."


class WithoutText(SpanExporter):
    """Forwards spans to another exporter after removing conversation text.

    Example::

        setup_tracing("my-bot", exporter=WithoutText(OTLPSpanExporter()))
    """

    def __init__(self, exporter: SpanExporter, *, keep: Collection[str] = ()):
        """Wrap an exporter.

        Args:
            exporter: The exporter.
            keep: Further attribute names whose text may be exported.
        """
        self._exporter = exporter
        self._kept = _WITHOUT_TEXT | frozenset(keep)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans; see ``SpanExporter``."""
        return self._exporter.export([self._without_text(span) for span in spans])

    def shutdown(self) -> None:
        """Shut down; see ``SpanExporter``."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Export pending spans; see ``SpanExporter``."""
        return self._exporter.force_flush(timeout_millis)

    def _without_text(self, span: ReadableSpan) -> ReadableSpan:
        return ReadableSpan(
            name=span.name,
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=self._filter(span.attributes),
            events=[Event(e.name, self._filter(e.attributes), e.timestamp) for e in span.events],
            links=[trace.Link(link.context, self._filter(link.attributes)) for link in span.links],
            kind=span.kind,
            status=trace.Status(span.status.status_code),  # without the exception's message
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )

    def _filter(self, attributes: Mapping[str, Any] | None) -> dict[str, Any]:
        return {
            name: value
            for name, value in (attributes or {}).items()
            if isinstance(value, (bool, int, float))
            or name in self._kept
            or name.startswith(_OWN_PREFIX)
        }


def export_traces(
    service_name: str,
    *,
    with_text: bool = False,
    keep: Collection[str] = (),
    without_paths: Collection[str] = ("/metrics",),
) -> None:
    """Export the process's traces by OTLP over HTTP, configured by OpenTelemetry's variables.

    ``OTEL_EXPORTER_OTLP_ENDPOINT`` is the collector, ``OTEL_EXPORTER_OTLP_HEADERS`` holds its key.
    Call it once, before the first pipeline, and use ``PipelineWorker(..., enable_tracing=True)``.

    Args:
        service_name: The process's name in traces, unless ``OTEL_SERVICE_NAME`` is set.
        with_text: Whether prompts, answers and transcripts are exported.
        keep: Without text: further attribute names whose text may be exported.
        without_paths: Paths of this process's HTTP server that are not traced. FastAPI traces
            every request once an exporter is set.
    """
    exporter = OTLPSpanExporter()
    name = os.environ.get("OTEL_SERVICE_NAME", service_name)
    setup_tracing(name, exporter=exporter if with_text else WithoutText(exporter, keep=keep))
    leave_out(trace.get_tracer_provider(), without_paths)


def leave_out(provider: trace.TracerProvider, paths: Collection[str]) -> None:
    """Exclude requests to some paths of this process's HTTP server from tracing.

    Call it before a tracer is created. The provider's sampler decides about all other spans.

    Args:
        provider: OpenTelemetry's ``TracerProvider``; others are not changed.
        paths: The paths, as in the ``url.path`` attribute of a server's span.
    """
    if isinstance(provider, TracerProvider) and paths:
        provider.sampler = _WithoutPaths(provider.sampler, frozenset(paths))


class _WithoutPaths(Sampler):
    def __init__(self, sampler: Sampler, paths: frozenset[str]):
        self._sampler, self._paths = sampler, paths

    def should_sample(
        self,
        parent_context: Any,
        trace_id: int,
        name: str,
        kind: trace.SpanKind | None = None,
        attributes: Mapping[str, Any] | None = None,
        links: Sequence[trace.Link] | None = None,
        trace_state: trace.TraceState | None = None,
    ) -> SamplingResult:
        if kind is trace.SpanKind.SERVER and (attributes or {}).get("url.path") in self._paths:
            return SamplingResult(Decision.DROP)
        return self._sampler.should_sample(
            parent_context, trace_id, name, kind, attributes, links, trace_state
        )

    def get_description(self) -> str:
        return f"{self._sampler.get_description()} without {', '.join(sorted(self._paths))}"
