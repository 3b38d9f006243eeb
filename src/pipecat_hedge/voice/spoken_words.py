"""How much of a text was spoken, by the times of its words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

CHAR_SECS = 0.06
"""A character of speech, where nothing is known of the voice: some 15 a second."""
MOST_OF = 0.5
"""A last word of which this part of its usual length was heard is not said again."""


def said_chars(text: str, words: Sequence[tuple[str, float]], audio_secs: float) -> int:
    """Return the length of the text's beginning that was said, in whole words.

    Args:
        text: The text that was asked for.
        words: Its words, each with its start in seconds from the start of the audio.
        audio_secs: The audio that has come.
    """
    at = said = 0
    for number, (word, secs) in enumerate(words):
        found = text.find(word.strip(), at)
        if found < 0:
            continue
        end = found + len(word.strip())
        if number + 1 < len(words):
            is_said = words[number + 1][1] <= audio_secs
        else:
            rate = secs / at if at else CHAR_SECS
            is_said = audio_secs - secs >= MOST_OF * rate * (end - found)
        if not is_said:
            break
        at = said = end
    return said


def is_rest(text: str, said: int) -> bool:
    """Whether anything audible of the text is left."""
    return any(each.isalnum() for each in text[said:])
