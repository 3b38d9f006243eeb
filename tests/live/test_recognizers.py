"""The simulated recognisers, heard through Pipecat's services in a pipeline with Silero's VAD."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from openai import DefaultAsyncHttpxClient
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADParams
from pipecat.frames.frames import (
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    TranscriptionFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.audio.vad_processor import VADProcessor
from pipecat.services.deepgram.stt import DeepgramSTTService
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.services.stt_service import STTService

from pipecat_hedge.tools.replay import load_manifest, read_samples
from pipecat_hedge.tools.simulator import BehaviourError, Recordings, Simulator
from tests.support.line import Line

pytestmark = pytest.mark.live

RECORDINGS = {
    recording.transcript: recording
    for recording in load_manifest(Path(__file__).parents[2] / "fixtures/audio/manifest.toml")
}
KNOWN = Recordings(*((read_samples(known, 16000), text) for text, known in RECORDINGS.items()))
DELIVER, SUNDAY, PARKING = (
    "do you deliver",
    "hello are you open on sunday",
    "is there parking nearby",
)
PAUSED = next(recording for recording in RECORDINGS.values() if recording.pauses)


class Call(Line):
    """A pipeline of Silero's VAD and a recogniser."""

    def __init__(self, stt: STTService):
        vad = VADProcessor(vad_analyzer=SileroVADAnalyzer(params=VADParams(stop_secs=0.2)))
        super().__init__(stt, before=[vad])

    async def play(self, *texts: str) -> None:
        """Play recordings faster than real time, each with a second of faint noise around it."""
        noise = np.random.default_rng(1).integers(-8, 9, 16000).astype(np.int16)
        for text in texts:
            sound = np.concatenate([noise, read_samples(RECORDINGS[text], 16000), noise])
            pieces = (sound[at : at + 320].tobytes() for at in range(0, len(sound) - 319, 320))
            await self.send(*(InputAudioRawFrame(piece, 16000, 1) for piece in pieces))

    async def finals(self, count: int) -> list[TranscriptionFrame]:
        await self.until(lambda: len(self.frames(TranscriptionFrame)) >= count)
        return self.frames(TranscriptionFrame)


def deepgram(sim: Simulator, model: str = "nova-3-general", **settings: Any) -> DeepgramSTTService:
    chosen = DeepgramSTTService.Settings(model=model, **settings)
    return DeepgramSTTService(api_key="any", base_url=sim.deepgram_url, settings=chosen)


def openai(sim: Simulator, model: str = "gpt-transcribe", **options: Any) -> OpenAISTTService:
    return OpenAISTTService(
        api_key="any",
        base_url=sim.openai_url,
        settings=OpenAISTTService.Settings(model=model),
        **options,
    )


@asynccontextmanager
async def calling(
    service: Callable[..., STTService], *options: Any, transcripts: Any = KNOWN, **settings: Any
) -> AsyncIterator[tuple[Simulator, Call]]:
    """A call and its simulator, which ends first: some faults answer no close."""
    async with AsyncExitStack() as stack, Simulator(transcripts=transcripts) as sim:
        if service is openai:  # Pipecat closes no client
            settings["http_client"] = await stack.enter_async_context(DefaultAsyncHttpxClient())
        call = Call(service(sim, *options, **settings))
        await stack.enter_async_context(call)
        yield sim, call


async def heard(sim: Simulator, utterances: int) -> None:
    await sim.ledger.wait_until(
        lambda ledger: sum(entry.utterances for entry in ledger.requests) == utterances, 5
    )


async def test_deepgram_hears_recordings_word_by_word() -> None:
    async with calling(deepgram) as (sim, call):
        await call.play(SUNDAY)
        await call.finals(1)
        await call.play(PARKING)
        finals = await call.finals(2)
        interims = [frame.text for frame in call.frames(InterimTranscriptionFrame)]
        (socket,) = sim.ledger.open
    assert [final.text for final in finals] == [SUNDAY, PARKING]
    assert [final.finalized for final in finals] == [True, True]
    assert interims == sorted(interims, key=lambda text: (text not in SUNDAY, len(text)))
    assert interims[0] == "hello"
    assert (socket.wire, socket.utterances, socket.finals) == ("deepgram", 2, 2)
    assert socket.interims == len(interims)


async def test_a_pause_loses_and_repeats_no_word() -> None:
    """Pipecat finalizes at the VAD's stop, here in mid-sentence."""
    async with calling(deepgram) as (_, call):
        await call.play(PAUSED.transcript)
        finals = await call.finals(2)
    assert " ".join(final.text for final in finals) == PAUSED.transcript


async def test_a_scripted_text_grows_with_speech() -> None:
    """And its keys are those of that utterance only."""
    texts = ["one two three", "?fault=late&delay=0.3 four"]
    async with calling(deepgram, transcripts=texts) as (_, call):
        for text in (DELIVER, PARKING):
            await call.play(text)
            await call.finals(1 if text == DELIVER else 2)
        interims = [frame.text for frame in call.frames(InterimTranscriptionFrame)]
        waits = [
            final - stop
            for final, stop in zip(
                call.times(TranscriptionFrame), call.times(VADUserStoppedSpeakingFrame), strict=True
            )
        ]
    assert interims[:3] == ["one", "one two", "one two three"]
    assert [final.text for final in call.frames(TranscriptionFrame)] == ["one two three", "four"]
    assert waits[0] < 0.3 <= waits[1]


def test_a_bad_key_in_a_script_is_named() -> None:
    with pytest.raises(BehaviourError, match="unknown fault 'tired'"):
        Simulator(transcripts=["?fault=tired hello"])


# ---- faults of the socket


