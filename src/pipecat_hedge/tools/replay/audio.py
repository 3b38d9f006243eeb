"""Recordings of callers, and where speech begins and ends in samples.

Levels are peaks of single samples against full scale. The caller speaks above -36 dBFS; the bot
above 300 of 32768 (-41 dBFS), which is above the codec's noise and below speech. A single loud
sample is a click; speech has more of them within 10 ms.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field, TypeAdapter, ValidationError

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.voice import read_audio

Samples: TypeAlias = npt.NDArray[np.int16]

RATE = 48_000
"""In Hz, as in WebRTC."""
FRAME = RATE // 50
"""Samples per packet: 20 ms."""
CALLER_LEVEL = round(32768 * 10 ** (-36 / 20))
BOT_LEVEL = 300
CLICK = 3
"""Fewer loud samples within ``WITHIN`` are a click, not speech."""
WITHIN = RATE // 100
"""Samples in 10 ms."""
AUDIO_SUFFIXES = {".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff"}


@dataclass(frozen=True, slots=True)
class Recording:
    """One utterance of a caller, as described by a manifest.

    Parameters:
        path: The file; ``file`` in the manifest, relative to it.
        transcript: The words, in lower case and without punctuation.
        sample_rate: Of the file, in Hz.
        speech_begins_sample: The first sample of speech.
        speech_ends_sample: The last sample of speech.
        pauses: Pauses in mid-sentence: last sample before and first sample after.
        tags: Labels for selection, such as "pause", "interrupts", "noise".
    """

    path: Annotated[Path, Field(alias="file")]
    transcript: str
    sample_rate: Annotated[int, Field(gt=0)]
    speech_begins_sample: int
    speech_ends_sample: int
    pauses: tuple[tuple[int, int], ...] = ()
    tags: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The file's name without its suffix."""
        return self.path.stem


_RECORDING = TypeAdapter(Recording)


def load_manifest(path: str | Path) -> tuple[Recording, ...]:
    """Read a TOML manifest with one ``[[recording]]`` table per file, relative to the manifest.

    Returns:
        The recordings in the manifest's order.

    Raises:
        ConfigurationError: If the manifest is missing, or a field is missing or wrong; the message
            names it.
    """
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("recording")
    except OSError as error:
        raise ConfigurationError(
            f"{path}: the manifest cannot be read ({error.strerror}). "
            "Give the path of a manifest.toml; `make fixtures` makes fixtures/audio/manifest.toml."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not a TOML file: {error}.") from error
    if not isinstance(tables, list) or not tables:
        raise ConfigurationError(f"{path}: no recordings. Add a [[recording]] table for each file.")
    recordings = tuple(_recording(path, number, table) for number, table in enumerate(tables, 1))
    name, count = Counter(recording.name for recording in recordings).most_common(1)[0]
    if count > 1:
        raise ConfigurationError(f"{path}: {name} is listed twice. Remove one of the tables.")
    return recordings


def read_samples(recording: Recording, sample_rate: int = RATE) -> Samples:
    """Read a recording's samples: mono, 16 bit; shape (n,).

    Args:
        recording: A recording of `load_manifest`.
        sample_rate: In Hz; the samples are resampled to it.

    Raises:
        ConfigurationError: If the file is missing, or not audio.
    """
    return read_audio(recording.path, sample_rate)


def _recording(manifest: Path, number: int, table: object) -> Recording:
    try:
        recording = _RECORDING.validate_python(table)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"])) or "table"
        raise ConfigurationError(
            f"{manifest}, recording {number}: {field}: {problem['msg']}. Correct it."
        ) from error
    return replace(recording, path=manifest.parent / recording.path)


@dataclass(frozen=True, slots=True)
class Utterance:
    """A recording, ready to play.

    Parameters:
        name: The file's name without its suffix.
        samples: Mono, at ``RATE``; shape (n,).
        speech_begins: The first sample of speech.
        speech_ends: The last sample of speech.
        transcript: The text, if a manifest has it.
        interrupts: Whether it interrupts the previous answer, if a manifest says so.
    """

    name: str
    samples: Samples
    speech_begins: int
    speech_ends: int
    transcript: str | None = None
    interrupts: bool = False

    @classmethod
    def from_recording(cls, recording: Recording) -> Utterance:
        """Read an utterance whose speech a manifest locates.

        Raises:
            ConfigurationError: If the file is not audio, or the speech is not within it.
        """
        samples, scale = read_samples(recording), RATE / recording.sample_rate
        begins = round(recording.speech_begins_sample * scale)
        ends = round(recording.speech_ends_sample * scale)
        if not 0 <= begins < ends < len(samples):
            raise ConfigurationError(
                f"{recording.path}: speech_begins_sample {recording.speech_begins_sample} and "
                f"speech_ends_sample {recording.speech_ends_sample} do not lie in order within the "
                "file. Correct the manifest."
            )
        is_interruption = "interrupts" in recording.tags
        return cls(recording.name, samples, begins, ends, recording.transcript, is_interruption)

    @classmethod
    def from_file(cls, path: Path) -> Utterance:
        """Read an utterance from a file, and locate its speech by its level.

        Args:
            path: An audio file; a manifest in its folder that lists it is used.

        Raises:
            ConfigurationError: If it is not audio, or has no speech.
        """
        manifest = path.parent / "manifest.toml"
        for recording in load_manifest(manifest) if manifest.exists() else ():
            if recording.path.name == path.name:
                return cls.from_recording(recording)
        samples = read_audio(path, RATE)
        loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > CALLER_LEVEL)
        if not loud.size:
            raise ConfigurationError(
                f"{path}: no speech above -36 dBFS: record it louder, or normalise it"
            )
        return cls(path.stem, samples, int(loud[0]), int(loud[-1]))


