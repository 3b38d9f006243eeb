"""Under an adaptive policy the budget is a bound, for any tenants and arrivals."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable

import pytest

from pipecat_hedge import HedgePolicy, TurnReport
from pipecat_hedge.race import LaunchReason
from pipecat_hedge.testing import Say, Step, Wait
from tests.no_harm.virtual import Scripts
from tests.service.builders import racing
from tests.support.line import Line

pytestmark = [pytest.mark.slow, pytest.mark.virtual_time]

Draw = Callable[[random.Random], float]


def long_tail(rng: random.Random) -> float:
    """The median is 0.5 s, the p99 6 s."""
    return 0.5 * rng.lognormvariate(0.0, 1.07)


def thinking(rng: random.Random) -> float:
    """One answer in seven takes 3 to 6 s."""
    return rng.uniform(3.0, 6.0) if rng.random() < 0.15 else rng.uniform(0.3, 0.8)


def launched(report: TurnReport, reason: LaunchReason) -> int:
    """The requests of a turn that were launched for a reason."""
    return sum(attempt.launch_reason == reason for attempt in report.attempts)


async def most_in_a_thousand(
    count: int,
    turns: int,
    policy: Callable[[int], HedgePolicy],
    draw: Draw,
    at_once: int = 1,
    reason: LaunchReason = "hedge",
) -> int:
    """The most requests for a reason in 1,000 turns in a row.

    Each tenant calls with two models of its own; as many as ``at_once`` call at the same time.
    """
    rng, sent = random.Random(7), list[int]()

    async def call(tenant: int) -> None:
        def script() -> list[Step]:
            return [Wait(draw(rng)), Say("Hello there.")]

        models = [Scripts(script, None, model=f"tenant-{tenant}-{n}") for n in range(2)]
        async with Line(racing(*models, policy=policy(tenant))) as line:
            for _ in range(turns):
                await line.ask()
                await asyncio.sleep(rng.uniform(0.5, 2.0))
            await asyncio.sleep(20.0)
        sent.extend(launched(report, reason) for report in line.reports)

    for first in range(0, count, at_once):
        await asyncio.gather(*map(call, range(first, first + at_once)))
    assert len(sent) == count * turns
    summed = [0, *itertools.accumulate(sent)]
    return max(b - a for a, b in zip(summed, summed[1_000:], strict=False))


SHARED = HedgePolicy.adaptive(0.05)


@pytest.mark.parametrize(
    ("turns", "policy", "draw", "at_once"),
    [
        pytest.param(5, lambda _: SHARED, long_tail, 1, id="new models"),
        pytest.param(5, lambda _: SHARED, thinking, 1, id="new models that think"),
        pytest.param(
            5,
            lambda tenant: HedgePolicy.adaptive(0.05 + tenant * 1e-6),
            long_tail,
            1,
            id="budgets of their own",
        ),
        pytest.param(6, lambda _: SHARED, long_tail, 50, id="fifty at once"),
    ],
)
async def test_new_tenants_bring_no_credit(
    turns: int, policy: Callable[[int], HedgePolicy], draw: Draw, at_once: int
) -> None:
    most = await most_in_a_thousand(250, turns, policy, draw, at_once)
    assert 10 <= most <= 1.25 * 0.0503 * 1_000


@pytest.mark.parametrize("policy", [HedgePolicy.adaptive(0), HedgePolicy.fallback()])
@pytest.mark.parametrize(("draw", "most"), [(long_tail, 47), (thinking, 20)])
async def test_without_a_budget_only_silences_cause_requests(
    draw: Draw, most: int, policy: HedgePolicy
) -> None:
    """In fewer turns than take longer than 3 s, or than the provider's p98 if that is longer."""
    assert 0 < await most_in_a_thousand(1, 1_000, lambda _: policy, draw, reason="silence") <= most


async def test_budget_of_zero_sends_no_hedges() -> None:
    assert await most_in_a_thousand(1, 1_000, lambda _: HedgePolicy.adaptive(0), long_tail) == 0
