"""The caller interrupts real services over sockets.

At each point of a turn, in virtual time: ``test_cancellations.py`` and ``test_permit_leaks.py``.
"""

from __future__ import annotations

import asyncio

import pytest
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import FunctionCallInProgressFrame, LLMContextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.llm_service import FunctionCallParams

from pipecat_hedge import HedgePolicy
from pipecat_hedge.tools.simulator import Simulator
from tests.support.simulated import WIRES, line_to, simulated

pytestmark = pytest.mark.live

CLOSED_WITHIN_SECS = 0.050


@pytest.mark.parametrize("wire", WIRES)
async def test_every_request_is_closed(wire: str, sim: Simulator) -> None:
    """Within 50 ms, at the provider."""
    members = [simulated(wire, sim, "fixed@ttft=30"), simulated(wire, sim, "fixed@ttft=30")]
    async with line_to(*members, policy=HedgePolicy.race(2)) as line:
        await line.send(LLMContextFrame(LLMContext([{"role": "user", "content": "hello"}])))
        await sim.ledger.wait_until(lambda ledger: len(ledger.open) == 2, 5)
        interrupted_at = sim.ledger.clock()
        await line.interrupt()
        await sim.wait_idle(1.0)
        closed_secs = max((e.ended_secs or 0.0) - interrupted_at for e in sim.ledger.requests)
        report = await line.report()
    assert closed_secs < CLOSED_WITHIN_SECS
    assert [attempt.outcome for attempt in report.attempts] == ["interrupted"] * 2
    assert line.errors == []


@pytest.mark.parametrize("wire", WIRES)
async def test_request_is_closed_while_tokens_arrive(wire: str, sim: Simulator) -> None:
    """Whatever its reader is doing at that moment; twenty times, because moments differ."""
    members = [simulated(wire, sim, f"fixed@ttft=0.005,tps=1000,answer={'word ' * 400}")]
    async with line_to(*members, policy=HedgePolicy.fallback()) as line:
        for turn in range(1, 21):
            heard = len(line.text)
            await line.send(LLMContextFrame(LLMContext([{"role": "user", "content": "hello"}])))
            await line.until(lambda heard=heard: len(line.text) > heard)
            await line.interrupt()
            await sim.wait_idle(1.0)
            await line.report(turn)
    assert {entry.outcome for entry in sim.ledger.requests} == {"aborted"}


async def test_running_tool_is_cancelled(sim: Simulator) -> None:
    ended: list[str] = []

    async def book_table(params: FunctionCallParams) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    tools = ToolsSchema([FunctionSchema("book_table", "Books.", {}, [], handler=book_table)])
    async with line_to(simulated("openai", sim, "fixed@ttft=0.02,tool=book_table,args={}")) as line:
        await line.send(LLMContextFrame(LLMContext([{"role": "user", "content": "hi"}], tools)))
        await line.until(lambda: bool(line.frames(FunctionCallInProgressFrame)))
        await line.interrupt()
    assert ended == ["cancelled"]
    assert (await line.report()).outcome == "answered_with_tools"
