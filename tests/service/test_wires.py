"""What the one reader of the wires finds, and what its three users make of it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from openai import APIError
from openai.types.chat import ChatCompletionChunk
from pipecat.frames.frames import Frame, LLMThoughtTextFrame

from pipecat_hedge.service.wires import BodyReader, WireEvent, WireReader
from pipecat_hedge.tools.proxy.wires import WIRES, AnswerReader, EventSplitter
from pipecat_hedge.vllm.server import VLLMServer
from pipecat_hedge.vllm.stream import ChatStream

RECORDED = Path(__file__).parents[1] / "recorded"
NAMES = [f"{wire}/{path.stem}" for wire in WIRES for path in (RECORDED / wire).glob("*.sse")]


# ---- whole streams


class Read(NamedTuple):
    """What each user reads in one stream.

    Parameters:
        service: The signs that it finds beside Pipecat's service.
        proxy: The usable events, and what ends the answer.
        vllm: What it passes to Pipecat; thoughts in brackets. Of Anthropic's nothing.
    """

    service: str
    proxy: list[str]
    vllm: list[str] | None = None


STREAMS = {
    "openai/text": Read("delta ended", ["Good", " evening.", "end"], ["Good", " evening."]),
    "openai/role_only_deltas": Read("ended", ["end"], []),
    "openai/keep_alive_comments": Read("delta ended", ["Good evening.", "end"], ["Good evening."]),
    "openai/reasoning_content": Read(
        "delta ended", ["Till nine.", "end"], ["[They want]", "[ the hours.]", "Till nine."]
    ),
    "openai/reasoning_only": Read(
        "delta ended limit", ["length", "end"], ["[Hm]", "[ well]", "AnswerCutOff"]
    ),
    "openai/inline_think": Read(
        "delta ended",
        ["<th", "ink>\nThey want", " the hours.\n</think>", "Till nine.", "end"],
        ["[\nThey want]", "[ the hours.\n]", "Till nine."],
    ),
    "openai/unclosed_think": Read(
        "delta ended limit",
        ["<think>", "and on and on", "length", "end"],
        ["[and on and on]", "AnswerCutOff"],
    ),
    "openai/marker_complete": Read("delta ended", ["Till nine.", "end"], ["●", " ", "Till nine."]),
    "openai/marker_wait": Read("delta ended", ["end"], ["◐"]),
    "openai/whitespace": Read("ended", ["end"], ["\n \xa0\u200b"]),
    "openai/empty_stop": Read("ended", ["end"], []),
    "openai/no_choices": Read("ended", ["end"], ["AnswerCutOff"]),
    "openai/content_filter": Read("ended", ["content_filter", "end"], []),
    "openai/error_in_band": Read("", ["error"], ["VLLMError"]),
    "openai/error_after_text": Read("delta", ["Good", "error"], ["Good", "VLLMError"]),
    "openai/tool_call": Read(
        "delta ended", ["tool_calls", "call", "end"], ['book_table {"party_size":2}']
    ),
    "openai/tool_call_cut": Read("delta", [], ["AnswerCutOff"]),
    "openai/tool_call_incomplete": Read("", [], ["AnswerCutOff"]),
    "anthropic/text": Read("delta ended", ["Good", " evening.", "end"]),
    "anthropic/pings": Read("delta ended", ["Good evening.", "end"]),
    "anthropic/thinking": Read("delta ended", ["Till nine.", "end"]),
    "anthropic/thinking_only": Read("delta ended limit", ["max_tokens", "end"]),
    "anthropic/redacted_thinking": Read("delta ended", ["Till nine.", "end"]),
    "anthropic/marker_complete": Read("delta ended", ["Till nine.", "end"]),
    "anthropic/marker_wait": Read("delta ended", ["end"]),
    "anthropic/whitespace": Read("ended", ["end"]),
    "anthropic/empty_stop": Read("ended", ["end"]),
    "anthropic/empty_block": Read("ended", ["end"]),
    "anthropic/refusal": Read("ended", ["refusal", "end"]),
    "anthropic/error_in_band": Read("", ["error"]),
    "anthropic/error_after_text": Read("delta", ["Good", "error"]),
    "anthropic/tool_call": Read("delta ended", ["call", "tool_use", "end"]),
    "anthropic/tool_call_cut": Read("delta", []),
    "anthropic/text_then_tool_call": Read(
        "delta ended", ["One moment.", "call", "tool_use", "end"]
    ),
}


def body_of(events: list[bytes]) -> BodyReader:
    """A body whose events come one by one, each a second after the other."""
    body = BodyReader()
    for at, event in enumerate(events, 1):
        body.feed(event, at)
    return body


def signs(body: BodyReader) -> str:
    found = {
        "delta": body.delta_at is not None,
        "ended": body.has_ended,
        "aborted": body.was_aborted,
        "limit": body.reached_limit,
    }
    return " ".join(name for name, is_found in found.items() if is_found)


def proxied(wire: str, events: list[bytes]) -> list[str]:
    reader, found = AnswerReader(WIRES[wire]), list[str]()
    for event in map(reader.read, events):
        found += [event.text or event.reason or "call"] if event.is_usable else []
        found += ["error"] if event.error else []
        found += ["end"] if event.is_last else []
    return found


class Thoughts(list[str]):
    """What ``VLLMService`` passes on; the part of the service that its stream needs."""

    async def push_frame(self, frame: Frame) -> None:
        if isinstance(frame, LLMThoughtTextFrame):
            self.append(f"[{frame.text}]")

    async def stop_ttfat_metrics(self) -> None: ...


async def chunks(events: list[bytes]) -> AsyncIterator[ChatCompletionChunk]:
    """A stream as the OpenAI client has it."""
    for event in map(WireReader().read, events):
        if event.error:
            raise APIError("failed", cast(Any, None), body=None)
        if event.json:
            yield ChatCompletionChunk.construct(**event.json)


async def served(events: list[bytes]) -> list[str]:
    found, server, sent = Thoughts(), VLLMServer("http://vllm/v1"), chunks(events)
    try:
        async for chunk in ChatStream(cast(Any, sent), cast(Any, found), server, ExitStack()):
            for delta in (choice.delta for choice in chunk.choices):
                found += [delta.content] if delta.content else []
                functions = (call.function for call in delta.tool_calls or ())
                found += [f"{each.name} {each.arguments}" for each in functions if each]
    except Exception as error:
        found.append(type(error).__name__)
    return found


@pytest.mark.parametrize("name", sorted(NAMES))
async def test_recorded_stream_is_read_alike(name: str) -> None:
    events = EventSplitter().split((RECORDED / f"{name}.sse").read_bytes())
    wire, read = name.partition("/")[0], STREAMS[name]
    assert (signs(body_of(events)), proxied(wire, events)) == (read.service, read.proxy)
    assert read.vllm is None or await served(events) == read.vllm


# ---- single events


def sse(**event: Any) -> bytes:
    return f"data: {json.dumps(event)}\n\n".encode()


def chat(finish: str | None = None, **delta: Any) -> bytes:
    return sse(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])


def tool(arguments: str, index: int = 0) -> bytes:
    return chat(tool_calls=[{"index": index, "function": {"arguments": arguments}}])


def claude(kind: str, **what: Any) -> bytes:
    return sse(type="content_block_delta", index=0, delta={"type": kind, **what})


def block(kind: str, **what: Any) -> bytes:
    return sse(type="content_block_start", index=0, content_block={"type": kind, **what})


def response(kind: str, **what: Any) -> bytes:
    return f"event: response.{kind}\n".encode() + sse(type=f"response.{kind}", **what)


@pytest.mark.parametrize(
    "event",
    [
        b"event: ping\ndata: {}\n\n",
        b'data: {"choi\n\n',
        b"data: " + b"[" * 100_000 + b"\n\n",
        b"\xff\xfe\n",
        chat(reasoning_content=""),
        chat(content=[{"type": "thinking", "thinking": []}]),
        sse(choices=[{"delta": None}]),
        sse(type="new"),
        claude("input_json_delta", partial_json=""),
        sse(type="content_block_stop", index=0),
        response("created", response={"instructions": "Be kind.", "text": {"format": "text"}}),
        response("output_text.delta", delta=""),
    ],
)
def test_event_without_an_answer_says_nothing(event: bytes) -> None:
    reader = WireReader()
    assert replace(reader.read(event), is_known=True) == WireEvent()
    assert (reader.calls, signs(body_of([event]))) == ({}, "")


TOOL_END = sse(type="content_block_stop", index=0)
DONE = b"data: [DONE]\n\n"
TOOL = block("tool_use", id="t", name="book", input={})
BOOK = {"type": "function_call", "id": "f", "name": "book", "arguments": ""}
ARGUMENTS = "function_call_arguments"
HI, SO, PART = WireEvent("Hi", is_usable=True), WireEvent(thought="so"), WireEvent(arguments="{")
CALL = WireEvent(is_usable=True)
NEW, LAST = WireEvent(is_usable=True, is_known=False), WireEvent(is_last=True)
CUT = {"incomplete_details": {"reason": "max_output_tokens"}}
AT_LIMIT = {"reason": "max_output_tokens", "is_usable": True}
QUOTED = '"finish_reason": "length", "tool_calls": [{"index": 0}]'


CASES: list[tuple[list[bytes], WireEvent, str]] = [
    # Chat completions.
    ([b'data:{"choices" : [{"delta" : {"content" : "Hi"}}]}\n\n'], HI, "delta"),
    ([chat("", content="Hi")], HI, "delta"),
    ([chat(refusal="Hi")], HI, "delta"),
    ([chat(content=[{"type": "text", "text": "Hi"}])], HI, "delta"),
    ([chat(content='"')], WireEvent('"', is_usable=True), "delta"),
    ([chat(reasoning="so", reasoning_content="so")], SO, "delta"),
    ([chat(content=QUOTED)], WireEvent(QUOTED, is_usable=True), "delta"),
    ([tool('{"a":'), tool("{}", 1), tool("{")], PART, 'delta {"a":{ {}'),
    ([chat(function_call={"name": "book", "arguments": "{"})], PART, "delta {"),
    ([tool("{}"), chat("stop")], WireEvent(reason="stop", is_usable=True), "delta ended {}"),
    ([tool("{}"), DONE], WireEvent(is_last=True, is_usable=True), "delta ended {}"),
    ([chat(), DONE], LAST, "ended"),
    ([chat("abort"), DONE], LAST, "aborted"),
    ([chat("error"), DONE], LAST, "aborted"),
    ([chat(tool_calls=["no"])], NEW, ""),
    ([chat(audio={"id": "a"})], NEW, ""),
    ([sse(choices="odd")], NEW, ""),
    ([sse(choices=[{"text": "Hi"}])], NEW, ""),
    # Messages.
    ([block("text", text="Hi")], HI, "delta"),
    ([claude("input_json_delta", partial_json="{")], PART, "delta"),
    ([TOOL, claude("input_json_delta", partial_json="{")], PART, "delta {"),
    ([TOOL, TOOL_END], CALL, "{}"),
    ([block("server_tool_use")], NEW, ""),
    ([claude("citations_delta", citation={})], NEW, ""),
    # Responses.
    ([response("output_text.delta", delta="Hi")], HI, "delta"),
    ([response("reasoning_text.delta", delta="so")], SO, "delta"),
    ([response(f"{ARGUMENTS}.delta", item_id="f", delta=d) for d in "[{"], PART, "delta [{"),
    (
        [
            response("output_item.added", item=BOOK),
            response(f"{ARGUMENTS}.delta", item_id="f", delta="{"),
            response(f"{ARGUMENTS}.done", item_id="f", arguments="{}"),
            response("output_item.done", item={**BOOK, "arguments": "{}"}),
        ],
        WireEvent(arguments="{}"),
        "delta {}",
    ),
    ([response("completed", response={})], LAST, "ended"),
    ([response("incomplete", response=CUT)], replace(LAST, **AT_LIMIT), "ended limit"),
    # Gemini's is not read but for its limit.
    (
        [sse(candidates=[{"finishReason": "MAX_TOKENS"}])],
        replace(NEW, reason="MAX_TOKENS"),
        "limit",
    ),
]


@pytest.mark.parametrize(("events", "last", "found"), CASES)
def test_event_is_read(events: list[bytes], last: WireEvent, found: str) -> None:
    """By its meaning, and by the signs and the calls in all."""
    reader, body = WireReader(), body_of(events)
    assert [reader.read(event) for event in events][-1] == last
    assert " ".join(filter(None, [signs(body), *body.calls])) == found
    assert list(reader.calls.values()) == body.calls


def test_event_of_an_unknown_kind_is_no_answer() -> None:
    for wire in WIRES:
        assert WireReader(wire).read(sse(type="new")) == WireEvent(is_known=False)


def test_call_without_arguments_has_begun() -> None:
    """A service may drop it when it is cut."""
    for begun in (tool(""), TOOL, response("output_item.added", item=BOOK)):
        assert body_of([begun]).calls == [""]


USAGE = {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 0}
CALLED = [{"message": {"tool_calls": [{}]}}]


@pytest.mark.parametrize(
    ("wire", "body", "expected", "tokens"),
    [
        ("anthropic", {"content": [{"type": "text", "text": "Hi"}], "usage": USAGE}, HI, 7),
        ("anthropic", {"type": "message", "content": [], "usage": USAGE}, WireEvent(), 7),
        ("openai", {"choices": CALLED, "usage": {"prompt_tokens": 4}}, CALL, 4),
        ("openai", {"error": {"code": 5}}, WireEvent(error={"error": {"code": 5}}), None),
        ("openai", {"new": 1}, NEW, None),
        ("openai", [], NEW, None),
        ("openai", None, WireEvent(), None),
    ],
)
def test_whole_answer_is_read(
    wire: str, body: Any, expected: WireEvent, tokens: int | None
) -> None:
    reader = WireReader(wire)
    assert reader.read_whole(json.dumps(body).encode()) == expected
    assert (reader.usage and reader.usage.prompt_tokens) == tokens


def variants(found: Any) -> Iterator[Any]:
    """The same JSON with one part of it in another form."""
    yield from (None, 3, "odd", [], ["odd"], {}, {"odd": 1})
    if isinstance(found, dict):
        yield from ({**found, key: odd} for key in found for odd in variants(found[key]))
    elif isinstance(found, list):
        yield from ([odd] for part in found for odd in variants(part))


def test_event_in_another_form_is_no_error() -> None:
    known = {event for events, _, _ in CASES for event in events}
    for name in NAMES:
        known |= set(EventSplitter().split((RECORDED / f"{name}.sse").read_bytes()))
    read = (WireReader().read(event).json for event in known)
    odd = (each for event in read if event for each in variants(event) if isinstance(each, dict))
    for event in (sse(**each) for each in odd):
        for body in (body_of([event]), body_of([TOOL, event])):
            assert isinstance(signs(body), str), event
            assert all(isinstance(call, str) for call in body.calls), event


def test_tokens_are_counted_over_a_stream() -> None:
    reader = WireReader()
    reader.read(sse(type="message_start", message={"usage": {"input_tokens": 9}}))
    reader.read(sse(type="message_delta", delta={}, usage={"output_tokens": 2}))
    assert reader.usage is not None
    assert (reader.usage.prompt_tokens, reader.usage.completion_tokens) == (9, 2)


# ---- a body in chunks


def test_split_delta_counts_when_complete() -> None:
    event = chat(content="Hi")
    chunks = [event[:40], event[40:-2], event[-2:-1], b"\n", b": ping\n\n"]
    assert body_of(chunks).delta_at == 3.0


def test_latest_delta_counts() -> None:
    hi, ping, role = chat(content="Hi"), b": ping\n\n", chat(role="assistant")
    assert body_of([hi, ping, tool("{"), role]).delta_at == 3.0
    assert body_of([hi, hi]).delta_at == 2.0


def test_unknown_format_is_detected() -> None:
    body = BodyReader()
    body.feed(b'data: {"candidates":[{"content":{"parts":[{"text":"Hi"}]}}]}\n\n', 1.0)
    assert not body.knows_format
    body.feed(chat(), 2.0)
    assert body.knows_format


def test_long_line_takes_linear_time() -> None:
    def secs(size: int) -> float:
        line, body = chat(content="x" * size), BodyReader()
        began = time.process_time()
        for start in range(0, len(line), 16_384):
            body.feed(line[start : start + 16_384], 1.0)
        assert body.delta_at == 1.0
        return time.process_time() - began

    secs(1_000_000)
    assert min(secs(10_000_000) for _ in range(3)) < 40 * min(secs(1_000_000) for _ in range(3))
