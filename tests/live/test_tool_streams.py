"""Tool calls that are long, lack an argument, or were cut: beside the bare service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from anthropic import AsyncAnthropic
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import FunctionCallResultFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.llm_service import FunctionCallParams, LLMService
from pipecat.services.openai.llm import OpenAILLMService

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, TurnReport
from pipecat_hedge.service import ProviderStats
from tests.support.line import Line

pytestmark = pytest.mark.live

STALL_SECS = 0.4
WHOLE = {"party": "two", "note": "by the window " * 10}
WIRES = ["openai", "anthropic"]
Event = tuple[str, str]
"""What is sent: ``text``, ``reasoning``, ``call``, ``arguments``, ``ping`` or ``end``; and what."""


@dataclass
class Scripted:
    """A provider that sends its events at a steady pace."""

    events: Sequence[Event]
    gap_secs: float = 0.02
    url: str = ""
    requests: int = 0
    services: list[Any] = field(default_factory=list[Any])

    async def openai(self, request: web.Request) -> web.StreamResponse:
        return await self._send(request, openai_event)

    async def anthropic(self, request: web.Request) -> web.StreamResponse:
        return await self._send(request, anthropic_event)

    async def _send(self, request: web.Request, wire: Any) -> web.StreamResponse:
        self.requests += 1
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(wire("begin", ""))
        for kind, what in self.events:
            await asyncio.sleep(self.gap_secs)
            await answer.write(wire(kind, what))
        return answer

    def service(self, wire: str) -> LLMService[Any]:
        if wire == "openai":
            settings = OpenAILLMService.Settings(model="m")
            service = OpenAILLMService(api_key="any", base_url=f"{self.url}/v1", settings=settings)
        else:
            client = AsyncAnthropic(api_key="any", base_url=self.url)
            service = AnthropicLLMService(api_key="any", client=client)
        self.services.append(service)
        return service


def openai_event(kind: str, what: str) -> bytes:
    reason, delta = None, {}
    if kind == "ping":
        return b": ping\n\n"
    if kind == "begin":
        delta = {"role": "assistant", "content": ""}
    elif kind == "text":
        delta = {"content": what}
    elif kind == "reasoning":
        delta = {"reasoning_content": what}
    elif kind == "call":
        call = {"index": 0, "id": "c1", "type": "function"}
        delta = {"tool_calls": [call | {"function": {"name": what, "arguments": ""}}]}
    elif kind == "arguments":
        delta = {"tool_calls": [{"index": 0, "function": {"arguments": what}}]}
    else:
        reason = "tool_calls"
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunk["choices"] = [{"index": 0, "delta": delta, "finish_reason": reason}]
    end = "data: [DONE]\n\n" if reason else ""
    return f"data: {json.dumps(chunk)}\n\n{end}".encode()


def anthropic_event(kind: str, what: str) -> bytes:
    delta: dict[str, Any]
    if kind == "begin":
        usage = {"input_tokens": 9, "output_tokens": 1}
        message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
        told = [{"type": "message_start", "message": message | {"usage": usage}}]
        block = {"type": "text", "text": ""}
        told.append({"type": "content_block_start", "index": 0, "content_block": block})
    elif kind == "call":
        block = {"type": "tool_use", "id": "c1", "name": what, "input": {}}
        told = [{"type": "content_block_start", "index": 1, "content_block": block}]
    elif kind == "ping":
        told = [{"type": "ping"}]
    elif kind == "end":
        delta = {"stop_reason": "tool_use", "stop_sequence": None}
        told = [
            {"type": "content_block_stop", "index": 1},
            {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 9}},
            {"type": "message_stop"},
        ]
    else:
        index, delta = {
            "text": (0, {"type": "text_delta", "text": what}),
            "reasoning": (0, {"type": "thinking_delta", "thinking": what}),
            "arguments": (1, {"type": "input_json_delta", "partial_json": what}),
        }[kind]
        told = [{"type": "content_block_delta", "index": index, "delta": delta}]
    return "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in told).encode()


@asynccontextmanager
async def playing(events: Sequence[Event], **options: Any) -> AsyncIterator[Scripted]:
    app, provider = web.Application(), Scripted(events, **options)
    app.router.add_post("/v1/chat/completions", provider.openai)
    app.router.add_post("/v1/messages", provider.anthropic)
    async with TestServer(app) as server:
        provider.url = str(server.make_url("")).rstrip("/")
        yield provider
        for service in provider.services:
            await service._client.close()


def call(arguments: dict[str, Any], *, tokens: int = 60) -> list[Event]:
    """A tool call whose arguments come in so many deltas."""
    told = json.dumps(arguments)
    size = -(-len(told) // tokens)
    parts = [told[n : n + size] for n in range(0, len(told), size)]
    return [("call", "book"), *(("arguments", part) for part in parts)]


async def turn(llm: LLMService[Any]) -> tuple[str, list[Any], list[TurnReport]]:
    """One turn with a tool: the text, the arguments that the tool ran with, and the report."""
    ran: list[Any] = []

    async def book(params: FunctionCallParams) -> None:
        ran.append(dict(params.arguments))
        await params.result_callback("booked")

    properties = {name: {"type": "string"} for name in WHOLE}
    schema = FunctionSchema("book", "Books.", properties, ["party"], handler=book)
    context = LLMContext(
        [{"role": "user", "content": "A table."}], tools=ToolsSchema(standard_tools=[schema])
    )
    async with Line(llm) as line:
        await line.ask(context=context)
        report = await line.report() if isinstance(llm, HedgedLLMService) else None
        if report is None or report.outcome == "answered_with_tools":
            async with asyncio.timeout(5):
                await line.until(lambda: bool(line.frames(FunctionCallResultFrame)))
    return line.text, ran, line.reports


@asynccontextmanager
async def racing(
    wire: str, first: Sequence[Event], second: Sequence[Event], policy: Any = HedgePolicy.fallback
) -> AsyncIterator[tuple[HedgedLLMService, Scripted, Scripted]]:
    """A hedged service over two scripted providers."""
    async with playing(first) as one, playing(second) as two:
        providers = [Provider("a", one.service(wire)), Provider("b", two.service(wire))]
        policy = policy(stall_secs=STALL_SECS, commit="first_token")
        yield HedgedLLMService(providers, policy=policy, stats=ProviderStats()), one, two


TEXT: list[Event] = [("text", "Let me see. ")]
REASONING: list[Event] = [("reasoning", "so ")] * 60


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("policy", "opening"),
    [
        pytest.param(HedgePolicy.fallback, TEXT, id="text"),
        pytest.param(HedgePolicy.fallback, [], id="no text"),
        pytest.param(HedgePolicy.fallback, REASONING, id="reasoning"),
        pytest.param(HedgePolicy.adaptive, TEXT, id="text, adaptive"),
    ],
)
async def test_long_tool_call_is_no_silence(wire: str, policy: Any, opening: list[Event]) -> None:
    """Nor is reasoning before it, though the service does not hand it on."""
    events = [*opening, *call(WHOLE), ("end", "")]
    async with racing(wire, events, [("text", "Other.")], policy) as (llm, _, second):
        text, ran, _ = await turn(llm)
        assert (text, ran) == ("".join(t for kind, t in opening if kind == "text"), [WHOLE])
        assert second.requests == 0


@pytest.mark.parametrize(
    ("wire", "noise"),
    [
        *(("openai", (kind, "")) for kind in ("ping", "text", "arguments", "begin")),
        ("openai", ("text", " \n")),
        *(("anthropic", noise) for noise in (("ping", ""), ("text", " \n"), ("arguments", ""))),
    ],
)
async def test_provider_that_hangs_in_a_call_is_detected(wire: str, noise: Event) -> None:
    """Pings, comments, roles and blanks are no progress."""
    hangs = [*TEXT, *call(WHOLE)[:4], *[noise] * 200]
    async with racing(wire, hangs, [*call(WHOLE, tokens=2), ("end", "")]) as (llm, *_):
        _, ran, (report,) = await turn(llm)
        assert ran == [WHOLE]
        assert [a.outcome for a in report.attempts] == ["failed", "won"]
        assert report.attempts[1].launch_reason == "stall"


@pytest.mark.parametrize("wire", WIRES)
async def test_call_without_a_required_argument_runs_as_with_the_bare_service(wire: str) -> None:
    """The tool may ask back."""
    arguments = {"note": "by the window"}
    events = [*call(arguments, tokens=3), ("end", "")]
    async with racing(wire, events, []) as (llm, first, _):
        assert (await turn(first.service(wire)))[1] == [arguments]
        assert (await turn(llm))[1] == [arguments]
        assert first.requests == 2


@pytest.mark.parametrize("wire", WIRES)
async def test_a_call_that_was_cut_has_failed(wire: str) -> None:
    """The connection was closed in order, but the stream did not end."""
    whole = [*call(WHOLE, tokens=2), ("end", "")]
    async with racing(wire, [("call", "book")], whole) as (llm, *_):
        _, ran, (report,) = await turn(llm)
        assert ran == [WHOLE]
        assert report.attempts[0].error_category in ("incomplete_call", "empty")
