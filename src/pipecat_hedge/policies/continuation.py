"""Going on with an answer that broke off, so that nothing is said twice and nothing is missing.

The problem: provider A has been heard saying "We are open till nine. Shall I" when its stream
breaks. Provider B is told so and asked to go on, but a model may do one of three things: go on as
asked, begin the broken sentence again, or give its whole answer from the start. The naive way,
playing B's text as it comes, repeats in two cases of three.

Ours compares B's text with what has been said, from every place where a sentence of it begins,
ignoring case, spacing and punctuation. For as long as one of the comparisons holds, B's text is
held back. If it comes to the end of what has been said, what follows is new and is let through.
If all comparisons fail, B says something else: what is left of its text after the whole sentences
that did agree is let through. Held text is let out at the end of B's answer only if it did not
agree to the end, so an answer that repeats and stops adds nothing. If B breaks off as well, what is
held goes unsaid.

Left out: paraphrases. "We close at nine" after "We are open till nine" is said as well.
"""

from __future__ import annotations

__all__ = ["Continuation"]

_CLOSERS = ".!?…。！？:;,"
_ENDERS = ".!?…。！？"


class Continuation:
    """Lets through what a second answer adds to what has been said.

    Example::

        follow = Continuation("We are open till nine. Shall I")
        follow.feed("We are open till")           # ""
        follow.feed(" nine. Shall I book")        # " book"
        follow.feed(" a table?")                  # " a table?"
    """

    def __init__(self, said: str):
        """Take what has been said.

        Args:
            said: Everything that was released, in full.
        """
        self._said = said
        self._needs_gap = bool(said) and not said[-1].isspace()
        self._letters = [c for c in said.casefold() if c.isalnum()]
        self._anchors = _sentence_starts(said) if self._letters else []
        self._sentence_ends = dict.fromkeys(_sentence_ends(said))
        self._alive = list(self._anchors)
        self._matched = 0
        self._held = ""
        self._agreed_chars = 0
        self._through = not self._alive
        self._swallows = ""

    def feed(self, text: str) -> str:
        """Take a piece of the second answer.

        Args:
            text: The piece.

        Returns:
            What may be released now; may be empty.
        """
        if self._through:
            text = text.lstrip(self._swallows) if self._swallows else text
            self._swallows = "" if text else self._swallows
            return self._joined(text)
        for index, char in enumerate(text):
            self._held += char
            letter = char.casefold()
            if not char.isalnum():
                continue
            self._alive = [a for a in self._alive if self._letter(a + self._matched) == letter]
            if not self._alive:
                return self._let_go(text[index + 1 :])
            self._matched += 1
            if any(a + self._matched in self._sentence_ends for a in self._alive):
                self._agreed_chars = len(self._held)
            if any(a + self._matched == len(self._letters) for a in self._alive):
                return self._agree_to_the_end(text[index + 1 :])
        return ""

    def finish(self) -> str:
        """End the second answer where it was meant to end.

        Returns:
            What is still to be released: held text that began like what was said, and was not.
        """
        if self._through:
            return ""
        whole = self._held[: self._agreed_chars] if self._agreed_chars else ""
        rest = self._held[len(whole) :].lstrip(_CLOSERS)
        self._through = True
        return self._joined(rest) if any(c.isalnum() for c in rest) else ""

    def _letter(self, index: int) -> str | None:
        return self._letters[index] if index < len(self._letters) else None

    def _agree_to_the_end(self, rest: str) -> str:
        self._through = True
        self._held = ""
        if self._said.rstrip()[-1:] in _ENDERS:  # its full stop has been said already
            self._swallows = _ENDERS
        else:
            self._needs_gap = False
        return self.feed(rest)

    def _let_go(self, rest: str) -> str:
        self._through = True
        text = self._held[self._agreed_chars :]
        if self._agreed_chars:
            text = text.lstrip(_CLOSERS)
        self._held = ""
        return self._joined(text + rest)

    def _joined(self, text: str) -> str:
        """Put a space between what was said and what comes now, if neither brings one."""
        if not text or not self._needs_gap:
            return text
        self._needs_gap = False
        starts_word = text[0].isalnum()
        ends_sentence = self._said[-1] in _CLOSERS
        if starts_word and (ends_sentence or text[0].isupper()):
            return " " + text
        return text


def _sentence_starts(said: str) -> list[int]:
    """Where sentences begin, counted in letters and digits."""
    letters = 0
    starts = [0]
    after_end = False
    for char in said:
        if char in _ENDERS:
            after_end = True
        elif char.isalnum():
            if after_end and letters not in starts:
                starts.append(letters)
            after_end = False
            letters += 1
    return starts


def _sentence_ends(said: str) -> list[int]:
    """How many letters and digits have been said at the end of each whole sentence."""
    letters = 0
    ends: list[int] = []
    for char in said:
        if char in _ENDERS and letters:
            ends.append(letters)
        elif char.isalnum():
            letters += 1
    return ends
