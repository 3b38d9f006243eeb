"""Callers with a bare service and callers with a hedged one, at the same time, in one process.

Every arm has as many callers as the others, with the same pauses between turns, and asks the same
providers over sockets. Two bare arms show by how much equal arms differ.

The services of an arm share one HTTP client for each provider, which never retries by itself:
``test_retries`` compares services with clients of their own.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from loguru import logger
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pipecat.frames.frames import ErrorFrame
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.utils.http import connection_limits

from pipecat_hedge.policy import HedgePolicy
from pipecat_hedge.race import Tier, TurnReport
from pipecat_hedge.service import HedgedLLMService, Provider, ProviderStats
from pipecat_hedge.tools.bench import TimedPipeline
from tests.no_harm.figures import ANSWER, BARE, Comparison, Turn

GIVE_UP_SECS = 30.0
MOST_CONNECTIONS = 1000
STOP_SECS = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """A provider's address and the model to ask for there."""

    base_url: str
    model: str


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to ask.

    Parameters:
        name: What the table calls it.
        providers: The names of the providers to ask.
        policy: The hedged service's policy; None is the bare service.
        tier: The hedged service's tier.
    """

    name: str
    providers: tuple[str, ...] = ("p1",)
    policy: HedgePolicy | None = None
    tier: Tier = "standard"


def usual_arms(
    policy: HedgePolicy | None = None, *, with_alone: bool = True, tier: Tier = "standard"
) -> list[Arm]:
    """Two bare arms, the hedged one and, with the same policy, one with a single provider.

    Args:
        policy: The hedged arms' policy.
        tier: The hedged arms' tier.
        with_alone: Whether to have the last one.
    """
    policy = policy or HedgePolicy.adaptive(0.1)
    arms = [*(Arm(name) for name in BARE), Arm("hedged", ("p1", "p2"), policy, tier)]
    return [*arms, Arm("alone", ("p1",), policy, tier)] if with_alone else arms


class Services:
    """Makes the services of one arm."""

    def __init__(self, arm: Arm, targets: Mapping[str, Target]):
        """Open the arm's HTTP clients; call it on the loop."""
        self._arm = arm
        self._targets = targets
        self._stats = ProviderStats()
        self._clients = {name: _client(targets[name]) for name in arm.providers}

    def service(self) -> OpenAILLMService | HedgedLLMService:
        """One caller's service."""
        if self._arm.policy is None:
            return self._bare(self._arm.providers[0])
        providers = [Provider(name, self._bare(name)) for name in self._arm.providers]
        policy, tier = self._arm.policy, self._arm.tier
        return HedgedLLMService(providers, policy=policy, stats=self._stats, tier=tier)

    async def close(self) -> None:
        """Close the shared clients."""
        for client in self._clients.values():
            await client.close()

    def _bare(self, name: str) -> OpenAILLMService:
        settings = OpenAILLMService.Settings(model=self._targets[name].model)
        return _Sharing(client=self._clients[name], api_key="any", settings=settings)


def _client(target: Target) -> AsyncOpenAI:
    limits = connection_limits(
        max_keepalive_connections=MOST_CONNECTIONS,
        max_connections=MOST_CONNECTIONS,
        keepalive_expiry=None,
    )
    http = DefaultAsyncHttpxClient(limits=limits)
    return AsyncOpenAI(api_key="any", base_url=target.base_url, http_client=http, max_retries=0)


class _Sharing(OpenAILLMService):
    """Takes a client that is made elsewhere."""

    def __init__(self, *, client: AsyncOpenAI, **kwargs: Any):
        self._given = client
        super().__init__(**kwargs)

    def create_client(self, *_: Any, **__: Any) -> AsyncOpenAI:
        return self._given


class Run:
    """A scenario that is running.

    Attributes:
        result: The turns so far.
    """

    def __init__(self, arms: Sequence[Arm]):
        self.result = Comparison([arm.name for arm in arms])
        self.is_over = False

    async def phase(
        self, name: str, secs: float, until: Callable[[], bool] = lambda: False
    ) -> None:
        """Turns that begin from now on count for this phase.

        Args:
            name: Its name.
            secs: How long it lasts at most.
            until: Ends it earlier, when it becomes true.
        """
        self.result.phases.append(name)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + secs
        while (left := ends_at - loop.time()) > 0 and not until():
            await asyncio.sleep(min(0.25, left))

    def turns_of(self, arm: str, phase: str) -> int:
        """How many turns of an arm that began during a phase have ended."""
        return sum(t.arm == arm and t.phase == phase for t in self.result.turns)


