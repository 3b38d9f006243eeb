"""What a simulated recogniser hears: where utterances begin and end, and what they say. Pure.

Time is counted in audio received, so a busy machine changes nothing.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import numpy.typing as npt
import soxr

Samples = npt.NDArray[np.int16]

RATE = 16_000
"""Of the samples that a function of `Transcripts` gets, in Hz."""
WORD_SECS = 0.3
"""The pace of speech: an interim for each 0.3 s, and a scripted text grows by one word."""

_FRAME_SECS = 0.02
_LOUD = 32768 * 10 ** (-36 / 20)  # RMS; recordings speak at -26 dBFS, and their noise is below -41
_ONSET_FRAMES = 3  # in a row; fewer are a click
_LEAD_FRAMES = 25  # audio from before the onset that belongs to an utterance


def decode(data: bytes, encoding: str) -> Samples:
    """Return audio as 16-bit samples.

    Raises:
        ValueError: If the encoding is not ``linear16`` or ``mulaw``.
    """
    if encoding == "linear16":
        return np.frombuffer(data, "<i2")
    if encoding != "mulaw":
        raise ValueError(f"encoding: expected linear16 or mulaw, got {encoding!r}")
    code = ~np.frombuffer(data, np.uint8)
    # ITU-T G.711: sign, 3 bits of exponent, 4 of mantissa.
    magnitude = (((code & 15).astype(np.int16) << 3) + 132 << ((code >> 4) & 7)) - 132
    return np.where(code & 128, -magnitude, magnitude).astype(np.int16)


class Sound(Enum):
    """What a listener notices in a stream."""

    BEGAN = auto()
    """An utterance began."""
    WORD = auto()
    """Speech of another ``WORD_SECS``."""
    ENDED = auto()
    """An utterance was followed by the endpointing silence."""
    GAP = auto()
    """The last word was followed by the silence of an utterance's end mark."""


class Listener:
    """Cuts a stream of audio into utterances, by energy.

    It changes with each frame of 20 ms: the utterance's audio, speech and silence so far.

    Args:
        rate: Of the audio, in Hz.
        encoding: ``linear16`` or ``mulaw``.
        endpointing_secs: The silence that ends an utterance.
        gap_secs: The silence after the last word that is noticed as `Sound.GAP`.

    Attributes:
        audio_secs: Audio heard.
        began_secs: The utterance's onset, in audio heard.
        last_word_secs: The end of the last speech, in audio heard.
        speech_secs: Speech in the utterance.
        in_utterance: Whether an utterance has begun and not ended.
    """

    def __init__(self, rate: int, encoding: str, endpointing_secs: float, gap_secs: float):
        decode(b"", encoding)
        self._rate, self._encoding = rate, encoding
        self._endpointing_secs, self._gap_secs = endpointing_secs, gap_secs
        self._frame_bytes = round(rate * _FRAME_SECS) * (2 if encoding == "linear16" else 1)
        self._rest = b""
        self._frames: list[Samples] = []
        self._loud_frames = self._silent_frames = self._row = 0
        self._gap_is_due = False
        self.audio_secs = self.began_secs = self.last_word_secs = 0.0
        self.in_utterance = False

    @property
    def speech_secs(self) -> float:
        """Speech in the utterance."""
        return self._loud_frames * _FRAME_SECS

    @property
    def samples(self) -> Samples:
        """The utterance's audio so far, with some of what was before, at ``RATE``."""
        audio = np.concatenate(self._frames)
        return audio if self._rate == RATE else soxr.resample(audio, self._rate, RATE)

    def hear(self, data: bytes) -> Iterator[Sound]:
        """Take in audio, and yield what is noticed while it is true."""
        data = self._rest + data
        whole = len(data) - len(data) % self._frame_bytes
        self._rest = data[whole:]
        for start in range(0, whole, self._frame_bytes):
            yield from self._frame(decode(data[start : start + self._frame_bytes], self._encoding))

    def end(self) -> None:
        """End the utterance; what is heard next is another one."""
        self.in_utterance = False
        self._frames, self._row = [], 0

    def _frame(self, frame: Samples) -> Iterator[Sound]:
        self.audio_secs += _FRAME_SECS
        self._frames.append(frame)
        is_loud = float(np.sqrt(np.mean(np.square(frame, dtype=np.float64)))) > _LOUD
        self._row = self._row + 1 if is_loud else 0
        self._silent_frames = 0 if is_loud else self._silent_frames + 1
        silence_secs = self._silent_frames * _FRAME_SECS
        if not self.in_utterance:
            del self._frames[:-_LEAD_FRAMES]
            if self._row == _ONSET_FRAMES:
                self.in_utterance = True
                self.began_secs = self.audio_secs - _ONSET_FRAMES * _FRAME_SECS
                self._loud_frames = _ONSET_FRAMES
                yield Sound.BEGAN
        elif is_loud:
            self._loud_frames += 1
            if self._loud_frames % round(WORD_SECS / _FRAME_SECS) == 0:
                yield Sound.WORD
        elif silence_secs >= self._endpointing_secs:
            yield Sound.ENDED
        if is_loud and self.in_utterance:
            self.last_word_secs, self._gap_is_due = self.audio_secs, True
        if self._gap_is_due and silence_secs >= self._gap_secs:
            self._gap_is_due = False
            yield Sound.GAP


