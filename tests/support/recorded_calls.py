"""Recorded callers as a bot's aggregator gets them: voice activity and transcripts.

Pipecat's voice activity detection finds the ends of speech in the recordings of ``fixtures/audio``,
each as it is and with a pause in the middle. The recogniser is simulated: its interim transcripts
have the words that were said until ``LAG_SECS`` before, and its final one comes some time after an
end of speech.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADState
from pipecat.frames.frames import (
    Frame,
    InterimTranscriptionFrame,
    STTMetadataFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)

from pipecat_hedge.tools.replay import Recording, load_manifest, read_samples

MANIFEST = Path(__file__).parents[2] / "fixtures/audio/manifest.toml"
RATE, PAUSE_SECS = 16_000, 0.35
INTERIM_EVERY_SECS, LAG_SECS = 0.25, 0.2
Samples = npt.NDArray[np.int16]
Event = Frame | float


@dataclass(frozen=True)
class Said:
    """A recording as it was said.

    Parameters:
        words: The words.
        samples: The audio, at ``RATE``, with silence behind.
        begins_secs: When speech begins.
        ends_secs: When speech ends.
        pauses: Pauses in mid-sentence: from when until when.
    """

    words: list[str]
    samples: Samples
    begins_secs: float
    ends_secs: float
    pauses: list[tuple[float, float]]

    @classmethod
    def of(cls, recording: Recording) -> Said:
        rate, silence = recording.sample_rate, np.zeros(RATE, np.int16)
        return cls(
            recording.transcript.split(),
            np.concatenate([read_samples(recording, RATE), silence]),
            recording.speech_begins_sample / rate,
            recording.speech_ends_sample / rate,
            [(begin / rate, end / rate) for begin, end in recording.pauses],
        )

    def paused(self, secs: float = PAUSE_SECS) -> Said:
        """The same with a pause where the middle half of the speech is quietest."""
        spoken = self.ends_secs - self.begins_secs
        frame = RATE // 50
        first, last = (
            int((self.begins_secs + share * spoken) * RATE) // frame for share in (0.25, 0.75)
        )
        loudness = [
            float(np.square(self.samples[n * frame : (n + 1) * frame].astype(float)).mean())
            for n in range(first, last)
        ]
        at = (first + int(np.argmin(loudness))) * frame
        quiet = np.zeros(round(secs * RATE), np.int16)
        samples = np.concatenate([self.samples[:at], quiet, self.samples[at:]])
        pause = (at / RATE, at / RATE + secs)
        return Said(self.words, samples, self.begins_secs, self.ends_secs + secs, [pause])

    def recognised(self, until: float) -> int:
        """How many words have ended by a time, if they are spread evenly over the speech."""
        silent = [(begin, min(end, until)) for begin, end in self.pauses if begin < until]
        spoken = until - self.begins_secs - sum(end - begin for begin, end in silent)
        whole = self.ends_secs - self.begins_secs - sum(end - begin for begin, end in self.pauses)
        return min(int(len(self.words) * max(spoken, 0.0) / whole + 1e-9), len(self.words))


async def voice_activity(samples: Samples) -> list[tuple[float, bool]]:
    """When speech begins and ends, as Pipecat finds it: the time, and whether it begins."""
    analyzer = SileroVADAnalyzer(sample_rate=RATE)
    analyzer.set_sample_rate(RATE)
    found: list[tuple[float, bool]] = []
    step = RATE // 50
    for begin in range(0, len(samples), step):
        state = await analyzer.analyze_audio(samples[begin : begin + step].tobytes())
        is_on = bool(found) and found[-1][1]
        if (state is VADState.SPEAKING and not is_on) or (state is VADState.QUIET and is_on):
            found.append(((begin + step) / RATE, not is_on))
    await analyzer.cleanup()
    return found


RecordedCall = tuple[Said, list[tuple[float, bool]]]


@functools.cache
def recorded_calls() -> list[RecordedCall]:
    """What is said in each call, and when speech begins and ends; found outside virtual time."""
    plain = [Said.of(recording) for recording in load_manifest(MANIFEST)]
    said = [*plain, *(each.paused() for each in plain if not each.pauses)]

    async def find() -> list[RecordedCall]:
        return [(each, await voice_activity(each.samples)) for each in said]

    return asyncio.run(find())


def events(said: Said, activity: Sequence[tuple[float, bool]], final_secs: float) -> list[Event]:
    """What the bot's aggregator gets, with the pauses between."""
    timed: list[tuple[float, Frame]] = []
    finals = [(0.0, 0)]
    for at, is_on in activity:
        timed.append(
            (at, VADUserStartedSpeakingFrame() if is_on else VADUserStoppedSpeakingFrame())
        )
        if not is_on:
            count = said.recognised(at)
            text = " ".join(said.words[finals[-1][1] : count])
            finals.append((at + final_secs, count))
            timed.append((at + final_secs, TranscriptionFrame(text, "", "", finalized=True)))
    shown = 0
    for number in range(1, int(finals[-1][0] / INTERIM_EVERY_SECS) + 1):
        at = number * INTERIM_EVERY_SECS
        known = said.recognised(at - LAG_SECS)
        begin = max(count for since, count in finals if since <= at)
        if known > max(shown, begin):
            timed.append((at, InterimTranscriptionFrame(" ".join(said.words[begin:known]), "", "")))
            shown = known
    told: list[Event] = [STTMetadataFrame(service_name="stt", ttfs_p99_latency=1.2)]
    now = 0.0
    for at, frame in sorted(timed, key=lambda each: each[0]):
        told += [at - now, frame]
        now = at
    return told
