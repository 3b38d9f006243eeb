"""What counts as an answer.

Usable is what a caller could hear or a tool could run: non-blank answer text, or a complete tool
call. Not usable: response headers, role-only deltas, keep-alives, reasoning, white space, and the
markers that Pipecat's turn completion has a model put in front of its answer.

One answer is complete without a word: where turn completion is on, a model that finds the caller's
sentence unfinished says so with a marker and nothing else. It does not win by that, since words may
follow; but if it ends there, it has answered.
"""

from __future__ import annotations

__all__ = ["TURN_COMPLETION_MARKERS", "InlineThought", "is_usable_text", "is_wait_marker"]

TURN_COMPLETION_MARKERS = "●◐○"
"""Turn complete, incomplete (wait briefly), incomplete (wait longer); from Pipecat 1.14."""
_WAIT_MARKERS = "◐○"
_SILENT = TURN_COMPLETION_MARKERS + " "


def is_usable_text(text: str) -> bool:
    """Whether a piece of answer text holds anything to speak.

    White space, control characters and characters of no width are nothing.

    Args:
        text: A delta of the answer, or all of it.
    """
    if text[:1].isalnum():  # nearly always
        return True
    return any(char.isprintable() and char not in _SILENT for char in text)


def is_wait_marker(answer: str) -> bool:
    """Whether a whole answer says that the caller has not finished, and nothing more."""
    return len(answer.strip()) == 1 and answer.strip() in _WAIT_MARKERS


class InlineThought:
    """Tells reasoning that a model writes into its answer, ``<think>…</think>``, from the answer.

    Some servers pass it on as text, where it would be spoken aloud. Models write it before their
    answer, so only there it is looked for; text that merely mentions the tag later is left alone.
    """

    OPEN = "<think>"
    CLOSE = "</think>"

    def __init__(self) -> None:
        """Begin at the beginning of an answer."""
        self._held = ""
        self._thinking = False
        self._over = False
        self._at_start = False

    @property
    def is_over(self) -> bool:
        """Whether everything that comes from here on is answer."""
        return self._over and not self._at_start

    def feed(self, text: str) -> tuple[str, str]:
        """Take a piece of the answer.

        Returns:
            ``(thought, answer)``: what of the text so far is now known to be which.
        """
        if self._over:
            return "", self._past_the_gap(text)
        self._held += text
        if not self._thinking:
            start = self._held.lstrip()
            if self.OPEN.startswith(start[: len(self.OPEN)]) and len(start) < len(self.OPEN):
                return "", ""  # cannot tell yet
            if not start.startswith(self.OPEN):
                return "", self._end()
            self._thinking = True
            self._held = start[len(self.OPEN) :]
        thought, close, answer = self._held.partition(self.CLOSE)
        if close:
            self._held = ""
            self._over = self._at_start = True
            return thought, self._past_the_gap(answer)
        # The closing tag may be under way.
        keep = next(
            (n for n in range(len(self.CLOSE) - 1, 0, -1) if thought.endswith(self.CLOSE[:n])), 0
        )
        cut = len(thought) - keep
        self._held = thought[cut:]
        return thought[:cut], ""

    def finish(self) -> str:
        """End the answer.

        Returns:
            Text that was held because it might have been a tag, and is answer after all.
        """
        return "" if self._thinking or self._over else self._end()

    def _past_the_gap(self, answer: str) -> str:
        """Leave out the blank lines between the reasoning and the answer."""
        if not self._at_start:
            return answer
        answer = answer.lstrip()
        self._at_start = not answer
        return answer

    def _end(self) -> str:
        self._over = True
        held, self._held = self._held, ""
        return held
