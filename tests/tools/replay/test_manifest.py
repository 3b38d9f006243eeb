"""The recordings in fixtures/audio are what their manifest says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipecat_hedge.tools.replay.recordings import Recording, load_manifest, read_samples

MANIFEST = Path(__file__).parents[3] / "fixtures" / "audio" / "manifest.toml"
RECORDINGS = load_manifest(MANIFEST)
CLEAN = [recording for recording in RECORDINGS if "clean" in recording.tags]
each_recording = pytest.mark.parametrize("recording", RECORDINGS, ids=lambda r: r.name)
each_clean_one = pytest.mark.parametrize("recording", CLEAN, ids=lambda r: r.name)


def loudness(samples: np.ndarray) -> float:
    return float(np.sqrt(np.mean(samples.astype(float) ** 2)))


def test_there_is_enough_to_choose_from():
    """A dozen utterances and more, in several voices, some of them noisy, some clean."""
    assert len(RECORDINGS) >= 12
    assert len({recording.transcript for recording in RECORDINGS}) >= 12
    assert len({recording.voice for recording in RECORDINGS}) >= 6
    assert len({recording.speed for recording in RECORDINGS}) >= 4
    assert len({recording.noise.split(",")[0] for recording in RECORDINGS} - {"none"}) >= 3
    assert len(CLEAN) >= 6


def test_every_file_is_listed():
    """No recording lies about that the manifest does not know."""
    listed = {recording.path.name for recording in RECORDINGS}
    assert {path.name for path in MANIFEST.parent.glob("*.flac")} == listed


def test_one_pauses_and_one_interrupts():
    """One caller pauses in mid-sentence for 0.9 s; one can start to speak at once."""
    (paused,) = (recording for recording in RECORDINGS if "pause" in recording.tags)
    ((before, after),) = paused.pauses
    assert 0.8 < (after - before) / paused.sample_rate < 1.0
    (interrupting,) = (recording for recording in RECORDINGS if "interrupts" in recording.tags)
    assert interrupting.speech_begins_secs < 0.15
    assert not [r.name for r in RECORDINGS if r.pauses and r is not paused]


@each_recording
def test_a_recording_is_small_and_of_a_sentence(recording: Recording):
    """16 kHz, a second to five, silence around the speech, and a small file."""
    assert recording.sample_rate == 16000
    assert recording.speech_secs > 0.9
    assert recording.duration_secs < 5
    assert recording.speech_begins_secs >= 0.1
    assert recording.duration_secs - recording.speech_ends_secs >= 0.4
    assert recording.path.stat().st_size < 70 * 1024


@each_recording
def test_no_stretch_of_a_recording_is_digital_silence(recording: Recording):
    """Something is heard in every 20 ms, as from a real microphone, and nothing is clipped."""
    samples = read_samples(recording, recording.sample_rate)
    frames = samples[: len(samples) // 320 * 320].reshape(-1, 320)
    assert frames.std(axis=1).min() > 2
    assert np.abs(samples.astype(int)).max() < 32767


@each_clean_one
def test_speech_is_where_the_manifest_says(recording: Recording):
    """Loud between the boundaries and at both of them, over 30 dB fainter before and after."""
    samples = read_samples(recording, recording.sample_rate)
    begins, ends = recording.speech_begins_sample, recording.speech_ends_sample
    outside = np.concatenate([samples[: begins - 160], samples[ends + 1600 :]])
    assert loudness(samples[begins : ends + 1]) > 30 * loudness(outside)
    threshold = 32768 * 10 ** (-42 / 20) - 9  # as documented, less the dither
    assert abs(int(samples[begins])) >= threshold
    assert abs(int(samples[ends])) >= threshold
    assert np.abs(samples[:begins].astype(int)).max() <= threshold + 18
    assert np.abs(samples[ends + 1 :].astype(int)).max() <= threshold + 18
