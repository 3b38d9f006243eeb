"""Tool calls from pieces, as the protocol has them and as servers send them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall

from pipecat_hedge.vllm.stream import MalformedToolCall, ToolPieces

Piece = tuple[int | None, str | None, str | None, str | None]


class ToolCall(NamedTuple):
    id: str | None
    name: str | None
    arguments: str | None


NEW = "made here"

BOOK = ToolCall("a", "book", '{"day": "sunday"}')
ASK = ToolCall("b", "ask", '{"dish": "soup"}')

STREAMS: dict[str, tuple[list[Piece], list[ToolCall]]] = {
    "as the protocol has it": (
        [
            (0, "a", "book", ""),
            (0, None, None, '{"day": '),
            (0, None, None, '"sunday"}'),
            (1, "b", "ask", ""),
            (1, None, None, '{"dish": "soup"}'),
        ],
        [BOOK, ASK],
    ),
    "both with index 0, told apart by their ids": (
        [(0, "a", "book", BOOK.arguments), (0, "b", "ask", ASK.arguments)],
        [BOOK, ASK],
    ),
    "both with index 0 and without ids, told apart by the second name": (
        [(0, None, "book", BOOK.arguments), (0, None, "ask", ASK.arguments)],
        [ToolCall(NEW, BOOK.name, BOOK.arguments), ToolCall(NEW, ASK.name, ASK.arguments)],
    ),
    "the same tool twice, with index 0 and without ids": (
        [(0, None, "ask", ASK.arguments), (0, None, "ask", ASK.arguments)],
        [ToolCall(NEW, "ask", ASK.arguments), ToolCall(NEW, "ask", ASK.arguments)],
    ),
    "interleaved": (
        [
            (0, "a", "book", None),
            (1, "b", "ask", None),
            (0, None, None, BOOK.arguments),
            (1, None, None, ASK.arguments),
        ],
        [BOOK, ASK],
    ),
    "interleaved by ids alone": (
        [
            (None, "a", "book", '{"day": '),
            (None, "b", "ask", '{"dish": '),
            (None, "a", None, '"sunday"}'),
            (None, "b", None, '"soup"}'),
        ],
        [BOOK, ASK],
    ),
    "the id before the name": (
        [(0, "a", None, None), (0, None, "book", None), (0, None, None, BOOK.arguments)],
        [BOOK],
    ),
    "the name before the id": (
        [(0, None, "book", None), (0, "a", None, None), (0, None, None, BOOK.arguments)],
        [BOOK],
    ),
    "the id with every piece": (
        [(0, "a", "book", None), (0, "a", None, '{"day": '), (0, "a", None, '"sunday"}')],
        [BOOK],
    ),
    "the name with every piece": (
        [(0, "a", "book", '{"day": '), (0, None, "book", '"sunday"}')],
        [BOOK],
    ),
    "the name in pieces": (
        [(0, "a", "bo", None), (0, None, "ok", None), (0, None, None, BOOK.arguments)],
        [BOOK],
    ),
    "without an index": (
        [(None, "a", "book", '{"day": '), (None, None, None, '"sunday"}')],
        [BOOK],
    ),
    "without arguments": ([(0, "a", "list_tables", None)], [ToolCall("a", "list_tables", "{}")]),
}


def collect(pieces: list[Piece]) -> list[ToolCall]:
    collected = ToolPieces()
    for index, id, name, arguments in pieces:
        function = {"name": name, "arguments": arguments}
        collected.feed(ChoiceDeltaToolCall.construct(index=index, id=id, function=function))  # pyright: ignore[reportArgumentType]
    found = collected.finish()
    assert [call.index for call in found] == list(range(len(found)))
    ids = [call.id for call in found]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    sent = {id for _, id, _, _ in pieces}
    return [
        ToolCall(
            call.id if call.id in sent else NEW,
            call.function and call.function.name,
            call.function and call.function.arguments,
        )
        for call in found
    ]


@pytest.mark.parametrize(("pieces", "calls"), STREAMS.values(), ids=STREAMS)
def test_calls_are_assembled(pieces: list[Piece], calls: list[ToolCall]) -> None:
    assert collect(pieces) == calls


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([(0, "a", "book", '{"day": "sun')], "raise max_tokens"),
        ([(0, "a", "book", "[1]")], "not a JSON object"),
        ([(0, "a", None, "{}")], "has no tool name"),
    ],
)
def test_incomplete_call_is_an_error(pieces: list[Piece], message: str) -> None:
    """A tool that ran with the beginning of its arguments would do something else."""
    with pytest.raises(MalformedToolCall, match=message):
        collect(pieces)


_ARGUMENTS = st.dictionaries(
    st.text("abc", min_size=1), st.text('ab"{}', max_size=5), min_size=1, max_size=3
).map(json.dumps)


@given(
    calls=st.lists(st.tuples(st.text("xyz", min_size=1), _ARGUMENTS), max_size=4),
    data=st.data(),
    with_ids=st.booleans(),
)
def test_any_cut_of_a_correct_stream_is_read(
    calls: list[tuple[str, str]], data: st.DataObject, with_ids: bool
) -> None:
    """Where the protocol is kept, nothing is lost, whatever the pieces."""
    pieces: list[Any] = []
    for index, (name, arguments) in enumerate(calls):
        pieces.append((index, f"id-{index}" if with_ids else None, name, None))
        rest = arguments
        while rest:
            size = data.draw(st.integers(1, len(rest)))
            pieces.append((index, None, None, rest[:size]))
            rest = rest[size:]
    assert [(call.name, call.arguments) for call in collect(pieces)] == calls
