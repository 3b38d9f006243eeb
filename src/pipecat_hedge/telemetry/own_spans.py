"""Spans of a race's requests, where Pipecat makes none.

Law: a span is told what is known of it in one piece at its beginning and in one at its end. For
each piece OpenTelemetry takes a lock and looks at every attribute, so piece by piece costs most.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, cast

from pipecat.utils.tracing.service_attributes import add_llm_span_attributes

from pipecat_hedge.service.service_adapter import ServiceAdapter
from pipecat_hedge.telemetry.span_attributes import Attributes

try:
    from opentelemetry import context, trace
except ModuleNotFoundError:  # it comes with the extra "tracing", ours or Pipecat's
    context = trace = None

__all__ = ["OwnSpans"]


class OwnSpans:
    """The spans of one race's requests, below the race's."""

    def __init__(self, tracer: Any, race: Any):
        """Take note where they go.

        Args:
            tracer: Makes them; OpenTelemetry is installed if there is one.
            race: The race's span.
        """
        assert trace is not None
        self._tracer = tracer
        self._below = trace.set_span_in_context(race)
        self._open: dict[int, tuple[Any, int]] = {}

    def open(
        self, number: int, provider: str, contender: ServiceAdapter, now_ns: int
    ) -> AbstractContextManager[None]:
        """Begin the span of a request.

        Args:
            number: The attempt's.
            provider: Who is asked.
            contender: Who asks.
            now_ns: The time, in nanoseconds since the epoch.

        Returns:
            Makes it the current span, of a request that is made inside.
        """
        assert trace is not None
        model = contender.model
        span = self._tracer.start_span(
            f"chat {model or provider}",
            context=self._below,
            kind=trace.SpanKind.CLIENT,
            start_time=now_ns,
            attributes=_request(type(contender.service).__name__, model or "unknown"),
        )
        self._open[number] = span, now_ns
        return _Current(span)

    def close(self, number: int, attributes: Attributes, ended_ns: int, *, failed: bool) -> None:
        """Say what became of a request, and end its span, if it has one.

        Args:
            number: The attempt's.
            attributes: What to say.
            ended_ns: When it ended, in nanoseconds since the epoch.
            failed: Whether it has failed.
        """
        if trace is None or number not in self._open:
            return
        span, began_ns = self._open.pop(number)
        span.set_attributes(attributes)
        if failed:
            span.set_status(trace.StatusCode.ERROR)
        span.end(max(ended_ns, began_ns))


class _Current:
    """Makes a span the current one; what goes wrong inside is not noted in it.

    ``trace.use_span`` does the same and more, as a generator, for three times as long.
    """

    __slots__ = ("_span", "_token")

    def __init__(self, span: Any):
        self._span = span

    def __enter__(self) -> None:
        assert context is not None
        assert trace is not None
        self._token = context.attach(trace.set_span_in_context(self._span))

    def __exit__(self, *_: object) -> None:
        assert context is not None
        context.detach(self._token)


class _Notes:
    """Stands in for a span to whom attributes are told one by one."""

    def __init__(self) -> None:
        self.attributes: Attributes = {}

    def set_attribute(self, name: str, value: str | int | float | bool) -> None:
        self.attributes[name] = value


@lru_cache(maxsize=256)
def _request(kind: str, model: str) -> Attributes:
    """What Pipecat says of a request to such a service, which is always the same.

    No word of what is said is in it: the function is given none.
    """
    notes = _Notes()
    add_llm_span_attributes(cast("Any", notes), kind, model)
    notes.attributes["gen_ai.request.stream"] = notes.attributes.pop("stream", True)
    return notes.attributes
