"""Answers in the form of a wire, as a provider writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

WORDS = ("Gern! ", "Wir haben ", "bis neun ", "geöffnet – ", "schauen Sie ", "vorbei 👋", ".")
_CLAUDE: Any = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": []}
_CLAUDE |= {"stop_reason": None, "usage": {"input_tokens": 9, "output_tokens": 1}}
CLAUDE_BEGIN = {"type": "message_start", "message": _CLAUDE}


def sse(event: Mapping[str, Any]) -> bytes:
    """An event of a stream, with its type where it has one."""
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    base = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def gpt_stream(*found: object, mark: bool = True) -> list[bytes]:
    events = [b"data: " + json.dumps(each).encode() + b"\n\n" for each in found]
    return [*events, b"data: [DONE]\n\n"] if mark else events


def gpt_whole(finish: str | None, **message: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    base = {"id": "c1", "object": "chat.completion", "created": 1, "model": "m"}
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    return json.dumps({**base, "choices": [choice], "usage": usage}).encode()


def claude_stream(*found: Mapping[str, Any], reason: str | None, stops: bool = True) -> list[bytes]:
    events: list[Mapping[str, Any]] = [CLAUDE_BEGIN, *found]
    if reason is not None:
        delta = {"stop_reason": reason, "stop_sequence": None}
        events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 7}})
    if stops:
        events.append({"type": "message_stop"})
    return [sse(each) for each in events]


def claude_whole(reason: str, *content: Mapping[str, Any]) -> bytes:
    base = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": content}
    usage = {"input_tokens": 9, "output_tokens": 1}
    return json.dumps({**base, "stop_reason": reason, "usage": usage}).encode()


def block(index: int, content: Mapping[str, Any], *deltas: Mapping[str, Any]) -> list[Any]:
    return [
        {"type": "content_block_start", "index": index, "content_block": content},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def events(wire: str, words: tuple[str, ...] = WORDS) -> list[bytes]:
    """A text as the events of a stream."""
    if wire == "openai":
        role, parts = chunk(role="assistant", content=""), (chunk(content=word) for word in words)
        return gpt_stream(role, *parts, chunk("stop"))
    parts = ({"type": "text_delta", "text": word} for word in words)
    return claude_stream(*block(0, {"type": "text", "text": ""}, *parts), reason="end_turn")
