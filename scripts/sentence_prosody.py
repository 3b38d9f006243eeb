"""What it changes to speak an answer sentence by sentence: `python -m scripts.sentence_prosody`.

20 answers of three or four sentences are spoken by espeak-ng, as one text and one sentence after
another: length, pauses between sentences, and pitch, by autocorrelation. `docs/voices.md` has the
figures.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from examples.voice_bot.speech.espeak_engine import shared_engine

Floats = npt.NDArray[np.float64]

DOCUMENT = Path(__file__).parents[1] / "examples/voice_bot/documents/harbour_kitchen.md"
ANSWERS = 20
VOICE, WORDS_PER_MINUTE = "en-us", 165
HOP_SECS, FRAME_SECS = 0.01, 0.04
PITCH_HZ = (60, 300)
LOUD, VOICED = 300.0, 0.5
FINAL_SECS = 0.3


@dataclass
class Spoken:
    """A sentence's sound, without the silence around it.

    Parameters:
        semitones: Its pitch over 100 Hz, every 10 ms; NaN where nothing is voiced.
        secs: Its length.
    """

    semitones: Floats
    secs: float

    @property
    def fall(self) -> float:
        """From the median of the sentence to that of its last 0.3 s, in semitones."""
        final = self.semitones[-round(FINAL_SECS / HOP_SECS) :]
        return float(np.nanmedian(self.semitones) - np.nanmedian(final))


def synthesize(text: str) -> Floats:
    """Speak a text."""
    sound, engine = bytearray(), shared_engine()
    engine.speak(text, VOICE, WORDS_PER_MINUTE, lambda audio: bool(sound.extend(audio) or True))
    return np.frombuffer(sound, "<i2").astype(float)


def pitch(sound: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """The semitones over 100 Hz of each frame, and whether it is loud."""
    rate = shared_engine().sample_rate
    size, hop = round(FRAME_SECS * rate), round(HOP_SECS * rate)
    frames = np.lib.stride_tricks.sliding_window_view(sound, size)[::hop]
    is_loud = np.sqrt(np.mean(frames**2, axis=1)) > LOUD
    spectra = np.fft.rfft(
        (frames - frames.mean(axis=1, keepdims=True)) * np.hanning(size), 2 * size
    )
    likeness = np.fft.irfft(np.abs(spectra) ** 2)[:, :size]
    window = np.fft.irfft(np.abs(np.fft.rfft(np.hanning(size), 2 * size)) ** 2)[:size]
    likeness /= np.maximum(likeness[:, :1], 1.0) * (window / window[0])
    low, high = round(rate / PITCH_HZ[1]), round(rate / PITCH_HZ[0])
    lags = low + np.argmax(likeness[:, low:high], axis=1)
    is_voiced = is_loud & (np.max(likeness[:, low:high], axis=1) > VOICED)
    return np.where(is_voiced, 12 * np.log2(rate / lags / 100), np.nan), is_loud


def cut(sound: Floats, count: int) -> tuple[list[Spoken], list[float]]:
    """The sentences in a sound, which are parted by its longest silences, and these."""
    semitones, is_loud = pitch(sound)
    loud = np.flatnonzero(is_loud)
    gaps = sorted(((b - a, a, b) for a, b in pairwise(loud)), reverse=True)[: count - 1]
    starts = [loud[0], *sorted(b for _, _, b in gaps)]
    ends = [*sorted(a for _, a, _ in gaps), loud[-1]]
    sentences = [
        Spoken(semitones[a : b + 1], (b + 1 - a) * HOP_SECS)
        for a, b in zip(starts, ends, strict=True)
    ]
    return sentences, [(b - a) * HOP_SECS for a, b in zip(ends, starts[1:], strict=False)]


def joined(sounds: list[Floats]) -> tuple[list[Spoken], list[float]]:
    """Sentences that were spoken one after another, and the silences between them."""
    sentences, silences = list[Spoken](), list[tuple[float, float]]()
    for sound in sounds:
        semitones, is_loud = pitch(sound)
        loud = np.flatnonzero(is_loud)
        sentences.append(Spoken(semitones[loud[0] : loud[-1] + 1], np.ptp(loud) * HOP_SECS))
        silences.append((loud[0] * HOP_SECS, (len(is_loud) - 1 - loud[-1]) * HOP_SECS))
    return sentences, [tail + lead for (_, tail), (lead, _) in pairwise(silences)]


def difference(one: Spoken, other: Spoken) -> float:
    """The root mean square of the difference of two contours of equal length, in semitones."""
    at = np.linspace(0, 1, 100)
    contours = [
        each.semitones[np.round(at * (len(each.semitones) - 1)).astype(int)]
        for each in (one, other)
    ]
    return float(np.sqrt(np.nanmean((contours[0] - contours[1]) ** 2)))


def main() -> int:
    """Measure and print the table."""
    text = " ".join(DOCUMENT.read_text().splitlines()[1:])
    sentences = re.findall(r"\S.*?[.?!](?=\s|$)", text)
    found: dict[str, list[tuple[float, float, float, float]]] = {"one text": [], "sentences": []}
    differences: list[float] = []
    for number in range(ANSWERS):
        at = number * (len(sentences) - 4) // ANSWERS
        answer = sentences[at : at + 3 + number % 2]
        whole, parts = synthesize(" ".join(answer)), [synthesize(each) for each in answer]
        cuts = {"one text": cut(whole, len(answer)), "sentences": joined(parts)}
        for kind, (spoken, pauses) in cuts.items():
            samples = len(whole) if kind == "one text" else sum(map(len, parts))
            found[kind].append(
                (
                    samples / shared_engine().sample_rate,
                    float(np.mean(pauses)),
                    float(np.median([np.nanmedian(each.semitones) for each in spoken])),
                    float(np.median([each.fall for each in spoken])),
                )
            )
        differences += [
            difference(a, b) for a, b in zip(*(c[0] for c in cuts.values()), strict=True)
        ]
    print("           seconds    pause    pitch  final fall")
    for kind, rows in found.items():
        secs, pause, median, fall = np.mean(rows, axis=0)
        print(f"{kind:10} {secs:6.2f} s  {pause:.2f} s  {median:4.1f} st     {fall:4.1f} st")
    apart = f"{np.median(differences):.1f} semitones apart, at most {max(differences):.1f}"
    print(f"contours of the same sentence: {apart}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
