"""The race in Pipecat's traces: each attempt's span says what part it played.

Law: no span is made here. Where tracing is on, Pipecat's services make one for each request, side
by side under the span of the turn; this adds the race's attributes while such a span is open.

Attributes: ``hedge.provider``, ``hedge.attempt`` (from 0), ``hedge.launch_reason``, and, once it is
known, ``hedge.outcome`` (``issued`` until then; ``won``, ``superseded``, ``interrupted``, or
``failed`` where the race itself gave the attempt up). A request that fails by itself has its
span closed by its service, with the error as its status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipecat.services.llm_service import LLMService

if TYPE_CHECKING:
    from pipecat_hedge.facts import AttemptOutcome, Launch

try:
    from opentelemetry import trace
except ModuleNotFoundError:  # it comes with Pipecat's extra "tracing"
    trace = None

__all__ = ["AttemptSpan"]


class AttemptSpan:
    """The span in which a hosted service asks its provider."""

    def __init__(self, service: LLMService[Any]):
        """Watch a service for the spans of its requests.

        Every service starts its own time-to-first-byte clock inside that span, and nothing else
        that is public happens there before the first byte.

        Args:
            service: The hosted service.
        """
        self._launch: Launch | None = None
        self._span: Any = None
        if trace is None:
            return
        start_clock = service.start_ttfb_metrics

        current_span = trace.get_current_span

        async def start_ttfb_metrics(**kwargs: Any) -> None:
            self._open(current_span())
            await start_clock(**kwargs)

        service.start_ttfb_metrics = start_ttfb_metrics

    def issue(self, launch: Launch) -> None:
        """Say what the service's next request is.

        Args:
            launch: The race's order.
        """
        self._launch, self._span = launch, None

    def close(self, outcome: AttemptOutcome) -> None:
        """Say what became of the request, while its span is still open.

        Args:
            outcome: What the race has decided.
        """
        if self._span is not None:
            self._span.set_attribute("hedge.outcome", outcome)

    def _open(self, span: Any) -> None:
        if self._launch is None or not span.is_recording():
            return
        self._span = span
        span.set_attributes(
            {
                "hedge.provider": self._launch.provider,
                "hedge.attempt": self._launch.attempt,
                "hedge.launch_reason": self._launch.reason,
                "hedge.outcome": "issued",
            }
        )
