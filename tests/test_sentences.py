"""Where a sentence ends, as the text-to-speech sees it."""

from __future__ import annotations

import pytest

from pipecat_hedge.sentences import SentenceFinder, is_whole_sentence


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        ("We are open.", True),
        ("Is it nine? ", True),
        ("\u4f60\u597d\u3002", True),
        ("", True),
        (" \n", True),
        ("We are", False),
        ("Ask Dr.", False),
        ("It costs 3.", False),
        ("At 9 a.m.", False),
        ("Well,", False),
    ],
)
def test_what_ends_a_sentence_whatever_comes_next(text: str, is_whole: bool) -> None:
    """Not an abbreviation, not the point of a number that may go on."""
    assert is_whole_sentence(text) is is_whole


@pytest.mark.parametrize(
    "pieces", [["\u25cf Hi. We"], ["\u25cf", " ", "Hi.", " We"], [" ", "\u25cf Hi", ". We"]]
)
async def test_a_marker_in_front_is_no_part_of_the_sentence(pieces: list[str]) -> None:
    """It is taken off before the text is spoken."""
    finder = SentenceFinder()
    assert [await finder.feed(piece) for piece in pieces][-1]
    assert finder.open == " We"
