"""Reads the answers of OpenAI's chat completions and responses, and of Anthropic's messages.

The service reads beside Pipecat's services, which do not report all of it; the proxy reads what it
passes on. Only the fields that they need are read. An event that is not understood may be newer
than this module. Sources: the pages "Streaming Messages" of Anthropic's API reference, "Chat
Completions streaming" and "Responses streaming" of OpenAI's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipecat.metrics.metrics import LLMTokenUsage

from pipecat_hedge.race.usable import is_usable_text

ABORTED = frozenset({"abort", "error"})
"""Reasons of an incomplete answer: vLLM ends its streams with ``abort`` when it is stopped."""
_AT_LIMIT = frozenset({"length", "max_tokens", "max_output_tokens", "MAX_TOKENS"})
_ORDINARY = ("", "stop", "end_turn", "tool_calls", "function_call", "tool_use")
"""Reasons of an ordinary end; an answer with another one is usable without text or a call, too."""
_RARE = re.compile(
    rb'"(?:error"|(?:usage|function_call)"\s*:\s*\{|tool_calls"\s*:\s*\[\s*\{'
    rb'|finish_?[rR]eason"\s*:\s*"'
    rb'|type"\s*:\s*"(?!ping"|(?:content_block|text|thinking)_delta"|response\.output_text\.delta))'
)
"""It begins with a literal, which makes the search five times as fast."""
_HALF_A_SIGN = re.compile("[\ud800-\udfff]")
"""Some servers split an emoji into the halves of its UTF-16 form."""
MAX_KEPT_BYTES = 65_536
"""The unread bytes to keep: some hundred tokens."""


def is_rare(events: bytes) -> bool:
    """Whether events contain more than a delta of text; takes a fifth of the time of parsing."""
    return b"[DONE]" in events or _RARE.search(events) is not None


@dataclass(slots=True)
class WireEvent:
    """The content of one event, or of a whole answer.

    Parameters:
        text: Its answer text.
        thought: Its reasoning.
        arguments: Its arguments of tool calls.
        is_usable: Whether it has answer text to read, completes a tool call, or may be an answer in
            a form that is not understood.
        reason: Why the answer ends; empty if the event has no reason.
        is_last: Whether no event follows.
        error: The error that it reports, as JSON; None if it reports none.
        is_known: Whether it is understood.
        json: The event as JSON; None if it is none.
    """

    text: str = ""
    thought: str = ""
    arguments: str = ""
    is_usable: bool = False
    reason: str = ""
    is_last: bool = False
    error: Mapping[str, Any] | None = None
    is_known: bool = True
    json: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def ends(self) -> bool:
        """Whether the answer is complete with it."""
        return bool(self.reason) or self.is_last


class WireReader:
    """Reads the events of one stream, or a whole answer.

    Attributes:
        wire: ``openai``, ``responses`` or ``anthropic``; None until an event shows it.
        usage: The token counts so far; None until some have come.
        calls: The arguments of each tool call so far, by its place or id.
    """

    def __init__(self, wire: str | None = None):
        """Begin a stream.

        Args:
            wire: The format; None finds it in the events.
        """
        self.wire = wire
        self.usage: LLMTokenUsage | None = None
        self.calls: dict[object, str] = {}

    def read(self, event: bytes) -> WireEvent:
        """Read an event, or its line of data; what is no JSON, or ``null``, says nothing."""
        lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
        data = b"\n".join(lines)
        if data == b"[DONE]":
            return WireEvent(is_usable=bool(self.calls), is_last=True)
        found = parsed(data)
        if isinstance(found, dict):
            return self._read(found)
        return WireEvent() if found is None else WireEvent(is_usable=True, is_known=False)

    def read_whole(self, body: bytes | bytearray) -> WireEvent:
        """Read an answer that was not streamed; what does not begin as JSON is not usable."""
        found = parsed(body)
        if found is None:  # maybe a line for each event
            first = parsed(body.strip().partition(b"\n")[0])
            if not isinstance(first, dict):
                return WireEvent()
            found = first if first.get("error") else [first]
        event = self._read(found) if isinstance(found, dict) else WireEvent(is_known=False)
        event.is_usable |= event.error is None and (bool(self.calls) or not event.is_known)
        return event

    def _read(self, found: Mapping[str, Any]) -> WireEvent:
        if found.get("error"):
            return WireEvent(error=found, json=found)
        event = WireEvent(json=found)
        self.wire = self.wire or _wire_of(found)
        read = {"openai": self._read_chat, "responses": self._read_response}
        try:
            self._count(found.get("usage"))
            read.get(self.wire or "", self._read_message)(found, event)
            event.is_usable |= is_usable_text(event.text) or event.reason not in _ORDINARY
            event.is_usable |= _HALF_A_SIGN.search(event.text) is not None
            event.is_usable |= bool(event.reason and self.calls)
        except (AttributeError, TypeError, KeyError, IndexError):  # a form that is not known
            return WireEvent(is_usable=True, is_known=False, json=found)
        return event

    def _read_chat(self, found: Mapping[str, Any], event: WireEvent) -> None:
        event.is_known = "choices" in found
        for choice in found.get("choices") or ():
            message = choice.get("delta") or choice.get("message") or choice.get("text") or {}
            event.reason = str(choice.get("finish_reason") or event.reason)
            event.thought = thought_in(message)
            for name, value in message.items():
                if value and not _is_thought(name) and name not in _NO_ANSWER:
                    self._read_field(name, value, event)
            for call in message.get("tool_calls") or ():
                self._add(event, (choice.get("index"), call.get("index")), call.get("function"))
            if function := message.get("function_call"):
                self._add(event, choice.get("index"), function)

    def _read_field(self, name: str, value: Any, event: WireEvent) -> None:
        parts = [{"type": "text", "text": value}] if isinstance(value, str) else value
        for part in parts if name in ("content", "refusal") else [{"type": name}]:
            if part["type"] == "text":
                event.text += part["text"]
            elif not _is_thought(part["type"]):
                event.is_known, event.is_usable = False, True

    def _add(self, event: WireEvent, call: object, function: Mapping[str, Any] | None) -> None:
        arguments = (function or {}).get("arguments") or ""
        event.arguments += arguments
        self.calls[call] = self.calls.get(call, "") + arguments

    def _read_message(self, found: Mapping[str, Any], event: WireEvent) -> None:
        index = found.get("index")
        match found:
            case {"delta": {"type": "text_delta", "text": str(text)}}:
                event.text = text
            case {"delta": {"type": "thinking_delta" | "signature_delta"} as delta}:
                event.thought = str(delta.get("thinking") or "")
            case {"delta": {"type": "input_json_delta", "partial_json": str(part)}}:
                event.arguments = part
                if index in self.calls:  # otherwise the server runs the tool
                    self.calls[index] += part
            case {"type": "content_block_start", "content_block": block}:
                self._read_block(block, index, event)
            case {"type": "content_block_stop"} if index in self.calls:
                self.calls[index] = self.calls[index] or "{}"  # a tool without arguments
                event.is_usable = True
            case {"type": "message_delta"}:
                event.reason = str((found.get("delta") or {}).get("stop_reason") or "")
            case {"type": "message_start", "message": message}:
                self._count(message.get("usage"))
                event.is_known = not message.get("content")
                event.is_usable = not event.is_known
            case {"type": kind} if kind in _KNOWN_EVENTS:
                event.is_last = kind == "message_stop"
            case {"candidates": [{"finishReason": str(reason)}, *_]}:  # Gemini's
                event.is_known, event.reason = False, reason
            case {"content": [*blocks]}:  # a whole answer
                event.reason = str(found.get("stop_reason") or "")
                for at, block in enumerate(blocks):
                    self._read_block(block, at, event)
            case _:
                event.is_known = False
                event.is_usable = found.get("type") == "content_block_delta"

    def _read_block(self, block: Mapping[str, Any], index: object, event: WireEvent) -> None:
        match block["type"]:
            case "text":
                event.text += block["text"]
            case "tool_use":
                self.calls[index] = ""
            case kind if kind not in ("thinking", "redacted_thinking"):
                event.is_known, event.is_usable = False, True

    def _read_response(self, found: Mapping[str, Any], event: WireEvent) -> None:
        kind = found["type"]
        match found:
            case {"item": {"type": "function_call", "id": call, "arguments": str(arguments)}}:
                self.calls[call] = event.arguments = arguments
            case {"item_id": call, "arguments": str(arguments)}:
                self.calls[call] = event.arguments = arguments
            case {"item_id": call, "delta": str(part)} if "function_call" in kind:
                self._add(event, call, {"arguments": part})
            case {"delta": str(part)} if "reason" in kind:
                event.thought = part
            case {"delta": str(part)}:
                event.text = part
            case {"response": {"incomplete_details": {"reason": str(reason)}}}:
                event.reason = reason
            case _:
                pass
        event.is_last = kind in ("response.completed", "response.incomplete")

    def _count(self, found: Any) -> None:
        """Note token counts, by the names of either API."""
        if not isinstance(found, dict):
            return
        prompt, cached, written, answer = (
            next((n for name in names if isinstance(n := found.get(name), int) and n), 0)
            for names in _COUNTS
        )
        prompt = prompt + cached + written or (self.usage.prompt_tokens if self.usage else 0)
        if prompt or answer:
            self.usage = LLMTokenUsage(
                prompt_tokens=prompt, completion_tokens=answer, total_tokens=prompt + answer
            )


_COUNTS = (
    ("prompt_tokens", "input_tokens"),
    ("cache_read_input_tokens",),
    ("cache_creation_input_tokens",),
    ("completion_tokens", "output_tokens"),
)
_KNOWN_EVENTS = ("ping", "message_start", "content_block_stop", "message_stop")
_NO_ANSWER = ("role", "name", "channel", "tool_calls", "function_call")
"""What a message may have beside an answer."""


def _wire_of(found: Mapping[str, Any]) -> str | None:
    kind = str(found.get("type"))
    if "choices" in found or kind.startswith("response."):
        return "openai" if "choices" in found else "responses"
    return "anthropic" if kind.startswith(("message", "content_block")) else None


def parsed(body: bytes | bytearray | str) -> Any:
    """A body as JSON; None if it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def is_object(text: str) -> bool:
    """Whether a text, such as a call's arguments, is a complete JSON object."""
    return isinstance(parsed(text), dict)


