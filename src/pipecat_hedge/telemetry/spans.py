"""Pipecat's own span of a request: where tracing is on, the hosted service makes one.

Law: no span is made here, none of anybody else's is touched, and each ends at the moment at which
its service has ended it.

A service ends its span with the request. What became of that is known later: a short answer has
ended before it is whole enough to win, and a failure is told after the span has ended. So the end
is put off until the race is summed up, and then given the time at which it was.
"""

from __future__ import annotations

import time
from typing import Any

from pipecat.services.llm_service import LLMService

from pipecat_hedge.race.events import Launch
from pipecat_hedge.telemetry.span_attributes import Attributes

try:
    from opentelemetry import trace
except ModuleNotFoundError:  # it comes with the extra "tracing", ours or Pipecat's
    trace = None

__all__ = ["AttemptSpan"]


class AttemptSpan:
    """The span in which a hosted service asks its provider."""

    def __init__(self, service: LLMService[Any]):
        """Take a service whose requests have spans, or not.

        Args:
            service: The hosted service.
        """
        self._service = service
        self._launch: Launch | None = None
        self._span: Any = None
        self._ended_ns: int | None = None
        self._is_put_off = False

    def watch(self) -> None:
        """Look out for the spans of the service's requests, from now on.

        Every service starts its own time-to-first-byte clock inside that span, and nothing else
        that is public happens there before the first byte.
        """
        if trace is None:
            return
        start_clock, current_span = self._service.start_ttfb_metrics, trace.get_current_span

        async def start_ttfb_metrics(**kwargs: Any) -> None:
            self._open(current_span())
            await start_clock(**kwargs)

        self._service.start_ttfb_metrics = start_ttfb_metrics

    def issue(self, launch: Launch) -> None:
        """Say what the service's next request is.

        Args:
            launch: The race's order.
        """
        if self._span is not None:
            self.close({})  # of a turn that was never summed up
        self._launch = launch

    def close(self, attributes: Attributes) -> None:
        """Say what became of the request, and let its span end.

        Args:
            attributes: What to say.
        """
        span, self._span, self._launch = self._span, None, None
        if span is None:
            return
        span.set_attributes(attributes)
        if self._is_put_off:
            del span.end
        if self._ended_ns is not None:
            span.end(self._ended_ns)

    def _open(self, span: Any) -> None:
        if self._launch is None or self._span is not None or not span.is_recording():
            return
        self._span, self._ended_ns = span, None
        # To look into its __dict__ would make every later look at the span slower.
        try:
            span.end = self._put_off
        except AttributeError:
            self._is_put_off = False  # it ends when it wants
        else:
            self._is_put_off = True

    def _put_off(self, end_time: int | None = None) -> None:
        self._ended_ns = time.time_ns() if end_time is None else end_time
