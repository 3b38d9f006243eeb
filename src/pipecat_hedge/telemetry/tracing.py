"""Sending traces away without what was said: an exporter that holds back text.

Law: a text leaves the process only under a name that is known to hold nothing that was said.
Numbers and truth values pass under any name.

Pipecat's spans hold the whole conversation: ``input``, ``output``, ``tools`` and
``gen_ai.system_instructions`` of each request to an LLM, ``transcript`` of speech recognition,
``text`` of speech synthesis, and the message of each exception, in which a provider may quote what
it was sent. To hold back those names would let through the next that somebody thinks of.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipecat.utils.tracing.setup import setup_tracing

from pipecat_hedge.race.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import Link, TraceState
    from opentelemetry.util import types as otel

    _Exporter = SpanExporter
else:
    _Exporter = object  # the extra may be missing; all that an exporter has is defined below

__all__ = ["WithoutText", "export_traces", "leave_out"]

_SAYS_NOTHING = frozenset(
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
_OURS = "hedge."


class WithoutText(_Exporter):
    """Hands spans on to another exporter without the texts in them.

    Example::

        setup_tracing("my-bot", exporter=WithoutText(OTLPSpanExporter()))
    """

    def __init__(self, exporter: SpanExporter, *, keep: Collection[str] = ()):
        """Put it before an exporter.

        Args:
            exporter: Sends the spans away.
            keep: Names of further attributes whose texts may leave the process.
        """
        self._exporter = exporter
        self._kept = _SAYS_NOTHING | frozenset(keep)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans away; see ``SpanExporter``."""
        return self._exporter.export([self._without_text(span) for span in spans])

    def shutdown(self) -> None:
        """End; see ``SpanExporter``."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Send what is left; see ``SpanExporter``."""
        return self._exporter.force_flush(timeout_millis)

    def _without_text(self, span: ReadableSpan) -> ReadableSpan:
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.trace import Link, Status

        return ReadableSpan(
            name=span.name,
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=self._sift(span.attributes),
            events=[Event(e.name, self._sift(e.attributes), e.timestamp) for e in span.events],
            links=[Link(link.context, self._sift(link.attributes)) for link in span.links],
            kind=span.kind,
            status=Status(span.status.status_code),  # its description is the exception's message
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )

    def _sift(self, attributes: Mapping[str, Any] | None) -> dict[str, Any]:
        return {
            name: value
            for name, value in (attributes or {}).items()
            if isinstance(value, (bool, int, float)) or name in self._kept or name.startswith(_OURS)
        }


def export_traces(
    service_name: str,
    *,
    with_text: bool = False,
    keep: Collection[str] = (),
    without_paths: Collection[str] = ("/metrics",),
) -> None:
    """Send the process's traces away by OTLP over HTTP, as OpenTelemetry's variables say.

    ``OTEL_EXPORTER_OTLP_ENDPOINT`` says where to, ``OTEL_EXPORTER_OTLP_HEADERS`` with which key.
    Call it once, before the first pipeline; then give ``PipelineWorker(..., enable_tracing=True)``.

    Args:
        service_name: What the process is called in traces; ``OTEL_SERVICE_NAME`` goes before it.
        with_text: Whether prompts, answers and transcripts may leave the process.
        keep: Where they may not: names of further attributes whose texts may.
        without_paths: Of this process's HTTP server, whose requests are not traced, nor what is
            done for them. FastAPI makes spans of every request where traces are exported.

    Raises:
        ConfigurationError: If the exporter is not installed.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "export_traces needs OpenTelemetry's exporter, which is not installed: pip install "
            '"pipecat-hedge[tracing]"'
        ) from error
    exporter = OTLPSpanExporter()
    name = os.environ.get("OTEL_SERVICE_NAME", service_name)
    setup_tracing(name, exporter=exporter if with_text else WithoutText(exporter, keep=keep))
    leave_out(trace.get_tracer_provider(), without_paths)


def leave_out(provider: Any, paths: Collection[str]) -> None:
    """Have a tracer provider make no spans of being asked for some paths, nor of what is inside.

    Whatever decides now which spans are made decides about all others. Call it before anybody asks
    the provider for a tracer.

    Args:
        provider: OpenTelemetry's own ``TracerProvider``; another is left as it is.
        paths: The paths, as a server's span has them in ``url.path``.
    """
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
    from opentelemetry.trace import SpanKind

    if not isinstance(provider, TracerProvider) or not paths:
        return
    usual, left_out = provider.sampler, frozenset(paths)

    class LeavesOut(Sampler):
        def should_sample(
            self,
            parent_context: Context | None,
            trace_id: int,
            name: str,
            kind: SpanKind | None = None,
            attributes: otel.Attributes = None,
            links: Sequence[Link] | None = None,
            trace_state: TraceState | None = None,
        ) -> SamplingResult:
            path = (attributes or {}).get("url.path") if kind is SpanKind.SERVER else None
            if path in left_out:
                return SamplingResult(Decision.DROP)
            return usual.should_sample(
                parent_context, trace_id, name, kind, attributes, links, trace_state
            )

        def get_description(self) -> str:
            return f"{usual.get_description()} without {', '.join(sorted(left_out))}"

    provider.sampler = LeavesOut()
