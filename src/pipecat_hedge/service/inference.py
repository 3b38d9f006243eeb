"""Races a one-shot inference outside the pipeline, like a turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge.race.driver import AttemptSink
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.portable import prompt_of
from pipecat_hedge.service.provider_race import ProviderAttempt, ProviderRace, TurnHost
from pipecat_hedge.service.service_adapter import ServiceAdapter

WHOLE_ANSWER_SECS = 30.0
"""The silence after which another provider gets a request. The answer comes all at once, so a
provider's ``stall_secs`` does not apply."""


class Inference(TurnHost[str, ServiceAdapter]):
    """Requests a whole answer and takes the first that is not blank."""

    def __init__(self, context: LLMContext, options: Mapping[str, Any]):
        """Prepare an inference.

        Args:
            context: The conversation.
            options: Further arguments of ``LLMService.run_inference``.
        """
        self._prompt = prompt_of(context)
        self._options = {name: value for name, value in options.items() if value is not None}
        self._answer: str | None = None

    async def run(self, race: ProviderRace[str, ServiceAdapter]) -> str | None:
        """Race to the first answer.

        Args:
            race: Its race, not run yet.

        Returns:
            The answer; None if every provider's answer was blank.

        Raises:
            AllProvidersFailed: If there is no answer.
        """
        async with TaskScope() as scope:
            await race.run(self, scope)
        if race.failure is not None:
            raise race.failure
        return self._answer

    async def send(
        self,
        attempt: ProviderAttempt,
        sink: AttemptSink[str],
        instance: ServiceAdapter,
    ) -> None:
        """See ``TurnHost``."""
        answer = await instance.infer(self._prompt, self._options, attempt.stats)
        if answer is not None and answer.strip():
            await sink.piece(answer, usable=True)

    async def deliver(self, piece: str, at: float) -> None:
        """See ``TurnHost``."""
        self._answer = piece
