"""Creates the audio fixtures, fixtures/audio/*.flac and their manifest, from scripts/fixtures.toml.

The same list, engine versions and seed give the same samples. Each recording is a voice in a small
room at one level, plus noise at a given level below it. The beginning and end of speech are
measured before the noise is added.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "scripts" / "fixtures.toml"
TARGET = ROOT / "fixtures" / "audio"

SAMPLE_RATE = 16000
TAIL_SECS = 0.5
SPEECH_DBFS = -26.0  # RMS of the voice where it speaks; ITU-T P.56 calls -26 dBov nominal
BOUNDARY_DBFS = -42.0  # speech begins and ends with the first and last sample at this level
DITHER_LSB = 8  # digital silence confuses recognisers
REVERB_SECS = 0.25  # time for the room to fall by 60 dB
REVERB_DB = -20.0  # the room, compared to the voice
ENGINES = {  # command → version command and pattern
    "espeak-ng": (["espeak-ng", "--version"], r"text-to-speech: (\S+)"),
    "flite": (["flite", "--version"], r"version: flite-(\S+)"),
}

Samples = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Source:
    """One recording to create; see the head of scripts/fixtures.toml for the fields."""

    name: str
    text: str
    engine: str
    voice: str
    speed: float = 1.0
    noise: str = "none"
    snr_db: float = 20.0
    lead_secs: float = 0.3
    pause_secs: float = 0.9
    tags: tuple[str, ...] = ()

    @property
    def transcript(self) -> str:
        """The words in lower case, as a recogniser writes them."""
        return " ".join(re.findall(r"[a-z']+", self.text.lower()))


def require_engines() -> dict[str, str]:
    """Install missing speech engines if possible, and return the versions.

    Raises:
        SystemExit: If a package is missing and cannot be installed here.
    """
    missing = [name for name in ENGINES if shutil.which(name) is None]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {' '.join(missing)}")
        subprocess.run(["apt-get", "update", "-qq"], check=False)
        subprocess.run(["apt-get", "install", "-y", "-qq", *missing], check=False)
        missing = [name for name in ENGINES if shutil.which(name) is None]
    if missing:
        names = " ".join(missing)
        sys.exit(f"make_fixtures: {names} not found. Run: sudo apt-get install {names}")
    versions: dict[str, str] = {}
    for name, (command, pattern) in ENGINES.items():
        # flite exits with status 1 after printing its version.
        answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        found = re.search(pattern, answer)
        versions[name] = found[1] if found else "unknown"
    return versions


def synthesize(source: Source, text: str) -> Samples:
    """Synthesize `text` at SAMPLE_RATE, between -1 and 1, with silence trimmed at both ends."""
    with tempfile.TemporaryDirectory() as folder:
        wav = str(Path(folder) / "speech.wav")
        if source.engine == "espeak-ng":
            words_per_minute = str(round(175 * source.speed))
            command = ["espeak-ng", "-v", source.voice, "-s", words_per_minute, "-w", wav, text]
        else:
            stretch = f"duration_stretch={1 / source.speed:.4f}"
            command = ["flite", "-voice", source.voice, "--setf", stretch, "-t", text, "-o", wav]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not Path(wav).exists():
            sys.exit(
                f"make_fixtures: {source.name}: {source.engine} failed with voice "
                f"{source.voice!r}: {done.stderr.strip()}"
            )
        samples, rate = soundfile.read(wav, dtype="float64")
    speech = np.asarray(soxr.resample(samples, rate, SAMPLE_RATE), dtype=np.float64)
    audible = np.flatnonzero(np.abs(speech) > 1e-3)
    if not len(audible):
        sys.exit(f"make_fixtures: {source.name}: {source.engine} gave silence for {text!r}")
    return speech[audible[0] : audible[-1] + 1]


def silence(secs: float) -> Samples:
    """Return silence of that many seconds."""
    return np.zeros(round(secs * SAMPLE_RATE))


def in_a_room(speech: Samples, random: np.random.Generator) -> Samples:
    """Add the reverberation of a small room: the voice convolved with decaying noise."""
    length = round(REVERB_SECS * SAMPLE_RATE)
    decay = 10 ** (-3 * np.arange(length) / length)
    echo = random.standard_normal(length) * decay
    echo *= 10 ** (REVERB_DB / 20) / np.sqrt(np.sum(echo**2))
    echo[0] = 1.0
    return np.asarray(np.convolve(speech, echo)[: len(speech)], dtype=np.float64)


def spoken_stretches(speech: Samples) -> list[tuple[int, int]]:
    """Return first and last sample of each stretch over BOUNDARY_DBFS; pauses are 0.5 s or more."""
    loud = np.flatnonzero(np.abs(speech) >= 10 ** (BOUNDARY_DBFS / 20))
    breaks = np.flatnonzero(np.diff(loud) > SAMPLE_RATE // 2)
    first = loud[np.concatenate(([0], breaks + 1))]
    last = loud[np.concatenate((breaks, [len(loud) - 1]))]
    return [(int(begin), int(end)) for begin, end in zip(first, last, strict=True)]


def at_level(sound: Samples, dbfs: float, within: list[tuple[int, int]]) -> Samples:
    """Scale the sound so that its RMS in the given stretches is `dbfs`."""
    speech = np.concatenate([sound[begin : end + 1] for begin, end in within])
    return sound * (10 ** (dbfs / 20) / np.sqrt(np.mean(speech**2)))


def pink(length: int, random: np.random.Generator) -> Samples:
    """Noise with equal power in every octave."""
    spectrum = np.fft.rfft(random.standard_normal(length))
    frequency = np.fft.rfftfreq(length, 1 / SAMPLE_RATE)
    spectrum /= np.sqrt(np.maximum(frequency, 40.0))
    return np.fft.irfft(spectrum, length)


def kitchen(length: int, random: np.random.Generator) -> Samples:
    """An extractor's hum and hiss, with about six pans and plates a second."""
    secs = np.arange(length) / SAMPLE_RATE
    hiss = pink(length, random)
    sound = hiss / hiss.std() + 0.6 * np.sin(2 * np.pi * 100 * secs)
    for _ in range(round(6 * length / SAMPLE_RATE)):
        start = int(random.integers(length))
        ringing = secs[: length - start]
        for frequency in random.uniform(1200, 6000, size=3):
            ring = np.sin(2 * np.pi * frequency * ringing) * np.exp(-ringing / 0.03)
            sound[start:] += random.uniform(0.5, 2.5) * ring
    return sound


