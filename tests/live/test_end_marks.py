"""Streams that end in good order without the answer's end, over sockets, in each wire.

Provider ``a`` first answers well, unless a test says otherwise. Then its stream has the fault;
``b`` answers well.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from pipecat.frames.frames import FunctionCallResultFrame
from pipecat.services.llm_service import LLMService
from pipecat.services.openai.responses.llm import OpenAIResponsesHttpLLMService

from pipecat_hedge import HedgePolicy, TurnReport
from pipecat_hedge.race import ProviderState
from tests.live import wire_streams
from tests.live.scripted_upstream import cutting, replying, scripted
from tests.live.wire_streams import CLAUDE_BEGIN, sse
from tests.service.builders import Tool, asked, racing
from tests.support.line import Line
from tests.support.simulated import close, simulated

pytestmark = pytest.mark.live

WIRES = ("openai", "anthropic", "responses")
OPENING, REST = "We are open till nine.", " The kitchen closes at eight."
CHECK, PARTY = "Let me check that.", {"party": "two"}
each_wire = pytest.mark.parametrize("wire", WIRES)


# ---- streams


def chunk(reason: str | None = None, **delta: Any) -> bytes:
    return sse(wire_streams.chunk(reason, **delta))


def piece(arguments: str, name: str | None = None, index: int = 0) -> bytes:
    """A piece of a tool call in a chat completion; with a name, its beginning."""
    call: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    if name is not None:
        call |= {"id": f"call_{index}", "type": "function"}
        call["function"]["name"] = name
    return chunk(tool_calls=[call])


def block(index: int, kind: str, **content: Any) -> bytes:
    content = {"type": kind, **content}
    return sse({"type": "content_block_start", "index": index, "content_block": content})


def delta(index: int, kind: str, **content: Any) -> bytes:
    content = {"type": kind, **content}
    return sse({"type": "content_block_delta", "index": index, "delta": content})


def response(kind: str, **fields: Any) -> bytes:
    return sse({"type": f"response.{kind}", "sequence_number": 1, "output_index": 0, **fields})


def made_response(status: str) -> dict[str, Any]:
    made = {"id": "r1", "object": "response", "created_at": 1, "status": status, "model": "a"}
    return {**made, "output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}


def begun(wire: str) -> bytes:
    if wire == "openai":
        return chunk(role="assistant", content="")
    if wire == "responses":
        return response("created", response=made_response("in_progress"))
    return sse(CLAUDE_BEGIN)


def text(wire: str, answer: str) -> bytes:
    """The stream of an answer up to its end mark, with a delta for each word."""
    words = [f"{word} " for word in answer.split(" ")]
    words[-1] = words[-1][:-1]
    if wire == "openai":
        return begun(wire) + b"".join(chunk(content=word) for word in words)
    if wire == "responses":
        item = {"item_id": "i1", "content_index": 0, "logprobs": []}
        return begun(wire) + b"".join(
            response("output_text.delta", delta=word, **item) for word in words
        )
    deltas = b"".join(delta(0, "text_delta", text=word) for word in words)
    return begun(wire) + block(0, "text", text="") + deltas


def call(wire: str, what: dict[str, str] | str, *, is_whole: bool = True, number: int = 1) -> bytes:
    """The stream of a call of ``book``, in two pieces."""
    arguments = what if isinstance(what, str) else json.dumps(what)
    halves = arguments[:4], arguments[4:]
    if wire == "openai":
        pieces = [piece(half, index=number - 1) for half in halves if half]
        return piece("", "book", index=number - 1) + b"".join(pieces)
    if wire == "responses":
        item = {"id": f"f{number}", "type": "function_call", "call_id": f"c{number}"}
        item |= {"name": "book", "arguments": ""}
        event = "function_call_arguments"
        stream = response("output_item.added", item=item) + b"".join(
            response(f"{event}.delta", item_id=item["id"], delta=half) for half in halves if half
        )
        if is_whole:
            stream += response(f"{event}.done", item_id=item["id"], arguments=arguments)
        return stream
    deltas = [delta(number, "input_json_delta", partial_json=half) for half in halves if half]
    return block(number, "tool_use", id="t1", name="book", input={}) + b"".join(deltas)


def end(wire: str, reason: str = "stop") -> bytes:
    if wire == "openai":
        return chunk(reason) + b"data: [DONE]\n\n"
    if wire == "responses":
        return response("completed", response=made_response("completed"))
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    found = {"stop_reason": reasons.get(reason, reason)}
    ended = sse({"type": "message_delta", "delta": found, "usage": {"output_tokens": 5}})
    return ended + sse({"type": "message_stop"})


# ---- turns

_numbers = itertools.count()


@dataclass
class Upstream:
    """Sends each provider's streams in turn, the last one for ever.

    Attributes:
        asked: The providers of the requests so far.
    """

    streams: dict[str, list[bytes]]
    chunk_bytes: int
    url: str = ""
    suffix: str = field(default_factory=lambda: f"-{next(_numbers)}")  # a port may be used again
    asked: list[str] = field(default_factory=list[str])

    def services(self, wire: str) -> list[LLMService[Any]]:
        """New services for its providers."""
        return [self._service(wire, name + self.suffix) for name in self.streams]

    def _service(self, wire: str, model: str) -> LLMService[Any]:
        if wire != "responses":
            return simulated(wire, None, model, url=self.url)
        return OpenAIResponsesHttpLLMService(
            api_key="any",
            base_url=f"{self.url}/v1",
            settings=OpenAIResponsesHttpLLMService.Settings(model=model),
        )

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Send the provider's next stream."""
        if request.method == "GET":
            return web.Response()
        name = (await request.json())["model"].removesuffix(self.suffix)
        self.asked.append(name)
        streams = self.streams[name]
        stream = streams.pop(0) if len(streams) > 1 else streams[0]
        size = self.chunk_bytes
        return await replying(*(stream[at : at + size] for at in range(0, len(stream), size)))(
            request
        )


