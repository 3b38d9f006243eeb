"""What counts as an answer.

Usable is what a caller could hear or a tool could run: non-blank answer text, or a complete tool
call. Not usable: response headers, role-only deltas, keep-alives, reasoning, white space, and the
markers that Pipecat's turn completion has a model put in front of its answer.
"""

from __future__ import annotations

__all__ = ["TURN_COMPLETION_MARKERS", "is_usable_text"]

TURN_COMPLETION_MARKERS = "●◐○"
"""Turn complete, incomplete (wait briefly), incomplete (wait longer); from Pipecat 1.14."""


def is_usable_text(text: str) -> bool:
    """Whether a piece of answer text holds anything to speak.

    Args:
        text: A delta of the answer, or all of it.
    """
    return bool(text.strip(_SILENT)) and not text.isspace()


_SILENT = TURN_COMPLETION_MARKERS + " \t\r\n"