class Caller:
    """Asks, listens to the answer, pauses, and asks again."""

    def __init__(
        self, run: Run, arm: str, service: OpenAILLMService | HedgedLLMService, rng: random.Random
    ):
        self._run = run
        self._arm = arm
        self._rng = rng
        self._turns: list[Turn] = []
        self._reports: dict[int, TurnReport] = {}
        self._error: str | None = None
        service.add_event_handler("on_error", self._failed)
        if isinstance(service, HedgedLLMService):
            service.add_event_handler("on_turn_report", self._reported)
        self.pipeline = TimedPipeline(service)

    async def call(self, think_secs: tuple[float, float]) -> None:
        """Make turns until the run is over.

        Args:
            think_secs: The shortest and the longest pause between two turns.
        """
        await asyncio.sleep(self._rng.uniform(0.0, think_secs[1]))
        while not self._run.is_over:
            await self._turn()
            await asyncio.sleep(self._rng.uniform(*think_secs))

    async def stop(self) -> None:
        """End the pipeline, and add the reports to the turns."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.pipeline.stop(), STOP_SECS)
        for number, turn in enumerate(self._turns, 1):
            turn.report = self._reports.get(number)

    async def _turn(self) -> None:
        self._error = None
        phase = self._run.result.phases[-1]
        timed = await self.pipeline.turn("Are you open?", GIVE_UP_SECS)
        if not timed.is_over:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.pipeline.interrupt(), STOP_SECS)
        ttft_secs = timed.ttft_secs if timed.is_over and timed.text.strip() else math.inf
        turn = Turn(self._arm, phase, ttft_secs, timed.text, self._error, timed.is_over)
        self._turns.append(turn)
        self._run.result.turns.append(turn)

    async def _failed(self, _: Any, error: ErrorFrame) -> None:
        self._error = self._error or error.error

    async def _reported(self, _: Any, report: TurnReport) -> None:
        self._reports[report.turn] = report


@asynccontextmanager
async def side_by_side(
    arms: Sequence[Arm],
    targets: Mapping[str, Target],
    *,
    callers: int,
    think_secs: tuple[float, float] = (1.0, 2.0),
    seed: int = 1,
) -> AsyncIterator[Run]:
    """Have all arms' callers make turns, until the block ends; its first act begins a phase.

    Args:
        arms: The arms.
        targets: By name, the providers.
        callers: How many each arm has.
        think_secs: The shortest and the longest pause between two turns of a caller.
        seed: The same seed gives the same pauses.
    """
    _log(logger.disable)
    run = Run(arms)
    made = [Services(arm, targets) for arm in arms]
    everybody = [
        Caller(run, arm.name, services.service(), random.Random(f"{seed} {number}"))
        for arm, services in zip(arms, made, strict=True)
        for number in range(callers)
    ]
    try:
        await _all(caller.pipeline.start() for caller in everybody)
        try:
            async with asyncio.TaskGroup() as group:
                for caller in everybody:
                    group.create_task(caller.call(think_secs))
                try:
                    yield run
                finally:
                    run.is_over = True
        finally:
            await _all(caller.stop() for caller in everybody)
    finally:
        await _all(services.close() for services in made)
        _log(logger.enable)


def _log(switch: Callable[[str], None]) -> None:
    """Hundreds of turns that fail are not to fill the screen, nor the processor's time."""
    for package in ("pipecat", "pipecat_hedge"):
        switch(package)


async def _all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*works)


def model(profile: str, **keys: Any) -> str:
    """A model name of the simulator that says the answer which the figures expect.

    Args:
        profile: Its latencies.
        **keys: Further keys of the behaviour.
    """
    keys = {"tps": 20, **keys, "answer": ANSWER.replace(" ", "%20")}
    return f"{profile}?" + "&".join(f"{key}={value}" for key, value in keys.items())
