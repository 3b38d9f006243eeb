"""What the events of both wires mean, and that a request keeps its bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.tools.proxy.wires import (
    ANTHROPIC,
    OPENAI,
    EventSplitter,
    Signs,
    Wire,
    with_model,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
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
        (OPENAI, [sse(choices="odd")], Signs()),
        (OPENAI, [sse(error={"code": 500})], Signs(error={"error": {"code": 500}})),
        (ANTHROPIC, [sse(type="message_start", message={"content": []})], Signs()),
        (ANTHROPIC, [sse(type="ping")], Signs()),
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
    ],
)
def test_a_whole_answer_is_read(
    wire: Wire, body: dict[str, Any], expected: tuple[Signs, int]
) -> None:
    signs, usage = wire.read_whole(body)
    assert usage is not None
    assert (signs, usage.prompt_tokens) == expected


@given(before=st.dictionaries(st.text(), JSON), after=st.dictionaries(st.text(), JSON))
def test_only_the_model_s_name_changes_in_a_request(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    before.pop("model", None)
    after.pop("model", None)
    parts = [json.dumps(each, indent=1)[1:-1].strip() for each in (before, after)]
    text = "{ " + " , ".join([p for p in (parts[0], '"model" : "old"', parts[1]) if p]) + " }"
    assert with_model(text.encode(), "näw").decode() == text.replace(
        '"model" : "old"', '"model" : "n\\u00e4w"'
    )


@given(
    st.lists(st.sampled_from([b"a", b"data: x", b"\n", b"\r\n", b"\n\n", b"\r\n\r\n"])), st.data()
)
def test_events_are_split_byte_for_byte(parts: list[bytes], data: st.DataObject) -> None:
    stream, splitter, found = b"".join(parts), EventSplitter(), list[bytes]()
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found.append(splitter.feed(stream[:size]))
        stream = stream[size:]
        assert b"".join(splitter.split(found[-1])) == found[-1]
        assert not EventSplitter().feed(bytes(splitter.rest))
    assert b"".join(found) + splitter.rest == b"".join(parts)


@pytest.mark.parametrize("wire", [ANTHROPIC, OPENAI], ids=["anthropic", "openai"])
def test_continuation_ends_with_a_role_that_every_chat_template_knows(wire: Wire) -> None:
    question = {"role": "user", "content": "Are you open?"}
    found = wire.continued([question], "Till", "Go on.")
    assert [message["role"] for message in found] == ["user", "assistant", "user"]
