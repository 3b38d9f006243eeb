"""A caller who pauses again and again: answers to a turn that goes on are withdrawn."""

from __future__ import annotations

import asyncio

import pytest
from pipecat.frames.frames import EagerEndOfTurnCancelFrame, LLMContextFrame

from pipecat_hedge import HedgePolicy, ProviderStats
from pipecat_hedge.tools.simulator import Simulator
from tests.service.builders import said
from tests.support.simulated import line_to, simulated

pytestmark = pytest.mark.live

TIMES = 9


@pytest.mark.parametrize("wire", ["openai", "anthropic", "google"])
async def test_withdrawn_speculations_leave_nothing_behind(wire: str, sim: Simulator) -> None:
    """Before the first token, while tokens come, and when the answer is whole."""
    members = [
        simulated(wire, sim, "fixed@ttft=0.1,tps=40,answer=We are open."),
        simulated(wire, sim, "fixed@ttft=0.1,tps=40,answer=From the second."),
    ]
    stats = ProviderStats()
    policy = HedgePolicy.after(0.05)
    async with line_to(*members, policy=policy, stats=stats) as line:
        for number in range(TIMES):
            await line.send(LLMContextFrame(said(), speculation=True))
            await sim.ledger.wait_until(lambda ledger, n=number: len(ledger.requests) > n, 2.0)
            await asyncio.sleep((0.0, 0.15, 0.4)[number % 3])
            await line.send(EagerEndOfTurnCancelFrame())
            await sim.wait_idle(1.0)
            await line.report(number + 1)
        assert (line.text, line.framing) == ("", [])
        speculative = sim.ledger.requests
        await line.ask(context=said())
        await line.report(TIMES + 1)
    assert [report.outcome for report in line.reports] == [*["withdrawn"] * TIMES, "answered"]
    # No hedge is sent before the turn has ended; afterwards it is.
    assert {tuple(a.provider for a in r.attempts) for r in line.reports[:TIMES]} == {("a",)}
    assert len(speculative) == TIMES
    assert [a.provider for a in line.reports[-1].attempts] == ["a", "b"]
    assert line.text == "We are open."
