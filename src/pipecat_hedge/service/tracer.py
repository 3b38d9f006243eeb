"""The interface of tracers; the default traces nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.services.llm_service import LLMService

from pipecat_hedge.race.attempt import Attempt
from pipecat_hedge.race.events import Commit, Continue, StreamBroken
from pipecat_hedge.race.reports import TurnReport


class RaceTrace:
    """Traces one race."""

    def request(
        self, attempt: Attempt, service: LLMService[Any], model: str | None
    ) -> AbstractContextManager[Any]:
        """Return a context in which an attempt's request is sent."""
        return nullcontext()

    def command(self, command: Commit | Continue | StreamBroken, attempt: Attempt) -> None:
        """Record a command that concerns an attempt."""

    def end(self, report: TurnReport) -> None:
        """Record the turn's report."""


class Tracer:
    """Traces the races of a service."""

    def setup(self, setup: FrameProcessorSetup) -> None:
        """Configure tracing like the pipeline's."""

    def begin(self, turn: int, policy: str, tier: str) -> RaceTrace:
        """Start to trace a race."""
        return RaceTrace()