@asynccontextmanager
async def serving(found: Upstream) -> AsyncIterator[None]:
    async with scripted(found.answer) as server:
        found.url = server.url
        yield


@dataclass
class Heard:
    """The last of some turns: what was said, which calls ran, and which providers were asked."""

    text: str
    calls: list[dict[str, Any]]
    asked: list[str]
    errors: int
    report: TurnReport
    states: Sequence[ProviderState]

    @property
    def failures(self) -> list[str | None]:
        """Why each attempt failed; None for those that did not."""
        return [attempt.error_category for attempt in self.report.attempts]


async def heard(
    wire: str, *streams: bytes, other: bytes | None = b"", chunk_bytes: int = 65_536, **options: Any
) -> Heard:
    """The last of as many turns as ``a`` has streams.

    ``other`` is what ``b`` sends; None leaves it out. ``options`` are the policy's. Each turn
    offers a tool, ``book``.
    """
    sent = {"a": list(streams)}
    if other is not None:
        sent["b"] = [other or WHOLE[wire]]
    found, tool = Upstream(sent, chunk_bytes), Tool()
    chosen: dict[str, Any] = {"commit": "first_token", **options}
    async with serving(found):
        members = found.services(wire)
        llm = racing(*members, policy=HedgePolicy.fallback(**chosen))
        line = Line(llm)
        async with line:
            for _ in streams:
                line.forget()
                found.asked.clear()
                await line.ask(context=tool.offered())
                report = await line.report()
                if report.outcome == "answered_with_tools":
                    await line.until(lambda: bool(line.frames(FunctionCallResultFrame)))
            states = llm.provider_states()
        await close(*members)
    calls = [dict(each.arguments) for each in tool.calls]
    return Heard(line.text, calls, found.asked, len(line.errors), line.reports[0], states)


