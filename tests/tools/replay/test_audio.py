"""Recordings, their manifests, and speech in samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from av import AudioFrame
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.replay import (
    RATE,
    Recording,
    Utterance,
    load_manifest,
    read_samples,
    utterances,
)
from pipecat_hedge.tools.replay.audio import FRAME, Samples, envelope, first_loud, one_utterance
from pipecat_hedge.tools.replay.tracks import AudioReceiver

FIXTURES = Path(__file__).parents[3] / "fixtures/audio"
MANIFEST = FIXTURES / "manifest.toml"
RECORDINGS = load_manifest(MANIFEST)
TABLE = """
[[recording]]
file = "hello.flac"
transcript = "hello"
sample_rate = 16000
speech_begins_sample = 1600
speech_ends_sample = 12800
"""


def tone(secs: float, level: int = 8000, rate: int = RATE) -> Samples:
    at = np.arange(round(secs * rate)) / rate
    return np.round(level * np.sin(2 * np.pi * 440 * at)).astype(np.int16)


def silence(secs: float) -> Samples:
    return np.random.default_rng(1).integers(-20, 21, round(secs * RATE), dtype=np.int16)


# ---- manifests


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """The manifest of one recording, of a 440 Hz tone."""
    soundfile.write(tmp_path / "hello.flac", tone(1.0, 3277, 16000), 16000)
    path = tmp_path / "manifest.toml"
    path.write_text(TABLE)
    return path


def test_manifest_gives_times_and_samples(manifest: Path) -> None:
    (recording,) = load_manifest(manifest)
    assert (recording.name, recording.transcript) == ("hello", "hello")
    assert (recording.speech_begins_sample, recording.speech_ends_sample) == (1600, 12800)
    assert (recording.tags, recording.pauses) == (frozenset(), ())
    assert len(read_samples(recording)) == 48000
    for rate in (8000, 16000, 48000):
        samples = read_samples(recording, rate)
        assert (samples.dtype, samples.shape) == (np.int16, (rate,))
        assert int(np.abs(np.fft.rfft(samples)).argmax()) == 440
    recording.path.unlink()
    with pytest.raises(ConfigurationError, match=r"hello\.flac: no such file"):
        read_samples(recording)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('file = "hello.flac"', "", r"recording 1: file: Field required. Correct it"),
        ('"hello"', "7", r"transcript: Input should be a valid string"),
        ("hello.flac", "gone.flac", r"gone.flac: no such file. .* its name"),
        ("hello.flac", "manifest.toml", r"manifest.toml: not an audio file"),
        ("sample_rate = 16000", "sample_rate = 8000", r"do not lie in order within the file"),
        ("= 12800", "= 16000", r"speech_ends_sample 16000 do not lie in order .* Correct"),
        ("= 12800", "= 1600", r"do not lie in order"),
        ("rate = 16000", "rate = 0", r"sample_rate: Input should be greater than 0"),
        ("[[recording]]", "[[recordings]]", r"no recordings. Add a \[\[recording\]\] table"),
        ("[[recording]]", "[[recording", r"not a TOML file"),
        (TABLE, TABLE + TABLE, "hello is listed twice"),
        (TABLE, None, r"cannot be read .*make fixtures"),
    ],
)
def test_wrong_manifest_is_an_error(
    manifest: Path, old: str, new: str | None, message: str
) -> None:
    if new is None:
        manifest.unlink()
    else:
        manifest.write_text(TABLE.replace(old, new))
    with pytest.raises(ConfigurationError, match=message):
        utterances([manifest])


# ---- the repository's own recordings


def test_fixtures_have_a_pause_and_an_interruption() -> None:
    assert len({recording.transcript for recording in RECORDINGS}) >= 12
    assert {path.name for path in FIXTURES.glob("*.flac")} == {r.path.name for r in RECORDINGS}
    (paused,) = (recording for recording in RECORDINGS if "pause" in recording.tags)
    ((before, after),) = paused.pauses
    assert 0.8 < (after - before) / paused.sample_rate < 1.0
    (interrupting,) = (recording for recording in RECORDINGS if "interrupts" in recording.tags)
    assert interrupting.speech_begins_sample < 0.15 * interrupting.sample_rate


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
def test_fixture_is_as_its_manifest_says(recording: Recording) -> None:
    """A few seconds, never digitally silent or clipped, and speech where the manifest says."""
    assert recording.sample_rate == 16000
    samples = read_samples(recording, recording.sample_rate)
    speech = recording.speech_ends_sample - recording.speech_begins_sample
    assert 0.9 * 16000 < speech < len(samples) < 5 * 16000
    frames = samples[: len(samples) // 320 * 320].reshape(-1, 320)
    assert frames.std(axis=1).min() > 2
    assert np.abs(samples.astype(int)).max() < 32767
    if "clean" in recording.tags:
        begins, ends = recording.speech_begins_sample, recording.speech_ends_sample
        threshold = 32768 * 10 ** (-42 / 20) - 9  # as documented, less the dither
        assert min(abs(int(samples[begins])), abs(int(samples[ends]))) >= threshold
        outside = np.concatenate((samples[:begins], samples[ends + 1 :])).astype(int)
        assert np.abs(outside).max() <= threshold + 18


# ---- utterances


@pytest.mark.parametrize(("kind", "channels"), [("FLOAT", 2), ("PCM_24", 1), ("PCM_16", 2)])
def test_loudest_channel_of_any_format_is_read(tmp_path: Path, kind: str, channels: int) -> None:
    spoken = tone(0.4, 9000)
    both = np.zeros((len(spoken), channels), np.int16)
    both[:, -1] = spoken
    soundfile.write(tmp_path / "x.wav", both.astype(np.float32) / 32768, RATE, subtype=kind)
    (read,) = utterances([tmp_path / "x.wav"])
    assert np.abs(read.samples.astype(int) - spoken.astype(int)).max() <= 1


def test_files_folders_and_manifests_are_read_in_order(tmp_path: Path) -> None:
    """A manifest beside a file describes it; files of one name are named by their folders."""
    known = utterances([FIXTURES])
    assert len(known) == len(RECORDINGS)
    assert [u.name for u in known if u.interrupts] == ["cancel-that_en-us_fast_interrupts"]
    one = one_utterance(FIXTURES / f"{known[0].name}.flac")
    assert (one.transcript, one.speech_ends) == (known[0].transcript, known[0].speech_ends)
    for name in ("x/b.wav", "x/a.wav", "y/a.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        soundfile.write(tmp_path / name, tone(0.2), RATE)
    first, second = tmp_path / "x" / "a.wav", tmp_path / "y" / "a.wav"
    for paths, names in (
        ([tmp_path / "x"], ["a", "b"]),
        ([first, second], ["x/a.wav", "y/a.wav"]),
        ([first, first], ["a", "a"]),
    ):
        assert [u.name for u in utterances(paths)] == names


def test_speech_without_a_manifest_is_located_by_level(tmp_path: Path) -> None:
    file = tmp_path / "hello.wav"
    soundfile.write(file, np.concatenate((silence(0.3), tone(0.5), silence(0.4))), RATE)
    spoken = Utterance.from_file(file)
    assert spoken.speech_begins == pytest.approx(0.3 * RATE, abs=60)
    assert spoken.speech_ends == pytest.approx(0.8 * RATE, abs=60)


def test_what_cannot_be_spoken_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_text("no audio")
    soundfile.write(tmp_path / "quiet.wav", silence(0.5), RATE)
    odd = np.zeros((1600, 2), np.float32)
    odd[100, 1] = np.nan
    soundfile.write(tmp_path / "odd.wav", odd, RATE, subtype="FLOAT")
    (tmp_path / "empty").mkdir()
    for path, message in (
        ("text.wav", "not an audio file"),
        ("quiet.wav", "no speech above -36 dBFS"),
        ("odd.wav", "contains NaN or infinite samples"),
        ("none.wav", "no such file"),
        ("empty", "no audio files in this folder"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            utterances([tmp_path / path])
    for path, kind in ((FIXTURES, "folder"), (MANIFEST, "manifest")):
        with pytest.raises(ConfigurationError, match=f"is a {kind}, .* name one of its files"):
            one_utterance(path)


# ---- samples


@given(begins=st.integers(0, 20_000), level=st.integers(2_000, 30_000))
def test_onset_is_found_to_a_few_samples(begins: int, level: int) -> None:
    sound = np.concatenate((silence(begins / RATE), tone(0.1, level)))
    found = first_loud(sound)
    assert found is not None
    assert 0 <= found - begins <= 20
    assert first_loud(sound, found + 1000) == pytest.approx(found + 1000, abs=60)


def test_clicks_and_noise_are_not_speech() -> None:
    clicked = silence(0.5)
    assert first_loud(clicked) is None
    clicked[1000] = clicked[9000] = 20_000
    assert first_loud(clicked) is None


def test_envelope_is_the_peak_of_each_part() -> None:
    shape = envelope(np.concatenate((silence(0.5), tone(0.5))), 10)
    assert shape[:5].max() < 0.001
    assert shape[5:].min() == pytest.approx(8000 / 32768, rel=0.01)
    assert envelope(np.zeros(0, np.int16), 3).tolist() == [0, 0, 0]


async def test_receiver_keeps_arrival_times() -> None:
    """Onset, last sound, and the track between two times with its gaps."""
    receiver = AudioReceiver()
    sound = np.concatenate((silence(0.1), tone(0.1), silence(0.1)))
    for number, samples in enumerate(sound.reshape(-1, FRAME)):
        frame = AudioFrame.from_ndarray(np.repeat(samples, 2)[np.newaxis, :], layout="stereo")
        await receiver.receive(frame, 50.0 + number * 0.02)
    assert receiver.loud_since(49.0) == pytest.approx(50.1, abs=0.001)
    assert receiver.speaking_since(50.25) == pytest.approx(50.1, abs=0.001)
    assert receiver.loud_since(50.3) is receiver.speaking_since(60.0) is None
    assert receiver.last_loud(49.0) == pytest.approx(50.2, abs=0.002)
    assert receiver.last_loud(60.0) == 60.0
    track = receiver.between(49.9, 50.3)
    assert len(track) == round(0.4 * RATE)
    assert not track[: round(0.1 * RATE)].any()
    assert first_loud(track) == pytest.approx(0.2 * RATE, abs=60)
