"""Speech in samples: where a recording's ends, and where a bot's begins. Pure.

Law: one level, the same for both ends of the gap that is measured.

Levels are peaks of single samples against full scale, as in the published figures for this chain:
the caller's last sample above -36 dBFS, the bot's first above 300 of 32768 (-41 dBFS), which is
over the noise of the codec and under any speech. A single loud sample is a click; speech has more
of them within its first hundredth of a second.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.tools.replay.recordings import Recording, load_manifest, read_audio

__all__ = [
    "FRAME",
    "LOUD",
    "RATE",
    "Utterance",
    "envelope",
    "first_loud",
    "one_utterance",
    "utterances",
]

Samples = npt.NDArray[np.int16]

RATE = 48_000
"""In Hz: what WebRTC carries."""
FRAME = RATE // 50
"""Samples in a packet: 20 ms."""
SPOKEN = round(32768 * 10 ** (-36 / 20))
"""The caller speaks above this."""
LOUD = 300
"""The bot speaks above this."""
CLICK, WITHIN = 3, RATE // 100
"""So many loud samples within so many are no click."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """A recording, ready to be spoken.

    Parameters:
        name: The file's name without its ending.
        samples: Mono, at ``RATE``; shape (n,).
        speech_begins: The first sample of speech.
        speech_ends: The last sample of speech.
        transcript: What is said, where a manifest tells.
        interrupts: Whether it is meant to be spoken into an answer, as a manifest tells.
    """

    name: str
    samples: Samples
    speech_begins: int
    speech_ends: int
    transcript: str | None = None
    interrupts: bool = False

    @classmethod
    def of(cls, recording: Recording) -> Utterance:
        """An utterance of a manifest, which says where its speech is.

        Args:
            recording: The recording.
        """
        scale = RATE / recording.sample_rate
        return cls(
            recording.name,
            read_audio(recording.path, RATE),
            round(recording.speech_begins_sample * scale),
            round(recording.speech_ends_sample * scale),
            recording.transcript,
            "interrupts" in recording.tags,
        )

    @classmethod
    def read(cls, path: Path) -> Utterance:
        """An utterance from a file; where its speech is, its level tells.

        Args:
            path: An audio file.

        Raises:
            ConfigurationError: If it is not audio, or nobody speaks in it.
        """
        samples = read_audio(path, RATE)
        spoken = np.flatnonzero(np.abs(samples.astype(np.int32)) > SPOKEN)
        if not spoken.size:
            raise ConfigurationError(
                f"{path}: nobody speaks in it above -36 dBFS: record it louder, or normalise it"
            )
        return cls(path.stem, samples, int(spoken[0]), int(spoken[-1]))


def one_utterance(path: Path) -> Utterance:
    """Read a recording where only one can be spoken.

    Args:
        path: An audio file; a manifest beside it may tell of it.

    Raises:
        ConfigurationError: If it is no audio file, or may hold several.
    """
    if path.is_dir() or path.suffix == ".toml":
        kind = "folder" if path.is_dir() else "manifest"
        raise ConfigurationError(
            f"{path} is a {kind}, but one recording is to be spoken here: name one file of it"
        )
    return utterances([path])[0]


def utterances(paths: list[Path]) -> list[Utterance]:
    """Read what is to be spoken, in the order given.

    Args:
        paths: Audio files, manifests (``.toml``), or folders of either.

    Raises:
        ConfigurationError: If there is nothing to speak, or a file is no audio.
    """
    found: list[tuple[Path, Utterance]] = []
    for path in paths:
        if path.is_dir() and (path / "manifest.toml").exists():
            found += _of_manifest(path / "manifest.toml")
        elif path.is_dir():
            files = sorted(file for file in path.iterdir() if file.suffix.lower() in _ENDINGS)
            if not files:
                raise ConfigurationError(f"{path}: there is no audio in this folder")
            found += [(file, Utterance.read(file)) for file in files]
        elif path.suffix == ".toml":
            found += _of_manifest(path)
        else:
            found.append((path, _from_manifest_beside(path) or Utterance.read(path)))
    return _told_apart(found)


def _of_manifest(path: Path) -> list[tuple[Path, Utterance]]:
    return [(recording.path, Utterance.of(recording)) for recording in load_manifest(path)]


def _told_apart(found: list[tuple[Path, Utterance]]) -> list[Utterance]:
    """Recordings of one name are known by their folders and endings, too."""
    files: defaultdict[str, set[Path]] = defaultdict(set)
    for path, utterance in found:
        files[utterance.name].add(path.resolve())

    def named(path: Path, utterance: Utterance) -> Utterance:
        if len(files[utterance.name]) == 1:
            return utterance
        return replace(utterance, name=f"{path.resolve().parent.name}/{path.name}")

    return [named(path, utterance) for path, utterance in found]


_ENDINGS = {".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff"}


def _from_manifest_beside(path: Path) -> Utterance | None:
    manifest = path.parent / "manifest.toml"
    if not manifest.exists():
        return None
    known = (r for r in load_manifest(manifest) if r.path.name == path.name)
    return next((Utterance.of(recording) for recording in known), None)


def first_loud(samples: Samples, since: int = 0) -> int | None:
    """Where speech begins: the first loud sample that is no click.

    Args:
        samples: Mono; shape (n,).
        since: Where to begin to look.

    Returns:
        Its index, or None if there is none.
    """
    loud = np.flatnonzero(np.abs(samples[since:].astype(np.int32)) > LOUD)
    if loud.size < CLICK:
        return None
    is_speech = loud[CLICK - 1 :] - loud[: 1 - CLICK] < WITHIN
    return since + int(loud[: 1 - CLICK][is_speech][0]) if is_speech.any() else None


def envelope(samples: Samples, points: int) -> npt.NDArray[np.float64]:
    """The largest magnitude in each of so many equal parts, of full scale; shape (points,).

    Args:
        samples: Mono; shape (n,).
        points: How many parts.
    """
    if not samples.size:
        return np.zeros(points)
    edges = np.linspace(0, samples.size, points + 1).astype(np.int64)
    loud = np.abs(samples.astype(np.int32))
    peaks = [loud[a : max(b, a + 1)].max(initial=0) for a, b in pairwise(edges)]
    return np.asarray(peaks, np.float64) / 32768