WELL = {wire: text(wire, OPENING) + end(wire) for wire in WIRES}
WHOLE = {wire: text(wire, OPENING + REST) + end(wire) for wire in WIRES}
CALLING = {wire: text(wire, CHECK) + call(wire, PARTY) + end(wire, "tool_calls") for wire in WIRES}
RESET = "connectivity"
"""The category of an answer that a reset connection has cut."""


# ---- text


@pytest.mark.parametrize(
    ("wire", "said", "commit"),
    [
        ("openai", "", "first_token"),
        ("anthropic", "", "first_sentence"),
        ("responses", "", "first_token"),
        ("openai", " ", "first_sentence"),
        ("anthropic", "We are open ti", "first_token"),
        ("responses", "We are open till", "first_sentence"),
        ("openai", OPENING + " The", "first_sentence"),
        ("responses", OPENING + " The", "first_token"),
        ("openai", "Please wait, ", "first_token"),
        ("anthropic", "Please wait, ", "first_token"),
        ("responses", "Please wait, ", "first_sentence"),
    ],
)
async def test_answer_without_its_end_is_continued(wire: str, said: str, commit: str) -> None:
    found = await heard(wire, WELL[wire], text(wire, said), commit=commit)
    is_spoken = said.startswith("Please") and commit == "first_token"
    assert found.text == (said if is_spoken else "") + OPENING + REST
    assert found.report.outcome == "answered"
    assert [attempt.outcome for attempt in found.report.attempts] == ["failed", "won"]
    assert found.failures == [RESET, None]
    assert found.asked == ["a", "b"]


@each_wire
async def test_answer_without_its_end_ends_as_after_a_reset(wire: str) -> None:
    found = await heard(
        wire,
        WELL[wire],
        text(wire, OPENING + " The"),
        other=None,
        fallback_text="Sorry.",
        commit="first_sentence",
    )
    assert found.text == f"{OPENING} Sorry."
    assert (found.report.outcome, found.failures, found.errors) == ("failed", [RESET], 1)


@each_wire
async def test_answers_without_their_ends_open_the_breaker(wire: str) -> None:
    found = await heard(wire, WELL[wire], *[text(wire, "We are")] * 5)
    assert {state.provider: state.breaker for state in found.states} == {"a": "open", "b": "closed"}


QUOTED = json.dumps({"finish_reason": "stop", "stop_reason": "end_turn"})


@pytest.mark.parametrize(
    ("wire", "chunk_bytes", "newline"),
    [
        ("openai", 1, b"\n"),
        ("anthropic", 1, b"\r\n"),
        ("responses", 7, b"\n"),
        ("openai", 7, b"\r\n"),
        ("anthropic", 65_536, b"\n"),
        ("responses", 65_536, b"\r\n"),
    ],
)
async def test_end_is_found_in_any_framing(wire: str, chunk_bytes: int, newline: bytes) -> None:
    """An answer may quote an end mark."""
    streams = [text(wire, QUOTED) + end(wire), text(wire, QUOTED)]
    framed = [stream.replace(b"\n", newline) for stream in streams]
    assert (await heard(wire, *framed[:1], chunk_bytes=chunk_bytes)).failures == [None]
    assert (await heard(wire, *framed, chunk_bytes=chunk_bytes)).failures == [RESET, None]


TILL = text("openai", "We are open till")


@pytest.mark.parametrize(
    "last",
    [
        chunk(""),
        chunk("").replace(b" ", b""),
        chunk().replace(b" ", b""),
        sse({"object": "chat.completion.chunk", "choices": [], "usage": None}),
        b": DONE\n\n",
    ],
)
async def test_event_without_a_reason_is_no_end(last: bytes) -> None:
    found = await heard("openai", WELL["openai"], TILL + last)
    assert (found.text, found.failures) == (OPENING + REST, [RESET, None])


TOKENS = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
USAGE = sse({"object": "chat.completion.chunk", "choices": [], "usage": TOKENS})


