"""The caller interrupts the answer, at each point of a turn, with real services over sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import FunctionCallInProgressFrame, LLMContextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.llm_service import FunctionCallParams

from pipecat_hedge import HedgePolicy
from pipecat_hedge.tools.simulator import Simulator
from tests.service.builders import racing
from tests.support.line import Line
from tests.support.simulated import WIRES, close, line_to, simulated

pytestmark = pytest.mark.live

ANSWER = "We are open till nine. The kitchen closes at eight. Do come by."
CLOSED_WITHIN_SECS = 0.050
STALLS = f"fixed@ttft=0.02,fault=stall,answer={ANSWER}"
BREAKS = f"fixed@ttft=0.02,fault=cut,answer={ANSWER}"


@pytest.mark.parametrize(
    ("wire", "first", "open_requests", "heard", "outcomes"),
    [
        *(
            pytest.param(
                wire, "fixed@ttft=30", 2, "", ["interrupted"] * 2, id=f"{wire}, before the commit"
            )
            for wire in WIRES
        ),
        pytest.param(
            *("anthropic", STALLS, 1, "We are open till nine.", ["interrupted", "superseded"]),
            id="anthropic, mid-answer",
        ),
        pytest.param(
            *("openai", BREAKS, 1, "We are open till nine.", ["failed", "interrupted"]),
            id="openai, continuation",
        ),
    ],
)
async def test_every_request_is_closed(
    wire: str, first: str, open_requests: int, heard: str, outcomes: list[str], sim: Simulator
) -> None:
    """Within 50 ms, at the provider; what was spoken stays in the conversation."""
    members = [simulated(wire, sim, first), simulated(wire, sim, "fixed@ttft=30")]
    make = HedgePolicy.fallback if outcomes[0] == "failed" else HedgePolicy.race
    policy = make(2, commit="first_sentence", stall_secs=None)
    llm = racing(*members, policy=policy)
    context = LLMContext([{"role": "user", "content": "hello"}])
    async with Line(llm, after=[LLMContextAggregatorPair(context).assistant()]) as line:
        await line.send(LLMContextFrame(context))
        await line.until(lambda: line.text == heard)
        await sim.ledger.wait_until(
            lambda ledger: len(ledger.requests) == 2 and len(ledger.open) == open_requests, 5
        )
        interrupted_at = sim.ledger.clock()
        await line.interrupt()
        await sim.wait_idle(1.0)
        closed_secs = max((e.ended_secs or 0.0) - interrupted_at for e in sim.ledger.requests)
        report = await line.report()
        await line.until(lambda: len(context.messages) == (2 if heard else 1))
    await close(*members)
    assert closed_secs < CLOSED_WITHIN_SECS
    assert report.outcome == "interrupted"
    assert [attempt.outcome for attempt in report.attempts] == outcomes
    assert line.errors == []
    remembered: list[Any] = context.messages[1:]
    assert [message["content"] for message in remembered] == ([heard] if heard else [])


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


async def test_any_moment_can_be_interrupted(sim: Simulator) -> None:
    """Sixty interruptions, one millisecond later each: framed once, reported once, all closed."""
    members = [
        simulated("openai", sim, f"fixed@ttft=0.02,tps=400,answer={ANSWER}"),
        simulated("anthropic", sim, f"fixed@ttft=0.03,tps=400,answer={ANSWER}"),
    ]
    loop = asyncio.get_running_loop()
    async with line_to(*members, policy=HedgePolicy.race(2, commit="first_sentence")) as line:
        for number in range(60):
            await line.send(LLMContextFrame(LLMContext([{"role": "user", "content": "hello"}])))
            spoken = asyncio.Event()
            loop.call_later(number / 1000, spoken.set)
            await spoken.wait()
            await line.interrupt()
        await sim.wait_idle(1.0)
    # The pipeline has ended, so the last turn has been reported too.
    starts, ends = line.framing.count("<"), line.framing.count(">")
    assert starts == ends == len(line.reports)
    outcomes = {attempt.outcome for report in line.reports for attempt in report.attempts}
    assert outcomes <= {"won", "superseded", "interrupted"}
    assert line.errors == []
