"""Sentence ends, as the text-to-speech finds them."""

from __future__ import annotations

import time

import pytest

from pipecat_hedge.service.sentences import SentenceFinder, is_whole_sentence

WHOLE = ["We are open.", "Is it nine? ", "\u4f60\u597d\u3002", "", " \n", "**Come.**\n"]
WHOLE += ["Really?!", "*Come by!* \U0001f44b", "(We are open.)", "She said “Come by.”"]
OPEN = ["We are", "Ask Dr.", "It costs 3.", "At 9 a.m.", "Well,", "Take “the", "Wait..."]


@pytest.mark.parametrize("text", [*WHOLE, *OPEN])
def test_sentence_ends_are_recognised(text: str) -> None:
    assert is_whole_sentence(text) is (text in WHOLE)


@pytest.mark.parametrize("word", ["word ", "1.5 and ", "x"])
@pytest.mark.parametrize("piece", [None, 100])
async def test_text_without_sentence_end_takes_linear_time(word: str, piece: int | None) -> None:
    async def secs(size: int) -> float:
        finder, text = SentenceFinder(), word * (size // len(word))
        began = time.process_time()
        for start in range(0, len(text), piece or size):
            await finder.feed(text[start : start + (piece or size)])
        return time.process_time() - began

    await secs(10_000)
    small, large = [min([await secs(n) for _ in range(3)]) for n in (20_000, 80_000)]
    assert large < 8 * small + 0.01


async def test_overlong_text_counts_as_a_sentence() -> None:
    finder = SentenceFinder()
    assert not await finder.feed("word " * 200)
    assert await finder.feed("word ")
    assert finder.open == "word "
    assert await finder.feed("ends here. The next one")
    assert finder.open.strip() == "The next one"
