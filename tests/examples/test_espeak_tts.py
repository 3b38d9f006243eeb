"""The offline voice speaks at once, stops at once, and can be understood."""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from examples.voice_bot.speech.espeak_engine import EspeakEngine, shared_engine
from examples.voice_bot.speech.espeak_tts import EspeakTTSService
from examples.voice_bot.speech.grammar_recognizer import shared_recognizer
from examples.voice_bot.speech.pocketsphinx_stt import RESTAURANT_GRAMMAR
from pipecat.frames.frames import (
    ErrorFrame,
    InterruptionFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.tests.utils import run_test

from pipecat_hedge.race import ConfigurationError
from tests.examples.loop_share import longest_share
from tests.support.line import Line

SENTENCE = "We are open on Sunday from noon until nine."
SPEECH = f"{SENTENCE} " * 1000  # 40 minutes: seconds of work for the engine


@pytest.fixture
def engine() -> EspeakEngine:
    """The process's."""
    return shared_engine()


def service(**settings: Any) -> EspeakTTSService:
    return EspeakTTSService(settings=EspeakTTSService.Settings(**settings))


def update(**settings: Any) -> TTSUpdateSettingsFrame:
    return TTSUpdateSettingsFrame(delta=EspeakTTSService.Settings(**settings))


def spoken(frames: Any) -> npt.NDArray[np.int16]:
    chunks = [frame.audio for frame in frames if isinstance(frame, TTSAudioRawFrame)]
    return np.frombuffer(b"".join(chunks), dtype=np.int16)


async def say(text: str, rate: int = 24000, **settings: Any) -> Any:
    """Speak in a pipeline of that rate; the frames that came out."""
    frames, _ = await run_test(
        service(**settings),
        frames_to_send=[TTSSpeakFrame(text)],
        pipeline_params=PipelineParams(audio_out_sample_rate=rate),
    )
    return frames


def chunks_of(engine: EspeakEngine, text: str) -> list[tuple[float, bytes]]:
    """The engine's audio at its own rate, each chunk with the time at which it came."""
    chunks: list[tuple[float, bytes]] = []
    engine.speak(text, "en-us+f3", 165, lambda a: chunks.append((time.perf_counter(), a)) is None)
    return chunks


@pytest.mark.parametrize("rate", [16000, 24000, 48000])
async def test_a_sentence_is_spoken_whole_at_the_pipelines_rate(engine: EspeakEngine, rate: int):
    """No sample is lost in the conversion, and speech begins within 50 ms of the audio."""
    frames = await say(SENTENCE, rate)
    assert {f.sample_rate for f in frames if isinstance(f, TTSAudioRawFrame)} == {rate}
    audio = spoken(frames)
    samples = sum(len(chunk) // 2 for _, chunk in chunks_of(engine, SENTENCE))
    assert len(audio) == pytest.approx(samples * rate / engine.sample_rate, abs=4)
    assert 1.5 < len(audio) / rate < 4
    assert np.flatnonzero(np.abs(audio.astype(int)) > 1000)[0] / rate < 0.05
    assert any(isinstance(frame, TTSStoppedFrame) for frame in frames)


@pytest.mark.parametrize("voice", ["en-us", "en-us+f3", "en", "en-gb-x-rp+m3"])
async def test_what_is_said_can_be_understood(voice: str):
    """The recogniser hears the words, in American and British voices."""
    audio = spoken(await say("Do you deliver?", 16000, voice=voice))
    noise = np.random.default_rng(1).integers(-8, 9, 4000).astype(np.int16)
    sound = np.concatenate([noise, audio, noise]).tobytes()
    assert shared_recognizer(RESTAURANT_GRAMMAR).recognize(sound) == "do you deliver"


def test_the_first_audio_comes_long_before_the_last(engine: EspeakEngine):
    started = time.perf_counter()
    times = [at - started for at, _ in chunks_of(engine, SPEECH[:2000])]
    assert times[0] < times[-1] / 2


async def test_an_interruption_ends_the_speech_and_frees_the_engine(engine: EspeakEngine):
    """Of 40 minutes nothing is heard after the interruption, and another call can speak."""
    async with Line(EspeakTTSService()) as line:
        await line.send(TTSSpeakFrame(SPEECH))
        await line.until(lambda: bool(line.frames(TTSAudioRawFrame)))
        await line.interrupt()
        await line.until(lambda: bool(line.frames(InterruptionFrame)))
        heard = len(line.frames(TTSAudioRawFrame))
        started = time.perf_counter()
        await asyncio.to_thread(chunks_of, engine, "Yes?")
        freed_secs = time.perf_counter() - started
    assert len(line.frames(TTSAudioRawFrame)) == heard
    started = time.perf_counter()
    chunks_of(engine, SPEECH[:8000])  # less than a fifth of what would have held the engine
    assert freed_secs < time.perf_counter() - started


async def test_sessions_speak_side_by_side():
    """Three calls in one process: each hears its own text, whole."""
    calls = [(SENTENCE * n, voice) for n, voice in enumerate(["en-us", "en-us+f3", "en"], 1)]
    alone = [spoken(await say(text, voice=voice)) for text, voice in calls]
    together = await asyncio.gather(*(say(text, voice=voice) for text, voice in calls))
    for one, other in zip(alone, map(spoken, together), strict=True):
        assert len(other) == pytest.approx(len(one), rel=0.01)


async def test_the_event_loop_goes_on_while_the_engine_speaks(engine: EspeakEngine):
    assert await longest_share(chunks_of, engine, SPEECH[:8000]) < 0.25


async def test_settings_can_be_changed_between_sentences():
    """Twice as many words a minute take half the time; an unknown voice is an error frame."""
    speak = TTSSpeakFrame(SENTENCE)
    frames = [speak, update(words_per_minute=330), update(voice="en-us+nobody"), speak]
    down, up = await run_test(EspeakTTSService(), frames_to_send=frames)
    stops = [number for number, frame in enumerate(down) if isinstance(frame, TTSStoppedFrame)]
    slow, fast = spoken(down[: stops[0]]), spoken(down[stops[0] :])
    assert 0.4 < len(fast) / len(slow) < 0.65
    (error,) = (frame for frame in up if isinstance(frame, ErrorFrame))
    assert "voice: espeak-ng has no variant 'nobody'. Use one of f1" in error.error


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"voice": "xx"}, r"voice: espeak-ng has no voice 'xx'. Use .*en-US"),
        ({"voice": ""}, r"voice: espeak-ng has no voice ''"),
        ({"voice": "en-us+zz"}, r"voice: espeak-ng has no variant 'zz'. Use one of f1"),
        ({"words_per_minute": 20}, r"words_per_minute: 20 is outside 80 to 450"),
    ],
)
def test_what_the_engine_cannot_speak_with_is_an_error(settings: dict[str, object], message: str):
    with pytest.raises(ConfigurationError, match=message):
        service(**settings)


def test_an_error_in_the_listener_ends_the_speech(engine: EspeakEngine):
    """It comes out of `speak`, not out of the C library, and the engine is still good."""
    calls: list[bytes] = []

    def broken(audio: bytes) -> bool:
        calls.append(audio)
        raise LookupError("nobody listens")

    with pytest.raises(LookupError, match="nobody listens"):
        engine.speak(SPEECH, "en-us", 165, broken)
    assert len(calls) == 1
    assert chunks_of(engine, "Yes?")


@pytest.mark.parametrize(
    ("module", "package"),
    [("espeak_engine", "espeakng_loader"), ("grammar_recognizer", "pocketsphinx")],
)
def test_without_the_extra_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str, package: str
):
    """Not "No module named espeakng_loader"."""
    name = f"examples.voice_bot.speech.{module}"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r'pip install "pipecat-hedge\[demo\]"'):
        importlib.import_module(name)
