"""Pipecat's own services find nothing unusual either."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    FunctionCallInProgressFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.llm_service import FunctionCallParams, LLMService
from pipecat.tests.utils import run_test

from pipecat_hedge.service.provider_client import switch_off_hidden_retries
from pipecat_hedge.tools.simulator import Simulator
from tests.support.simulated import close, simulated

pytestmark = pytest.mark.live

DELIVERY = "Yes, we do. We deliver within three miles, and it takes about forty minutes."
BOOK_TABLE = FunctionSchema(
    name="book_table",
    description="Books a table.",
    properties={"party_size": {"type": "integer"}, "time": {"type": "string"}},
    required=["party_size", "time"],
)


def service(wire: str, sim: Simulator, model: str) -> LLMService[Any]:
    """A Pipecat service on the simulator, whose SDK asks once."""
    llm = simulated(wire, sim, model)
    switch_off_hidden_retries(llm)
    return llm


@pytest.fixture(params=["openai", "anthropic", "google"])
def wire(request: pytest.FixtureRequest) -> str:
    return request.param


async def turn(llm: LLMService[Any], context: LLMContext) -> list[Frame]:
    down, up = await run_test(llm, frames_to_send=[LLMContextFrame(context)])
    await close(llm)
    return [*down, *up]


def context_of(*text: str, tools: ToolsSchema | None = None) -> LLMContext:
    messages: list[Any] = [{"role": "user", "content": each} for each in text]
    return LLMContext(messages, tools) if tools else LLMContext(messages)


def text_of(frames: list[Frame]) -> str:
    return "".join(frame.text for frame in frames if isinstance(frame, LLMTextFrame))


async def test_a_turn(sim: Simulator, wire: str):
    """One start, the answer, one end."""
    frames = await turn(
        service(wire, sim, "fixed@ttft=0.02,tps=1000"), context_of("do you deliver")
    )
    assert text_of(frames) == DELIVERY
    assert sum(isinstance(frame, LLMFullResponseStartFrame) for frame in frames) == 1
    assert sum(isinstance(frame, LLMFullResponseEndFrame) for frame in frames) == 1
    assert not [frame for frame in frames if isinstance(frame, ErrorFrame)]
    assert [entry.outcome for entry in sim.ledger.requests] == ["completed"]


async def test_a_tool_call(sim: Simulator, wire: str):
    """Pipecat runs the tool with the caller's numbers."""
    called: list[Any] = []
    done = asyncio.Event()

    async def book_table(params: FunctionCallParams) -> None:
        called.append(params.arguments)
        await params.result_callback({"ok": True})
        done.set()

    llm = service(wire, sim, "fixed@ttft=0.02,tps=1000")
    llm.register_function("book_table", book_table)
    context = context_of(
        "book a table for two at seven", tools=ToolsSchema(standard_tools=[BOOK_TABLE])
    )
    frames = await turn(llm, context)
    await asyncio.wait_for(done.wait(), 2)
    assert called == [{"party_size": 2, "time": "19:00"}]
    assert [f for f in frames if isinstance(f, FunctionCallInProgressFrame)]


@pytest.mark.parametrize("fault", ["429", "reset", "cut"])
async def test_a_failure_is_an_error_frame(sim: Simulator, wire: str, fault: str):
    """What fails at the provider comes out of the service as an error, and the turn ends."""
    llm = service(wire, sim, f"fixed@ttft=0.02,tps=1000,fault={fault},retry_after=0.01")
    frames = await turn(llm, context_of("do you deliver"))
    assert [frame for frame in frames if isinstance(frame, ErrorFrame)]
    assert sum(isinstance(frame, LLMFullResponseEndFrame) for frame in frames) == 1
    assert {entry.outcome for entry in sim.ledger.requests} == {"failed"}


async def test_an_interruption_aborts(sim: Simulator, wire: str):
    """Reasoning makes no text; interrupting the service closes the request at the provider."""
    llm = service(wire, sim, "fixed@ttft=0.02,tps=1000,fault=reasoning_forever")

    async def interrupt() -> None:
        await sim.ledger.wait_until(lambda it: any(e.first_byte_secs for e in it.open), 5)
        await llm.queue_frame(InterruptionFrame())

    interrupting = asyncio.create_task(interrupt())
    frames = await turn(llm, context_of("do you deliver"))
    await interrupting
    await sim.wait_idle(1)
    assert text_of(frames) == ""
    assert [entry.outcome for entry in sim.ledger.requests] == ["aborted"]
