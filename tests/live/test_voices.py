"""The simulated voices, heard through Pipecat's services in a pipeline."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
import pytest
import soxr
from examples.voice_bot.speech.espeak_engine import shared_engine
from openai import DefaultAsyncHttpxClient
from pipecat.frames.frames import (
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.services.cartesia.tts import CartesiaTTSService
from pipecat.services.deepgram.tts import DeepgramTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsTTSService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.services.tts_service import TTSService

from pipecat_hedge.tools.simulator import BehaviourError, LedgerEntry, Simulator
from pipecat_hedge.tools.simulator.speech import Samples
from tests.support.line import Line
from tests.support.spoken_words import timed_words_in, words_in

pytestmark = pytest.mark.live

DELIVER = "Yes, we do. It's forty minutes."
WORDS = ["yes", "we", "do", "it's", "forty", "minutes"]


class Call(Line):
    """A pipeline of a voice."""

    async def say(self, *texts: str) -> None:
        """Have a turn spoken, of sentences."""
        await self.send(LLMFullResponseStartFrame())
        await self.send(*(LLMTextFrame(text) for text in texts), LLMFullResponseEndFrame())

    async def stopped(self, count: int = 1) -> None:
        """Wait until speech has ended so many times."""
        await self.until(lambda: len(self.frames(TTSStoppedFrame)) >= count)

    @property
    def audio(self) -> bytes:
        return b"".join(frame.audio for frame in self.frames(TTSAudioRawFrame))

    @property
    def words(self) -> list[str]:
        """The words that are heard."""
        return words_in(self.audio, self.rate)

    @property
    def rate(self) -> int:
        (rate,) = {frame.sample_rate for frame in self.frames(TTSAudioRawFrame)} or {8000}
        return rate

    @property
    def text(self) -> str:
        """The text that Pipecat takes to have been spoken."""
        return " ".join(frame.text for frame in self.frames(TTSTextFrame))


def cartesia(sim: Simulator, model: str = "sonic-3", **options: Any) -> CartesiaTTSService:
    settings = CartesiaTTSService.Settings(model=model, voice="any")
    return CartesiaTTSService(api_key="any", url=sim.cartesia_url, settings=settings, **options)


def elevenlabs(sim: Simulator, model: str = "eleven_v3", **options: Any) -> ElevenLabsTTSService:
    settings = ElevenLabsTTSService.Settings(model=model, voice="any", speed=1.0)
    return ElevenLabsTTSService(api_key="any", url=sim.elevenlabs_url, settings=settings, **options)


def deepgram(sim: Simulator, model: str = "aura-2", **options: Any) -> DeepgramTTSService:
    settings = DeepgramTTSService.Settings(voice=model)
    url = sim.deepgram_voice_url
    return DeepgramTTSService(api_key="any", base_url=url, settings=settings, **options)


def openai(sim: Simulator, model: str = "tts-1", **options: Any) -> OpenAITTSService:
    settings = OpenAITTSService.Settings(model=model, voice="alloy")
    return OpenAITTSService(api_key="any", base_url=sim.openai_url, settings=settings, **options)


Make = Callable[..., TTSService]
SOCKETS: list[Make] = [cartesia, elevenlabs, deepgram]
TIMED: list[Make] = [cartesia, elevenlabs]
NAMED = {cartesia: "cartesia", elevenlabs: "elevenlabs", deepgram: "deepgram-tts"}


@asynccontextmanager
async def calling(
    service: Make,
    fault: str = "",
    *,
    script: list[str] | None = None,
    voice: Any = None,
    **options: Any,
) -> AsyncIterator[tuple[Simulator, Call]]:
    """A call and its simulator, of which the call ends first, and leaves nothing open.

    A half-open socket answers no close: there the simulator ends first.
    """
    script = [f"?{fault}"] if fault else script or []
    async with AsyncExitStack() as last, AsyncExitStack() as first:
        sims, calls = (first, last) if fault == "fault=half_open" else (last, first)
        sim = await sims.enter_async_context(Simulator(voice=voice, voice_script=script))
        if sims is last:
            sims.push_async_callback(sim.wait_idle)
        if service is openai:  # Pipecat closes no client
            options["http_client"] = await last.enter_async_context(DefaultAsyncHttpxClient())
            options.setdefault("sample_rate", 24000)
        call = Call(service(sim, **options))
        await calls.enter_async_context(call)
        yield sim, call


def entries(sim: Simulator) -> list[LedgerEntry]:
    """What was spoken or was to be, without the sockets."""
    return [entry for entry in sim.ledger.requests if "socket" not in entry.wire]


async def contexts(sim: Simulator, outcome: str, count: int = 1) -> None:
    """Wait until so many have that outcome."""
    await sim.ledger.wait_until(
        lambda _: sum(entry.outcome == outcome for entry in entries(sim)) == count, 5
    )


def noted_times(call: Call) -> list[tuple[str, float]]:
    """A list to which the words and their times are added as the service gets them."""
    times: list[tuple[str, float]] = []
    service: Any = call.service
    add = service.add_word_timestamps

    async def noting(words: list[tuple[str, float]], *args: Any, **kwargs: Any) -> None:
        times.extend(words)
        await add(words, *args, **kwargs)

    service.add_word_timestamps = noting
    return times


# ---- as usual


@pytest.mark.parametrize(
    ("service", "rate"),
    [
        (cartesia, 8000),
        (cartesia, 22050),
        (elevenlabs, 16000),
        (elevenlabs, 22050),
        (deepgram, 8000),
        (deepgram, 24000),
    ],
)
async def test_a_socket_says_the_words_in_order(service: Make, rate: int) -> None:
    async with calling(service, sample_rate=rate) as (sim, call):
        await call.say("Yes, we do. ", "It's forty minutes.")
        await call.stopped()
        await sim.ledger.wait_until(lambda ledger: len(ledger.open) == 1, 5)
        assert (call.words, call.rate) == (WORDS, rate)
        (socket,) = sim.ledger.open
        (context,) = (entry for entry in sim.ledger.requests if entry is not socket)
        assert (socket.wire, socket.status) == (f"{NAMED[service]} socket", 101)
        assert (context.wire, context.outcome) == (NAMED[service], "completed")
        assert (context.tokens_sent, context.characters >= len(DELIVER) - 1) == (6, True)
        assert (context.first_token_secs or 0.0) - context.started_secs >= 0.05
        assert not call.errors


async def test_openai_says_the_words_in_order() -> None:
    async with calling(openai) as (sim, call):
        await call.say("Yes, we do. ", "It's forty minutes.")
        await call.until(lambda: len(call.words) == 6)
        assert call.words == WORDS
        assert [(entry.wire, entry.status) for entry in sim.ledger.requests] == [
            ("openai-tts", 200)
        ] * 2
        assert sum(entry.characters for entry in sim.ledger.requests) == len(DELIVER) - 1
        assert not call.errors


@pytest.mark.parametrize("service", TIMED)
async def test_word_times_are_those_of_the_sound(service: Make) -> None:
    async with calling(service) as (_, call):
        times = noted_times(call)
        await call.say("Yes, we do. ", "It's forty minutes. ")
        await call.stopped()
        heard = timed_words_in(call.audio, call.rate)
        assert call.text == DELIVER
    assert [word for word, _ in times] == DELIVER.split()
    assert [secs for _, secs in times] == pytest.approx([secs for _, secs in heard], abs=0.006)


async def test_a_voice_of_ones_own() -> None:
    """Here espeak-ng's: the words have their shares of its sound."""

    def espeak(text: str) -> Samples:
        engine, sound = shared_engine(), bytearray()
        engine.speak(text, "en-us", 175, lambda audio: bool(sound.extend(audio) or True))
        return soxr.resample(np.frombuffer(sound, "<i2"), engine.sample_rate, 16000)

    async with calling(cartesia, voice=espeak, sample_rate=24000) as (_, call):
        times = noted_times(call)
        await call.say(text := "Yes, we deliver.")
        await call.stopped()
        length = len(espeak(text)) / 16000
        assert len(call.audio) / 2 / 24000 == pytest.approx(length, abs=0.01)
        assert np.frombuffer(call.audio, "<i2").max() > 5000
    assert [word for word, _ in times] == text.split()
    assert times[2][1] == pytest.approx(len("Yes, we") / len(text) * length, abs=0.01)


