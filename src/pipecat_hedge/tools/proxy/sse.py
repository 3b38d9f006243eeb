"""Splits a stream of server-sent events into events, byte for byte."""

from __future__ import annotations

import re

__all__ = ["MAX_EVENT_BYTES", "EventSplitter"]

MAX_EVENT_BYTES = 64 * 2**20
"""A longer event is taken for a fault: no answer has one."""
_END = re.compile(rb"\r?\n\r?\n|\r\r")


class EventSplitter:
    """Returns whole events; what follows the last one is kept until its end has come."""

    def __init__(self) -> None:
        """Start at the beginning of a stream."""
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add bytes and return the events that are now whole, each with its blank line.

        Raises:
            ValueError: If an event is longer than ``MAX_EVENT_BYTES``.
        """
        rest = self._rest
        searched = max(len(rest) - 3, 0)  # an end may have begun in the chunk before
        rest += chunk
        events: list[bytes] = []
        begin = 0
        while (found := _END.search(rest, max(searched, begin))) is not None:
            events.append(bytes(rest[begin : found.end()]))
            begin = found.end()
        if begin:
            del rest[:begin]
        if len(rest) > MAX_EVENT_BYTES:
            raise ValueError(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        return events

    def finish(self) -> bytes:
        """Return what was left of an event without an end."""
        return bytes(self._rest)
