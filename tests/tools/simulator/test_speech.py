"""What a simulated recogniser hears, without a socket."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soxr

from pipecat_hedge.tools.replay import load_manifest, read_samples
from pipecat_hedge.tools.simulator import Recordings
from pipecat_hedge.tools.simulator.speech import Listener, Sound, decode

MANIFEST = load_manifest(Path(__file__).parents[3] / "fixtures/audio/manifest.toml")
KNOWN = Recordings(*((read_samples(known, 16000), known.transcript) for known in MANIFEST))
Samples = npt.NDArray[np.int16]


def mulaw(samples: Samples) -> bytes:
    """Each sample as the nearest code."""
    levels = decode(bytes(range(256)), "mulaw").astype(int)
    order = np.argsort(levels, kind="stable")
    middles = (levels[order][1:] + levels[order][:-1]) / 2
    return order[np.searchsorted(middles, samples)].astype(np.uint8).tobytes()


def texts(listener: Listener, audio: bytes) -> list[str]:
    """What the utterances say that end by silence."""
    found: list[str] = []
    for sound in listener.hear(audio):
        if sound is Sound.ENDED:
            found.append(KNOWN(listener.samples))
            listener.end()
    return found


def test_mulaw_has_the_levels_of_g711() -> None:
    codes = bytes([0x00, 0x0F, 0x7F, 0x80, 0x8F, 0xF0, 0xFF])
    assert decode(codes, "mulaw").tolist() == [-32124, -16764, 0, 32124, 16764, 120, 0]


@pytest.mark.parametrize("line", ["clean", "telephone", "quiet and noisy"])
def test_recordings_are_told_apart(line: str) -> None:
    """All in one stream: the words of each, through a telephone line and in noise."""
    gap, rng = np.zeros(16000, np.int16), np.random.default_rng(1)
    listener = Listener(16000, "linear16", 0.6, 9.0)
    sound = np.concatenate(
        [part for known in MANIFEST for part in (read_samples(known, 16000), gap)]
    )
    audio = sound.tobytes()
    if line == "telephone":
        listener = Listener(8000, "mulaw", 0.6, 9.0)
        audio = mulaw(soxr.resample(sound, 16000, 8000))
    elif line == "quiet and noisy":
        audio = (sound * 0.6 + rng.normal(0, 80, len(sound))).astype(np.int16).tobytes()
    said = " ".join(known.transcript for known in MANIFEST)
    assert " ".join(texts(listener, audio)) == said


def test_two_recordings_in_one_utterance_are_both_heard() -> None:
    """As in audio that is replayed after a change of sockets; the second is not whole."""
    first, second = (read_samples(known, 16000) for known in MANIFEST[:2])
    words = MANIFEST[1].transcript.split()
    heard = KNOWN(np.concatenate([first, second[: MANIFEST[1].speech_ends_sample // 2]])).split()
    count = len(MANIFEST[0].transcript.split())
    assert " ".join(heard[:count]) == MANIFEST[0].transcript
    assert heard[count:] == words[: len(heard) - count]
    assert 0 < len(heard) - count < len(words)


def test_unknown_speech_says_nothing() -> None:
    others = Recordings(*((read_samples(known, 16000), known.transcript) for known in MANIFEST[1:]))
    assert others(read_samples(MANIFEST[0], 16000)) == ""


def test_audio_may_come_in_any_pieces() -> None:
    audio = read_samples(MANIFEST[0], 16000).tobytes() + bytes(32000)
    whole, pieces = (Listener(16000, "linear16", 0.6, 9.0) for _ in range(2))
    sounds = list(whole.hear(audio))
    cut = [s for at in range(0, len(audio), 777) for s in pieces.hear(audio[at : at + 777])]
    assert cut == sounds
    assert sounds[0] is Sound.BEGAN
