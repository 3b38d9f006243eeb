"""Defers the end of the span that Pipecat creates for a hosted service's request.

A service ends its span with the request, but the attempt's outcome is known only after the race.
The span ends then, with the time at which the service ended it.
"""

from __future__ import annotations

import time
from typing import Any

from pipecat.services.llm_service import LLMService

from pipecat_hedge.race.events import Launch
from pipecat_hedge.telemetry.span_attributes import Attributes

try:
    from opentelemetry import trace
except ModuleNotFoundError:  # part of the extra "tracing" of this package and of Pipecat
    trace = None

__all__ = ["AttemptSpan"]


class AttemptSpan:
    """The span of a hosted service's current request, if Pipecat creates one."""

    def __init__(self, service: LLMService[Any]):
        """Intercept the spans of a service's requests."""
        self._launch: Launch | None = None
        self._span: Any = None
        self._ended_ns: int | None = None
        self._is_deferred = False
        if trace is None:
            return
        # A service starts its TTFB clock inside each request's span.
        start_clock, current_span = service.start_ttfb_metrics, trace.get_current_span

        async def start_ttfb_metrics(**kwargs: Any) -> None:
            self._open(current_span())
            await start_clock(**kwargs)

        service.start_ttfb_metrics = start_ttfb_metrics

    def expect(self, launch: Launch) -> None:
        """Prepare for the service's next request."""
        self.close({})  # of a turn that was never reported
        self._launch = launch

    def close(self, attributes: Attributes) -> None:
        """End the request's span with the attempt's outcome."""
        span, self._span, self._launch = self._span, None, None
        if span is None:
            return
        span.set_attributes(attributes)
        if self._is_deferred:
            del span.end
        if self._ended_ns is not None:
            span.end(self._ended_ns)

    def _open(self, span: Any) -> None:
        if self._launch is None or self._span is not None or not span.is_recording():
            return
        self._span, self._ended_ns, self._is_deferred = span, None, True
        try:
            span.end = self._defer
        except AttributeError:  # not the SDK's span class
            self._is_deferred = False

    def _defer(self, end_time: int | None = None) -> None:
        self._ended_ns = time.time_ns() if end_time is None else end_time
