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
from tests.support.simulated import WIRES, close, simulated

pytestmark = [pytest.mark.live, pytest.mark.parametrize("wire", WIRES)]

DELIVERY = "Yes, we do. We deliver within three miles, and it takes about forty minutes."
FAST = "fixed@ttft=0.02,tps=1000"
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


async def turn(llm: LLMService[Any], text: str = "do you deliver", *tools: Any) -> list[Frame]:
    messages: list[Any] = [{"role": "user", "content": text}]
    schema = {"tools": ToolsSchema(standard_tools=list(tools))} if tools else {}
    context = LLMContext(messages, **schema)
    down, up = await run_test(llm, frames_to_send=[LLMContextFrame(context)])
    await close(llm)
    return [*down, *up]


def text_of(frames: list[Frame]) -> str:
    return "".join(frame.text for frame in frames if isinstance(frame, LLMTextFrame))


async def test_a_turn_is_one_start_the_answer_and_one_end(sim: Simulator, wire: str):
    frames = await turn(service(wire, sim, FAST))
    assert text_of(frames) == DELIVERY
    kinds = [type(frame) for frame in frames]
    assert kinds.count(LLMFullResponseStartFrame) == kinds.count(LLMFullResponseEndFrame) == 1
    assert ErrorFrame not in kinds
    assert [entry.outcome for entry in sim.ledger.requests] == ["completed"]


async def test_a_tool_is_run_with_the_callers_numbers(sim: Simulator, wire: str):
    called: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def book_table(params: FunctionCallParams) -> None:
        await params.result_callback({"ok": True})
        called.set_result(params.arguments)

    llm = service(wire, sim, FAST)
    llm.register_function("book_table", book_table)
    await turn(llm, "book a table for two at seven", BOOK_TABLE)
    assert await asyncio.wait_for(called, 2) == {"party_size": 2, "time": "19:00"}


@pytest.mark.parametrize("fault", ["429", "reset", "cut"])
async def test_a_failure_is_an_error_frame(sim: Simulator, wire: str, fault: str):
    frames = await turn(service(wire, sim, f"{FAST},fault={fault},retry_after=0.01"))
    kinds = [type(frame) for frame in frames]
    assert ErrorFrame in kinds
    assert kinds.count(LLMFullResponseEndFrame) == 1
    assert {entry.outcome for entry in sim.ledger.requests} == {"failed"}


async def test_an_interruption_closes_the_request(sim: Simulator, wire: str):
    """Reasoning makes no text."""
    llm = service(wire, sim, f"{FAST},fault=reasoning_forever")

    async def interrupt() -> None:
        await sim.ledger.wait_until(lambda it: any(e.first_byte_secs for e in it.open), 5)
        await llm.queue_frame(InterruptionFrame())

    interrupting = asyncio.create_task(interrupt())
    frames = await turn(llm)
    await interrupting
    await sim.wait_idle(1)
    assert text_of(frames) == ""
    assert [entry.outcome for entry in sim.ledger.requests] == ["aborted"]
