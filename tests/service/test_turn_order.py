"""The order in which a session's turns consider the providers: routes, regions, residency."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge import ComplexityRouter, HedgedLLMService, HedgePolicy, Provider, ProviderStats
from pipecat_hedge.policy import RoutedTurn
from pipecat_hedge.race import ServerLoad
from pipecat_hedge.testing import Error, Say, ScriptedLLMService, Step, Wait
from pipecat_hedge.tools.bench import percentile
from tests.no_harm.virtual import Scripts
from tests.service.builders import asked, racing, said, scripted, too_many_requests
from tests.support.line import Line
from tests.support.logged import logged

pytestmark = pytest.mark.virtual_time

ROUTED = HedgePolicy.fallback(route=ComplexityRouter(simple="a", complex="b"))


def order(line: Line) -> str:
    return "".join(attempt.provider for attempt in line.reports[-1].attempts)


async def test_call_moves_up_to_the_complex_provider_and_says_why() -> None:
    llm = racing(scripted(Say("A.")), scripted(Say("B.")), policy=ROUTED)
    async with Line(llm) as line:
        for text in ("Yes.", "Why is it better than the other?", "Yes."):
            await line.ask(text)
    assert [report.winner for report in line.reports] == ["a", "b", "b"]
    assert line.reports[0].routing_reason == "complexity 0.01: a"
    assert line.reports[1].route_score == pytest.approx(0.65, abs=0.1)
    assert line.reports[2].routing_reason == ("complexity 0.01, and the call was complex before: b")


async def test_routed_provider_that_fails_is_replaced() -> None:
    llm = racing(scripted(Error()), scripted(Say("B.")), policy=ROUTED)
    line = await asked(llm, context=said("Yes."))
    assert (order(line), line.text) == ("ab", "B.")


@pytest.mark.parametrize("result", ["nobody", ValueError("said: secret")])
async def test_route_that_fails_changes_nothing(result: str | Exception) -> None:
    def route(turn: RoutedTurn) -> str:
        if isinstance(result, Exception):
            raise result
        return result

    llm = racing(scripted(Say("A.")), scripted(), policy=HedgePolicy.fallback(route=route))
    with logged() as log:
        line = await asked(llm)
    assert (order(line), line.reports[0].routing_reason) == ("a", None)
    assert "the policy's route failed" in str(log)
    assert "secret" not in str(log)


class Passed(ScriptedLLMService):
    """Its server's load is known; without one, it rejects each request for half a minute."""

    def __init__(self, server_load: ServerLoad | None):
        super().__init__([Say("A.")])
        self.server_load = server_load

    async def _play(self, script: Any, context: LLMContext) -> None:
        if self.server_load is None:
            raise too_many_requests(30.0)
        await super()._play(script, context)


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (ServerLoad(is_up=False, detail="no answer in time"), "a is down (no answer in time)"),
        (ServerLoad(is_up=True, running=1, waiting=5), "a has a queue of 5"),
        (None, "a has sent Retry-After"),
    ],
)
async def test_report_says_why_the_first_provider_was_passed_over(
    load: ServerLoad | None, reason: str
) -> None:
    llm = racing(Passed(load), scripted(Say("B.")), policy=HedgePolicy.adaptive())
    line = await asked(llm, turns=2)
    assert (order(line), line.reports[1].routing_reason) == ("b", reason)


def placed(name: str, region: str | None, *script: Step) -> Provider:
    return Provider(name, scripted(*script), region=region)


async def test_hedges_prefer_another_region() -> None:
    silent = Wait(float("inf"))
    providers = [placed("a", "west", silent), placed("b", "west", silent)]
    providers += [placed("c", None, silent), placed("d", "north", Say("D."))]
    line = await asked(HedgedLLMService(providers, policy=HedgePolicy.race(4)))
    assert order(line) == "acdb"


async def p99_secs(regions: str, stalls: str) -> float:
    """Of 600 turns, in which the providers named together stall together, in one turn of twenty.

    Args:
        regions: The regions of the providers a, b, c and d; a space is unknown.
        stalls: Groups of providers, separated by spaces.
    """
    rng, stalled, turns = random.Random(1), set[str](), 600

    def script(name: str) -> list[Step]:
        secs = rng.uniform(4, 6) if name in stalled else rng.lognormvariate(-0.7, 0.3)
        return [Wait(secs), Say("Yes.")]

    providers = [
        Provider(name, Scripts(partial(script, name), None), region=region.strip() or None)
        for name, region in zip("abcd", regions, strict=True)
    ]
    policy = HedgePolicy.adaptive(0.2, order="given")
    async with Line(HedgedLLMService(providers, policy=policy, stats=ProviderStats())) as line:
        for turn in range(turns):
            stalled.clear()
            stalled.update(*(group for group in stalls.split() if rng.random() < 0.05))
            await line.ask()
            await line.report(turn + 1)
    secs = percentile([report.ttft_secs or 99.0 for report in line.reports], 0.99)
    assert secs is not None
    return secs


@pytest.mark.slow
async def test_stall_of_a_region_is_hedged_like_an_independent_one() -> None:
    independent = await p99_secs("    ", "a b c d")
    assert await p99_secs("wwnn", "ab cd") <= 1.2 * independent
    assert await p99_secs("    ", "ab cd") > 2 * independent