async def test_a_barge_in_cancels_what_is_spoken() -> None:
    async with calling(cartesia, "tps=10") as (sim, call):
        await call.say(DELIVER)
        await call.until(lambda: bool(call.audio))
        await call.interrupt()
        await contexts(sim, "aborted")
        (context,) = entries(sim)
        assert 0 < context.tokens_sent < 6


@pytest.mark.parametrize("service", SOCKETS)
async def test_a_script_decides_text_by_text(service: Make) -> None:
    async with calling(service, script=["", "?answer=four", ""]) as (_, call):
        for number in (1, 2, 3):
            await call.say("one.")
            await call.stopped(number)
        assert call.words == ["one", "four", "one"]


@pytest.mark.parametrize(
    ("service", "model"),
    [
        (cartesia, "sonic-3?region=west"),
        (elevenlabs, "eleven_v3@region=west"),
        (deepgram, "aura-2@region=west"),
        (openai, "tts-1?region=west"),
    ],
)
async def test_a_models_name_is_that_of_its_conditions(service: Make, model: str) -> None:
    """So that of two connections to the same voice one can fail."""
    async with calling(service, model=model) as (sim, call):
        sim.set_conditions(model, answer="four")
        await call.say("One.")
        await call.until(lambda: call.words == ["four"])
        assert entries(sim)[0].model == model