@pytest.mark.parametrize(("fault", "interims"), [("silent", 0), ("never_final", 1)])
async def test_an_utterance_without_a_final(fault: str, interims: int) -> None:
    async with calling(deepgram) as (sim, call):
        sim.set_conditions(fault=fault)
        await call.play(DELIVER)
        await call.until(lambda: bool(call.frames(VADUserStoppedSpeakingFrame)))
        await heard(sim, 1)
        sim.set_conditions()
        await call.play(PARKING)
        await call.finals(1)
        texts = [frame.text for frame in call.frames(InterimTranscriptionFrame)]
    assert [final.text for final in call.frames(TranscriptionFrame)] == [PARKING]
    assert any(text in DELIVER for text in texts) is bool(interims)


async def test_a_half_open_socket_takes_audio_and_says_nothing() -> None:
    async with calling(deepgram) as (sim, call):
        sim.set_conditions(fault="half_open")
        await call.play(DELIVER)
        await heard(sim, 1)
        sim.set_conditions()
        await call.play(PARKING)
        await heard(sim, 2)
        (socket,) = sim.ledger.open
        assert (socket.interims, socket.finals) == (0, 0)
        assert not call.errors


async def test_a_socket_that_stops_reading_reads_on_later() -> None:
    async with calling(deepgram) as (sim, call):
        sim.set_conditions(fault="stops_reading", delay=0.5)
        await call.play(DELIVER)
        await heard(sim, 1)
        stopped = asyncio.get_running_loop().time()
        sim.set_conditions()
        await call.play(PARKING)
        await call.finals(1)
        assert call.times(TranscriptionFrame)[0] - stopped >= 0.4
    assert [final.text for final in call.frames(TranscriptionFrame)] == [PARKING]


@pytest.mark.parametrize(("fault", "error"), [("1008", "1008"), ("cut", "no close frame")])
async def test_a_broken_socket_is_an_error(fault: str, error: str) -> None:
    async with calling(deepgram) as (sim, call):
        sim.set_conditions(fault=fault)
        await call.play(SUNDAY)
        await call.until(lambda: bool(call.errors))
        (socket,) = sim.ledger.requests
    assert error in call.errors[0].error
    assert (socket.outcome, socket.fault, socket.finals) == ("failed", fault, 0)


async def test_two_finals_of_one_utterance() -> None:
    async with calling(deepgram) as (sim, call):
        sim.set_conditions(fault="two_finals", delay=0.2)
        await call.play(DELIVER)
        finals = await call.finals(2)
        first, second = call.times(TranscriptionFrame)
    assert [(final.text, final.finalized) for final in finals] == [
        ("do", False),
        ("you deliver", True),
    ]
    assert second - first >= 0.15


async def test_deepgrams_messages_without_finalize() -> None:
    """The endpointing silence ends an utterance; starts and ends are told to who asks."""
    query = {"model": "nova-3", "encoding": "linear16", "sample_rate": "16000"}
    query |= {"endpointing": "400", "vad_events": "true", "utterance_end_ms": "1000"}
    sound = read_samples(RECORDINGS[DELIVER], 16000).tobytes() + bytes(48000)
    async with Simulator(transcripts=KNOWN) as sim, aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{sim.deepgram_url}/v1/listen", params=query) as ws:
            await ws.send_bytes(sound)
            await ws.send_json({"type": "KeepAlive"})
            await ws.send_json({"type": "CloseStream"})
            messages = [message.json() async for message in ws]
            assert ws.close_code == 1000
        async with session.get(f"{sim.url}/v1/listen", params={"encoding": "opus"}) as response:
            assert (response.status, "encoding" in await response.text()) == (400, True)
    kinds = [message["type"] for message in messages]
    assert kinds == ["SpeechStarted", "Results", "UtteranceEnd", "Metadata"]
    result = messages[1]
    assert (result["is_final"], result["speech_final"], result["from_finalize"]) == (1, 1, 0)
    assert result["channel"]["alternatives"][0]["transcript"] == DELIVER


# ---- single responses


@pytest.mark.parametrize("model", ["gpt-transcribe", "whisper-1"])
async def test_openai_transcribes_segments(model: str) -> None:
    async with calling(openai, model, include_prob_metrics=True) as (sim, call):
        await call.play(DELIVER, PARKING)
        finals = await call.finals(2)
    assert [final.text for final in finals] == [DELIVER, PARKING]
    assert all(final.finalized for final in finals)
    result: Any = finals[0].result
    assert result.logprobs if model == "gpt-transcribe" else result.segments
    assert [(entry.wire, entry.status) for entry in sim.ledger.requests] == [
        ("openai-stt", 200)
    ] * 2


async def test_openai_faults() -> None:
    """Late, no text, an error status, and no answer at all."""
    texts = ["?fault=late&delay=0.3 one", "?fault=empty two", "?fault=400 three", "?fault=hang x"]
    async with calling(openai, transcripts=texts) as (sim, call):
        await call.play(DELIVER)
        await call.finals(1)
        (final,), (stop,) = call.times(TranscriptionFrame), call.times(VADUserStoppedSpeakingFrame)
        assert final - stop >= 0.3
        await call.play(DELIVER)
        await sim.ledger.wait_until(lambda ledger: len(ledger.requests) == 2, 5)
        await sim.wait_idle()
        await call.play(DELIVER)
        await call.until(lambda: bool(call.errors))
        await call.play(DELIVER)
        await sim.ledger.wait_until(
            lambda ledger: any(entry.fault == "hang" for entry in ledger.open), 5
        )
        assert [entry.fault for entry in sim.ledger.requests] == ["late", "empty", "400", "hang"]
        assert len(call.frames(TranscriptionFrame)) == 1
        assert "400" in call.errors[0].error
