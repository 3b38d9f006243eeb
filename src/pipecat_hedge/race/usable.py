"""Decides what counts as an answer.

Usable is non-blank answer text, or a complete tool call. Not usable are headers, role-only deltas,
keep-alives, reasoning, white space, and the markers of Pipecat's turn completion.
An answer that is only an "incomplete turn" marker is complete, but does not win by the marker.
"""

from __future__ import annotations

TURN_COMPLETION_MARKERS = "●◐○"
"""Turn complete, incomplete (wait briefly), incomplete (wait longer); from Pipecat 1.14."""
_WAIT_MARKERS = "◐○"
_SILENT = TURN_COMPLETION_MARKERS + " "


def is_usable_text(text: str) -> bool:
    """Whether a piece of answer text contains anything to speak.

    White space, control characters and zero-width characters do not count.
    """
    if text[:1].isalnum():  # the common case
        return True
    return any(char.isprintable() and char not in _SILENT for char in text)


def is_wait_marker(answer: str) -> bool:
    """Whether a whole answer is just an "incomplete turn" marker."""
    return len(answer.strip()) == 1 and answer.strip() in _WAIT_MARKERS


class InlineThought:
    """Separates inline reasoning, ``<think>…</think>``, from the answer.

    Some servers pass reasoning on as text, which would be spoken. Models write it before the
    answer, so the tag is recognised only there.
    """

    OPEN = "<think>"
    CLOSE = "</think>"

    def __init__(self) -> None:
        """Start at the beginning of an answer."""
        self._held = ""
        self._thinking = False
        self._over = False
        self._at_start = False

    @property
    def is_over(self) -> bool:
        """Whether all further text is answer."""
        return self._over and not self._at_start

    def feed(self, text: str) -> tuple[str, str]:
        """Add a piece of the answer.

        Returns:
            ``(thought, answer)``: the parts of the text so far that are now classified.
        """
        if self._over:
            return "", self._past_the_gap(text)
        self._held += text
        if not self._thinking:
            start = self._held.lstrip()
            if self.OPEN.startswith(start[: len(self.OPEN)]) and len(start) < len(self.OPEN):
                return "", ""  # may still become a tag
            if not start.startswith(self.OPEN):
                return "", self._end()
            self._thinking = True
            self._held = start[len(self.OPEN) :]
        thought, close, answer = self._held.partition(self.CLOSE)
        if close:
            self._held = ""
            self._over = self._at_start = True
            return thought, self._past_the_gap(answer)
        # Hold a possible start of the closing tag.
        keep = next(
            (n for n in range(len(self.CLOSE) - 1, 0, -1) if thought.endswith(self.CLOSE[:n])), 0
        )
        cut = len(thought) - keep
        self._held = thought[cut:]
        return thought[:cut], ""

    def finish(self) -> str:
        """End the answer.

        Returns:
            Held text that looked like the start of a tag and is part of the answer.
        """
        return "" if self._thinking or self._over else self._end()

    def _past_the_gap(self, answer: str) -> str:
        """Strip the blank lines between the reasoning and the answer."""
        if not self._at_start:
            return answer
        answer = answer.lstrip()
        self._at_start = not answer
        return answer

    def _end(self) -> str:
        self._over = True
        held, self._held = self._held, ""
        return held
