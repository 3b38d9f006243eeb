"""Where a sentence ends, by the rule that Pipecat's text-to-speech services use themselves."""

from __future__ import annotations

from pipecat.utils.string import match_endofsentence
from pipecat.utils.text.simple_text_aggregator import SimpleTextAggregator

from pipecat_hedge.policies.usable import TURN_COMPLETION_MARKERS

__all__ = ["SentenceFinder", "is_whole_sentence"]

_NEXT_WORD = "so"
"""How a text might go on that has not ended; in lower case, as after an abbreviation."""


class SentenceFinder:
    """Finds the whole sentences in a stream of text.

    Pipecat's rule needs to see how the text goes on: "Hello." may be followed by a name's other
    half, so a sentence is found when the next one begins.

    Attributes:
        open: What has been fed since the last whole sentence.
    """

    def __init__(self, language: str | None = None):
        """Begin at the beginning of an answer.

        Args:
            language: The language of the text, as Pipecat's aggregators take it; None is English.
        """
        self._aggregator = SimpleTextAggregator(language=language)
        self._at_start = True
        self.open = ""

    async def feed(self, text: str) -> bool:
        """Take a piece of the stream.

        Args:
            text: The piece.

        Returns:
            Whether it completed a sentence.
        """
        if self._at_start:  # a marker is taken off before the text is spoken
            text = text.lstrip(TURN_COMPLETION_MARKERS + " ")
            self._at_start = not text
        self.open += text
        found = False
        async for sentence in self._aggregator.aggregate(text):
            start = self.open.find(sentence.text)
            if start >= 0:
                self.open = self.open[start + len(sentence.text) :]
            found = True
        return found


def is_whole_sentence(text: str, language: str | None = None) -> bool:
    """Whether a text is blank or ends as a sentence ends, whatever comes next.

    Not after an abbreviation, nor after a digit: "It costs 3." may go on with 50.

    Args:
        text: What came after the last whole sentence.
        language: The language of the text; None is English.
    """
    text = text.rstrip()
    if not text:
        return True
    if text[-1] == "." and text[-2:-1].isdigit():
        return False
    return match_endofsentence(f"{text} {_NEXT_WORD}", language=language) == len(text)
