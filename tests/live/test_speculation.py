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

WITHDRAWN_AFTER_SECS = (0.0, 0.15, 0.4)


async def test_withdrawn_speculations_leave_nothing_behind(sim: Simulator) -> None:
    """Before the first token, while tokens come, and when the answer is whole."""
    members = [
        simulated("openai", sim, "fixed@ttft=0.1,tps=40,answer=We are open."),
        simulated("anthropic", sim, "fixed@ttft=0.1,tps=40,answer=From the second."),
    ]
    stats = ProviderStats()
    policy, times = HedgePolicy.after(0.05), len(WITHDRAWN_AFTER_SECS)
    async with line_to(*members, policy=policy, stats=stats) as line:
        for number, secs in enumerate(WITHDRAWN_AFTER_SECS):
            await line.send(LLMContextFrame(said(), speculation=True))
            await sim.ledger.wait_until(lambda ledger, n=number: len(ledger.requests) > n, 2.0)
            await asyncio.sleep(secs)
            await line.send(EagerEndOfTurnCancelFrame())
            await sim.wait_idle(1.0)
            await line.report(number + 1)
        assert (line.text, line.framing) == ("", [])
        speculative = sim.ledger.requests
        await line.ask(context=said())
        await line.report(times + 1)
    assert [report.outcome for report in line.reports] == [*["withdrawn"] * times, "answered"]
    # No hedge is sent before the turn has ended; afterwards it is.
    assert {tuple(a.provider for a in r.attempts) for r in line.reports[:times]} == {("a",)}
    assert len(speculative) == times
    assert [a.provider for a in line.reports[-1].attempts] == ["a", "b"]
    assert line.text == "We are open."
