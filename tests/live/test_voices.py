"""The simulated voices, heard through Pipecat's services in a pipeline."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
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

from pipecat_hedge.tools.simulator import Simulator
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
    def text(self) -> list[str]:
        """The words that Pipecat takes to have been spoken."""
        return " ".join(frame.text for frame in self.frames(TTSTextFrame)).split()


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


# ---- as usual


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 24000])
@pytest.mark.parametrize("service", SOCKETS)
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
        assert context.tokens_sent - context.characters == pytest.approx(6 - len(DELIVER), abs=3)
        assert context.first_token_secs - context.started_secs >= 0.05
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
        times: list[tuple[str, float]] = []
        add = call.service.add_word_timestamps

        async def noting(words: list[tuple[str, float]], *args: Any, **kwargs: Any) -> None:
            times.extend(words)
            await add(words, *args, **kwargs)

        call.service.add_word_timestamps = noting
        await call.say("Yes, we do. ", "It's forty minutes. ")
        await call.stopped()
        heard = timed_words_in(call.audio, call.rate)
        assert call.text == DELIVER.split()
    assert [word for word, _ in times] == DELIVER.split()
    assert [secs for _, secs in times] == pytest.approx([secs for _, secs in heard], abs=0.006)
