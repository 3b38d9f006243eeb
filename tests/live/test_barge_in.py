"""The caller speaks into the answer, at each point of a turn, with real services over sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import FunctionCallInProgressFrame, LLMContextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.llm_service import FunctionCallParams

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.tools.simulator import Simulator
from tests.support.line import Line
from tests.support.simulated import close, simulated

pytestmark = pytest.mark.live

ANSWER = "We are open till nine. The kitchen closes at eight. Do come by."
CLOSED_WITHIN_SECS = 0.050


@dataclass(frozen=True)
class Moment:
    """A point of a turn at which the caller speaks.

    Parameters:
        first: What the first provider does.
        second: What the second does.
        open: How many requests are open then.
        heard: The answer's text that has been released then.
        outcomes: What the report says of the attempts.
    """

    first: str
    second: str
    open: int
    heard: str
    outcomes: list[str]


MOMENTS = {
    "before the commit": Moment(
        "fixed@ttft=30", "fixed@ttft=30", 2, "", ["interrupted", "interrupted"]
    ),
    "in mid-answer": Moment(
        f"fixed@ttft=0.02,fault=stall,answer={ANSWER}",
        "fixed@ttft=30",
        1,
        "We are open till nine.",
        ["interrupted", "superseded"],
    ),
    "during a rescue": Moment(
        f"fixed@ttft=0.02,fault=cut,answer={ANSWER}",
        "fixed@ttft=30",
        1,
        "We are open till nine.",
        ["failed", "interrupted"],
    ),
}


@pytest.fixture
async def sim() -> AsyncIterator[Simulator]:
    async with Simulator(port=0, seed=1) as simulator:
        yield simulator


async def until(condition: Callable[[], bool], sim: Simulator, line: Line) -> None:
    """Wait for something that shows in the ledger, in the frames or in both."""
    waits = [
        asyncio.create_task(line.until(condition)),
        asyncio.create_task(sim.ledger.wait_until(lambda _: condition(), 5)),
    ]
    _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


async def closing_secs(sim: Simulator, line: Line) -> float:
    """Interrupt, and say after how long the last request was closed at its provider."""
    interrupted_at = sim.ledger.clock()
    await line.interrupt()
    await sim.wait_idle(1.0)
    return max((e.ended_secs or 0.0) - interrupted_at for e in sim.ledger.requests)


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_every_request_is_closed(moment: str, wire: str, sim: Simulator) -> None:
    """Within 50 ms, at the provider; what was spoken stays in the conversation."""
    case = MOMENTS[moment]
    members = [simulated(wire, sim, case.first), simulated(wire, sim, case.second)]
    policy = (
        HedgePolicy.fallback(commit="first_sentence", stall_secs=None)
        if case.outcomes[0] == "failed"
        else HedgePolicy.race(2, commit="first_sentence", stall_secs=None)
    )
    llm = HedgedLLMService(
        [Provider(n, m) for n, m in zip("ab", members, strict=True)], policy=policy
    )
    context = LLMContext([{"role": "user", "content": "hello"}])
    async with Line(llm, after=[LLMContextAggregatorPair(context).assistant()]) as line:
        await line.send(LLMContextFrame(context))

        def is_there() -> bool:
            asked = len(sim.ledger.requests) == 2 and len(sim.ledger.open) == case.open
            return asked and line.text == case.heard

        await until(is_there, sim, line)
        took = await closing_secs(sim, line)
        report = await line.report()
        await line.until(lambda: len(context.messages) == (2 if case.heard else 1))
    await close(*members)
    print(f"{moment}, {wire}: closed {took * 1e3:.1f} ms after the interruption")
    assert took < CLOSED_WITHIN_SECS
    assert report.outcome == "interrupted"
    assert [attempt.outcome for attempt in report.attempts] == case.outcomes
    assert line.errors == []
    remembered: list[Any] = context.messages[1:]
    assert [message["content"] for message in remembered] == ([case.heard] if case.heard else [])


async def test_a_running_tool_is_cancelled(sim: Simulator) -> None:
    """No request is open then, the tool ends, and its turn has been answered: nobody is blamed."""
    ended: list[str] = []

    async def book_table(params: FunctionCallParams) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    tools = ToolsSchema([FunctionSchema("book_table", "Books.", {}, [], handler=book_table)])
    members = [
        simulated("openai", sim, "fixed@ttft=0.02,tool=book_table,args={}"),
        simulated("anthropic", sim, "fixed@ttft=30"),
    ]
    llm = HedgedLLMService(members, policy=HedgePolicy.race(2))
    context = LLMContext([{"role": "user", "content": "hello"}], tools=tools)
    async with Line(llm) as line:
        await line.send(LLMContextFrame(context))
        await line.until(lambda: bool(line.frames(FunctionCallInProgressFrame)))
        report = await line.report()
        await closing_secs(sim, line)
    await close(*members)
    assert ended == ["cancelled"]
    assert report.outcome == "answered_with_tools"
    assert [attempt.outcome for attempt in report.attempts] == ["won", "superseded"]


async def test_it_can_be_said_at_any_time(sim: Simulator) -> None:
    """Sixty interruptions, one millisecond later each: framed once, reported once, all closed."""
    members = [
        simulated("openai", sim, f"fixed@ttft=0.02,tps=400,answer={ANSWER}"),
        simulated("anthropic", sim, f"fixed@ttft=0.03,tps=400,answer={ANSWER}"),
    ]
    llm = HedgedLLMService(members, policy=HedgePolicy.race(2, commit="first_sentence"))
    loop = asyncio.get_running_loop()
    async with Line(llm) as line:
        for number in range(60):
            await line.send(LLMContextFrame(LLMContext([{"role": "user", "content": "hello"}])))
            spoken = asyncio.Event()
            loop.call_later(number / 1000, spoken.set)
            await spoken.wait()
            await line.interrupt()
        await sim.wait_idle(1.0)
    await close(*members)
    # The pipeline has ended, so the last turn has been reported too.
    starts, ends = line.framing.count("<"), line.framing.count(">")
    assert starts == ends == len(line.reports)
    assert {attempt.outcome for report in line.reports for attempt in report.attempts} <= {
        "won",
        "superseded",
        "interrupted",
    }
    assert line.errors == []