def test_a_bad_key_in_a_script_is_named() -> None:
    with pytest.raises(BehaviourError, match="unknown fault 'tired'"):
        Simulator(voice_script=["?fault=tired"])


# ---- faults


@pytest.mark.parametrize("fault", ["silent", "stall&after=2", "half_open"])
@pytest.mark.parametrize("service", SOCKETS)
async def test_a_context_that_stays_silent(service: Make, fault: str) -> None:
    async with calling(service, f"fault={fault}") as (sim, call):
        await call.say(DELIVER)
        count = 2 if "stall" in fault else 0
        await sim.ledger.wait_until(
            lambda _: any(e.fault and e.tokens_sent == count for e in entries(sim)), 5
        )
        await call.until(lambda: len(call.words) == count)
        (context,) = entries(sim)
        if service is not elevenlabs:  # where Pipecat closes the context with its text
            assert context.outcome == "open"
            await call.interrupt()
        await contexts(sim, "aborted")
        assert (call.words, context.tokens_sent) == (WORDS[:count], count)


@pytest.mark.parametrize("service", [*SOCKETS, openai])
async def test_a_late_voice(service: Make) -> None:
    async with calling(service, "fault=late&delay=0.4") as (sim, call):
        began = asyncio.get_running_loop().time()
        await call.say(DELIVER)
        await call.until(lambda: call.words == WORDS)
        assert call.times(TTSAudioRawFrame)[0] - began >= 0.4
        assert {entry.fault for entry in entries(sim)} == {"late"}


@pytest.mark.parametrize("service", SOCKETS)
async def test_a_voice_slower_than_its_sound(service: Make) -> None:
    async with calling(service, "fault=dribble&delay=0.5") as (_, call):
        await call.say("One two three.")
        await call.stopped()
        times = call.times(TTSAudioRawFrame)
        assert call.words == ["one", "two", "three"]
        assert times[2] - times[0] >= 0.95 > len(call.audio) / 2 / call.rate


@pytest.mark.parametrize("service", SOCKETS)
async def test_an_end_mark_that_is_late(service: Make) -> None:
    async with calling(service, "fault=slow_close&delay=0.6") as (_, call):
        await call.say("Yes, we do. ", "It's forty minutes.")
        await call.stopped()
        assert call.words == WORDS
        (stopped,) = call.times(TTSStoppedFrame)
        assert stopped - call.times(TTSAudioRawFrame)[-1] >= 0.5


@pytest.mark.parametrize("service", [*SOCKETS, openai])
async def test_audio_without_speech(service: Make) -> None:
    async with calling(service, "fault=silence_only") as (sim, call):
        await call.say(DELIVER)
        await call.until(lambda: len(call.audio) / 2 / call.rate >= 6 * 0.3)
        assert call.words == []
        assert entries(sim)[0].first_token_secs is None


@pytest.mark.parametrize("service", TIMED)
async def test_audio_of_the_wrong_context(service: Make) -> None:
    async with calling(service, script=["", "?fault=wrong_context"]) as (sim, call):
        await call.say("One.")
        await call.stopped()
        await call.say("Two.")
        await contexts(sim, "completed", 2)
        await call.stopped(2)
        assert call.words == ["one"]
        assert [entry.tokens_sent for entry in entries(sim)] == [1, 1]


