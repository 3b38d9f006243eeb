"""What a streamed answer shows before its service does: that the model is still writing.

A service hands on answer text as it comes, and a tool call when it is whole. Its arguments, and
with some services the reasoning, are seen in the stream alone: server-sent events as OpenAI (chat
completions and responses), Anthropic and those who are compatible with them send.
"""

from __future__ import annotations

import json
import re

__all__ = ["DeltaReader"]

_STRING = rb'"\s*:\s*"((?:\\u[0-9a-fA-F]{4}|\\[^u]|[^"\\]){1,64})'
"""A key's end and the beginning of its value, which is enough to tell whether it is blank."""
_DELTA = re.compile(
    rb'"(?:content|refusal|reasoning|reasoning_content|arguments|thinking|partial_json|delta)'
    + _STRING
)
_ANTHROPIC_DELTA = re.compile(rb'"(?:text|thinking|partial_json)' + _STRING)
_KNOWN = re.compile(rb'"choices"\s*:|"type"\s*:\s*"(?:message_start|response\.created)"')
_END = re.compile(
    rb'"(?:finish_reason|stop_reason)"\s*:\s*"'
    rb"|^data:\s*\[DONE\]"
    rb'|"type"\s*:\s*"(?:message_stop|response\.completed|response\.incomplete)"',
    re.MULTILINE,
)


class DeltaReader:
    """Reads a stream of events for signs that the model writes, and that it has finished.

    Pings, comments, events that name a role only, and blank deltas are no such sign.

    Attributes:
        knows_format: Whether the stream is in a format that is read here.
        has_ended: Whether the stream has said that the answer is complete.
    """

    __slots__ = ("_rest", "has_ended", "knows_format")

    def __init__(self) -> None:
        """Begin at the beginning of a response's body."""
        self._rest = bytearray()
        self.knows_format = self.has_ended = False

    def feed(self, chunk: bytes) -> bool:
        """Read on.

        Args:
            chunk: What came, as it was cut by the network.

        Returns:
            Whether a delta of answer text, reasoning or arguments is in the lines that are whole
            with it.
        """
        end = chunk.rfind(b"\n") + 1
        if not end:
            self._rest += chunk
            return False
        lines = bytes(self._rest) + chunk[:end]
        self._rest = bytearray(chunk[end:])
        if not self.knows_format:
            self.knows_format = _KNOWN.search(lines) is not None
        if not self.has_ended:
            self.has_ended = _END.search(lines) is not None
        delta = _ANTHROPIC_DELTA if b'"content_block_delta"' in lines else _DELTA
        return any(not _is_blank(found[1]) for found in delta.finditer(lines))


def _is_blank(value: bytes) -> bool:
    """Whether a JSON string, without its quotes, has nothing in it that can be seen."""
    text = json.loads(f'"{value.decode(errors="replace")}"', strict=False)
    return not any(char.isprintable() and not char.isspace() for char in text)
