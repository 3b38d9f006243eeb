"""The official SDKs, directly and through the proxy: what they see is the same."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from pipecat_hedge.tools.simulator import Simulator
from tests.live.proxied import HELLO, proxied, sdk

pytestmark = pytest.mark.live

MODEL = "fixed@ttft=0.01,tps=400"
BOOK: Any = [{"role": "user", "content": "A table for two at seven, please."}]
SCHEMA: Any = {
    "type": "object",
    "properties": {"people": {"type": "integer"}, "time": {"type": "string"}},
    "required": ["people", "time"],
}
CLAUDE_TOOL: Any = {"name": "book_table", "description": "Books.", "input_schema": SCHEMA}
GPT_TOOL: Any = {
    "type": "function",
    "function": {"name": "book_table", "description": "Books.", "parameters": SCHEMA},
}
Seen = list[Any]


def seen(*found: Any) -> Seen:
    """What an SDK has returned, without what differs from one request to the next."""

    def plain(value: Any) -> Any:
        if hasattr(value, "model_dump"):
            value = value.model_dump()
        if isinstance(value, dict):
            varies = ("id", "created", "model", "tool_use_id", "request_id")
            return {k: plain(v) for k, v in value.items() if k not in varies}
        return [plain(each) for each in value] if isinstance(value, list) else value

    return [plain(each) for each in found]


# ---- what is asked: each with a client and a model's name


async def claude_create(client: anthropic.AsyncAnthropic, model: str) -> Seen:
    message = await client.messages.create(model=model, max_tokens=99, messages=HELLO)
    tool = await client.messages.create(
        model=model, max_tokens=99, messages=BOOK, tools=[CLAUDE_TOOL]
    )
    assert tool.stop_reason == "tool_use"
    return seen(message, tool)


async def claude_events(client: anthropic.AsyncAnthropic, model: str) -> Seen:
    stream = await client.messages.create(model=model, max_tokens=99, messages=HELLO, stream=True)
    return seen(*[event async for event in stream])


async def claude_stream_helper(client: anthropic.AsyncAnthropic, model: str) -> Seen:
    async with client.messages.stream(
        model=model, max_tokens=99, messages=BOOK, tools=[CLAUDE_TOOL]
    ) as stream:
        found = [event async for event in stream]
        final = await stream.get_final_message()
    assert any(event.type == "input_json" for event in found)
    return seen(*found, final)


async def claude_raw(client: anthropic.AsyncAnthropic, model: str) -> Seen:
    raw = await client.messages.with_raw_response.create(model=model, max_tokens=99, messages=HELLO)
    async with client.messages.with_streaming_response.create(
        model=model, max_tokens=99, messages=HELLO
    ) as streamed:
        body = json.loads(await streamed.read())
    kinds = [r.headers["content-type"].partition(";")[0] for r in (raw, streamed)]
    parsed: Any = raw.parse()
    message = await parsed if inspect.isawaitable(parsed) else parsed
    return [*seen(message, body), raw.status_code, streamed.status_code, *kinds]


async def claude_sync(client: anthropic.AsyncAnthropic, model: str) -> Seen:
    def ask() -> Seen:
        with anthropic.Anthropic(api_key="any", base_url=str(client.base_url)) as other:
            message = other.messages.create(model=model, max_tokens=99, messages=HELLO)
            with other.messages.stream(model=model, max_tokens=99, messages=HELLO) as stream:
                return seen(message, *stream)

    return await asyncio.to_thread(ask)


async def gpt_create(client: openai.AsyncOpenAI, model: str) -> Seen:
    answer = await client.chat.completions.create(model=model, messages=HELLO)
    tool = await client.chat.completions.create(model=model, messages=BOOK, tools=[GPT_TOOL])
    assert tool.choices[0].message.tool_calls
    return seen(answer, tool)


async def gpt_events(client: openai.AsyncOpenAI, model: str) -> Seen:
    stream = await client.chat.completions.create(
        model=model,
        messages=BOOK,
        tools=[GPT_TOOL],
        stream=True,
        stream_options={"include_usage": True},
    )
    found = [chunk async for chunk in stream]
    assert found[-1].usage is not None
    return seen(*found)


async def gpt_stream_helper(client: openai.AsyncOpenAI, model: str) -> Seen:
    async with client.chat.completions.stream(model=model, messages=HELLO) as stream:
        found = [event async for event in stream]
        final = await stream.get_final_completion()
    return seen(*found, final)


async def gpt_raw(client: openai.AsyncOpenAI, model: str) -> Seen:
    raw = await client.chat.completions.with_raw_response.create(model=model, messages=HELLO)
    async with client.chat.completions.with_streaming_response.create(
        model=model, messages=HELLO, stream=True
    ) as streamed:
        lines = [line async for line in streamed.iter_lines() if line.startswith("data: {")]
    kinds = [r.headers["content-type"].partition(";")[0] for r in (raw, streamed)]
    found = [json.loads(line[6:]) for line in lines]
    return [*seen(raw.parse(), *found), raw.status_code, streamed.status_code, *kinds]


async def gpt_sync(client: openai.AsyncOpenAI, model: str) -> Seen:
    def ask() -> Seen:
        with openai.OpenAI(api_key="any", base_url=str(client.base_url)) as other:
            answer = other.chat.completions.create(model=model, messages=HELLO)
            stream = other.chat.completions.create(model=model, messages=HELLO, stream=True)
            return seen(answer, *stream)

    return await asyncio.to_thread(ask)


Ask = Callable[[Any, str], Any]
CLAUDE: list[Ask] = [claude_create, claude_events, claude_stream_helper, claude_raw, claude_sync]
GPT: list[Ask] = [gpt_create, gpt_events, gpt_stream_helper, gpt_raw, gpt_sync]


STREAMS_AND_WHOLE: list[Ask] = [claude_raw, claude_events, gpt_raw, gpt_events]
PASSED = ["400", "401", "429", "500", "529", "error_in_band", "busy_in_band"]
"""Faults that a client sees as from the provider."""
REPLACED = [
    *("reset", "hang", "headers_then_silence", "keepalives", "malformed_sse", "empty"),
    *("whitespace", "reasoning_forever", "slow_headers", "cut,after=0"),
]


async def outcome(ask: Ask, url: str, model: str = "") -> Seen:
    """What an SDK returns, or the error that it raises."""
    wire = "anthropic" if ask in CLAUDE else "openai"
    async with sdk(wire, url) as client:
        try:
            return await ask(client, model or wire)
        except (anthropic.APIError, openai.APIError) as error:
            parts = [getattr(error, name, None) for name in ("status_code", "body", "code", "type")]
            response: Any = getattr(error, "response", None)
            later = None if response is None else response.headers.get("retry-after")
            return seen(type(error), *parts, later)


@pytest.mark.parametrize("ask", [*CLAUDE, *GPT])
async def test_an_sdk_sees_the_same_directly_and_through_the_proxy(
    sim: Simulator, ask: Ask
) -> None:
    async with proxied((sim.url, MODEL)) as url:
        assert await outcome(ask, url) == await outcome(ask, sim.url, MODEL)


@pytest.mark.parametrize(
    ("fault", "upstreams"),
    [*((fault, 1) for fault in PASSED), ("400", 2), ("429", 2), ("error_in_band", 2)],
)
async def test_an_sdk_raises_the_same_when_every_upstream_fails(
    sim: Simulator, fault: str, upstreams: int
) -> None:
    model, asks = f"{MODEL},fault={fault}", STREAMS_AND_WHOLE
    async with proxied(*[(sim.url, model)] * upstreams) as url:
        direct = [await outcome(ask, sim.url, model) for ask in asks]
        assert await asyncio.gather(*(outcome(ask, url) for ask in asks)) == direct
    assert all((fault == "429") is ("1" in found) for found in direct), "its Retry-After"


@pytest.mark.parametrize("fault", ["429", "error_in_band", *REPLACED])
async def test_an_sdk_sees_nothing_of_the_first_upstreams_fault(sim: Simulator, fault: str) -> None:
    async with proxied(
        (sim.url, f"{MODEL},fault={fault}"), (sim.url, MODEL), model={"policy": "after(0.3)"}
    ) as url:
        asks = STREAMS_AND_WHOLE[:3]  # without a tool
        direct = [await outcome(ask, sim.url, MODEL) for ask in asks]
        assert await asyncio.gather(*(outcome(ask, url) for ask in asks)) == direct
        await sim.wait_idle(1.0)
