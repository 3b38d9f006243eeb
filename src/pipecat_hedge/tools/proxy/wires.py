"""The two APIs: what a stream's events mean, and how the proxy's own errors are written.

Bytes pass as they are. An event is only read as far as the race has to know: whether it is usable,
ends the answer, or reports an error. Sources: the pages "Streaming Messages" and "Errors" of
Anthropic's API reference, "Chat Completions streaming" and "Error codes" of OpenAI's.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pipecat.metrics.metrics import LLMTokenUsage

from pipecat_hedge.race import is_usable_text

__all__ = [
    "ANTHROPIC",
    "OPENAI",
    "WIRES",
    "EventReader",
    "EventSplitter",
    "Signs",
    "Wire",
    "parsed",
    "with_model",
]

MAX_EVENT_BYTES = 32 * 2**20
"""A longer event is taken for a fault: no answer has one."""
STATUSES = {
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "insufficient_permissions"),
    404: ("not_found_error", "model_not_found"),
    408: ("api_error", "request_timeout"),
    413: ("request_too_large", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    500: ("api_error", "server_error"),
    502: ("api_error", "bad_gateway"),
    503: ("overloaded_error", "overloaded"),
    529: ("overloaded_error", "overloaded"),
}
"""By status, Anthropic's type of an error and OpenAI's code."""


@dataclass(slots=True)
class Signs:
    """What one event means.

    Parameters:
        text: Its answer text.
        is_usable: Whether it has answer text to read, or completes a tool call.
        ends: Whether the answer is complete with it.
        is_last: Whether no event follows.
        error: The error that it reports, as JSON; None if it reports none.
        has_tool: Whether it is part of a tool call.
    """

    text: str = ""
    is_usable: bool = False
    ends: bool = False
    is_last: bool = False
    error: Mapping[str, Any] | None = None
    has_tool: bool = False


class Wire(ABC):
    """One API."""

    path: ClassVar[str]
    """The path of its requests for an answer, at the proxy."""
    overloaded: ClassVar[int]
    """The status of an API that has no room."""
    ping: ClassVar[bytes]
    """An event that only shows that the connection is alive."""
    rare: ClassVar[re.Pattern[bytes]]
    """What every event contains that matters after the first usable one."""

    def refusal(self, status: int, message: str) -> bytes:
        """An error of the proxy's own, as bytes."""
        return json.dumps(self.error(status, message)).encode()

    def status_of(self, error: Mapping[str, Any]) -> int:
        """The status of an error that came as an event."""
        inner = error.get("error")
        kinds = [inner.get(name) for name in ("type", "code")] if isinstance(inner, dict) else []
        found = [status for status, names in STATUSES.items() if set(names) & set(map(str, kinds))]
        return found[-1] if found else 500

    @abstractmethod
    def upstream_path(self, path: str) -> str:
        """The path below an upstream's ``base_url``."""

    @abstractmethod
    def auth(self, key: str) -> dict[str, str]:
        """The headers that carry a key."""

    @abstractmethod
    def reader(self) -> EventReader:
        """A reader for one stream."""

    @abstractmethod
    def read_whole(self, body: Mapping[str, Any]) -> tuple[Signs, LLMTokenUsage | None]:
        """Read an answer that was not streamed."""

    @abstractmethod
    def error(self, status: int, message: str) -> dict[str, Any]:
        """An error of the proxy's own as the body of a response."""

    @abstractmethod
    def error_event(self, body: Mapping[str, Any]) -> bytes:
        """An error's body as an event of a stream that has begun."""

    @abstractmethod
    def text_event(self, text: str, like: Mapping[str, Any]) -> bytes:
        """An event with further text of an answer, in the form of an earlier one.

        Args:
            text: The text.
            like: An earlier event of the answer with text.
        """

    @abstractmethod
    def end_events(self, like: Mapping[str, Any]) -> bytes:
        """The events that end an answer of several parts."""

    @abstractmethod
    def continued(self, messages: Sequence[Any], said: str, instruction: str) -> list[Any]:
        """The messages of a request that continues an answer which was cut."""


class EventReader(ABC):
    """Reads the events of one stream.

    Attributes:
        usage: The upstream's token counts so far; None until it has sent some.
        like: The latest event with text; empty until there is one.
    """

    def __init__(self) -> None:
        """Begin a stream."""
        self.usage: LLMTokenUsage | None = None
        self.like: Mapping[str, Any] = {}

    def read(self, event: bytes) -> Signs:
        """Read an event: the bytes up to and including its blank line."""
        data = b"\n".join(
            line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")
        )
        if data == b"[DONE]":
            return Signs(ends=True, is_last=True)
        try:
            found = json.loads(data) if data else None
        except ValueError:
            return Signs()
        if not isinstance(found, dict):
            return Signs()
        if isinstance(found.get("error"), (dict, str)):
            return Signs(error=found)
        try:
            signs = self._read(found)
        except (AttributeError, TypeError, KeyError, IndexError):  # not in the wire's form
            return Signs()
        if signs.text:
            self.like = found
        return signs

    @abstractmethod
    def _read(self, event: Mapping[str, Any]) -> Signs: ...