@pytest.mark.parametrize(
    ("wire", "last"),
    [
        ("openai", b"data: [DONE]\n\n"),
        ("openai", chunk("eos")),
        ("openai", chunk("stop").replace(b" ", b"")),
        ("openai", chunk("length") + USAGE + b"data: [DONE]\n\n"),
        ("anthropic", end("anthropic", "max_tokens").partition(b"event: message_stop")[0]),
        ("anthropic", sse({"type": "message_stop"})),
    ],
    ids=["[DONE]", "any reason", "no spaces", "usage behind it", "Claude's reason", "message_stop"],
)
async def test_answer_with_an_end_mark_is_whole(wire: str, last: bytes) -> None:
    found = await heard(wire, WELL[wire], text(wire, "We are open till") + last)
    assert (found.text, found.failures, found.asked) == ("We are open till", [None], ["a"])


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "open"])
@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_answer_whose_connection_is_lost_or_open_behind_its_end_mark_is_whole(
    wire: str, is_lost: bool
) -> None:
    """The bare service says it too, and reports an error, or waits for its client's timeout."""
    last = {"openai": b"data: [DONE]\n\n", "anthropic": sse({"type": "message_stop"})}
    stream = text(wire, OPENING) + end(wire).removesuffix(last[wire])

    async def stays_open(request: web.Request) -> web.StreamResponse:
        out = await replying(stream)(request)
        await asyncio.sleep(60)  # until its client has left
        return out

    script = cutting(stream) if is_lost else stays_open
    async with scripted(script) as first, scripted(replying(WHOLE[wire])) as second:
        members = [simulated(wire, None, "m", url=upstream.url) for upstream in (first, second)]
        policy = HedgePolicy.fallback(probes=False, stall_secs=0.6)
        line = await asked(racing(*members, policy=policy))
        await close(*members)
    assert (line.text, line.errors) == (OPENING, [])
    assert [attempt.outcome for attempt in line.reports[0].attempts] == ["won"]


async def test_call_whose_connection_is_lost_behind_its_end_mark_is_made_by_the_other() -> None:
    stream = call("openai", PARTY) + chunk("tool_calls")

    async with scripted(cutting(stream)) as first, scripted(replying(CALLING["openai"])) as second:
        members = [simulated("openai", None, "m", url=each.url) for each in (first, second)]
        llm = racing(*members, policy=HedgePolicy.fallback(probes=False))
        await (tool := Tool()).asked(llm, tool.offered())
        await close(*members)
    assert [dict(each.arguments) for each in tool.calls] == [PARTY]


@pytest.mark.parametrize(
    ("wire", "said"),
    [("openai", "Come by! 👋"), ("anthropic", "She said “Come by.”"), ("responses", "**Come.**\n")],
)
async def test_text_that_ends_a_sentence_is_whole(wire: str, said: str) -> None:
    found = await heard(wire, WELL[wire], text(wire, said))
    assert (found.text, found.failures, found.asked) == (said, [None], ["a"])


@each_wire
async def test_provider_that_never_sends_end_marks_is_believed(wire: str) -> None:
    found = await heard(wire, *[text(wire, "We are open till")] * 3)
    assert (found.text, found.failures, found.asked) == ("We are open till", [None], ["a"])


@each_wire
async def test_another_sessions_end_mark_counts(wire: str) -> None:
    """The same provider may have been asked by a session before."""
    found = Upstream({"a": [WELL[wire], text(wire, "We are")], "b": [WHOLE[wire]]}, 65_536)
    texts: list[str] = []
    async with serving(found):
        for _ in range(2):
            members = found.services(wire)
            texts.append((await asked(racing(*members, policy=HedgePolicy.fallback()))).text)
            await close(*members)
    assert texts == [OPENING, OPENING + REST]
    assert found.asked == ["a", "a", "b"]


