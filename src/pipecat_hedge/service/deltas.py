"""Detects progress in a response's body that the service has not reported yet.

A service reports a tool call only when it is complete, and some services no reasoning. The stream
shows both: server-sent events in the formats of OpenAI (chat completions, responses) and Anthropic.
"""

from __future__ import annotations

import json
import re

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
_REASON = re.compile(rb'_reason"\s*:\s*"')
_ENDED = {
    b"[DONE]": re.compile(rb"^data:\s*\[DONE\]", re.MULTILINE),
    b"message_stop": re.compile(rb'"type"\s*:\s*"message_stop"'),
    b"response.": re.compile(rb'"type"\s*:\s*"response\.(?:completed|incomplete)"'),
}
"""The patterns of a complete answer, by a part that is quick to find."""
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
        "_delta_at",
        "_has_ended",
        "_kept",
        "_kept_bytes",
        "_knows_format",
        "_reached_limit",
        "_rest",
    )

    def __init__(self) -> None:
        """Start at the beginning of a response's body."""
        self._kept: list[tuple[bytes, float]] = []
        self._kept_bytes = 0
        self._rest = bytearray()
        self._delta_at: float | None = None
        self._knows_format = self._has_ended = self._reached_limit = False

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
        """Whether the stream has signalled the answer's end."""
        self._read()
        return self._has_ended

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
        self._has_ended = self._has_ended or _has_end(lines)
        self._reached_limit = self._reached_limit or _AT_LIMIT.search(lines) is not None
        self._delta_at = next(
            (at for part, at in reversed(parts) if _has_delta(part)), self._delta_at
        )


def _has_end(lines: bytes) -> bool:
    return any(
        lines.endswith((b'"finish', b'"stop'), 0, found.start())
        for found in _REASON.finditer(lines)
    ) or any(part in lines and pattern.search(lines) for part, pattern in _ENDED.items())


def _has_delta(lines: bytes) -> bool:
    """Whether the lines contain a delta that is not blank."""
    delta = _ANTHROPIC_DELTA if b'"content_block_delta"' in lines else _DELTA
    return any(not _is_blank(found[1]) for found in delta.finditer(lines))


def _is_blank(value: bytes) -> bool:
    """Whether a JSON string, without its quotes, contains nothing visible."""
    text = json.loads(f'"{value.decode(errors="replace")}"', strict=False)
    return not any(char.isprintable() and not char.isspace() for char in text)
