"""The two APIs: what a stream's events mean, and how the proxy's own errors are written.

Bytes pass as they are. An event is only read as far as the race has to know: whether it is usable,
ends the answer, or reports an error. What is not understood is usable: it may be a form that is
newer than this module. Sources: the pages "Streaming Messages" and "Errors" of
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
from pipecat_hedge.service import is_whole_sentence

__all__ = [
    "ANTHROPIC",
    "EVENT_ENDS",
    "MAX_READ_BYTES",
    "OPENAI",
    "WIRES",
    "EventReader",
    "EventSplitter",
    "Signs",
    "Wire",
    "parsed",
]

MAX_READ_BYTES = 2**20
"""Of an event or a whole answer. To parse more would stop all other streams; it passes unread."""
TAIL_CHARS = 200
"""As much of an answer's end shows whether it ends a sentence."""
STATUSES = {
    415: ("invalid_request_error", "unsupported_media_type"),
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
"""By status, Anthropic's type of an error and OpenAI's code. Of statuses with the same, the last is
the usual one."""


@dataclass(slots=True)
class Signs:
    """What one event, or a whole answer, means.

    Parameters:
        text: Its answer text.
        is_usable: Whether it has answer text to read, completes a tool call, or is not understood.
        ends: Whether the answer is complete with it.
        is_last: Whether no event follows.
        error: The error that it reports, as JSON; None if it reports none.
        has_tool: Whether it is part of a tool call.
        is_known: Whether it is understood.
    """

    text: str = ""
    is_usable: bool = False
    ends: bool = False
    is_last: bool = False
    error: Mapping[str, Any] | None = None
    has_tool: bool = False
    is_known: bool = True


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

    def read_whole(self, body: bytes | bytearray) -> tuple[Signs, LLMTokenUsage | None]:
        """Read an answer that was not streamed. What is no JSON is not usable."""
        found = parsed(body)
        if found is None:
            return Signs(), None
        if isinstance(found, dict) and found.get("error"):
            return Signs(error=found), None
        try:
            return self._read_whole(found)
        except _OTHER_FORM:
            return Signs(is_usable=True, ends=True, is_known=False), None

    @abstractmethod
    def _read_whole(self, body: Mapping[str, Any]) -> tuple[Signs, LLMTokenUsage | None]: ...

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
        calls: The arguments of the tool calls so far.
        tail: The end of the text.
        has_read: Whether anything was in the form of events.
    """

    def __init__(self) -> None:
        """Begin a stream."""
        self.usage: LLMTokenUsage | None = None
        self.like: Mapping[str, Any] = {}
        self.calls: dict[object, str] = {}
        self.tail = ""
        self.has_read = False

    def read(self, event: bytes) -> Signs:
        """Read an event: the bytes up to and including its blank line."""
        data = b"\n".join(
            line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")
        )
        if data == b"[DONE]":
            return Signs(is_usable=bool(self.calls), ends=True, is_last=True)
        found = parsed(data)
        if not isinstance(found, dict):
            return Signs()
        self.has_read = True
        if found.get("error"):
            return Signs(error=found)
        try:
            signs = self._read(found)
        except _OTHER_FORM:
            return Signs(is_usable=True, is_known=False)
        if signs.text:
            self.like = found
            self.tail = (self.tail + signs.text)[-TAIL_CHARS:]
        return signs

    def seems_whole(self, *, sends_marks: bool) -> bool:
        """Whether an answer that came without an end mark is whole by its content.

        Args:
            sends_marks: Whether the upstream ends its answers with a mark. If not, its text is
                believed to be whole.
        """
        if self.calls:
            return all(isinstance(parsed(text.encode()), dict) for text in self.calls.values())
        return not sends_marks or is_whole_sentence(self.tail)

    @abstractmethod
    def _read(self, event: Mapping[str, Any]) -> Signs: ...


_OTHER_FORM = (AttributeError, TypeError, KeyError, IndexError)
"""What reading a form that is not known raises."""


# ---- Anthropic Messages


class _Anthropic(Wire):
    path = "/v1/messages"
    overloaded = 529
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'
    rare = re.compile(
        rb'^event: (?!content_block_delta|ping)|"type"\s*:\s*"(?:error|message_|content_block_st'
        rb"|input_json)",
        re.M,
    )

    def upstream_path(self, path: str) -> str:
        return path

    def auth(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def reader(self) -> EventReader:
        return _AnthropicReader()

    def _read_whole(self, body: Mapping[str, Any]) -> tuple[Signs, LLMTokenUsage | None]:
        signs = Signs(is_usable=_is_told(body.get("stop_reason"), "end_turn"), ends=True)
        for block in body["content"]:
            kind = block["type"]
            signs.text += block["text"] if kind == "text" else ""
            signs.has_tool = signs.has_tool or kind == "tool_use"
            signs.is_known = signs.is_known and kind in _KNOWN_BLOCKS
        signs.is_usable = (
            signs.is_usable or signs.has_tool or not signs.is_known or is_usable_text(signs.text)
        )
        return signs, _anthropic_usage(body.get("usage"))

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
    def _read(self, event: Mapping[str, Any]) -> Signs:
        kind, index = event.get("type"), event.get("index")
        if kind == "content_block_delta":
            delta = event["delta"]
            what, has_tool = delta["type"], index in self.calls
            if what == "text_delta":
                return Signs(delta["text"], is_usable_text(delta["text"]))
            if what == "input_json_delta" and has_tool:
                self.calls[index] += delta["partial_json"]
            is_known = what in _KNOWN_DELTAS
            return Signs(is_usable=not is_known, has_tool=has_tool, is_known=is_known)
        if kind == "content_block_start":
            block = event["content_block"]
            what = block["type"]
            if what == "tool_use":
                self.calls[index] = ""
            text = block["text"] if what == "text" else ""
            is_known = what in _KNOWN_BLOCKS
            return Signs(text, is_usable_text(text) or not is_known, is_known=is_known)
        if kind == "content_block_stop" and index in self.calls:
            self.calls[index] = self.calls[index] or "{}"  # a tool without arguments
            return Signs(is_usable=True, has_tool=True)
        if kind == "message_start":
            message = event["message"]
            self.usage = _anthropic_usage(message.get("usage"))
            is_known = not message.get("content")
            return Signs(is_usable=not is_known, is_known=is_known)
        if kind == "message_delta":
            self.usage = _anthropic_usage(event.get("usage"), self.usage)
            reason = (event.get("delta") or {}).get("stop_reason")
            return Signs(is_usable=_is_told(reason, "end_turn"), ends=bool(reason))
        is_last = kind == "message_stop"
        return Signs(ends=is_last, is_last=is_last, is_known=kind in _KNOWN_EVENTS)


_KNOWN_EVENTS = {"ping", "message_start", "content_block_stop", "message_stop"}
_KNOWN_BLOCKS = {"text", "tool_use", "thinking", "redacted_thinking"}
_KNOWN_DELTAS = {"input_json_delta", "thinking_delta", "signature_delta"}
"""Besides text; neither is an answer."""


def _is_told(reason: object, usual: str) -> bool:
    """Whether an answer has a reason to end that says something, even if it has no text."""
    return bool(reason) and reason != usual


def _anthropic_usage(found: Any, before: LLMTokenUsage | None = None) -> LLMTokenUsage | None:
    prompt = sum(
        _count(found, name)
        for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    prompt = prompt or (0 if before is None else before.prompt_tokens)
    return _usage(prompt, _count(found, "output_tokens")) or before


def _count(found: Any, name: str) -> int:
    """A number of tokens; 0 if there is none."""
    count = found.get(name) if isinstance(found, dict) else None
    return count if isinstance(count, int) else 0


def _usage(prompt: int, completion: int) -> LLMTokenUsage | None:
    if not (prompt or completion):
        return None
    return LLMTokenUsage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )


# ---- OpenAI Chat Completions


class _OpenAI(Wire):
    path = "/v1/chat/completions"
    overloaded = 503
    ping = b": ping\n\n"
    rare = re.compile(
        rb'"error"|\[DONE\]|"(?:usage|function_call)"\s*:\s*\{|"finish_reason"\s*:\s*"'
        rb'|"tool_calls"\s*:\s*\[\s*\{'
    )

    def upstream_path(self, path: str) -> str:
        return path.removeprefix("/v1")

    def auth(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def reader(self) -> EventReader:
        return _OpenAIReader()

    def _read_whole(self, body: Mapping[str, Any]) -> tuple[Signs, LLMTokenUsage | None]:
        signs = Signs(ends=True)
        for choice in body["choices"]:
            _add_part(signs, choice["message"], choice.get("finish_reason"))
        signs.is_usable = signs.is_usable or signs.has_tool
        return signs, _openai_usage(body.get("usage"))

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
    def _read(self, event: Mapping[str, Any]) -> Signs:
        self.usage = _openai_usage(event.get("usage")) or self.usage
        signs = Signs(has_tool=bool(self.calls), is_known="choices" in event)
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or choice.get("message") or choice.get("text") or {}
            reason = choice.get("finish_reason")
            _add_part(signs, delta, reason)
            for call in delta.get("tool_calls") or ():
                key = choice.get("index"), call.get("index")
                self._add_call(key, call.get("function") or {})
            if call := delta.get("function_call"):
                self._add_call(choice.get("index"), call)
            signs.is_usable = signs.is_usable or bool(reason and self.calls)
            signs.ends = signs.ends or bool(reason)
        return signs

    def _add_call(self, key: object, function: Mapping[str, Any]) -> None:
        self.calls[key] = self.calls.get(key, "") + (function.get("arguments") or "")


_NO_ANSWER = {"role", "name", "channel", "tool_calls", "function_call"}
"""What a message may have beside an answer; calls count when they are complete."""


def _add_part(signs: Signs, message: Mapping[str, Any], reason: object) -> None:
    """Add what a message, or a part of one, means."""
    text = ""
    for name, value in message.items():
        if not value or _is_thought(name):
            continue
        if name in ("content", "refusal"):
            for part in [{"type": "text", "text": value}] if isinstance(value, str) else value:
                text += part["text"] if part["type"] == "text" else ""
                signs.is_known &= part["type"] == "text" or _is_thought(part["type"])
        else:
            signs.is_known &= name in _NO_ANSWER
    signs.text += text
    signs.has_tool |= bool(message.get("tool_calls") or message.get("function_call"))
    signs.is_usable |= is_usable_text(text) or not signs.is_known or _is_told(reason, "stop")


def _is_thought(name: str) -> bool:
    """Whether a field or a part is the model's reasoning, as its many names have it."""
    return "reason" in name or "think" in name


def _openai_usage(found: Any) -> LLMTokenUsage | None:
    return _usage(_count(found, "prompt_tokens"), _count(found, "completion_tokens"))


ANTHROPIC, OPENAI = _Anthropic(), _OpenAI()
WIRES: Mapping[str, Wire] = {"anthropic": ANTHROPIC, "openai": OPENAI}


def parsed(body: bytes | bytearray) -> Any:
    """A body as JSON; None if it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


# ---- events


class EventSplitter:
    """Splits a stream where its events end.

    Attributes:
        rest: What came behind the last end, and was not returned yet.
    """

    def __init__(self) -> None:
        """Start at the beginning of a stream."""
        self.rest = bytearray()
        self._is_long = False

    def feed(self, chunk: bytes) -> list[tuple[bytes, bool]]:
        """Add bytes, and return what is complete.

        Returns:
            Whole events and, as soon as it is known to be one, parts of an event that is longer
            than ``MAX_READ_BYTES``; each with whether it is to be read.
        """
        rest = self.rest
        if not (rest or self._is_long) and chunk.endswith(b"\n\n"):
            return [(chunk, True)]
        begin = max(len(rest) - 3, 0)  # an end may have begun in the chunk before
        rest += chunk
        found = list[tuple[bytes, bool]]()
        ends = [(rest.rfind(mark, begin), len(mark)) for mark in EVENT_ENDS]
        first, last = 0, max(at + size if at >= 0 else 0 for at, size in ends)
        if self._is_long or (not last and len(rest) > MAX_READ_BYTES):
            ends = [(rest.find(mark, begin), len(mark)) for mark in EVENT_ENDS]
            first = min((at + size for at, size in ends if at >= 0), default=0)
            self._is_long = not first
            first = first or max(len(rest) - 3, 0)
            found.append((bytes(rest[:first]), False))
        if last > first:
            found.append((bytes(rest[first:last]), True))
        del rest[: max(first, last)]
        return found

    def split(self, events: bytes) -> list[bytes]:
        """The single events, each with its blank line."""
        found, begin = list[bytes](), 0
        for end in _END.finditer(events):
            found.append(events[begin : end.end()])
            begin = end.end()
        return [*found, events[begin:]] if begin < len(events) else found


EVENT_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")
_END = re.compile(rb"\n\r?\n|\r\r")
