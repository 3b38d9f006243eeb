"""Manifests that are read, and manifests that are refused with the field and the remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.tools.replay.recordings import load_manifest, read_audio, read_samples

TABLE = """
[[recording]]
file = "hello.flac"
transcript = "hello"
sample_rate = 16000
samples = 16000
speech_begins_sample = 1600
speech_ends_sample = 12800
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one recording, of a 440 Hz tone, and its manifest."""
    tone = 0.1 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    soundfile.write(tmp_path / "hello.flac", tone, 16000)
    (tmp_path / "manifest.toml").write_text(TABLE)
    return tmp_path


def test_a_recording_knows_its_times(folder: Path):
    """Samples are turned into seconds; what the manifest leaves out has a default."""
    (recording,) = load_manifest(folder / "manifest.toml")
    assert recording.name == "hello"
    assert recording.duration_secs == 1.0
    assert (recording.speech_begins_secs, recording.speech_ends_secs) == (0.1, 0.8)
    assert recording.speech_secs == pytest.approx(0.7)
    assert (recording.tags, recording.pauses, recording.noise) == (frozenset(), (), "none")


@pytest.mark.parametrize("sample_rate", [8000, 16000, 48000])
def test_samples_come_at_the_rate_asked_for(folder: Path, sample_rate: int):
    """Converted to the rate, mono, 16 bit, and still the same tone."""
    (recording,) = load_manifest(folder / "manifest.toml")
    samples = read_samples(recording, sample_rate)
    assert (samples.dtype, samples.ndim, len(samples)) == (np.int16, 1, sample_rate)
    spectrum = np.abs(np.fft.rfft(samples))
    assert int(spectrum.argmax()) == 440


def test_the_rate_for_webrtc_is_the_default(folder: Path):
    """48 kHz, what WebRTC carries."""
    (recording,) = load_manifest(folder / "manifest.toml")
    assert len(read_samples(recording)) == 48000


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('file = "hello.flac"', "", r"recording 1: the field file is missing. Add it"),
        ("samples = 16000", "", r"hello.flac\): the field samples is missing. Add it"),
        ('"hello"', "7", r"transcript is 7, which is not of type str"),
        ("hello.flac", "gone.flac", r"gone.flac: no such file. .* name. The field `file` of"),
        ("hello.flac", "manifest.toml", r"manifest.toml: not an audio file"),
        ("sample_rate = 16000", "sample_rate = 8000", r"sample_rate should be 8000 but .* 16000"),
        ("samples = 16000", "samples = 9", r"samples should be 9 but the file has 16000"),
        ("= 12800", "= 16000", r"speech_ends_sample 16000 do not lie in order .* Correct them"),
        ("= 12800", "= 1600", r"do not lie in order"),
        ("[[recording]]", "[[recordings]]", r"no recordings. Add a \[\[recording\]\] table"),
        ("[[recording]]", "[[recording", r"not a TOML file"),
    ],
)
def test_a_manifest_that_cannot_be_right_is_refused(folder: Path, old: str, new: str, message: str):
    """The error names the file, the field and what to do."""
    manifest = folder / "manifest.toml"
    manifest.write_text(TABLE.replace(old, new))
    with pytest.raises(ConfigurationError, match=message):
        load_manifest(manifest)


def test_a_recording_listed_twice_is_refused(folder: Path):
    """A name means one recording."""
    (folder / "manifest.toml").write_text(TABLE + TABLE)
    with pytest.raises(ConfigurationError, match="hello is listed twice"):
        load_manifest(folder / "manifest.toml")


def test_a_missing_manifest_is_refused(tmp_path: Path):
    """The error says how the repository's own is made."""
    with pytest.raises(ConfigurationError, match=r"cannot be read .*make fixtures"):
        load_manifest(tmp_path / "manifest.toml")


def test_a_file_that_vanished_after_loading_is_refused(folder: Path):
    """Reading says which file has gone."""
    (recording,) = load_manifest(folder / "manifest.toml")
    recording.path.unlink()
    with pytest.raises(ConfigurationError, match=r"hello\.flac: no such file"):
        read_samples(recording)


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_samples_that_are_no_numbers_are_refused(tmp_path: Path, odd: float):
    """Of any channel; the error names the file."""
    samples = np.zeros((1600, 2), np.float32)
    samples[100, 1] = odd
    path = tmp_path / "broken.wav"
    soundfile.write(path, samples, 16000, subtype="FLOAT")
    with pytest.raises(ConfigurationError, match=r"broken\.wav: holds samples that are no numbers"):
        read_audio(path, 48000)


def test_a_rate_that_is_none_is_refused(folder: Path):
    """Zero is no sample rate."""
    (recording,) = load_manifest(folder / "manifest.toml")
    with pytest.raises(ConfigurationError, match="sample_rate: 0 is not a rate"):
        read_samples(recording, 0)
