"""Reads in a response's body what the service does not report: progress, and how the answer ends.

A service reports a tool call only when it is complete, and some services no reasoning. It does not
report whether the answer had an end mark. The stream shows all of it: server-sent events in the
formats of OpenAI (chat completions, responses) and Anthropic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

__all__ = ["DeltaReader"]

MAX_KEPT_BYTES = 65_536
"""The unparsed bytes to keep: some hundred tokens."""

_STRING = rb'"\s*:\s*"((?:\\u[0-9a-fA-F]{4}|\\[^u]|[^"\\]){1,64})'
"""The end of a key and the start of its value, enough to see whether it is blank."""
_DELTA = re.compile(
    rb'"(?:content|refusal|reasoning|reasoning_content|arguments|thinking|partial_json|delta)'
    + _STRING
)
_ANTHROPIC_DELTA = re.compile(rb'"(?:text|thinking|partial_json)' + _STRING)
_KNOWN = re.compile(rb'"choices"\s*:|"type"\s*:\s*"(?:message_start|response\.created)"')
_REASON = re.compile(rb'_reason"\s*:\s*"([^"]+)"')
_ABORTED = (b"abort", b"error")
"""Reasons of an incomplete answer: vLLM ends its streams with ``abort`` when it is stopped."""
_ENDED = {
    b"[DONE]": re.compile(rb"^data:\s*\[DONE\]", re.MULTILINE),
    b"message_stop": re.compile(rb'"type"\s*:\s*"message_stop"'),
    b"response.": re.compile(rb'"type"\s*:\s*"response\.(?:completed|incomplete)"'),
}
"""The patterns of a complete answer, by a part that is quick to find."""
_CALL = re.compile(
    rb'"tool_calls"\s*:\s*\[\s*\{'
    rb'|"type"\s*:\s*"(?:tool_use|function_call|response\.function_call_arguments)'
)
"""What only the events of tool calls contain."""
_AT_LIMIT = re.compile(
    rb'"(?:finish_reason|stop_reason|finishReason|reason)"\s*:\s*'
    rb'"(?:length|max_tokens|MAX_TOKENS|max_output_tokens)"'
)


class DeltaReader:
    """Finds signs of progress and of the end in a stream of events.

    Pings, comments, role-only events and blank deltas do not count. Results are rarely needed, so
    the bytes are kept and parsed on demand.
    """

    __slots__ = (
        *("_calls", "_delta_at", "_has_ended", "_kept", "_kept_bytes", "_knows_format"),
        *("_reached_limit", "_rest", "_was_aborted"),
    )

    def __init__(self) -> None:
        """Start at the beginning of a response's body."""
        self._kept: list[tuple[bytes, float]] = []
        self._kept_bytes = 0
        self._rest = bytearray()
        self._delta_at: float | None = None
        self._knows_format = self._has_ended = self._was_aborted = self._reached_limit = False
        self._calls: dict[str, list[str]] = {}

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
        return self._knows_format

    @property
    def has_ended(self) -> bool:
        """Whether the stream has an end mark, and none of an incomplete answer."""
        self._read()
        return self._has_ended and not self._was_aborted

    @property
    def was_aborted(self) -> bool:
        """Whether the server says that it ended the answer early."""
        self._read()
        return self._was_aborted

    @property
    def calls(self) -> Sequence[str]:
        """The arguments of each tool call so far, as the stream has them.

        Anthropic's are empty: its service makes no call without an end mark.
        """
        self._read()
        return ["".join(parts) for parts in self._calls.values()]

    @property
    def reached_limit(self) -> bool:
        """Whether the stream says that the answer was cut at its limit of tokens."""
        self._read()
        return self._reached_limit

    def feed(self, chunk: bytes, now: float) -> None:
        """Add the next part of the body, as received at ``now``, in seconds."""
        self._kept.append((chunk, now))
        self._kept_bytes += len(chunk)
        if self._kept_bytes > MAX_KEPT_BYTES:
            self._read()

    def _read(self) -> None:
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
        lines = b"".join(part for part, _ in parts)
        self._knows_format = self._knows_format or _KNOWN.search(lines) is not None
        reasons = _reasons(lines)
        self._was_aborted = self._was_aborted or any(each in _ABORTED for each in reasons)
        self._has_ended = self._has_ended or bool(reasons) or _has_end(lines)
        self._reached_limit = self._reached_limit or _AT_LIMIT.search(lines) is not None
        if _CALL.search(lines):
            for line in lines.splitlines():
                if _CALL.search(line):
                    self._read_call(line)
        self._delta_at = next(
            (at for part, at in reversed(parts) if _has_delta(part)), self._delta_at
        )

    def _read_call(self, line: bytes) -> None:
        try:
            event: Any = json.loads(line.removeprefix(b"data:"))
        except ValueError:
            return
        match event:
            case {"choices": [{"delta": {"tool_calls": [*pieces]}}, *_]}:
                for piece in pieces:
                    match piece:
                        case {"function": {**function}}:
                            part = function.get("arguments") or ""
                            self._parts(piece.get("index")).append(str(part))
                        case _:
                            pass
            case {"type": "content_block_start", "content_block": {"type": "tool_use"}}:
                self._parts(event.get("index"))
            case {"item": {"type": "function_call"} as item}:  # begins or ends a call
                self._parts(item.get("id"))[:] = [str(item.get("arguments") or "")]
            case {"item_id": key, "arguments": str(arguments)}:
                self._parts(key)[:] = [arguments]
            case {"item_id": key, "delta": str(part)}:
                self._parts(key).append(part)
            case _:
                pass

    def _parts(self, key: object) -> list[str]:
        """The pieces of the arguments of a call, by its index or id."""
        return self._calls.setdefault(str(key), [])


def _reasons(lines: bytes) -> list[bytes]:
    return [
        found[1]
        for found in _REASON.finditer(lines)
        if lines.endswith((b'"finish', b'"stop'), 0, found.start())
    ]


def _has_end(lines: bytes) -> bool:
    return any(part in lines and pattern.search(lines) for part, pattern in _ENDED.items())


def _has_delta(lines: bytes) -> bool:
    """Whether the lines contain a delta that is not blank."""
    delta = _ANTHROPIC_DELTA if b'"content_block_delta"' in lines else _DELTA
    return any(not _is_blank(found[1]) for found in delta.finditer(lines))


def _is_blank(value: bytes) -> bool:
    """Whether a JSON string, without its quotes, contains nothing visible."""
    text = json.loads(f'"{value.decode(errors="replace")}"', strict=False)
    return not any(char.isprintable() and not char.isspace() for char in text)