@pytest.mark.parametrize("service", TIMED)
async def test_words_without_their_times(service: Make) -> None:
    async with calling(service, "fault=no_timestamps") as (_, call):
        times = noted_times(call)
        await call.say(DELIVER)
        await call.stopped()
        assert call.words == WORDS
        assert times == []


@pytest.mark.parametrize("fault", ["1008", "cut"])
@pytest.mark.parametrize("service", SOCKETS)
async def test_a_broken_socket_ends_its_words(service: Make, fault: str) -> None:
    """Pipecat connects again, and says nothing of the rest."""
    async with calling(service, script=[f"?fault={fault}&after=1", ""]) as (sim, call):
        await call.say(DELIVER)
        await contexts(sim, "failed")
        await sim.ledger.wait_until(lambda ledger: len(ledger.open) == 1, 5)
        (broken, again) = (e for e in sim.ledger.requests if "socket" in e.wire)
        assert (broken.outcome, again.outcome) == ("failed", "open")
        await call.say("Two.")
        await call.until(lambda: call.words == ["yes", "two"])
        assert [entry.fault for entry in entries(sim)] == [fault, None]


async def test_an_error_of_a_context_leaves_the_socket() -> None:
    async with calling(cartesia, script=["?fault=429", ""]) as (sim, call):
        await call.say("One.")
        await call.until(lambda: bool(call.errors))
        assert "429" in call.errors[0].error
        await contexts(sim, "failed")
        await call.say("Two.")
        await call.until(lambda: call.words == ["two"])


async def test_openai_faults() -> None:
    """An error status, no answer at all, and one that is cut."""
    script = ["?fault=400", "?fault=hang", "?fault=cut&after=1"]
    async with calling(openai, script=script) as (sim, call):
        await call.say("One.")
        await call.until(lambda: bool(call.errors))
        assert "400" in call.errors[0].error
        await call.say("Two.")
        await sim.ledger.wait_until(lambda ledger: [e.fault for e in ledger.open] == ["hang"], 5)
        await call.interrupt()
        await sim.wait_idle()
        await call.say("Three four.")
        await call.until(lambda: len(call.errors) == 2)
        assert [entry.outcome for entry in entries(sim)] == ["failed", "aborted", "failed"]


# ---- the protocols, without Pipecat


async def test_elevenlabs_closes_a_socket_that_breaks_its_rules() -> None:
    """Voice settings come first in a context, and five contexts are the most."""
    path = "v1/text-to-speech/any/multi-stream-input"
    settings = {"context_id": "a", "text": " ", "voice_settings": {"speed": 1.0}}
    many = [{"context_id": str(n), "text": " "} for n in range(6)]
    async with Simulator() as sim, aiohttp.ClientSession(sim.elevenlabs_url) as session:
        for messages in ([{"context_id": "a", "text": ""}, settings], many):
            async with session.ws_connect(path) as ws:
                for message in messages:
                    await ws.send_json(message)
                closed = await ws.receive()
                assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1008)
        await sim.wait_idle()


async def test_elevenlabs_waits_for_more_text_without_auto_mode() -> None:
    """It speaks at a flush, an end, or 120 characters."""
    path = "v1/text-to-speech/any/multi-stream-input"
    async with Simulator() as sim, aiohttp.ClientSession(sim.elevenlabs_url) as session:
        async with session.ws_connect(path) as ws:
            for text in ("On", "e ", "two "):
                await ws.send_json({"context_id": "a", "text": text})
            await ws.send_json({"text": ""})
            await ws.send_json({"context_id": "a", "text": "", "flush": True})
            chars = "".join([*(await ws.receive_json())["alignment"]["chars"]])
            await ws.send_json({"context_id": "a", "text": 30 * "many "})
            await ws.send_json({"context_id": "a", "close_context": True})
            while not (last := await ws.receive_json()).get("isFinal"):
                chars += "".join(last["alignment"]["chars"])
            await ws.send_json({"close_socket": True})
            assert (await ws.receive()).data == 1000
        assert chars == "One two " + 30 * "many "
        assert [entry.outcome for entry in sim.ledger.requests] == ["completed"] * 2


