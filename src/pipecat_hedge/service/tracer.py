"""What a tracer is called with; the default traces nothing."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.services.llm_service import LLMService

from pipecat_hedge.race.attempt import Attempt
from pipecat_hedge.race.events import Commit, Continue, Launch, StreamBroken
from pipecat_hedge.race.reports import TurnReport

__all__ = ["RaceTrace", "Tracer"]


class RaceTrace:
    """Follows one race."""

    def request(
        self, launch: Launch, service: LLMService[Any], model: str | None
    ) -> AbstractContextManager[Any]:
        """A context in which the request of a ``launch`` is made, to ``service`` for ``model``."""
        return nullcontext()

    def command(self, command: Commit | Continue | StreamBroken, attempt: Attempt) -> None:
        """The race has issued a command that concerns an attempt."""

    def end(self, report: TurnReport) -> None:
        """The turn is reported."""


class Tracer:
    """Follows the races of a service."""

    def setup(
        self, setup: FrameProcessorSetup, services: Iterable[LLMService[Any]]
    ) -> FrameProcessorSetup:
        """Return the configuration with which the hosted services are set up."""
        return setup

    def begin(self, turn: int, policy: str, tier: str) -> RaceTrace:
        """A race begins."""
        return RaceTrace()
