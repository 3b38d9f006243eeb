"""Reads which words the simulator's plain voice speaks in a recording."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipecat_hedge.tools.simulator import LETTER_HZ, LETTER_SECS

_FRAME_SECS = 0.005
_LOUD = 500.0  # RMS; a letter's is 7,000
_GAP_SECS = 0.04  # 10 ms between letters, 70 ms between words


def words_in(audio: bytes | npt.NDArray[np.int16], sample_rate: int) -> list[str]:
    """The words in 16-bit mono samples; a word that is cut is the letters that are heard."""
    return [word for word, _ in timed_words_in(audio, sample_rate)]


def timed_words_in(
    audio: bytes | npt.NDArray[np.int16], sample_rate: int
) -> list[tuple[str, float]]:
    """The words and the seconds at which they begin, to 5 ms."""
    samples = np.frombuffer(audio, "<i2") if isinstance(audio, bytes) else audio
    size = round(_FRAME_SECS * sample_rate)
    frames = samples[: len(samples) // size * size].astype(float).reshape(-1, size)
    loud = np.sqrt(np.mean(frames**2, axis=1)) > _LOUD
    edges = np.flatnonzero(np.diff(np.concatenate([[False], loud, [False]]).astype(int)))
    words: list[tuple[str, float]] = []
    last_end_secs = -1.0
    for start, end in edges.reshape(-1, 2):
        letter = _letter(frames[start:end].ravel(), sample_rate)
        start_secs = start * size / sample_rate
        if start_secs - last_end_secs > _GAP_SECS:
            words.append((letter, start_secs))
        else:
            words[-1] = (words[-1][0] + letter, words[-1][1])
        last_end_secs = end * size / sample_rate
    return words


def _letter(tone: npt.NDArray[np.float64], sample_rate: int) -> str:
    assert len(tone) < 1.2 * LETTER_SECS * sample_rate, "two sounds at once"
    at_secs = np.arange(len(tone)) / sample_rate
    hz = np.array([*LETTER_HZ.values()])
    likeness = np.abs(np.exp(-2j * np.pi * np.outer(hz, at_secs)) @ tone)
    return [*LETTER_HZ][int(np.argmax(likeness))]