async def test_a_silent_text_holds_up_those_after_it() -> None:
    """On Deepgram's wire, which has no context ids, until the client clears what it has sent."""
    async with (
        Simulator(voice_script=["?fault=silent", ""]) as sim,
        aiohttp.ClientSession(sim.deepgram_voice_url) as session,
        session.ws_connect("v1/speak", params={"sample_rate": "8000"}) as ws,
    ):
        for text in ("one.", "two."):
            await ws.send_json({"type": "Speak", "text": text})
            await ws.send_json({"type": "Flush"})
        await contexts(sim, "open", 2)
        await sim.ledger.wait_until(lambda _: entries(sim)[0].fault == "silent", 5)
        await ws.send_json({"type": "Clear"})
        assert (await ws.receive_json())["type"] == "Cleared"
        assert [entry.outcome for entry in entries(sim)] == ["aborted"] * 2
        await ws.send_json({"type": "Speak", "text": "three."})
        assert words_in(await ws.receive_bytes(), 8000) == ["three"]


@pytest.mark.parametrize(
    "path",
    [
        "v1/speak?encoding=opus",
        "v1/speak?model=unknown",
        "v1/text-to-speech/any/multi-stream-input?output_format=mp3_44100_128",
    ],
)
async def test_what_a_voice_cannot_do_is_refused(path: str) -> None:
    async with Simulator() as sim, aiohttp.request("GET", f"{sim.url}/{path}") as response:
        assert response.status == 400
        assert re.split("[?=]", path)[1] in await response.text()


async def test_openai_streams_samples_only() -> None:
    body = {"model": "tts-1", "voice": "alloy", "input": "One."}
    async with Simulator() as sim, aiohttp.ClientSession() as session:
        url = f"{sim.openai_url}/audio/speech"
        async with session.post(url, json=body | {"response_format": "pcm"}) as response:
            assert response.content_type == "audio/pcm"
            assert words_in(await response.read(), 24000) == ["one"]
        async with session.post(url, json=body) as response:
            assert response.status == 400
            assert "response_format" in await response.text()


def to_cartesia(name: str, model: str) -> dict[str, Any]:
    """A message of a context that goes on."""
    form = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 8000}
    text = {"transcript": "One two.", "continue": True}
    return {"context_id": name, "model_id": model, "output_format": form, **text}


@pytest.mark.parametrize(("fault", "code"), [("1008", 1008), ("cut", 1006)])
async def test_how_a_socket_is_broken(fault: str, code: int) -> None:
    async with (
        Simulator() as sim,
        aiohttp.ClientSession() as session,
        session.ws_connect(sim.cartesia_url) as ws,
    ):
        await ws.send_json(to_cartesia("a", f"sonic-3?fault={fault}&after=0"))
        await ws.receive()
        assert ws.close_code == code


async def test_a_half_open_socket_answers_nothing() -> None:
    """Neither a context that has no fault, nor a close."""
    timeout = aiohttp.ClientWSTimeout(ws_close=0.1)  # pyright: ignore[reportCallIssue]
    async with Simulator() as sim, aiohttp.ClientSession() as session:
        async with session.ws_connect(sim.cartesia_url, timeout=timeout) as ws:
            await ws.send_json(to_cartesia("a", "sonic-3?fault=half_open"))
            await sim.ledger.wait_until(lambda _: any(e.fault for e in entries(sim)), 5)
            await ws.send_json(to_cartesia("b", "sonic-3?ttft=0"))
            await contexts(sim, "open", 2)
            with pytest.raises(TimeoutError):
                await ws.receive(timeout=0.2)
        assert ws.close_code == 1006
        await sim.wait_idle()
        assert [(entry.outcome, entry.tokens_sent) for entry in entries(sim)] == [
            ("aborted", 0)
        ] * 2


async def test_a_client_that_leaves_gives_up_its_contexts() -> None:
    async with Simulator() as sim, aiohttp.ClientSession() as session:
        async with session.ws_connect(sim.cartesia_url) as ws:
            await ws.send_json(to_cartesia("a", "sonic-3?tps=1"))
            assert (await ws.receive_json())["type"] == "timestamps"
        await sim.wait_idle()
        assert [entry.outcome for entry in sim.ledger.requests] == ["completed", "aborted"]