# ---- Anthropic Messages


class _Anthropic(Wire):
    path = "/v1/messages"
    overloaded = 529
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'
    rare = re.compile(rb'^event: (?!content_block_delta|ping)|"type":\s*"(?:error|message_)', re.M)

    def upstream_path(self, path: str) -> str:
        return path

    def auth(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def reader(self) -> EventReader:
        return _AnthropicReader()

    def read_whole(self, body: Mapping[str, Any]) -> tuple[Signs, LLMTokenUsage | None]:
        blocks = body.get("content") or []
        text = "".join(block.get("text") or "" for block in blocks)
        has_tool = any(block.get("type") == "tool_use" for block in blocks)
        usable = has_tool or is_usable_text(text)
        return Signs(text, usable, ends=True, has_tool=has_tool), _anthropic_usage(
            body.get("usage") or {}
        )

    def error(self, status: int, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": STATUSES[status][0], "message": message}}

    def error_event(self, body: Mapping[str, Any]) -> bytes:
        return b"event: error\ndata: " + json.dumps(body).encode() + b"\n\n"

    def text_event(self, text: str, like: Mapping[str, Any]) -> bytes:
        event = {**like, "delta": {"type": "text_delta", "text": text}}
        return b"event: content_block_delta\ndata: " + json.dumps(event).encode() + b"\n\n"

    def end_events(self, like: Mapping[str, Any]) -> bytes:
        delta = {"stop_reason": "end_turn", "stop_sequence": None}
        return b"".join(
            f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
            for event in (
                {"type": "content_block_stop", "index": like["index"]},
                {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 0}},
                {"type": "message_stop"},
            )
        )

    def continued(self, messages: Sequence[Any], said: str, instruction: str) -> list[Any]:
        added = {"role": "assistant", "content": said.rstrip() or said}
        return [*messages, added, {"role": "user", "content": instruction}]


class _AnthropicReader(EventReader):
    def __init__(self) -> None:
        super().__init__()
        self._tools: set[object] = set()

    def _read(self, event: Mapping[str, Any]) -> Signs:
        kind = event.get("type")
        if kind == "content_block_delta":
            text = event["delta"].get("text") or ""
            return Signs(text, is_usable_text(text), has_tool=event.get("index") in self._tools)
        if kind == "content_block_start":
            block = event["content_block"]
            if block.get("type") == "tool_use":
                self._tools.add(event.get("index"))
            text = block.get("text") or ""
            return Signs(text, is_usable_text(text))
        if kind == "content_block_stop" and event.get("index") in self._tools:
            return Signs(is_usable=True, has_tool=True)
        if kind == "message_start":
            self.usage = _anthropic_usage(event["message"].get("usage") or {})
        elif kind == "message_delta" and event.get("usage"):
            self.usage = _anthropic_usage(event["usage"], self.usage)
        return Signs(ends=kind == "message_stop", is_last=kind == "message_stop")


def _anthropic_usage(
    found: Mapping[str, Any], before: LLMTokenUsage | None = None
) -> LLMTokenUsage:
    read = found.get("cache_read_input_tokens") or 0
    written = found.get("cache_creation_input_tokens") or 0
    prompt = (found.get("input_tokens") or 0) + read + written
    prompt = prompt or (0 if before is None else before.prompt_tokens)
    completion = found.get("output_tokens") or 0
    return LLMTokenUsage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )


# ---- OpenAI Chat Completions


class _OpenAI(Wire):
    path = "/v1/chat/completions"
    overloaded = 503
    ping = b": ping\n\n"
    rare = re.compile(rb'"error"|\[DONE\]|"usage":\s*\{|"finish_reason":\s*"')

    def upstream_path(self, path: str) -> str:
        return path.removeprefix("/v1")

    def auth(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def reader(self) -> EventReader:
        return _OpenAIReader()

    def read_whole(self, body: Mapping[str, Any]) -> tuple[Signs, LLMTokenUsage | None]:
        messages = [choice["message"] for choice in body.get("choices") or []]
        text = "".join(m.get("content") or m.get("refusal") or "" for m in messages)
        has_tool = any(m.get("tool_calls") or m.get("function_call") for m in messages)
        usable = has_tool or is_usable_text(text)
        return Signs(text, usable, ends=True, has_tool=has_tool), _openai_usage(body.get("usage"))

    def error(self, status: int, message: str) -> dict[str, Any]:
        kind, code = STATUSES[status]
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}

    def error_event(self, body: Mapping[str, Any]) -> bytes:
        return b"data: " + json.dumps(body).encode() + b"\n\n"

    def text_event(self, text: str, like: Mapping[str, Any]) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        event = {**like, "choices": [choice]}
        return b"data: " + json.dumps(event).encode() + b"\n\n"

    def end_events(self, like: Mapping[str, Any]) -> bytes:
        choice = {"index": 0, "delta": {}, "finish_reason": "stop"}
        return self.error_event({**like, "choices": [choice]}) + b"data: [DONE]\n\n"

    def continued(self, messages: Sequence[Any], said: str, instruction: str) -> list[Any]:
        added = {"role": "assistant", "content": said}
        return [*messages, added, {"role": "user", "content": instruction}]