def thought_in(message: Mapping[str, Any]) -> str:
    """The reasoning in a message or a delta; its field has many names, sometimes two at once."""
    found = (value for name, value in message.items() if value and _is_thought(name))
    return next((value for value in found if isinstance(value, str)), "")


def _is_thought(name: str) -> bool:
    return "reason" in name or "think" in name


class BodyReader:
    """Finds signs of progress and of the end in a response's body.

    A service reports a tool call only when it is complete, and some services no reasoning. It does
    not report whether the answer had an end mark. Pings, comments, role-only events and blank
    deltas do not count. Results are rarely needed, so the bytes are kept and read on demand.
    """

    # What changes: the bytes that are not read yet, and what those before them have said.

    def __init__(self) -> None:
        """Start at the beginning of a body."""
        self._kept: list[tuple[bytes, float]] = []
        self._kept_bytes = 0
        self._rest = bytearray()
        self._stream = WireReader()
        self._reasons = set[str]()
        self._is_over = False
        self._delta_at: float | None = None

    @property
    def delta_at(self) -> float | None:
        """When the latest delta of text, reasoning or arguments came; None if none has come.

        A delta counts when its line is complete.
        """
        self._read()
        return self._delta_at

    @property
    def knows_format(self) -> bool:
        """Whether the stream's format is known."""
        self._read()
        return self._stream.wire is not None

    @property
    def has_ended(self) -> bool:
        """Whether the stream has an end mark, and none of an incomplete answer."""
        return self.knows_format and self._is_over and not self.was_aborted

    @property
    def was_aborted(self) -> bool:
        """Whether the server says that it ended the answer early."""
        self._read()
        return not self._reasons.isdisjoint(ABORTED)

    @property
    def reached_limit(self) -> bool:
        """Whether the stream says that the answer was cut at its limit of tokens."""
        self._read()
        return not self._reasons.isdisjoint(_AT_LIMIT)

    @property
    def calls(self) -> Sequence[str]:
        """The arguments of each tool call so far, as the stream has them."""
        self._read()
        return list(self._stream.calls.values())

    def feed(self, chunk: bytes, now: float) -> None:
        """Add the next part of the body, as received at ``now``, in seconds."""
        self._kept.append((chunk, now))
        self._kept_bytes += len(chunk)
        if self._kept_bytes > MAX_KEPT_BYTES:
            self._read()

    def _read(self) -> None:
        """Read the complete lines; where there are only deltas of text, only the latest."""
        if not self._kept:
            return
        parts: list[tuple[bytes, float]] = []
        for chunk, at in self._kept:
            if end := chunk.rfind(b"\n") + 1:
                parts.append((bytes(self._rest) + chunk[:end], at))
                self._rest.clear()
            self._rest += chunk[end:]
        self._kept.clear()
        self._kept_bytes = 0
        for part, _ in parts:
            if is_rare(part) or self._stream.wire is None:
                for line in part.splitlines():
                    event = self._stream.read(line)
                    self._reasons.add(event.reason)
                    self._is_over |= event.ends
        self._delta_at = next(
            (at for part, at in reversed(parts) if self._has_delta(part)), self._delta_at
        )

    def _has_delta(self, part: bytes) -> bool:
        """Whether there is a delta that is not blank."""
        reader = WireReader(self._stream.wire)
        events = (reader.read(line) for line in part.splitlines())
        texts = (event.text + event.thought + event.arguments for event in events)
        return any(c.isprintable() and not c.isspace() for text in texts for c in text)
