"""The offline recogniser understands the recordings and leaves the event loop alone."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soxr
from examples.voice_bot.speech.espeak_engine import shared_engine
from examples.voice_bot.speech.grammar_recognizer import GrammarRecognizer, shared_recognizer
from examples.voice_bot.speech.pocketsphinx_stt import RESTAURANT_GRAMMAR, PocketsphinxSTTService
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADParams
from pipecat.frames.frames import InputAudioRawFrame, STTMetadataFrame, TranscriptionFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.processors.audio.vad_processor import VADProcessor
from pipecat.tests.utils import run_test

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.replay import Recording, load_manifest, read_samples
from tests.examples.loop_share import longest_share

MANIFEST = Path(__file__).parents[2] / "fixtures" / "audio" / "manifest.toml"
RECORDINGS = load_manifest(MANIFEST)
each_recording = pytest.mark.parametrize("recording", RECORDINGS, ids=lambda r: r.name)
LONGEST = max(RECORDINGS, key=lambda recording: recording.speech_ends_sample)
SHORT = [r for r in RECORDINGS if r.transcript in ("do you deliver", "is there parking nearby")]


@pytest.fixture
def recognizer() -> GrammarRecognizer:
    """The restaurant's."""
    return shared_recognizer(RESTAURANT_GRAMMAR)


def audio(recording: Recording) -> bytes:
    return read_samples(recording, 16000).tobytes()


def as_frames(samples: npt.NDArray[np.int16]) -> list[InputAudioRawFrame]:
    """20 ms each, with a second of faint noise on both sides, as from an open microphone."""
    noise = np.random.default_rng(1).integers(-8, 9, 16000).astype(np.int16)
    sound = np.concatenate([noise, samples, noise])
    pieces = [sound[at : at + 320] for at in range(0, len(sound) - 319, 320)]
    return [InputAudioRawFrame(piece.tobytes(), 16000, 1) for piece in pieces]


@each_recording
async def test_a_recording_is_understood(recording: Recording):
    """Word for word, cut into segments by the VAD of the bot; a pause makes two segments."""
    vad = VADProcessor(vad_analyzer=SileroVADAnalyzer(params=VADParams(stop_secs=0.2)))
    frames = as_frames(read_samples(recording, 16000))
    down, _ = await run_test(Pipeline([vad, PocketsphinxSTTService()]), frames_to_send=frames)
    heard = [frame for frame in down if isinstance(frame, TranscriptionFrame)]
    assert " ".join(frame.text for frame in heard) == recording.transcript
    assert len(heard) == 1 + len(recording.pauses)
    assert all(frame.finalized for frame in heard)


@pytest.mark.parametrize("decibels", [-24, -12, 6])
def test_a_quiet_and_a_loud_microphone_are_understood(recognizer: GrammarRecognizer, decibels: int):
    """The level of the microphone does not matter."""
    for recording in SHORT:
        samples = read_samples(recording, 16000) * 10 ** (decibels / 20)
        sound = np.rint(samples).clip(-32768, 32767).astype(np.int16)
        assert recognizer.recognize(sound.tobytes()) == recording.transcript


@pytest.mark.parametrize("samples", [0, 1, 100, 320, 8000, 64000])
def test_silence_is_no_sentence(recognizer: GrammarRecognizer, samples: int):
    """Nothing is made of digital silence, however short, and it does no harm to what follows."""
    assert recognizer.recognize(bytes(2 * samples)) == ""
    assert recognizer.recognize(audio(SHORT[0])) == SHORT[0].transcript


async def test_sessions_share_one_recognizer_and_keep_apart(recognizer: GrammarRecognizer):
    """Eight calls at once hear each their own words, from one recogniser."""
    services = [PocketsphinxSTTService() for _ in range(2)]
    assert {id(service._recognizer) for service in services} == {id(recognizer)}
    spoken = SHORT * 4
    heard = await asyncio.gather(
        *(asyncio.to_thread(recognizer.recognize, audio(recording)) for recording in spoken)
    )
    assert heard == [recording.transcript for recording in spoken]


async def test_the_event_loop_goes_on_while_speech_is_recognized(recognizer: GrammarRecognizer):
    """It waits for a piece at a time, 1 or 2 ms, a small part of the whole."""
    assert await longest_share(recognizer.recognize, audio(LONGEST)) < 0.25


async def test_the_time_to_the_transcript_is_announced():
    """Turn strategies learn how long to wait for a transcript, instead of a default of 1 s."""
    down, _ = await run_test(PocketsphinxSTTService(), frames_to_send=[])
    (metadata,) = (frame for frame in down if isinstance(frame, STTMetadataFrame))
    assert 0.2 < metadata.ttfs_p99_latency < 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"grammar: .*own.jsgf cannot be read .* Give"),
        ("It was a dark and stormy night.", r"grammar: .*is not a JSGF grammar .* Correct"),
        (
            "#JSGF V1.0;\ngrammar odd;\npublic <x> = hello | flibbertigibbety;\n",
            r"does not know: flibbertigibbety\. Use",
        ),
    ],
    ids=["missing", "no grammar", "unknown word"],
)
def test_what_is_no_grammar_is_an_error(tmp_path: Path, text: str | None, message: str):
    """The error names the argument, the file and the remedy."""
    file = tmp_path / "own.jsgf"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        PocketsphinxSTTService(grammar=file)


def test_a_grammar_of_ones_own_is_heard(tmp_path: Path):
    """Only the grammar's sentences come out."""
    file = tmp_path / "own.jsgf"
    file.write_text("#JSGF V1.0;\ngrammar own;\npublic <x> = do you deliver | where are you;\n")
    own = GrammarRecognizer(file)
    assert {own.recognize(audio(r)) for r in SHORT} <= {"do you deliver", "where are you", ""}


PAGE = Path(__file__).parents[2] / "examples" / "voice_bot" / "page" / "index.html"
PHRASES = re.findall(r"<li>([A-Z].*[.?])</li>", PAGE.read_text())


@pytest.mark.parametrize("phrase", PHRASES)
def test_phrases_on_the_page_are_understood(recognizer: GrammarRecognizer, phrase: str):
    """Among them README's question, in the bot's own voice."""
    said: list[bytes] = []
    engine = shared_engine()
    engine.speak(phrase, "en-us+f3", 165, lambda audio: said.append(audio) is None)
    sound = soxr.resample(np.frombuffer(b"".join(said), np.int16), engine.sample_rate, 16000)
    words = re.sub(r"[.?,]", "", phrase).lower()
    heard = recognizer.recognize(sound.tobytes())
    again = recognizer.recognize(sound.tobytes())  # says whether the voice or the ear varies
    assert heard == words, f"{len(sound) / 16000:.2f} s of sound, heard again as {again!r}"
