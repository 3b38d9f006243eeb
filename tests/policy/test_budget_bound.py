"""Under an adaptive policy the budget is a bound, whoever the tenants are and however they come."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence

import pytest
from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, TurnReport
from pipecat_hedge.testing import Say, ScriptedLLMService, Step, Wait
from tests.support.line import Line

pytestmark = [pytest.mark.slow, pytest.mark.virtual_time]

Draw = Callable[[random.Random], float]


def long_tail(rng: random.Random) -> float:
    """The median is 0.5 s, the p99 6 s."""
    return 0.5 * rng.lognormvariate(0.0, 1.07)


def thinking(rng: random.Random) -> float:
    """One answer in seven takes 3 to 6 s."""
    return rng.uniform(3.0, 6.0) if rng.random() < 0.15 else rng.uniform(0.3, 0.8)


class Drawn(ScriptedLLMService):
    """Answers after a time that is drawn anew for each turn."""

    def __init__(self, model: str, draw: Draw, rng: random.Random):
        super().__init__([], model=model)
        self._draw, self._rng = draw, rng

    async def _play(self, script: Sequence[Step], context: LLMContext) -> None:
        self.contexts.clear()
        await super()._play([Wait(self._draw(self._rng)), Say("Hello there.")], context)


def extra(report: TurnReport) -> int:
    """The requests of a turn that are not its first and replace no failure."""
    return sum(attempt.launch_reason != "failure" for attempt in report.attempts[1:])


async def tenants(
    count: int,
    turns: int,
    policy: Callable[[int], HedgePolicy],
    draw: Draw,
    *,
    at_once: int = 1,
) -> list[int]:
    """Each tenant calls with two models of its own; the extra requests of every turn, in order."""
    rng, told = random.Random(7), list[int]()
    waves = [range(first, min(first + at_once, count)) for first in range(0, count, at_once)]

    async def call(tenant: int) -> None:
        services = [Drawn(f"tenant-{tenant}-{n}", draw, rng) for n in range(2)]
        named = [Provider(f"p{n}", service) for n, service in enumerate(services)]
        llm = HedgedLLMService(named, policy=policy(tenant))
        async with Line(llm) as line:
            for _ in range(turns):
                await line.ask()
                await asyncio.sleep(rng.uniform(0.5, 2.0))
            await asyncio.sleep(20.0)
        told.extend(extra(report) for report in line.reports)

    for wave in waves:
        await asyncio.gather(*map(call, wave))
    assert len(told) == count * turns
    return told


def most_in_a_thousand(told: Sequence[int]) -> int:
    """The most extra requests in 1,000 turns in a row."""
    summed = [0, *itertools.accumulate(told)]
    most = max(b - a for a, b in zip(summed, summed[1_000:], strict=False))
    print(f"{sum(told)} extra requests in {len(told)} turns, at most {most} in 1,000")
    return most


@pytest.mark.parametrize("draw", [long_tail, thinking])
async def test_new_models_bring_no_credit(draw: Draw) -> None:
    """250 tenants with models that nobody has heard of."""
    told = await tenants(250, 5, lambda _: HedgePolicy.adaptive(0.05), draw)
    assert 10 <= most_in_a_thousand(told) <= 1.25 * 0.05 * 1_000


async def test_other_budgets_bring_no_credit() -> None:
    """250 tenants with budgets of their own; the cap of the process holds."""
    told = await tenants(
        250, 5, lambda tenant: HedgePolicy.adaptive(0.05 + tenant * 1e-6), long_tail
    )
    assert 10 <= most_in_a_thousand(told) <= 1.25 * 0.0503 * 1_000


async def test_waves_bring_no_credit() -> None:
    """Fifty tenants call at once, and the next fifty."""
    policy = HedgePolicy.adaptive(0.05)
    told = await tenants(250, 6, lambda _: policy, long_tail, at_once=50)
    assert 10 <= most_in_a_thousand(told) <= 1.25 * 0.05 * 1_000


@pytest.mark.parametrize(
    "policy", [HedgePolicy.adaptive(0), HedgePolicy.fallback()], ids=lambda policy: policy.name
)
@pytest.mark.parametrize("draw", [long_tail, thinking])
async def test_without_a_budget_slow_answers_are_waited_for(
    draw: Draw, policy: HedgePolicy
) -> None:
    """They are no failure, and a request that replaces one is hardly ever in vain."""
    told = await tenants(1, 1_000, lambda _: policy, draw)
    assert most_in_a_thousand(told) <= (2 if policy.name != "fallback" else 10)
