"""Races a one-shot inference outside the pipeline, like a turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge.race.driver import AttemptSink
from pipecat_hedge.race.errors import AttemptError
from pipecat_hedge.race.events import Launch
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.admission import Admission
from pipecat_hedge.service.provider_race import ProviderAttempt, ProviderRace, TurnHost
from pipecat_hedge.service.service_adapter import ServiceAdapter
from pipecat_hedge.service.turn_planner import TurnPlanner

WHOLE_ANSWER_SECS = 30.0
"""The silence after which another provider gets a request. The answer comes all at once, so a
provider's ``stall_secs`` does not apply."""


class Inference(TurnHost[str, ServiceAdapter]):
    """Requests a whole answer and takes the first that is not blank."""

    def __init__(
        self,
        context: LLMContext,
        planner: TurnPlanner[ServiceAdapter],
        admission: Admission,
        options: Mapping[str, Any],
    ):
        """Prepare an inference.

        Args:
            context: The conversation.
            planner: Its plan, for whole answers.
            admission: Its permits.
            options: Further arguments of ``LLMService.run_inference``.
        """
        self._context = context
        self._options = {name: value for name, value in options.items() if value is not None}
        self._runner = ProviderRace[str, ServiceAdapter](planner, admission, "background", self)
        self._answer: str | None = None

    async def run(self) -> str | None:
        """Race to the first answer.

        Returns:
            The answer; None if every provider's answer was blank.

        Raises:
            AllProvidersFailed: If there is no answer.
        """
        runner = self._runner
        if runner.admit(stall_secs=WHOLE_ANSWER_SECS):
            async with TaskScope() as scope:
                await runner.run(scope)
        if runner.failure is not None:
            raise runner.failure
        return self._answer

    @property
    def errors(self) -> list[tuple[str, AttemptError]]:
        """Every failed provider with its error."""
        return self._runner.errors

    @property
    def answered(self) -> set[str]:
        """The providers that have begun to answer."""
        return self._runner.answered

    async def send(
        self,
        launch: Launch,
        attempt: ProviderAttempt,
        sink: AttemptSink[str],
        instance: ServiceAdapter,
    ) -> None:
        """See ``TurnHost``."""
        answer = await instance.infer(self._context, self._options, attempt.stats)
        if answer is not None and answer.strip():
            await sink.piece(answer, usable=True)

    async def deliver(self, piece: str, at: float) -> None:
        """See ``TurnHost``."""
        self._answer = piece
