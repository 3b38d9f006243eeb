"""Recordings of callers, read from a manifest: what is said, and where in the file it is said.

A latency is counted from the end of speech, so a recording is of use only if somebody wrote
down where that is. The manifest does; `fixtures/audio/manifest.toml` is one.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from pipecat_hedge.race.errors import ConfigurationError

__all__ = ["Recording", "load_manifest", "read_audio", "read_samples"]


@dataclass(frozen=True, slots=True)
class Recording:
    """One utterance of a caller.

    Parameters:
        name: The file's name without its ending; says what is said and how.
        path: Where the file is.
        transcript: The words, in lower case and without punctuation.
        sample_rate: In Hz.
        samples: How many there are.
        speech_begins_sample: The first sample of speech.
        speech_ends_sample: The last sample of speech.
        pauses: In mid-sentence: last sample before and first sample after, for each.
        voice: Who speaks.
        engine: What made the voice.
        speed: Against the voice's normal rate.
        noise: What else is heard, and how far below the voice; "none" if nothing is.
        tags: What a test may ask for, such as "pause", "interrupts", "noise".
    """

    name: str
    path: Path
    transcript: str
    sample_rate: int
    samples: int
    speech_begins_sample: int
    speech_ends_sample: int
    pauses: tuple[tuple[int, int], ...] = ()
    voice: str = ""
    engine: str = ""
    speed: float = 1.0
    noise: str = "none"
    tags: frozenset[str] = frozenset()

    @property
    def duration_secs(self) -> float:
        """From the first sample of the file to the last."""
        return self.samples / self.sample_rate

    @property
    def speech_begins_secs(self) -> float:
        """From the start of the file to the first speech."""
        return self.speech_begins_sample / self.sample_rate

    @property
    def speech_ends_secs(self) -> float:
        """From the start of the file to the end of speech."""
        return self.speech_ends_sample / self.sample_rate

    @property
    def speech_secs(self) -> float:
        """From the first speech to the last, pauses included."""
        return self.speech_ends_secs - self.speech_begins_secs


def load_manifest(path: str | Path) -> tuple[Recording, ...]:
    """Read a manifest: TOML, one ``[[recording]]`` table a file, files beside the manifest.

    Args:
        path: The manifest.

    Returns:
        The recordings in the manifest's order.

    Raises:
        ConfigurationError: If the manifest or a file is missing, a file is no audio or differs
            from what the manifest says, or a field is missing or wrong; the message names it.
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
    recordings = tuple(
        _recording(path, number, table) for number, table in enumerate(tables, start=1)
    )
    names = [recording.name for recording in recordings]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"{path}: {name} is listed twice. Remove one of the tables.")
    return recordings


def read_samples(recording: Recording, sample_rate: int = 48000) -> npt.NDArray[np.int16]:
    """Read a recording's samples: mono, 16 bit.

    Args:
        recording: From `load_manifest`.
        sample_rate: In Hz; the samples are converted to it. WebRTC carries 48000.

    Returns:
        An array of one dimension.

    Raises:
        ConfigurationError: If the file has gone, or is no longer audio.
    """
    return read_audio(recording.path, sample_rate)


def read_audio(path: Path, sample_rate: int) -> npt.NDArray[np.int16]:
    """Read the loudest channel of an audio file: mono, 16 bit.

    Args:
        path: The file, of any kind that libsndfile reads, such as WAV or FLAC.
        sample_rate: In Hz; the samples are converted to it.

    Returns:
        An array of one dimension.

    Raises:
        ConfigurationError: If there is no such file, it is not audio, or samples are no numbers.
    """
    if sample_rate <= 0:
        raise ConfigurationError(f"sample_rate: {sample_rate} is not a rate. Use 48000 or 16000.")
    try:
        # Not as int16: libsndfile does not scale files of floating point samples to it.
        samples, found = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        raise _unreadable(path, error) from error
    if not np.isfinite(samples).all():
        raise ConfigurationError(
            f"{path}: holds samples that are no numbers (NaN or infinite): whatever made it has "
            "failed; make it again, as 16 bit"
        )
    loudest = samples[:, int(np.argmax(np.abs(samples).max(axis=0, initial=0.0)))]
    mono = np.clip(np.rint(loudest * 32768), -32768, 32767).astype(np.int16)
    if sample_rate == found:
        return mono
    return np.asarray(soxr.resample(mono, found, sample_rate), dtype=np.int16)


def _recording(manifest: Path, number: int, table: dict[str, Any]) -> Recording:
    where = f"{manifest}, recording {number}"
    file: str = _field(where, table, "file", str)
    where = f"{where} ({file})"
    path = manifest.parent / file
    try:
        audio = soundfile.info(path)
    except (soundfile.SoundFileError, OSError) as error:
        told = _unreadable(path, error)
        raise ConfigurationError(f"{told} The field `file` of {manifest} names it.") from error
    recording = Recording(
        name=path.stem,
        path=path,
        transcript=_field(where, table, "transcript", str),
        sample_rate=_field(where, table, "sample_rate", int),
        samples=_field(where, table, "samples", int),
        speech_begins_sample=_field(where, table, "speech_begins_sample", int),
        speech_ends_sample=_field(where, table, "speech_ends_sample", int),
        pauses=tuple((before, after) for before, after in table.get("pauses", ())),
        voice=table.get("voice", ""),
        engine=table.get("engine", ""),
        speed=table.get("speed", 1.0),
        noise=table.get("noise", "none"),
        tags=frozenset(table.get("tags", ())),
    )
    for field, said, found in (
        ("sample_rate", recording.sample_rate, audio.samplerate),
        ("samples", recording.samples, audio.frames),
        ("channels", 1, audio.channels),
    ):
        if said != found:
            raise ConfigurationError(
                f"{where}: {field} should be {said} but the file has {found}. Correct the "
                "manifest, or make the file again."
            )
    if not 0 <= recording.speech_begins_sample < recording.speech_ends_sample < audio.frames:
        raise ConfigurationError(
            f"{where}: speech_begins_sample {recording.speech_begins_sample} and "
            f"speech_ends_sample {recording.speech_ends_sample} do not lie in order within the "
            f"file's {audio.frames} samples. Correct them."
        )
    return recording


def _field(where: str, table: dict[str, Any], name: str, kind: type) -> Any:
    if name not in table:
        raise ConfigurationError(f"{where}: the field {name} is missing. Add it to the table.")
    if not isinstance(table[name], kind):
        raise ConfigurationError(
            f"{where}: {name} is {table[name]!r}, which is not of type {kind.__name__}."
        )
    return table[name]


def _unreadable(path: Path, error: Exception) -> ConfigurationError:
    if not path.exists():
        return ConfigurationError(f"{path}: no such file. Put it there, or correct its name.")
    return ConfigurationError(
        f"{path}: not an audio file that can be read ({_cause(error)}). Name a WAV or FLAC file."
    )


def _cause(error: Exception) -> str:
    """What libsndfile says is wrong, without the path that it repeats."""
    return (getattr(error, "error_string", "") or str(error)).rstrip(".")
