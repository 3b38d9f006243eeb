"""How much of a text was spoken, by the times of its words and the length of the audio. Pure.

Markup has no sound, and no break is within it: the tags around a break are opened again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate

from pipecat_hedge.race.continuation import is_wide

CHAR_SECS = 0.07
"""A character of speech, where nothing is known of the voice: some 14 a second."""
ENOUGH_CHARS = 10
"""What must have been timed of a text before its own pace counts."""
WIDE_CHARS = 2.5
"""As many characters of others sound as long as one of Chinese or Japanese."""
MOST_OF = 0.5
"""A word of which this part was heard is not said again."""
_TAG = re.compile(r"(?<!<)<(/?)([a-zA-Z][\w:-]*)[^<>]*?(/?)>")
"""A tag of SSML. ``<<m|ɛ|t>>``, a word in Cartesia's phonemes, is none."""
_SILENT = "\0"
"""Stands for a character of a tag, so that places stay the same."""


def spoken_length(text: str) -> float:
    """The characters of a text that have a sound; see ``WIDE_CHARS``."""
    return _lengths(_TAG.sub("", text))[-1]


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
    lengths = _lengths(text)
    at, end, limit, secs, limit_secs = 0, 0, len(text), 0.0, 0.0
    for word, start_secs in words:
        word = _TAG.sub("", word).strip()
        if not word or (found := text.find(word, end)) < 0:
            continue
        if start_secs > audio_secs:
            limit, limit_secs = found, start_secs
            break
        at, end, secs = found, found + len(word), start_secs
    before = lengths[at]
    pace = secs / before if before >= ENOUGH_CHARS else char_secs
    if limit_secs > secs and (length := lengths[limit] - before) > 0:
        pace = (limit_secs - secs) / length
    heard = before + (audio_secs - secs) / pace
    said = 0
    for start, end in _words(text):
        length = lengths[end] - lengths[start]
        if end <= limit and lengths[start] + MOST_OF * length <= heard:
            said = end
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


def _words(text: str) -> Iterator[tuple[int, int]]:
    """Where words are; in a script without spaces, where each character is."""
    for run in re.finditer(r"\S+", text):
        start = run.start()
        for at in () if run[0].isascii() else range(start + 1, run.end()):
            if text[at].isalnum() and (is_wide(text[at]) or is_wide(text[at - 1])):
                yield start, at
                start = at
        yield start, run.end()


def _lengths(text: str) -> list[float]:
    """The length up to each place, and to the end; this runs for each piece of audio."""
    lengths = (
        WIDE_CHARS if not c.isascii() and c.isalnum() and is_wide(c) else float(c != _SILENT)
        for c in text
    )
    return [*accumulate(lengths, initial=0.0)]
