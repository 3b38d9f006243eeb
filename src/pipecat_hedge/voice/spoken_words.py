"""How much of a text was spoken, by the times of its words and the length of the audio. Pure.

Markup has no sound, and no break is within it: the tags around a break are opened again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

CHAR_SECS = 0.07
"""A character of speech, where nothing is known of the voice: some 14 a second."""
ENOUGH_CHARS = 10
"""What must have been timed of a text before its own pace counts."""
MOST_OF = 0.5
"""A word of which this part was heard is not said again."""
_TAG = re.compile(r"(?<!<)<(/?)([a-zA-Z][\w:-]*)[^<>]*?(/?)>")
"""A tag of SSML. ``<<m|ɛ|t>>``, a word in Cartesia's phonemes, is none."""
_SILENT = "\0"
"""Stands for a character of a tag, so that places stay the same."""


def spoken_length(text: str) -> int:
    """The characters of a text that have a sound."""
    return len(_TAG.sub("", text))


def said_chars(
    text: str, words: Sequence[tuple[str, float]], audio_secs: float, char_secs: float
) -> int:
    """Return how many characters of a text were said: a place between two words, or an end.

    Args:
        text: The text.
        words: Its words whose time is known, each with its start in seconds from the start
            of the audio.
        audio_secs: The audio that has come.
        char_secs: What a character of this voice usually takes.
    """
    text = _TAG.sub(lambda tag: _SILENT * len(tag[0]), text)
    at, end, limit, secs, limit_secs = 0, 0, len(text), 0.0, 0.0
    for word, start_secs in words:
        word = _TAG.sub("", word).strip()
        if not word or (found := text.find(word, end)) < 0:
            continue
        if start_secs > audio_secs:
            limit, limit_secs = found, start_secs
            break
        at, end, secs = found, found + len(word), start_secs
    at = _sounding(text[:at])
    pace = secs / at if at >= ENOUGH_CHARS else char_secs
    if limit_secs > secs and (length := _sounding(text[:limit]) - at) > 0:
        pace = (limit_secs - secs) / length
    heard = at + (audio_secs - secs) / pace
    said = 0
    for word in re.finditer(r"\S+", text):
        length = _sounding(word[0])
        if word.end() <= limit and _sounding(text[: word.start()]) + MOST_OF * length <= heard:
            said = word.end()
    return said


def is_rest(text: str, said: int) -> bool:
    """Whether anything audible of the text is left."""
    return any(each.isalnum() for each in _TAG.sub("", text[said:]))


def rest_of(text: str, said: int) -> str:
    """The text from a place of ``said_chars`` on, with the tags that are open there."""
    opened: list[tuple[str, str]] = []
    for tag in _TAG.finditer(text[:said]):
        is_end, name, is_whole = tag.groups()
        if is_end:
            opened = opened[: next((n for n, o in enumerate(opened) if o[0] == name), None)]
        elif not is_whole:
            opened.append((name, tag[0]))
    rest = text[said:].lstrip()
    return "".join(tag for name, tag in opened if f"</{name}" in rest) + rest


def _sounding(text: str) -> int:
    return len(text) - text.count(_SILENT)
