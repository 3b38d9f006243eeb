"""What the events of both wires mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.tools.proxy import wires as module
from pipecat_hedge.tools.proxy.wires import (
    ANTHROPIC,
    OPENAI,
    EventSplitter,
    Signs,
    Wire,
)


def sse(**event: Any) -> bytes:
    return f"data: {json.dumps(event)}\n\n".encode()


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    return sse(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])


def block(kind: str, **more: Any) -> bytes:
    return sse(type=f"content_block_{kind}", index=1, **more)


TOOL = block("start", content_block={"type": "tool_use", "id": "1", "name": "book", "input": {}})


@pytest.mark.parametrize(
    ("wire", "events", "expected"),
    [
        (OPENAI, [chunk(role="assistant", content="")], Signs()),
        (OPENAI, [chunk(content="Yes")], Signs("Yes", is_usable=True)),
        (OPENAI, [chunk(content=" \n")], Signs(" \n")),
        (OPENAI, [chunk(reasoning_content="Hm")], Signs()),
        (OPENAI, [chunk(tool_calls=[{"index": 0}])], Signs(has_tool=True)),
        (
            OPENAI,
            [chunk(tool_calls=[{"index": 0}]), chunk("tool_calls")],
            Signs(is_usable=True, ends=True, has_tool=True),
        ),
        (OPENAI, [chunk("stop")], Signs(ends=True)),
        (OPENAI, [b"data: [DONE]\n\n"], Signs(ends=True, is_last=True)),
        (OPENAI, [b": keep-alive\n\n"], Signs()),
        (OPENAI, [b'data: {"choi\n\n'], Signs()),
        (OPENAI, [sse(choices=[{"delta": None}])], Signs()),
        (OPENAI, [sse(choices=[], usage={"prompt_tokens": 3})], Signs()),
        (OPENAI, [sse(choices="odd")], Signs(is_usable=True, is_known=False)),
        (OPENAI, [sse(keep="alive")], Signs(is_known=False)),
        (OPENAI, [chunk("", content="Yes")], Signs("Yes", is_usable=True)),
        (OPENAI, [chunk("length")], Signs(is_usable=True, ends=True)),
        (OPENAI, [chunk(content=[{"type": "text", "text": "Y"}])], Signs("Y", is_usable=True)),
        (OPENAI, [chunk(content=[{"type": "thinking", "thinking": []}])], Signs()),
        (OPENAI, [chunk(audio={"id": "a"})], Signs(is_usable=True, is_known=False)),
        (OPENAI, [chunk(function_call={"name": "book"})], Signs(has_tool=True)),
        (
            OPENAI,
            [chunk(tool_calls=[{"index": 0}]), b"data: [DONE]\n\n"],
            Signs(is_usable=True, ends=True, is_last=True),
        ),
        (OPENAI, [sse(error={"code": 500})], Signs(error={"error": {"code": 500}})),
        (ANTHROPIC, [sse(type="message_start", message={"content": []})], Signs()),
        (ANTHROPIC, [sse(type="ping")], Signs()),
        (ANTHROPIC, [sse(type="new")], Signs(is_known=False)),
        (
            ANTHROPIC,
            [block("start", content_block={"type": "server_tool_use"})],
            Signs(is_usable=True, is_known=False),
        ),
        (
            ANTHROPIC,
            [sse(type="message_delta", delta={"stop_reason": "end_turn"})],
            Signs(ends=True),
        ),
        (
            ANTHROPIC,
            [sse(type="message_delta", delta={"stop_reason": "refusal"})],
            Signs(is_usable=True, ends=True),
        ),
        (
            ANTHROPIC,
            [block("delta", delta={"type": "text_delta", "text": "Yes"})],
            Signs("Yes", is_usable=True),
        ),
        (ANTHROPIC, [block("delta", delta={"type": "thinking_delta", "thinking": "Hm"})], Signs()),
        (ANTHROPIC, [TOOL], Signs()),
        (
            ANTHROPIC,
            [TOOL, block("delta", delta={"type": "input_json_delta", "partial_json": "{"})],
            Signs(has_tool=True),
        ),
        (ANTHROPIC, [TOOL, block("stop")], Signs(is_usable=True, has_tool=True)),
        (ANTHROPIC, [block("stop")], Signs()),
        (ANTHROPIC, [sse(type="message_stop")], Signs(ends=True, is_last=True)),
        (
            ANTHROPIC,
            [sse(type="error", error={"type": "overloaded_error"})],
            Signs(error={"type": "error", "error": {"type": "overloaded_error"}}),
        ),
    ],
)
def test_events_are_read_as_far_as_the_race_has_to_know(
    wire: Wire, events: list[bytes], expected: Signs
) -> None:
    reader = wire.reader()
    assert [reader.read(event) for event in events][-1] == expected


@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC])
def test_own_events_can_be_read_again(wire: Wire) -> None:
    like = json.loads(
        (chunk(content="Yes") if wire is OPENAI else block("delta")).split(b": ", 1)[1]
    )
    reader = wire.reader()
    assert reader.read(wire.text_event(" more", like)).text == " more"
    ended = EventSplitter().split(wire.end_events(like))
    assert [reader.read(event).ends for event in ended][-1]
    assert reader.read(wire.error_event(wire.error(502, "cut"))).error is not None
    assert reader.read(wire.ping) == Signs()


@pytest.mark.parametrize(
    ("wire", "body", "expected"),
    [
        (
            ANTHROPIC,
            {"content": [{"type": "text", "text": "Yes"}], "usage": {"input_tokens": 3}},
            (Signs("Yes", is_usable=True, ends=True), 3),
        ),
        (ANTHROPIC, {"content": [], "usage": {"input_tokens": 3}}, (Signs(ends=True), 3)),
        (
            OPENAI,
            {"choices": [{"message": {"tool_calls": [{}]}}], "usage": {"prompt_tokens": 4}},
            (Signs(is_usable=True, ends=True, has_tool=True), 4),
        ),
        (OPENAI, {"error": {"code": 5}}, (Signs(error={"error": {"code": 5}}), None)),
        (OPENAI, None, (Signs(), None)),
        (OPENAI, [], (Signs(is_usable=True, ends=True, is_known=False), None)),
    ],
)
def test_a_whole_answer_is_read(wire: Wire, body: Any, expected: tuple[Signs, int | None]) -> None:
    signs, usage = wire.read_whole(json.dumps(body).encode())
    assert (signs, None if usage is None else usage.prompt_tokens) == expected


@given(
    st.lists(st.sampled_from([b"a", b"data: x", b"\n", b"\r\n", b"\n\n", b"\r\n\r\n"])), st.data()
)
def test_events_are_split_byte_for_byte(parts: list[bytes], data: st.DataObject) -> None:
    stream, splitter, found = b"".join(parts), EventSplitter(), list[bytes]()
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        pieces = splitter.feed(stream[:size])
        stream = stream[size:]
        assert all(is_read for _, is_read in pieces)
        found += [piece for piece, _ in pieces]
        assert b"".join(b"".join(splitter.split(piece)) for piece in found) == b"".join(found)
        assert not EventSplitter().feed(bytes(splitter.rest))
    assert b"".join(found) + splitter.rest == b"".join(parts)


@pytest.mark.parametrize("wire", [ANTHROPIC, OPENAI], ids=["anthropic", "openai"])
def test_continuation_ends_with_a_role_that_every_chat_template_knows(wire: Wire) -> None:
    question = {"role": "user", "content": "Are you open?"}
    found = wire.continued([question], "Till", "Go on.")
    assert [message["role"] for message in found] == ["user", "assistant", "user"]


@given(st.lists(st.integers(1, 400)), st.data())
def test_a_long_event_passes_in_parts_unread(sizes: list[int], data: st.DataObject) -> None:
    events = [b"d" * size + b"\r\n\r\n" for size in sizes]
    stream, splitter, found = b"".join(events), EventSplitter(), list[tuple[bytes, bool]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_READ_BYTES", 100)
        while stream:
            size = data.draw(st.integers(1, min(len(stream), 50)))
            found += splitter.feed(stream[:size])
            stream = stream[size:]
    assert b"".join(piece for piece, _ in found) == b"".join(events)
    assert all(len(piece) <= 150 for piece, _ in found)
    read = [event for piece, is_read in found if is_read for event in splitter.split(piece)]
    assert set(read) <= set(events)
    assert all(len(event) > 100 for event in events if event not in read)