def babble(length: int, random: np.random.Generator) -> Samples:
    """Four other voices at once, looped from a random position."""
    sound = np.zeros(length)
    for voice in ("en+m2", "en-us+f4", "en-gb-scotland+m5", "en-us+m7"):
        guest = Source("babble", "", "espeak-ng", voice, speed=float(random.uniform(0.85, 1.1)))
        talk = synthesize(guest, "Well the soup was lovely and then my brother rang about it.")
        talk = np.roll(talk / talk.std(), int(random.integers(len(talk))))
        sound += np.resize(talk, length)
    return sound


NOISES: dict[str, Callable[[int, np.random.Generator], Samples]] = {
    "pink": pink,
    "kitchen": kitchen,
    "babble": babble,
}


def record(source: Source, seed: int) -> tuple[npt.NDArray[np.int16], list[tuple[int, int]]]:
    """Create one recording: 16-bit samples, and the stretches with speech."""
    random = np.random.default_rng([seed, zlib.crc32(source.name.encode())])
    parts: list[Samples] = []
    for phrase in source.text.split("…"):
        parts += [silence(source.pause_secs if parts else source.lead_secs)]
        parts += [synthesize(source, phrase.strip())]
    speech = in_a_room(np.concatenate([*parts, silence(TAIL_SECS)]), random)
    # Level and stretches depend on each other: iterate.
    stretches = [(0, len(speech) - 1)]
    for _ in range(4):
        speech = at_level(speech, SPEECH_DBFS, stretches)
        stretches = spoken_stretches(speech)
    sound = speech
    if source.noise != "none":
        noise = NOISES[source.noise](len(speech), random)
        noise = at_level(noise, SPEECH_DBFS - source.snr_db, [(0, len(noise) - 1)])
        sound = speech + noise
    samples = np.rint(sound * 32767) + random.integers(
        -DITHER_LSB, DITHER_LSB, size=len(sound), endpoint=True
    )
    clipped = int(np.count_nonzero(np.abs(samples) > 32767))
    if clipped:
        sys.exit(f"make_fixtures: {source.name}: {clipped} samples are clipped")
    return samples.astype(np.int16), stretches


def table(source: Source, samples: npt.NDArray[np.int16], stretches: list[tuple[int, int]]) -> str:
    """Return the recording's table of the manifest."""
    pauses = [[end, begin] for (_, end), (begin, _) in pairwise(stretches)]
    noise = "none" if source.noise == "none" else f"{source.noise}, {source.snr_db:g} dB below"
    tags = sorted({*source.tags, *(["noise"] if source.noise != "none" else ["clean"])})
    listed = ", ".join(f'"{tag}"' for tag in tags)
    return f"""
[[recording]]
file = "{source.name}.flac"
transcript = "{source.transcript}"
sample_rate = {SAMPLE_RATE}
samples = {len(samples)}
speech_begins_sample = {stretches[0][0]}
speech_ends_sample = {stretches[-1][1]}
pauses = {pauses}
engine = "{source.engine}"
voice = "{source.voice}"
speed = {source.speed}
noise = "{noise}"
tags = [{listed}]
"""


def head(versions: dict[str, str]) -> str:
    """Return the manifest's header: the fields and the recordings' origin."""
    return f"""\
# Made by `make fixtures` (scripts/make_fixtures.py) from scripts/fixtures.toml; do not edit.
#
# Speech begins and ends with the first and last sample at or over {BOUNDARY_DBFS:g} dBFS
# of the voice in its room, before noise was added. Pauses are [last sample before, first sample
# after], of 0.5 s or more. The voice speaks at {SPEECH_DBFS:g} dBFS RMS, and every recording has
# {DITHER_LSB} LSB of dither.

[provenance]
speech = "generated, no person was recorded"
engines = "espeak-ng {versions["espeak-ng"]}, flite {versions["flite"]}"
licence = "BSD-2-Clause, as this repository; the engines' licences do not extend to what they say"
"""


def main() -> None:
    """Create every recording and the manifest."""
    versions = require_engines()
    listing = tomllib.loads(SOURCES.read_text(encoding="utf-8"))
    sources = [
        replace(Source(**fields), tags=tuple(fields.get("tags", ())))
        for fields in listing["recording"]
    ]
    TARGET.mkdir(parents=True, exist_ok=True)
    kept = {f"{source.name}.flac" for source in sources}
    for stale in TARGET.glob("*.flac"):
        if stale.name not in kept:
            stale.unlink()
    manifest = head(versions)
    for source in sources:
        samples, stretches = record(source, listing["seed"])
        path = TARGET / f"{source.name}.flac"
        soundfile.write(path, samples, SAMPLE_RATE, format="FLAC", compression_level=1.0)
        manifest += table(source, samples, stretches)
        secs = len(samples) / SAMPLE_RATE
        print(f"{path.name:58} {secs:5.2f} s {path.stat().st_size / 1024:6.1f} KiB")
    (TARGET / "manifest.toml").write_text(manifest, encoding="utf-8")


if __name__ == "__main__":
    main()
