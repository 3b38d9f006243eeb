"""How much of a text was spoken, by the times of its words and the length of the audio. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

CHAR_SECS = 0.07
"""A character of speech, where nothing is known of the voice: some 14 a second."""
ENOUGH_CHARS = 10
"""What must have been timed of a text before its own pace counts."""
MOST_OF = 0.5
"""A word of which this part was heard is not said again."""


def said_chars(
    text: str, words: Sequence[tuple[str, float]], audio_secs: float, char_secs: float
) -> int:
    """Return the length of the text's beginning that was said, in whole words.

    Behind the last word whose time is known, the length of the audio tells.

    Args:
        text: The text that was asked for.
        words: Those of its words whose time is known, each with its start in seconds from the start
            of the audio.
        audio_secs: The audio that has come.
        char_secs: What a character of this voice usually takes.
    """
    at, end, limit, secs = 0, 0, len(text), 0.0
    for word, start_secs in words:
        if (found := text.find(word.strip(), end)) < 0:
            continue
        if start_secs > audio_secs:
            limit = found
            break
        at, end, secs = found, found + len(word.strip()), start_secs
    pace = secs / at if at >= ENOUGH_CHARS else char_secs
    heard = at + (audio_secs - secs) / pace
    said = 0
    for word in re.finditer(r"\S+", text):
        length = word.end() - word.start()
        if word.end() <= limit and word.start() + MOST_OF * length <= heard:
            said = word.end()
    return said


def is_rest(text: str, said: int) -> bool:
    """Whether anything audible of the text is left."""
    return any(each.isalnum() for each in text[said:])
