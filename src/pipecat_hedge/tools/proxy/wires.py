"""The two APIs as the proxy writes them, and how their streams are split.

Bytes pass as they are; `WireReader` reads them as far as the race has to know. Sources: the pages
"Streaming Messages" and "Errors" of Anthropic's API reference, "Chat Completions streaming" and
"Error codes" of OpenAI's.
"""

from __future__ import annotations

import codecs
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pipecat_hedge.service import WireEvent, WireReader, is_whole_sentence, parsed

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


class Wire(ABC):
    """One API."""

    name: ClassVar[str]
    path: ClassVar[str]
    """The path of its requests for an answer, at the proxy."""
    overloaded: ClassVar[int]
    """The status of an API that has no room."""
    ping: ClassVar[bytes]
    """An event that only shows that the connection is alive."""

    def error_body(self, status: int, message: str) -> bytes:
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

    def continued(self, messages: Sequence[Any], said: str, instruction: str) -> list[Any]:
        """The messages of a request that continues an answer which was cut."""
        added = {"role": "assistant", "content": said.rstrip() or said}
        return [*messages, added, {"role": "user", "content": instruction}]


class AnswerReader(WireReader):
    """Reads the events of one answer.

    Attributes:
        like: The latest event with text; empty until there is one.
        tail: The end of the text.
        has_read: Whether anything was in the form of events.
    """

    def __init__(self, wire: Wire) -> None:
        """Begin an answer."""
        super().__init__(wire.name)
        self.like: Mapping[str, Any] = {}
        self.tail = ""
        self.has_read = False

    def read(self, event: bytes) -> WireEvent:
        """Read an event: the bytes up to and including its blank line."""
        found = super().read(event.removeprefix(codecs.BOM_UTF8))
        self.has_read = self.has_read or found.json is not None
        if found.text:
            self.like = found.json or {}
            self.tail = (self.tail + found.text)[-TAIL_CHARS:]
        return found

    def seems_whole(self, *, sends_marks: bool) -> bool:
        """Whether an answer that came without an end mark is whole by its content.

        Args:
            sends_marks: Whether the upstream ends its answers with a mark. If not, its text is
                believed to be whole.
        """
        if self.calls:
            return all(map(self._is_whole_call, self.calls.values()))
        return not sends_marks or is_whole_sentence(self.tail)

    def _is_whole_call(self, arguments: str) -> bool:
        """Whether a call's arguments are complete; OpenAI's calls may have none, or be custom."""
        if not arguments.strip():
            return self.wire == "openai"
        return parsed(arguments) is not None or arguments.strip() == "null"


# ---- Anthropic Messages


class _Anthropic(Wire):
    name = "anthropic"
    path = "/v1/messages"
    overloaded = 529
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'

    def upstream_path(self, path: str) -> str:
        return path

    def auth(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

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


# ---- OpenAI Chat Completions


class _OpenAI(Wire):
    name = "openai"
    path = "/v1/chat/completions"
    overloaded = 503
    ping = b": ping\n\n"

    def upstream_path(self, path: str) -> str:
        return path.removeprefix("/v1")

    def auth(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

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


ANTHROPIC, OPENAI = _Anthropic(), _OpenAI()
WIRES: Mapping[str, Wire] = {wire.name: wire for wire in (ANTHROPIC, OPENAI)}


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
