"""What finds documents, and a race of several that find the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.race.driver import AttemptSink, RaceDriver, RaceHost
from pipecat_hedge.race.errors import AllProvidersFailed, ConfigurationError
from pipecat_hedge.race.events import Launch, Slot
from pipecat_hedge.race.race import Race
from pipecat_hedge.race.task_scope import TaskScope


@dataclass(frozen=True, slots=True)
class Document:
    """A passage that may help to answer.

    Parameters:
        text: The passage.
        source: Where it is from, for the model to name; empty is unknown.
    """

    text: str
    source: str = ""


class Retriever(Protocol):
    """Finds documents for a question."""

    async def retrieve(self, query: str) -> Sequence[Document]:
        """Return the documents for a question, the best first. Cancelled if it is too slow."""
        ...


class RetrieverRace:
    """Several retrievers of the same documents, hedged like providers; a ``Retriever``."""

    def __init__(self, retrievers: Sequence[Retriever], policy: HedgePolicy):
        """Check the policy.

        Args:
            retrievers: In the order in which they are asked; at least one.
            policy: When the next one is asked.

        Raises:
            ConfigurationError: If there is no retriever, or the policy learns from turns.
        """
        if not retrievers:
            raise ConfigurationError("retriever is empty: give at least one object with retrieve()")
        if not hasattr(policy.rule, "next_launch"):
            raise ConfigurationError(
                f"policy of retrievers must have a fixed rule, got {policy.name}: write "
                "HedgePolicy.after(0.1)"
            )
        self._retrievers = retrievers
        self._policy = policy
        self._closing = TaskScope()

    async def retrieve(self, query: str) -> Sequence[Document]:
        """Return the first answer.

        Raises:
            AllProvidersFailed: If all retrievers failed.
        """
        slots = [Slot(str(number)) for number in range(len(self._retrievers))]
        race = Race(slots, self._policy.rule, max_attempts=len(slots))  # pyright: ignore[reportArgumentType]
        scope = TaskScope()
        host = _Retrieval(self._retrievers, query)
        driver = RaceDriver(race, scope, host)
        try:
            await driver.run(asyncio.get_running_loop().time())
        finally:  # no turn waits for a retriever that is slow to cancel
            self._closing.start(scope.close(), name="closes retrievals")
        if driver.failure_command is not None:
            raise AllProvidersFailed(driver.failure_command.errors)
        return host.found

    async def close(self) -> None:
        """Wait for cancelled retrievals, at most ``CLOSE_SECS``."""
        await self._closing.join()


class _Retrieval(RaceHost[Sequence[Document]]):
    def __init__(self, retrievers: Sequence[Retriever], query: str):
        self._retrievers, self._query = retrievers, query
        self.found: Sequence[Document] = ()

    async def run_attempt(self, launch: Launch, sink: AttemptSink[Sequence[Document]]) -> None:
        documents = await self._retrievers[int(launch.provider)].retrieve(self._query)
        await sink.piece(documents, usable=True)

    async def deliver(self, piece: Sequence[Document], at: float) -> None:
        self.found = piece
