"""Where a sentence ends, by the rule that Pipecat's text-to-speech services use themselves."""

from __future__ import annotations

from pipecat.utils.string import match_endofsentence
from pipecat.utils.text.simple_text_aggregator import SimpleTextAggregator

__all__ = ["SentenceFinder", "is_whole_sentence"]


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
        self.open = ""

    async def feed(self, text: str) -> bool:
        """Take a piece of the stream.

        Args:
            text: The piece.

        Returns:
            Whether it completed a sentence.
        """
        self.open += text
        found = False
        async for sentence in self._aggregator.aggregate(text):
            start = self.open.find(sentence.text)
            if start >= 0:
                self.open = self.open[start + len(sentence.text) :]
            found = True
        return found


def is_whole_sentence(text: str, language: str | None = None) -> bool:
    """Whether a text ends as a sentence ends, or is blank.

    Args:
        text: What came after the last whole sentence.
        language: The language of the text; None is English.
    """
    text = text.rstrip()
    return not text or match_endofsentence(text, language=language) == len(text)
