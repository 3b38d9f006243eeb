"""What a real vLLM answers, heard in a pipeline."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    FunctionCallResultFrame,
    LLMContextFrame,
    LLMTextFrame,
    LLMThoughtEndFrame,
    LLMThoughtStartFrame,
    LLMThoughtTextFrame,
    MetricsFrame,
)
from pipecat.metrics.metrics import LLMTokenUsage, LLMUsageMetricsData
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.llm_service import FunctionCallParams
from scripts.vllm.server import VLLMProcess

from pipecat_hedge import HedgedLLMService, Provider, VLLMService
from tests.support.line import Line
from tests.vllm_server.asking import SYSTEM, service

pytestmark = pytest.mark.vllm


def usage(line: Line) -> list[LLMTokenUsage]:
    """The token counts that were reported."""
    data = [d for frame in line.frames(MetricsFrame) for d in frame.data]
    return [d.value for d in data if isinstance(d, LLMUsageMetricsData)]


async def test_the_model_is_found_and_its_answer_streamed(vllm: VLLMProcess) -> None:
    """Nothing but the address has to be said; tokens come one by one, and usage at the end."""
    llm = service(vllm, tokens=20)
    async with Line(llm) as line:
        await line.ask("What is for dinner?")
        await line.until(lambda: bool(usage(line)))
    assert llm.settings.model == "tiny"
    assert len(line.frames(LLMTextFrame)) > 10
    assert usage(line)[0].completion_tokens == 20
    assert not line.errors


async def test_what_the_cache_held_is_counted(vllm: VLLMProcess) -> None:
    """The second turn of a conversation finds the first one's prompt in the prefix cache."""
    context = LLMContext([{"role": "user", "content": SYSTEM * 30}])
    async with Line(service(vllm, tokens=5)) as line:
        for number in (1, 2):
            context.add_message({"role": "user", "content": "And then?"})
            await line.ask(context=context)
            await line.until(lambda number=number: len(usage(line)) == number)
    cached = usage(line)[1].cache_read_input_tokens
    assert cached is not None
    assert cached > 0.5 * usage(line)[1].prompt_tokens


async def test_what_the_server_says_of_its_cache_is_known(vllm: VLLMProcess) -> None:
    """A look has the share of it that is in use, and how much of the prompts it held."""
    llm = service(vllm, tokens=5)
    async with Line(llm) as line:
        for _ in range(2):
            await line.ask(SYSTEM * 30)
        async with asyncio.timeout(10):
            while (load := llm.server_load) is None or not load.prefix_hit_share:
                await asyncio.sleep(0.05)
    assert load.is_up
    assert 0 < load.prefix_hit_share <= 1
    assert load.kv_cache_usage is not None
    assert 0 <= load.kv_cache_usage <= 1


async def test_reasoning_is_not_spoken(vllm: VLLMProcess) -> None:
    """What the model writes in ``<think>`` becomes thoughts, and the rest is the answer."""
    said = r"<think>[a-z ]{20,40}</think>\n\n[A-Z][a-z]{5,9} [a-z]{5,9}\."
    llm = service(vllm, structured_outputs={"regex": said})
    async with Line(HedgedLLMService([Provider("local", llm)])) as line:
        await line.ask()
    thoughts = "".join(f.text for f in line.frames(LLMThoughtTextFrame))
    assert 20 <= len(thoughts) <= 40
    assert line.text.endswith(".")
    assert "think" not in line.text
    assert line.text[0].isupper()
    assert len(line.frames(LLMThoughtStartFrame)) == len(line.frames(LLMThoughtEndFrame)) == 1


TOOLS = [
    FunctionSchema(
        name="book_table",
        description="Book a table",
        properties={
            "day": {"type": "string", "enum": ["friday", "sunday"]},
            "people": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        required=["day", "people"],
    ),
    FunctionSchema(
        name="ask_kitchen",
        description="Ask the kitchen",
        properties={"dish": {"type": "string", "enum": ["fish", "soup"]}},
        required=["dish"],
    ),
]


BOOK = {"type": "function", "function": {"name": "book_table"}}


def talk(choice: Any) -> LLMContext:
    return LLMContext(
        [{"role": "user", "content": "A table on Sunday, please."}],
        tools=ToolsSchema(standard_tools=TOOLS),
        tool_choice=choice,
    )


async def test_a_tool_is_called_with_what_its_schema_allows(vllm: VLLMProcess) -> None:
    """A strict tool that the model has to call runs once, with valid arguments and an id."""
    local = VLLMService(base_url=vllm.base_url, strict_tools=True)
    raced = HedgedLLMService([Provider("local", local)])
    ran: list[FunctionCallParams] = []

    async def book(params: FunctionCallParams) -> None:
        ran.append(params)
        await params.result_callback({"booked": True})

    raced.register_function("book_table", book)
    async with Line(raced) as line:
        await line.send(LLMContextFrame(talk(BOOK)))
        await line.until(lambda: bool(line.frames(FunctionCallResultFrame)))
    assert len(ran) == 1
    assert ran[0].arguments["day"] in ("friday", "sunday")
    assert 1 <= ran[0].arguments["people"] <= 9
    assert ran[0].tool_call_id
    assert not line.errors


async def test_a_one_shot_inference_is_free_of_reasoning(vllm: VLLMProcess) -> None:
    """``run_inference`` answers with what is to be read, no more."""
    llm = service(vllm, structured_outputs={"choice": ["<think>hm</think>\nOn Sunday."]})
    context = LLMContext([{"role": "user", "content": "When?"}])
    assert await llm.run_inference(context) == "On Sunday."
    await llm.cleanup()
