"""What simulated voices sound like, word by word. Pure.

Unless the simulator is given a voice, a word is spelled: one tone for each letter, so that a test
can read from a recording which words, and which parts of words, were heard.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import soxr

from pipecat_hedge.tools.simulator.speech import RATE, WORD_SECS, Samples
from pipecat_hedge.tools.simulator.timeline import Text, tokenize

Voice = Callable[[str], Samples]
"""Returns the sound of a text: 16 kHz, mono, 16 bit."""

LETTER_HZ = {
    letter: 500 + 75 * n for n, letter in enumerate("abcdefghijklmnopqrstuvwxyz0123456789'")
}
"""The tone of each letter; all of them pass through a telephone."""
LETTER_SECS = 0.06
"""The length of a letter: a tone, and 10 ms of silence. A word ends with 60 ms more of silence."""

_TONE_SECS, _GAP_SECS, _EDGE_SECS = 0.05, 0.06, 0.005
_LEVEL = 10_000
_TAGS = re.compile(r"<[^>]*>")


def spoken_text(text: str) -> str:
    """Return a text without its SSML tags."""
    return _TAGS.sub("", text)


def spell(word: str, rate: int) -> Samples:
    """Return a word as tones; empty if it has none of the letters."""
    plain = unicodedata.normalize("NFKD", word).casefold().replace("’", "'")
    letters = [_letter(LETTER_HZ[letter], rate) for letter in plain if letter in LETTER_HZ]
    gap = np.zeros(round(_GAP_SECS * rate) if letters else 0, np.int16)
    return np.concatenate([*letters, gap])


@lru_cache(maxsize=len(LETTER_HZ) * 4)
def _letter(hz: int, rate: int) -> Samples:
    at_secs = np.arange(round(_TONE_SECS * rate)) / rate
    edges = np.minimum(at_secs, at_secs[::-1]) / _EDGE_SECS
    samples = np.zeros(round(LETTER_SECS * rate), np.int16)
    samples[: len(at_secs)] = _LEVEL * np.minimum(edges, 1) * np.sin(2 * np.pi * hz * at_secs)
    return samples


class Speech:
    """The sound of a text in 16-bit samples; it changes with the words that were taken.

    Words of a given voice are taken to be as long as they have letters.

    Args:
        text: The text.
        rate: Of the sound, in Hz.
        voice: The voice; None spells the words.
    """

    def __init__(self, text: str, rate: int, voice: Voice | None = None):
        tokens = tokenize(text) or ("",)
        if voice is None or not text.strip():
            self._words = [spell(token, rate) for token in tokens]
        else:
            sound = soxr.resample(voice(text), RATE, rate)
            ends = np.cumsum([len(token) for token in tokens]) / len(text) * len(sound)
            self._words = np.split(sound, ends[:-1].astype(int))
        self._silence = bytes(2 * round(WORD_SECS * rate))
        self._taken = 0

    def take(self, word: Text) -> bytes:
        """Return the next word's sound; silence in place of one that is not to be heard."""
        if not word.is_answer:
            return self._silence
        self._taken += 1
        return self._words[(self._taken - 1) % len(self._words)].astype("<i2").tobytes()