@pytest.mark.parametrize("reason", ["abort", "error"])
@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_answer_that_its_server_ends_early_is_continued(wire: str, reason: str) -> None:
    """Also by a provider of which nothing is known, and after a whole sentence."""
    found = await heard(wire, text(wire, OPENING) + end(wire, reason))
    assert (found.text, found.failures) == (OPENING + REST, ["server", None])


# ---- tool calls

CUT = '{"party": "tw'


@pytest.mark.parametrize(
    ("wire", "arguments", "said", "well"),
    [
        ("openai", "", CHECK, True),
        ("anthropic", "", "", False),
        ("responses", "", CHECK, False),
        ("openai", "{", "", False),
        ("anthropic", "{", CHECK, True),
        ("responses", "{", "", True),
        ("openai", CUT, CHECK, True),
        ("anthropic", CUT, CHECK, False),
        ("responses", CUT, "", True),
    ],
)
async def test_cut_call_is_made_by_the_other_provider(
    wire: str, arguments: str, said: str, well: bool
) -> None:
    """Also if nothing is known of the first provider."""
    cut = text(wire, said) + call(wire, arguments, is_whole=False)
    before = [WELL[wire]] if well else []
    found = await heard(wire, *before, cut, other=CALLING[wire])
    assert (found.text, found.calls, found.asked) == (CHECK, [PARTY], ["a", "b"])
    assert found.report.outcome == "answered_with_tools"
    assert found.failures == [RESET if well else "incomplete_call", None]


BOTH_HAVE_INDEX_0 = 2 * (piece("", "book") + piece(json.dumps(PARTY)))
TWICE_AT_ONCE = 2 * piece(json.dumps(PARTY), "book")


@pytest.mark.parametrize(
    ("calls", "last"),
    [
        pytest.param(BOTH_HAVE_INDEX_0, b"", id="both have index 0, no end"),
        pytest.param(BOTH_HAVE_INDEX_0, end("openai", "tool_calls"), id="both have index 0"),
        pytest.param(TWICE_AT_ONCE, b"", id="twice at once, no end"),
        pytest.param(TWICE_AT_ONCE, end("openai", "length"), id="twice at once, length"),
        pytest.param(piece(CUT, "book"), end("openai", "tool_calls"), id="cut"),
    ],
)
async def test_call_that_the_service_cannot_parse_is_made_by_the_other_provider(
    calls: bytes, last: bytes
) -> None:
    cut = text("openai", CHECK) + calls + last
    found = await heard("openai", WELL["openai"], cut, other=CALLING["openai"])
    assert (found.text, found.calls, found.asked) == (CHECK, [PARTY], ["a", "b"])
    assert found.failures == ["incomplete_call" if last else RESET, None]


@pytest.mark.parametrize("wire", ["openai", "responses"])
async def test_call_beside_a_cut_one_does_not_run(wire: str) -> None:
    both = call(wire, {"party": "six"}) + call(wire, CUT, is_whole=False, number=2)
    found = await heard(wire, WELL[wire], text(wire, CHECK) + both, other=CALLING[wire])
    assert (found.text, found.calls, found.failures) == (CHECK, [PARTY], [RESET, None])


async def test_call_without_its_end_mark_is_made_by_the_other_provider() -> None:
    """Pipecat makes Claude's calls at the end mark."""
    cut = text("anthropic", CHECK) + call("anthropic", PARTY)
    found = await heard("anthropic", WELL["anthropic"], cut, other=CALLING["anthropic"])
    assert (found.text, found.calls, found.asked) == (CHECK, [PARTY], ["a", "b"])


@pytest.mark.parametrize("arguments", [PARTY, {"note": "by the window"}, {}])
@pytest.mark.parametrize("wire", ["openai", "responses"])
async def test_complete_call_is_whole(wire: str, arguments: dict[str, str]) -> None:
    """Also without a required argument, as with the bare service."""
    found = await heard(wire, WELL[wire], text(wire, CHECK) + call(wire, arguments))
    assert (found.text, found.calls, found.asked) == (CHECK, [arguments], ["a"])
