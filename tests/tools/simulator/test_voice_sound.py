"""The simulated voices' plain sound, and what is read from it."""

from __future__ import annotations

import numpy as np
import pytest
import soxr

from pipecat_hedge.tools.simulator.timeline import Text, tokenize
from pipecat_hedge.tools.simulator.voice_sound import Speech, spell, spoken_text
from tests.support.spoken_words import timed_words_in, words_in

TEXT = "It's 25 °C – naïve llamas, don’t!"
WORDS = ["it's", "25", "c", "naive", "llamas", "don't"]


def sound(text: str, rate: int) -> bytes:
    speech = Speech(text, rate)
    return b"".join(speech.take(Text(token)) for token in tokenize(text))


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 24000, 44100, 48000])
def test_words_are_read_from_the_sound(rate: int) -> None:
    assert words_in(sound(TEXT, rate), rate) == WORDS


def test_every_letter_is_read_after_another_rate() -> None:
    text = "the quick brown fox jumps over a lazy dog 0123456789"
    samples = np.frombuffer(sound(text, 24000), "<i2")
    assert words_in(soxr.resample(samples, 24000, 8000), 8000) == text.split()


def test_a_cut_word_is_the_letters_that_are_heard() -> None:
    word = spell("forty", 8000)
    assert words_in(word[round(0.12 * 8000) :], 8000) == ["rty"]
    assert words_in(word[: round(0.18 * 8000)], 8000) == ["for"]


def test_silence_moves_the_words_after_it() -> None:
    silence = np.zeros(8000, np.int16)
    samples = np.concatenate([spell("one", 8000), silence, spell("two", 8000)])
    (_, first), (word, second) = timed_words_in(samples, 8000)
    assert (word, first, second) == ("two", 0.0, pytest.approx(1.24, abs=0.006))


def test_tags_are_not_spoken() -> None:
    assert spoken_text('<speed ratio="2"/>ok <spell>12</spell>') == "ok 12"


def test_a_word_that_cannot_be_heard_is_silence() -> None:
    speech = Speech("one two", 8000)
    assert words_in(speech.take(Text("one", is_answer=False)) + speech.take(Text("one")), 8000) == [
        "one"
    ]
