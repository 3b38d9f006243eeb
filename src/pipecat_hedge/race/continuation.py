"""Continues an answer that broke off, so that nothing is repeated and nothing is missing.

The continuing model may go on as instructed, repeat the broken sentence, or start again. Its text
is compared with what was said, from every sentence start, ignoring case, spacing and punctuation.
It is held while a comparison matches; what follows the end of the match is new and is released.
If all comparisons fail, the text after the longest agreement is released.
Paraphrases are not detected: "We close at nine" after "We are open till nine" is said as well.
"""

from __future__ import annotations

import unicodedata

_FULL_WIDTH_ENDERS = "。！？｡"
"""Sentence enders that need no space after them."""
_ENDERS = ".!?…।॥؟۔።။" + _FULL_WIDTH_ENDERS
_CLOSERS = _ENDERS + ":;,،、，"
_MARKERS = "●◐○"
"""Turn completion markers. A second one is not part of the answer."""


class Continuation:
    """Returns what a second answer adds to what was said.

    Example::

        continuation = Continuation("We are open till nine. Shall I")
        continuation.feed("We are open till")           # ""
        continuation.feed(" nine. Shall I book")        # " book"
        continuation.feed(" a table?")                  # " a table?"
    """

    def __init__(self, said: str):
        """Start after ``said``, everything that was released so far."""
        self._said = said
        self._needs_gap = bool(said) and not said[-1].isspace()
        self._letters = [c.casefold() for c in said if _is_letter(c)]
        self._anchors = _sentence_starts(said) if self._letters else []
        self._sentence_ends = dict.fromkeys(_sentence_ends(said))
        self._alive = list(self._anchors)
        self._matched = 0
        self._held = ""
        self._agreed_chars = 0
        self._ended_chars = 0
        self._at_start = True
        self._is_done = not self._alive
        self._space = " " if said.endswith(" ") else ""
        self._skipped_chars = self._space

    def feed(self, text: str) -> str:
        """Add a piece of the second answer and return what may be released now; may be empty."""
        if self._at_start:
            text = "".join(char for char in text if char not in _MARKERS)
            self._at_start = not text.strip()
        if self._is_done:
            text = text.lstrip(self._skipped_chars) if self._skipped_chars else text
            self._skipped_chars = "" if text else self._skipped_chars
            return self._joined(text)
        for index, char in enumerate(text):
            letter = char.casefold()
            if _is_letter(char):
                alive = [a for a in self._alive if self._letter(a + self._matched) == letter]
                if not alive:
                    return self._let_through(text[index:])
                self._alive = alive
                self._matched += 1
            self._held += char
            if not _is_letter(char):
                continue
            if any(a + self._matched in self._sentence_ends for a in self._alive):
                self._agreed_chars = len(self._held)
            if any(a + self._matched == len(self._letters) for a in self._alive):
                self._ended_chars = len(self._held)
                self._alive = [a for a in self._alive if a + self._matched < len(self._letters)]
                if not self._alive:
                    return self._let_through(text[index + 1 :])
        return ""

    def finish(self) -> str:
        """End the second answer.

        Returns:
            Held text that began like what was said and turned out to be different.
        """
        if self._is_done:
            return ""
        rest = self._let_through("")
        return rest if any(_is_letter(char) for char in rest) else ""

    def _letter(self, index: int) -> str | None:
        return self._letters[index] if index < len(self._letters) else None

    def _let_through(self, rest: str) -> str:
        """Release what comes after the longest agreement."""
        self._is_done = True
        agreed = max(self._ended_chars, self._agreed_chars)
        rest = self._held[agreed:] + rest
        self._held = ""
        if agreed and agreed == self._ended_chars:
            last = self._said.rstrip()[-1]
            if not _is_letter(last):  # its full stop or comma was released before
                self._skipped_chars = self._space + (_ENDERS if last in _ENDERS else last)
            else:
                self._needs_gap = False
        elif agreed:
            rest = rest.lstrip(_CLOSERS)
        return self.feed(rest)

    def _joined(self, text: str) -> str:
        """Insert a space between what was said and what comes now, if neither has one."""
        if not text or not self._needs_gap:
            return text
        self._needs_gap = False
        last, first = self._said[-1], text[0]
        apart = first.isalnum() and (last in _CLOSERS or last.isalnum())
        if apart and not is_wide(last) and not is_wide(first):
            return " " + text
        return text


def _is_letter(char: str) -> bool:
    """Whether a character counts in comparisons: letters, digits, vowel signs."""
    return char.isalnum() or unicodedata.category(char).startswith("M")


def is_wide(char: str) -> bool:
    """Whether a character's script is written without spaces."""
    return unicodedata.east_asian_width(char) in "WF"


def _sentence_starts(said: str) -> list[int]:
    """The positions of sentence starts, counted in letters and digits."""
    count = sum(_is_letter(char) for char in said)
    return [0, *(letters for letters in _sentence_ends(said) if letters < count)]


def _sentence_ends(said: str) -> list[int]:
    """The number of letters and digits up to the end of each whole sentence."""
    letters = 0
    ends: list[int] = []
    for index, char in enumerate(said):
        if _is_letter(char):
            letters += 1
        elif char in _ENDERS and letters and letters not in ends:
            is_inside = said[index + 1 : index + 2].isalnum()  # such as the point in 3.50
            if not is_inside or char in _FULL_WIDTH_ENDERS:
                ends.append(letters)
    return ends