class _OpenAIReader(EventReader):
    def __init__(self) -> None:
        super().__init__()
        self._has_tools = False

    def _read(self, event: Mapping[str, Any]) -> Signs:
        if event.get("usage"):
            self.usage = _openai_usage(event["usage"])
        text, finished = "", False
        for choice in event.get("choices") or []:
            delta = choice.get("delta") or {}
            text += delta.get("content") or delta.get("refusal") or ""
            self._has_tools = self._has_tools or bool(delta.get("tool_calls"))
            finished = finished or choice.get("finish_reason") is not None
        usable = is_usable_text(text) or (finished and self._has_tools)
        return Signs(text, usable, ends=finished, has_tool=self._has_tools)


def _openai_usage(found: Mapping[str, Any] | None) -> LLMTokenUsage | None:
    if not found:
        return None
    prompt, completion = found.get("prompt_tokens") or 0, found.get("completion_tokens") or 0
    return LLMTokenUsage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )


ANTHROPIC, OPENAI = _Anthropic(), _OpenAI()
WIRES: Mapping[str, Wire] = {"anthropic": ANTHROPIC, "openai": OPENAI}


def parsed(body: bytes | bytearray) -> Any:
    """A body as JSON; None if it is none."""
    try:
        return json.loads(body)
    except ValueError:
        return None


# ---- events


class EventSplitter:
    """Returns whole events; what follows the last one is kept until its end has come.

    Attributes:
        rest: What is kept.
    """

    def __init__(self) -> None:
        """Start at the beginning of a stream."""
        self.rest = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        """Add bytes and return the events that are now whole.

        Raises:
            ConnectionResetError: If an event is longer than ``MAX_EVENT_BYTES``.
        """
        rest = self.rest
        if not rest and chunk.endswith(b"\n\n"):
            return chunk
        begin = max(len(rest) - 3, 0)  # an end may have begun in the chunk before
        rest += chunk
        ends = [at + len(mark) for mark in _ENDS if (at := rest.rfind(mark, begin)) >= 0]
        if not ends:
            if len(rest) > MAX_EVENT_BYTES:
                raise ConnectionResetError(f"an event is longer than {MAX_EVENT_BYTES} bytes")
            return b""
        events = bytes(rest[: max(ends)])
        del rest[: max(ends)]
        return events

    def split(self, events: bytes) -> list[bytes]:
        """The single events, each with its blank line."""
        found, begin = list[bytes](), 0
        for end in _END.finditer(events):
            found.append(events[begin : end.end()])
            begin = end.end()
        return [*found, events[begin:]] if begin < len(events) else found


_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")
_END = re.compile(rb"\r?\n\r?\n|\r\r")


# ---- the model's name


def with_model(body: bytes, model: str) -> bytes:
    """Replace the model's name in a request's JSON, and no other byte.

    Args:
        body: A JSON object with a string under ``model``.
        model: The new name.
    """
    found = list(_MODEL.finditer(body))
    if len(found) == 1:
        return body[: found[0].start(1)] + json.dumps(model).encode() + body[found[0].end(1) :]
    text = body.decode()
    start, end = _value_of(text, "model")
    return (text[:start] + json.dumps(model) + text[end:]).encode()


def _value_of(text: str, name: str) -> tuple[int, int]:
    """Where the value of a key of the outermost object begins and ends; of two, the last."""
    decoder, at, found = json.JSONDecoder(), text.index("{") + 1, (0, 0)
    while True:
        at = _SPACE.match(text, at).end()  # pyright: ignore[reportOptionalMemberAccess]
        if text[at] == "}":
            return found
        key, at = decoder.raw_decode(text, at)
        at = _SPACE.match(text, at).end()  # pyright: ignore[reportOptionalMemberAccess]
        _, end = decoder.raw_decode(text, at)
        if key == name:
            found = at, end
        at = end


_MODEL = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.)*")')
_SPACE = re.compile(r"[\s,:]*")
