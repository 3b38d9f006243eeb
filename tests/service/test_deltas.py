"""Progress in a stream."""

from __future__ import annotations

import json
import time

import pytest

from pipecat_hedge.service.deltas import DeltaReader


def chat(**delta: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return f"data: {json.dumps({'model': 'm', 'choices': [choice]})}\n\n".encode()


def tool(arguments: str) -> bytes:
    return chat(tool_calls=[{"index": 0, "function": {"arguments": arguments}}])


def claude(kind: str, **what: object) -> bytes:
    event = {"type": "content_block_delta", "index": 0, "delta": {"type": kind, **what}}
    return f"event: content_block_delta\ndata: {json.dumps(event)}\n\n".encode()


def response(kind: str, **what: object) -> bytes:
    return f"data: {json.dumps({'type': f'response.{kind}', **what})}\r\n\r\n".encode()


def delta_at(*chunks: bytes) -> float | None:
    """The time of the last delta, with a chunk per second from 1 on."""
    reader = DeltaReader()
    for at, chunk in enumerate(chunks, 1):
        reader.feed(chunk, at)
    return reader.delta_at


@pytest.mark.parametrize(
    "event",
    [
        chat(content="Hi"),
        chat(content='"'),
        chat(content="\n\n."),
        chat(reasoning_content="so"),
        tool('{"'),
        tool("\\"),
        b'data:{"choices":[{"delta":{"content":"Hi"}}]}\n\n',
        b'data: {"choices" : [{"delta" : {"content" : "Hi"}}]}\n\n',
        claude("text_delta", text="Hi"),
        b'data: {"delta":{"text":"Hi","type":"text_delta"},"type":"content_block_delta"}\n\n',
        claude("thinking_delta", thinking="so"),
        claude("input_json_delta", partial_json="{"),
        response("output_text.delta", delta="Hi"),
        response("function_call_arguments.delta", delta="{"),
    ],
)
def test_delta_is_progress(event: bytes) -> None:
    assert delta_at(event) == 1.0


@pytest.mark.parametrize(
    "event",
    [
        b": ping\n\n",
        b"event: ping\ndata: {}\n\n",
        b'data: {"type": "ping"}\n\n',
        chat(role="assistant"),
        chat(role="assistant", content=""),
        chat(content=None),
        chat(content=" \n\t\r"),
        chat(content="\u200b"),
        chat(reasoning_content=""),
        tool(""),
        chat(tool_calls=[{"index": 0, "function": {"name": "book", "arguments": ""}}]),
        claude("text_delta", text=""),
        claude("input_json_delta", partial_json=""),
        b'data: {"type":"message_start","message":{"role":"assistant","content":[]}}\n\n',
        response("created", response={"instructions": "Be kind.", "text": {"format": "text"}}),
        response("output_text.delta", delta=""),
        b"data: [DONE]\n\n",
        b"data: no JSON\n\n",
        b"\xff\xfe\n",
    ],
)
def test_other_events_are_no_progress(event: bytes) -> None:
    assert delta_at(event) is None


def test_split_delta_counts_when_complete() -> None:
    event = chat(content="Hi")
    assert delta_at(event[:40], event[40:-2], event[-2:-1], b"\n", b": ping\n\n") == 3.0


def test_latest_delta_counts() -> None:
    assert delta_at(chat(content="Hi"), b": ping\n\n", tool("{"), chat(role="assistant")) == 3.0
    assert delta_at(chat(content="Hi"), chat(content="Hi")) == 2.0


@pytest.mark.parametrize(
    "end",
    [
        b'data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}\n\n',
        b"data: [DONE]\n\n",
        b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n',
        b'data: {"type":"message_stop"}\n\n',
        response("completed", response={}),
    ],
)
def test_end_of_the_answer_is_detected(end: bytes) -> None:
    reader = DeltaReader()
    reader.feed(chat(content='He wrote "finish_reason": "stop".'), 1.0)
    assert reader.knows_format
    assert not reader.has_ended
    reader.feed(end, 2.0)
    assert reader.has_ended


@pytest.mark.parametrize("reason", ["", "abort", "error", None])
def test_reason_of_an_incomplete_answer_is_no_end(reason: str | None) -> None:
    reader = DeltaReader()
    choice = {"index": 0, "delta": {"content": "Hi"}, "finish_reason": reason}
    reader.feed(f"data: {json.dumps({'choices': [choice]})}\n\n".encode(), 1.0)
    assert reader.was_aborted is bool(reason)
    reader.feed(b"data: [DONE]\n\n", 2.0)
    assert reader.has_ended is not reader.was_aborted


def claude_block(kind: str) -> bytes:
    block = {"type": kind, "id": "t", "name": "book", "input": {}}
    event = {"type": "content_block_start", "index": 1, "content_block": block}
    return f"data: {json.dumps(event)}\n\n".encode()


BOOK = {"type": "function_call", "id": "f", "name": "book", "arguments": ""}
ARGUMENTS = "function_call_arguments"


@pytest.mark.parametrize(
    ("events", "calls"),
    [
        ([tool('{"a":'), tool(" 1}")], ['{"a": 1}']),
        ([chat(tool_calls=[{"index": 0, "function": {"name": "book"}}])], [""]),
        (
            [chat(tool_calls=[{"index": i, "function": {"arguments": "{}"}} for i in (0, 1)])],
            ["{}"] * 2,
        ),
        ([chat(content='"tool_calls": [{"index": 0}]', tool_calls=[])], []),
        ([chat(tool_calls=["no", {"function": None}])], []),
        ([b'data: {"choices": [{"delta": {"tool_calls": [{"index": 0, \n\n'], []),
        ([claude_block("tool_use"), claude("input_json_delta", partial_json="{")], [""]),
        ([claude_block("server_tool_use")], []),
        ([response("output_item.added", item=BOOK)], [""]),
        (
            [response(f"{ARGUMENTS}.delta", item_id="f", delta=part) for part in ('{"a"', ": 1}")],
            ['{"a": 1}'],
        ),
        (
            [
                response(f"{ARGUMENTS}.delta", item_id="f", delta="{"),
                response(f"{ARGUMENTS}.done", item_id="f", arguments="{}"),
                response("output_item.done", item={**BOOK, "arguments": "{}"}),
            ],
            ["{}"],
        ),
    ],
)
def test_arguments_of_calls_are_read(events: list[bytes], calls: list[str]) -> None:
    reader = DeltaReader()
    for event in events:
        reader.feed(event, 1.0)
    assert reader.calls == calls


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n', True),
        (b'data: {"type":"message_delta","delta":{"stop_reason":"max_tokens"}}\n\n', True),
        (b'data: {"candidates":[{"finishReason": "MAX_TOKENS"}]}\n\n', True),
        (response("incomplete", incomplete_details={"reason": "max_output_tokens"}), True),
        (b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n', False),
    ],
)
def test_answer_cut_at_its_limit_is_detected(end: bytes, expected: bool) -> None:
    reader = DeltaReader()
    reader.feed(chat(content='He wrote "finish_reason": "length".') + end, 1.0)
    assert reader.reached_limit is expected


def test_unknown_format_is_detected() -> None:
    reader = DeltaReader()
    reader.feed(b'data: {"candidates":[{"content":{"parts":[{"text":"Hi"}]}}]}\n\n', 1.0)
    assert not reader.knows_format


def test_long_line_takes_linear_time() -> None:
    def secs(size: int) -> float:
        line, reader = chat(content="x" * size), DeltaReader()
        began = time.process_time()
        for start in range(0, len(line), 16_384):
            reader.feed(line[start : start + 16_384], 1.0)
        assert reader.delta_at == 1.0
        return time.process_time() - began

    secs(1_000_000)
    assert min(secs(10_000_000) for _ in range(3)) < 40 * min(secs(1_000_000) for _ in range(3))
