"""What counts as an answer, event by event, in every wire format.

The files in `tests/recorded` are streams as the protocols have them, ids shortened. Each is played
to the real service over a socket.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge import HedgedLLMService, HedgePolicy
from pipecat_hedge.race import AttemptError
from pipecat_hedge.service.attempt_stats import AttemptStats
from tests.live.scripted_upstream import replying, scripted
from tests.support.line import Line
from tests.support.simulated import PostedPieces, close, never_called, simulated

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


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Serves each recording at every path below its name."""

    async def answer(request: web.Request) -> web.StreamResponse:
        stream = "/".join(request.path.split("/")[1:3])
        response = await replying((RECORDED / f"{stream}.sse").read_bytes())(request)
        if stream.endswith("_cut") and request.transport is not None:
            request.transport.abort()
        return response

    async with scripted(answer) as server:
        yield server.url


def test_every_recording_is_listed() -> None:
    found = {str(path.relative_to(RECORDED).with_suffix("")) for path in RECORDED.rglob("*.sse")}
    assert found == set(USABLE)


@pytest.mark.parametrize("stream", USABLE)
async def test_usable_pieces_of_a_stream(stream: str, url: str) -> None:
    """Reasoning is never text; an error is posted once."""
    service = simulated(stream.partition("/")[0], None, "any", url=f"{url}/{stream}")
    llm = HedgedLLMService([service], policy=HedgePolicy.fallback(1))
    tool = FunctionSchema("book_table", "Books.", PARTY_SIZE, ["party_size"], handler=never_called)
    context = LLMContext([{"role": "user", "content": "Hello?"}], tools=ToolsSchema([tool]))
    posted = PostedPieces()
    async with Line(llm):
        (adapter,) = llm._pool.adapters
        try:
            await adapter.answer(context, posted, AttemptStats(), may_wait=True)
        except Exception as error:
            posted.failed(AttemptError("raised", str(error)))
    await close(service)
    assert posted.usable == USABLE[stream]
    assert len(posted.errors) == (stream in FAILED), posted.errors
    assert posted.thought == THOUGHT.get(stream, posted.thought)
    assert "hours" not in posted.text
