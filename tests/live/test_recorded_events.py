"""What counts as an answer, event by event, in every wire format.

The files in `tests/recorded` are streams as the protocols have them, ids shortened. Each is
played to the real service over a socket, and what the service makes of it is judged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from anthropic import AsyncAnthropic
from google.genai import types
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import LLMTextFrame, LLMThoughtTextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.google.llm import GoogleLLMService
from pipecat.services.llm_service import LLMService
from pipecat.services.openai.llm import OpenAILLMService

from pipecat_hedge import HedgedLLMService, HedgePolicy
from pipecat_hedge.race import AttemptError
from pipecat_hedge.service.attempt_stats import AttemptStats
from pipecat_hedge.service.service_adapter import Piece, ToolCalls
from tests.support.line import Line
from tests.support.simulated import close

pytestmark = pytest.mark.live

RECORDED = Path(__file__).parents[1] / "recorded"

PARTY_SIZE = {"party_size": {"type": "integer"}}
NOTHING: list[tuple[str, str]] = []
"""No usable piece: the attempt is empty, or has failed before it said anything."""

# The usable pieces of each stream, in order; what is not listed does not win a race.
USABLE: dict[str, list[tuple[str, str]]] = {
    "openai/text": [("text", "Good"), ("text", " evening.")],
    "openai/role_only_deltas": NOTHING,
    "openai/keep_alive_comments": [("text", "Good evening.")],
    "openai/reasoning_content": [("text", "Till nine.")],
    "openai/reasoning_only": NOTHING,
    "openai/inline_think": [("text", "Till nine.")],
    "openai/unclosed_think": NOTHING,
    "openai/marker_complete": [("text", "Till nine.")],
    "openai/marker_wait": [("text", "")],
    "openai/whitespace": NOTHING,
    "openai/empty_stop": NOTHING,
    "openai/no_choices": NOTHING,
    "openai/content_filter": NOTHING,
    "openai/error_in_band": NOTHING,
    "openai/error_after_text": [("text", "Good")],
    "openai/tool_call": [("tools", "book_table {'party_size': 2}")],
    "openai/tool_call_cut": NOTHING,
    "openai/tool_call_incomplete": NOTHING,
    "anthropic/text": [("text", "Good"), ("text", " evening.")],
    "anthropic/pings": [("text", "Good evening.")],
    "anthropic/thinking": [("text", "Till nine.")],
    "anthropic/thinking_only": NOTHING,
    "anthropic/redacted_thinking": [("text", "Till nine.")],
    "anthropic/marker_complete": [("text", "Till nine.")],
    "anthropic/marker_wait": [("text", "")],
    "anthropic/whitespace": NOTHING,
    "anthropic/empty_stop": NOTHING,
    "anthropic/empty_block": NOTHING,
    "anthropic/refusal": NOTHING,
    "anthropic/error_in_band": NOTHING,
    "anthropic/error_after_text": [("text", "Good")],
    "anthropic/tool_call": [("tools", "book_table {'party_size': 2}")],
    "anthropic/text_then_tool_call": [
        ("text", "One moment."),
        ("tools", "book_table {'party_size': 2}"),
    ],
    "anthropic/tool_call_cut": NOTHING,
    "google/text": [("text", "Good"), ("text", " evening.")],
    "google/thought": [("text", "Till nine.")],
    "google/thought_only": NOTHING,
    "google/no_candidates": [("text", "Good evening.")],
    "google/whitespace": NOTHING,
    "google/marker_complete": [("text", " Till nine.")],
    "google/marker_wait": [("text", "")],
    "google/empty_stop": NOTHING,
    "google/safety": NOTHING,
    "google/function_call": [("tools", "book_table {'party_size': 2}")],
    "google/error_in_band": NOTHING,
}
FAILED = {name for name in USABLE if "error" in name or name.endswith(("_cut", "_incomplete"))}
"""Streams that end in an error; the others end by themselves."""
THOUGHT = {
    "openai/inline_think": "\nThey want the hours.\n",
    "openai/unclosed_think": "and on and on",
    "anthropic/thinking": "They want the hours.",
    "google/thought": "They want the hours.",
}
"""Reasoning that must come out as thoughts, never as text."""


@dataclass
class Judged:
    """What one attempt posted."""

    usable: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    thought: str = ""
    text: str = ""
    errors: list[AttemptError] = field(default_factory=list[AttemptError])

    def opened(self) -> None: ...

    def speakable(self) -> None: ...

    def piece(self, piece: Piece, *, usable: bool) -> None:
        if isinstance(piece, LLMThoughtTextFrame):
            self.thought += piece.text
        elif isinstance(piece, LLMTextFrame):
            self.text += piece.text
        if usable:
            assert isinstance(piece, LLMTextFrame)
            self.usable.append(("text", piece.text))

    def tools(self, piece: Piece) -> None:
        assert isinstance(piece, ToolCalls)
        told = ", ".join(f"{call.function_name} {call.arguments}" for call in piece.calls)
        self.usable.append(("tools", told))

    def failed(self, error: AttemptError) -> None:
        self.errors.append(error)


@pytest.fixture
async def played() -> AsyncIterator[Callable[[Path], Awaitable[str]]]:
    """Serves a stream at every path; gives the address."""
    runners: list[web.AppRunner] = []

    async def serve(path: Path) -> str:
        async def answer(request: web.Request) -> web.StreamResponse:
            await request.read()
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(path.read_bytes())
            if path.stem.endswith("_cut") and request.transport is not None:
                request.transport.abort()
            return response

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield serve
    for runner in runners:
        await runner.cleanup()


def service_for(wire: str, url: str) -> LLMService[Any]:
    if wire == "openai":
        return OpenAILLMService(api_key="any", base_url=f"{url}/v1")
    if wire == "anthropic":
        client = AsyncAnthropic(api_key="any", base_url=url)
        return AnthropicLLMService(api_key="any", client=client)
    retries = types.HttpRetryOptions(attempts=1)
    options = types.HttpOptions(base_url=url, retry_options=retries)
    return GoogleLLMService(api_key="any", http_options=options)


def test_every_stream_is_judged() -> None:
    """No recording lies about unused, and none is missing."""
    found = {str(path.relative_to(RECORDED).with_suffix("")) for path in RECORDED.rglob("*.sse")}
    assert found == set(USABLE)


@pytest.mark.parametrize("stream", USABLE)
async def test_a_stream(stream: str, played: Callable[[Path], Awaitable[str]]) -> None:
    """Its usable pieces are those listed; reasoning is never text; an error is told once."""
    wire = stream.partition("/")[0]
    service = service_for(wire, await played(RECORDED / f"{stream}.sse"))
    llm = HedgedLLMService([service], policy=HedgePolicy.fallback(1))
    tools = ToolsSchema(
        [FunctionSchema("book_table", "Books.", PARTY_SIZE, ["party_size"], handler=_never)]
    )
    context = LLMContext([{"role": "user", "content": "Hello?"}], tools=tools)
    judged, tally = Judged(), AttemptStats()
    async with Line(llm):
        (adapter,) = llm._members.adapters
        try:
            await adapter.answer(context, judged, tally, may_wait=True)
        except Exception as error:
            judged.failed(AttemptError("raised", str(error)))
    await close(service)
    assert judged.usable == USABLE[stream]
    assert len(judged.errors) == (stream in FAILED), judged.errors
    assert judged.thought == THOUGHT.get(stream, judged.thought)
    assert "hours" not in judged.text


async def _never(*_: object) -> None:
    raise AssertionError("a tool ran that nobody committed")
