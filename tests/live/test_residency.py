"""Services of two jurisdictions in one process: whatever fails, each one keeps to its own."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.tools.simulator import Simulator
from tests.support.line import Line
from tests.support.simulated import close, simulated

pytestmark = [pytest.mark.live, pytest.mark.slow]

FAULTS = ("429", "529", "500", "reset", "hang", "cut", "empty", "error_in_band")
PLACES, CALLERS, TURNS = ("eu", "us"), 20, 12
WORDS = {"eu": 1, "us": 400}
"""The length of a caller's question, by which a provider's ledger shows whose it got."""


async def test_hundreds_of_turns_with_faults_stay_in_their_jurisdictions() -> None:
    async with Simulator(port=0, seed=1) as eu, Simulator(port=0, seed=2) as us:
        sims = dict(zip(PLACES, (eu, us), strict=True))
        callers = [
            call(place, sim, fault)
            for place, sim in sims.items()
            for fault in itertools.islice(itertools.cycle(FAULTS), CALLERS)
        ]
        outcomes = [outcome for each in await asyncio.gather(*callers) for outcome in each]
        assert len(outcomes) == len(PLACES) * CALLERS * TURNS
        assert outcomes.count("answered") > 0.95 * len(outcomes)
        for place, sim in sims.items():
            # One that is withdrawn before its body was read names no model.
            requests = [request for request in sim.ledger.requests if request.model]
            assert len(requests) > len(outcomes) / 2
            assert all(f"in the {place}" in request.model for request in requests)
            assert {request.prompt_tokens > 200 for request in requests} == {WORDS[place] > 200}
            assert sum(request.fault is not None for request in requests) > 0.1 * len(requests)


async def call(place: str, sim: Simulator, fault: str) -> list[str]:
    """The outcomes of a caller's turns; a third of the requests fails."""
    behaviour = f"fixed@ttft=0.02,tps=400,answer=We are in the {place}.,fault={fault},rate=0.33"
    members = {
        f"{place}-{region}": simulated(wire, sim, behaviour)
        for region, wire in (("west", "openai"), ("north", "anthropic"), ("south", "openai"))
    }
    providers = [
        Provider(name, member, region=name, residency=place, timeout_secs=0.5)
        for name, member in members.items()
    ]
    policy = HedgePolicy.adaptive(0.2, stall_secs=0.3)
    try:
        async with Line(HedgedLLMService(providers, policy=policy, residency=place)) as line:
            for _ in range(TURNS):
                await line.ask("Hello? " * WORDS[place])
            await line.report(TURNS)
            return [report.outcome for report in line.reports]
    finally:
        await close(*members.values())
