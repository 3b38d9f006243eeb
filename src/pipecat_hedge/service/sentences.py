"""Finds sentence ends by the rule of Pipecat's text-to-speech services."""

from __future__ import annotations

import re
import unicodedata

from pipecat.utils.string import SENTENCE_ENDING_PUNCTUATION, match_endofsentence
from pipecat.utils.text.simple_text_aggregator import SimpleTextAggregator

from pipecat_hedge.race.usable import TURN_COMPLETION_MARKERS

MAX_CHARS = 1_000
"""A longer text counts as a sentence: searching for its end takes time quadratic in its length."""
_PUNCTUATION = re.compile(f"[{re.escape(''.join(sorted(SENTENCE_ENDING_PUNCTUATION)))}]")
_REPEATED_MARK = re.compile(r"([!?])[!?]+$")
_CONTINUATION = "so"
"""How a text might continue that has not ended: in lower case, as after an abbreviation."""


class SentenceFinder:
    """Finds the whole sentences in a stream of text.

    Pipecat's rule needs the following text: "Hello." may be the first half of a name. So a sentence
    is found when the next one begins. ``MAX_CHARS`` without an end count as one.

    Attributes:
        open: The text since the last whole sentence.
    """

    def __init__(self, language: str | None = None):
        """Start at the beginning of an answer.

        Args:
            language: The language of the text, as in Pipecat's aggregators; None is English.
        """
        self._language = language
        self._at_start = True
        self._begin()

    async def feed(self, text: str) -> bool:
        """Add a piece of the stream, and return whether it completed a sentence."""
        if self._at_start:  # markers are removed before the text is spoken
            text = text.lstrip(TURN_COMPLETION_MARKERS + " ")
            self._at_start = not text
        found = False
        for start in range(0, len(text), MAX_CHARS):
            piece = text[start : start + MAX_CHARS]
            if len(self.open) + len(piece) > MAX_CHARS:
                self._begin()
                found = True
            found = await self._find(piece) or found
        return found

    def _begin(self) -> None:
        self._aggregator = SimpleTextAggregator(language=self._language)
        self._may_end = False
        self.open = ""

    async def _find(self, piece: str) -> bool:
        self.open += piece
        if not self._may_end:
            if _PUNCTUATION.search(piece) is None:
                return False
            self._may_end, piece = True, self.open
        found = False
        async for sentence in self._aggregator.aggregate(piece):
            start = self.open.find(sentence.text)
            if start >= 0:
                self.open = self.open[start + len(sentence.text) :]
            found = True
        return found


def is_whole_sentence(text: str, language: str | None = None) -> bool:
    """Whether a text is blank or ends like a sentence, whatever follows.

    An abbreviation does not, nor a digit: "It costs 3." may continue with 50. Closing quotes and
    brackets, markup and emoji may follow the sentence.

    Args:
        text: The text after the last whole sentence.
        language: The language of the text; None is English.
    """
    end = len(text)
    while end and _may_follow(text[end - 1]):
        end -= 1
    text = _REPEATED_MARK.sub(r"\1", text[:end])
    if not text:
        return True
    if text[-1] == "." and text[-2:-1].isdigit():
        return False
    return match_endofsentence(f"{text} {_CONTINUATION}", language=language) == len(text)


def _may_follow(char: str) -> bool:
    """Whether a character after a sentence's end belongs to that sentence, or is a blank."""
    is_closing = unicodedata.category(char) in ("Pe", "Pf", "Pi", "So", "Sk", "Mn", "Cf")
    return char.isspace() or char in "\"'*_" or is_closing
