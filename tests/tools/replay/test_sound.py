"""Where speech is in samples, and what a caller has heard when."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from av import AudioFrame

from pipecat_hedge import HedgeError
from pipecat_hedge.tools.replay.ear import AudioReceiver
from pipecat_hedge.tools.replay.sound import (
    FRAME,
    RATE,
    Samples,
    Utterance,
    envelope,
    first_loud,
    one_utterance,
    utterances,
)

FIXTURES = Path(__file__).parents[3] / "fixtures/audio"


def tone(secs: float, level: int = 8000) -> Samples:
    at = np.arange(round(secs * RATE)) / RATE
    return np.round(level * np.sin(2 * np.pi * 440 * at)).astype(np.int16)


def silence(secs: float) -> Samples:
    return np.random.default_rng(1).integers(-20, 21, round(secs * RATE), dtype=np.int16)


@pytest.mark.parametrize(
    ("kind", "channels"), [("FLOAT", 1), ("PCM_24", 1), ("FLOAT", 2), ("PCM_16", 2)]
)
def test_files_of_any_kind(tmp_path: Path, kind: str, channels: int) -> None:
    """Floating point samples are scaled; of several channels the one that is spoken on is heard."""
    spoken = tone(0.4, 9000)
    both = np.zeros((len(spoken), channels), np.int16)
    both[:, -1] = spoken
    path = tmp_path / "x.wav"
    soundfile.write(path, both.astype(np.float32) / 32768, RATE, subtype=kind)
    (read,) = utterances([path])
    assert np.abs(read.samples.astype(int) - spoken.astype(int)).max() <= 1


def test_recordings_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """By their folders; the same file twice is the same recording."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        soundfile.write(tmp_path / folder / "hello.wav", tone(0.4), RATE)
    first, second = tmp_path / "a" / "hello.wav", tmp_path / "b" / "hello.wav"
    assert [u.name for u in utterances([first, second])] == ["a/hello.wav", "b/hello.wav"]
    assert [u.name for u in utterances([first, first])] == ["hello", "hello"]


def test_speech_begins_at_its_first_loud_sample() -> None:
    """To the sample, over the codec's noise; a click is none."""
    sound = np.concatenate((silence(0.2), tone(0.3)))
    found = first_loud(sound)
    assert found is not None
    assert 0 <= found - 0.2 * RATE <= 5
    clicked = silence(0.5)
    clicked[1000] = clicked[9000] = 20_000
    assert first_loud(clicked) is None
    assert first_loud(sound, found + 1000) == pytest.approx(found + 1000, abs=60)
    assert first_loud(silence(0.3)) is None


def test_a_recording_without_a_manifest(tmp_path: Path) -> None:
    """Its level tells where its speech is."""
    file = tmp_path / "hello.wav"
    soundfile.write(file, np.concatenate((silence(0.3), tone(0.5), silence(0.4))), RATE)
    spoken = Utterance.read(file)
    assert spoken.name == "hello"
    assert spoken.speech_begins == pytest.approx(0.3 * RATE, abs=60)
    assert spoken.speech_ends == pytest.approx(0.8 * RATE, abs=60)


def test_what_is_to_be_spoken(tmp_path: Path) -> None:
    """Files, folders and manifests; a manifest beside a file tells of it."""
    known = utterances([FIXTURES])
    assert len(known) == 16
    assert [u.name for u in known if u.interrupts] == ["cancel-that_en-us_fast_interrupts"]
    (one,) = utterances([FIXTURES / f"{known[0].name}.flac"])
    assert (one.transcript, one.speech_ends) == (known[0].transcript, known[0].speech_ends)
    for name in ("b.wav", "a.wav"):
        soundfile.write(tmp_path / name, tone(0.2), RATE)
    assert [u.name for u in utterances([tmp_path])] == ["a", "b"]


def test_what_cannot_be_spoken(tmp_path: Path) -> None:
    """Is a clear error."""
    (tmp_path / "text.wav").write_text("no audio")
    soundfile.write(tmp_path / "quiet.wav", silence(0.5), RATE)
    (tmp_path / "empty").mkdir()
    for path, told in (
        ("text.wav", "not an audio file"),
        ("quiet.wav", "nobody speaks in it above -36 dBFS"),
        ("none.wav", "no such file"),
        ("empty", "there is no audio in this folder"),
    ):
        with pytest.raises(HedgeError, match=told):
            utterances([tmp_path / path])


def test_one_recording_where_only_one_can_be_spoken() -> None:
    """A folder or a manifest is refused, with the remedy: the first of it is not meant."""
    for path, told in ((FIXTURES, "is a folder"), (FIXTURES / "manifest.toml", "is a manifest")):
        with pytest.raises(HedgeError, match=f"{told}, .* name one file of it"):
            one_utterance(path)
    (first, *_) = utterances([FIXTURES])
    assert one_utterance(FIXTURES / f"{first.name}.flac").transcript == first.transcript


def test_an_envelope_for_a_picture() -> None:
    """The largest magnitude in each part."""
    shape = envelope(np.concatenate((silence(0.5), tone(0.5))), 10)
    assert shape.shape == (10,)
    assert shape[:5].max() < 0.001
    assert shape[5:].min() == pytest.approx(8000 / 32768, rel=0.01)
    assert envelope(np.zeros(0, np.int16), 3).tolist() == [0, 0, 0]


async def test_an_ear_knows_when_each_sample_came() -> None:
    """Onset, last sound, and the track between two times with its gaps."""
    ear = AudioReceiver()
    sound = np.concatenate((silence(0.1), tone(0.1), silence(0.1)))
    for number, samples in enumerate(sound.reshape(-1, FRAME)):
        frame = AudioFrame.from_ndarray(np.repeat(samples, 2)[np.newaxis, :], layout="stereo")
        await ear.take(frame, 50.0 + number * 0.02)
    assert ear.loud_since(49.0) == pytest.approx(50.1, abs=0.001)
    assert ear.loud_since(50.3) is None
    assert ear.last_loud(49.0) == pytest.approx(50.2, abs=0.002)
    assert ear.last_loud(60.0) == 60.0
    track = ear.between(49.9, 50.3)
    assert len(track) == round(0.4 * RATE)
    assert not track[: round(0.1 * RATE)].any()
    assert first_loud(track) == pytest.approx(0.2 * RATE, abs=60)
