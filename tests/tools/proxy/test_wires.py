"""What the proxy writes itself, and how streams are split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.service import WireEvent
from pipecat_hedge.tools.proxy import wires as module
from pipecat_hedge.tools.proxy.wires import (
    ANTHROPIC,
    OPENAI,
    AnswerReader,
    EventSplitter,
    Wire,
)


@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC])
def test_own_events_can_be_read_again(wire: Wire) -> None:
    like = {"choices": []} if wire is OPENAI else {"type": "content_block_delta", "index": 1}
    reader = AnswerReader(wire)
    assert reader.read(wire.text_event(" more", like)).text == " more"
    ended = EventSplitter().split(wire.end_events(like))
    assert [reader.read(event).ends for event in ended][-1]
    assert reader.read(wire.error_event(wire.error(502, "cut"))).error is not None
    assert reader.read(wire.ping) == WireEvent()


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
