"""How much of a text was said, and what of it is left."""

from __future__ import annotations

import pytest
from pipecat.utils.text.markup_utils import strip_complete_markup

from pipecat_hedge.voice.spoken_words import is_rest, rest_of, said_chars, spoken_length


@pytest.mark.parametrize(
    ("text", "heard", "rest"),
    [
        ("Take two a day.", "Take two", "a day."),
        ("Take <spell>AB 12</spell> now.", "Take", "<spell>AB 12</spell> now."),
        ("Take <spell>AB 12</spell> now.", "Take AB", "<spell>12</spell> now."),
        ("Take <spell>AB 12</spell> now.", "Take AB 12", "now."),
        ('One <break time="1 s"/> two three.', "One two", "three."),
        ('One <break time="1 s"> two three.', "One two", "three."),
        ("<a><b>one two</b> three</a> four.", "one", "<a><b>two</b> three</a> four."),
        ("<a><b>one two</b> three</a> four.", "one two", "<a>three</a> four."),
        ("Take <<m|\u025b|t>> <<f|\u0254>> now.", "Take", "<<m|\u025b|t>> <<f|\u0254>> now."),
        ("It is <10 now.", "It is", "<10 now."),
        ("All of it.</a>", "All of it.", ""),
    ],
)
def test_a_rest_begins_between_words_and_is_well_formed(text: str, heard: str, rest: str) -> None:
    words = [(word, 0.5 * n) for n, word in enumerate(strip_complete_markup(text).split())]
    said = said_chars(text, words, 0.5 * len(heard.split()) - 0.1, 0.05)
    assert rest_of(text, said) == rest
    assert is_rest(text, said) is bool(rest)


@pytest.mark.parametrize("times_words", [True, False])
@pytest.mark.parametrize(
    ("text", "heard", "rest"),
    [
        ("厨房は三十分前に閉まります。", 6, "前に閉まります。"),
        ("厨房は三十分前に閉まります。", 9, "まります。"),
        ("厨房は三十分前に閉まります。", 13, ""),
        ("<b>厨房は、三十</b>分前。", 4, "<b>十</b>分前。"),
        ("请说OK吗？", 3, "吗？"),
    ],
)
def test_a_break_in_a_script_without_spaces_is_between_characters(
    text: str, heard: int, rest: str, times_words: bool
) -> None:
    sounds = [*strip_complete_markup(text).replace("OK", "o")]
    sounds = [each.replace("o", "OK") for each in sounds if each.isalnum()]
    words = [(sound, 0.2 * n) for n, sound in enumerate(sounds)]
    said = said_chars(text, words if times_words else [], 0.2 * heard, 0.08)
    if times_words or sounds[:heard] == [*text[:heard]]:  # else signs and letters count, too
        assert rest_of(text, said) == rest
        assert is_rest(text, said) is bool(rest)


def test_a_word_is_as_long_as_the_time_of_the_next_one_says() -> None:
    words = [("One", 0.0), ("two", 0.1), ("three.", 0.2)]
    assert said_chars("One two three.", words, 0.19, 0.5) == len("One two")


def test_markup_has_no_length() -> None:
    assert spoken_length('<prosody rate="x-slow">One</prosody> two.') == len("One two.")
    assert not is_rest('<break time="1s"/> </p>', 0)