class Transcripts:
    """What utterances say: by a function of their audio, or from a list.

    It counts the utterances of each model, which go through the list on their own.

    Args:
        source: A function of samples (16 kHz, mono, 16 bit), such as `Recordings`; or texts, each
            of one utterance, from the beginning again at their end. A text may begin with keys of
            a model's name: ``?fault=late&delay=2 a table for two``.
    """

    def __init__(self, source: Callable[[Samples], str] | Iterable[str]):
        self.recognize = source if callable(source) else None
        self._texts = () if callable(source) else tuple(map(_split, source))
        self._said: Counter[str] = Counter()

    @property
    def all_keys(self) -> list[str]:
        """The keys in the list."""
        return [keys for keys, _ in self._texts if keys]

    def next(self, model: str) -> tuple[str, str | None]:
        """Return the keys and the text of a model's next utterance; no text for a function."""
        if not self._texts:
            return "", None if self.recognize else ""
        self._said[model] += 1
        return self._texts[(self._said[model] - 1) % len(self._texts)]


def _split(text: str) -> tuple[str, str]:
    keys, _, rest = text[1:].partition(" ") if re.match(r"\?[a-z_]+=", text) else ("", "", text)
    return keys, rest.strip()


_MATCH_RATE = 2000  # voices are told apart below 1 kHz, whatever the line does above
_LIKENESS = 0.6  # a recording through a telephone line or in noise has 0.98, another one 0.37
_LEAST_SECS = 0.3


@dataclass(frozen=True, slots=True)
class _Recording:
    samples: npt.NDArray[np.float64]
    words: tuple[str, ...]
    middles: tuple[float, ...]  # of each word, in samples


class Recordings:
    """Tells which recordings are heard in some audio, and which of their words.

    It finds parts of recordings, several in a row, at any level, through a telephone line or a
    codec. Words are taken to be equally long, and to be where the recording is loud::

        async with Simulator(transcripts=Recordings((samples, "hello"), ...)) as sim:

    Args:
        *recordings: Samples at 16 kHz, mono, 16 bit, and what they say.
    """

    def __init__(self, *recordings: tuple[Samples, str]):
        self._recordings = [_known(samples, text) for samples, text in recordings]

    def __call__(self, samples: Samples) -> str:
        """Return the words that are heard; empty if no recording is."""
        return " ".join(self._words(_narrow(samples)))

    def _words(self, heard: npt.NDArray[np.float64]) -> list[str]:
        if len(heard) < _LEAST_SECS * _MATCH_RATE:
            return []
        likeness, start, known = max(
            (_match(heard, known) for known in self._recordings), key=lambda found: found[0]
        )
        if likeness < _LIKENESS:
            return []
        words = zip(known.words, known.middles, strict=True)
        return [
            *self._words(heard[: max(0, start)]),
            *(word for word, middle in words if 0 <= start + middle < len(heard)),
            *self._words(heard[max(0, start + len(known.samples)) :]),
        ]


def _narrow(samples: Samples) -> npt.NDArray[np.float64]:
    return soxr.resample(samples.astype(np.float64), RATE, _MATCH_RATE)


def _known(samples: Samples, text: str) -> _Recording:
    narrow = _narrow(samples)
    words = tuple(text.split())
    loud = np.cumsum(np.abs(narrow) > _LOUD / 2)
    shares = (np.arange(len(words)) + 0.5) / len(words) * loud[-1]
    return _Recording(narrow, words, tuple(map(float, np.searchsorted(loud, shares))))


def _match(heard: npt.NDArray[np.float64], known: _Recording) -> tuple[float, int, _Recording]:
    """Return how alike they are at best, and where the recording begins in what is heard."""
    size = 1 << (len(heard) + len(known.samples)).bit_length()
    spectrum = np.fft.rfft(heard, size) * np.conj(np.fft.rfft(known.samples, size))
    products = np.fft.irfft(spectrum, size)
    start = int(np.argmax(products))
    product = float(products[start])
    start -= size if start >= len(heard) else 0
    inside = heard[max(0, start) : start + len(known.samples)]
    other = known.samples[max(0, -start) : len(heard) - start]
    energy = float(np.linalg.norm(inside) * np.linalg.norm(other))
    return (product / energy if energy else 0.0), start, known