def one_utterance(path: str | Path) -> Utterance:
    """Read exactly one recording.

    Args:
        path: An audio file; a manifest in its folder that lists it is used.

    Raises:
        ConfigurationError: If it is not an audio file, or a folder or manifest.
    """
    path = Path(path)
    if path.is_dir() or path.suffix == ".toml":
        kind = "folder" if path.is_dir() else "manifest"
        raise ConfigurationError(
            f"{path} is a {kind}, but exactly one recording is needed: name one of its files"
        )
    return Utterance.from_file(path)


def utterances(paths: Sequence[str | Path]) -> list[Utterance]:
    """Read recordings, in the order given.

    Recordings with the same name are named by their folder and suffix as well.

    Args:
        paths: Audio files, manifests (``.toml``), or folders of either.

    Raises:
        ConfigurationError: If there is no recording, or a file is not audio.
    """
    found = [pair for path in paths for pair in _utterances_at(Path(path))]
    files = Counter(name for _, name in {(path.resolve(), u.name) for path, u in found})
    return [
        utterance
        if files[utterance.name] == 1
        else replace(utterance, name=f"{path.resolve().parent.name}/{path.name}")
        for path, utterance in found
    ]


def _utterances_at(path: Path) -> list[tuple[Path, Utterance]]:
    if path.is_dir() and (path / "manifest.toml").exists():
        path /= "manifest.toml"
    if path.suffix == ".toml":
        return [(each.path, Utterance.from_recording(each)) for each in load_manifest(path)]
    if not path.is_dir():
        return [(path, Utterance.from_file(path))]
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in AUDIO_SUFFIXES)
    if not files:
        raise ConfigurationError(f"{path}: no audio files in this folder")
    return [(file, Utterance.from_file(file)) for file in files]


def first_loud(samples: Samples, since: int = 0) -> int | None:
    """Return the index at which speech begins, ignoring clicks; None without speech.

    Args:
        samples: Mono; shape (n,).
        since: The first index to search.
    """
    loud = np.flatnonzero(np.abs(samples[since:].astype(np.int32)) > BOT_LEVEL)
    if loud.size < CLICK:
        return None
    is_speech = loud[CLICK - 1 :] - loud[: 1 - CLICK] < WITHIN
    return since + int(loud[: 1 - CLICK][is_speech][0]) if is_speech.any() else None


def envelope(samples: Samples, points: int) -> npt.NDArray[np.float64]:
    """Return the peak of each of so many equal parts, relative to full scale; shape (points,).

    Args:
        samples: Mono; shape (n,).
        points: The number of parts.
    """
    magnitudes = np.abs(samples.astype(np.int32))
    edges = np.linspace(0, samples.size, points + 1).astype(np.int64)
    peaks = [magnitudes[a : max(b, a + 1)].max(initial=0) for a, b in pairwise(edges)]
    return np.asarray(peaks, np.float64) / 32768
