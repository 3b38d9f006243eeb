"""``HedgedTTSService`` with Pipecat's services, on the simulator's wires."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from difflib import SequenceMatcher
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from openai import DefaultAsyncHttpxClient
from pipecat.frames.frames import MetricsFrame
from pipecat.metrics.metrics import TTFBMetricsData, TTSUsageMetricsData
from pipecat.services.cartesia.tts import CartesiaHttpTTSService
from pipecat.services.deepgram.tts import DeepgramHttpTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService
from pipecat.services.tts_service import TTSService

from pipecat_hedge import HedgedTTSService, ProviderStats, SpeechReport, Voice
from pipecat_hedge.tools.simulator import Simulator
from tests.live.scripted_upstream import replying, scripted
from tests.live.test_voices import (
    SOCKETS,
    Call,
    Make,
    cartesia,
    deepgram,
    elevenlabs,
    entries,
    openai,
)

pytestmark = pytest.mark.live

TEXTS = ["Yes, we do. ", "It's forty minutes. ", "Shall we deliver?"]
WORDS = ["yes", "we", "do", "it's", "forty", "minutes", "shall", "we", "deliver"]
RATE = 24000
MODEL = {"cartesia": "sonic-3", "elevenlabs": "eleven_v3", "deepgram": "aura-2", "openai": "tts-1"}
WELL = "sonic-3?region=well"
FAULTS = [
    "fault=silent",
    "fault=late&delay=8",
    "fault=half_open",
    "fault=silence_only",
    "fault=1008",
    "fault=cut",
]
BREAKING = ("fault=1008", "fault=cut")
KINDS = ("fault=silent", *BREAKING)
"""Nothing comes, the provider rejects, an answer breaks off."""


@asynccontextmanager
async def hedging(
    service: Make, script: Sequence[str] = (), **conditions: Any
) -> AsyncIterator[tuple[Simulator, Call]]:
    """A call with a voice that is in trouble, and a well one of the same sound."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(DefaultAsyncHttpxClient())
        sim = await stack.enter_async_context(Simulator(voice_script=list(script)))
        options: dict[str, Any] = {"http_client": client} if service is openai else {}
        first = service(sim, sample_rate=RATE, **options)
        second = cartesia(sim, WELL, sample_rate=RATE)
        if conditions:
            sim.set_conditions(MODEL[service.__name__], **conditions)
        voices = [Voice("first", first), Voice("second", second, same_voice=True)]
        call = Call(HedgedTTSService(voices, stats=ProviderStats(), sample_rate=RATE))
        try:
            await call.__aenter__()
            yield sim, call
        finally:
            await sim.__aexit__(None, None, None) if "half_open" in str(conditions) else None
            await call.__aexit__(None, None, None)


@pytest.mark.parametrize("service", [*SOCKETS, openai])
async def test_a_well_voice_speaks_alone(service: Make) -> None:
    async with hedging(service) as (sim, call):
        await call.say(*TEXTS)
        await call.stopped()
        assert call.words == WORDS
        assert call.text == "".join(TEXTS)
        assert {entry.model for entry in entries(sim)} == {MODEL[service.__name__]}
        assert not call.errors


@pytest.mark.parametrize(
    ("service", "fault"),
    [
        *((cartesia, fault) for fault in FAULTS),
        *((each, fault) for each in (elevenlabs, deepgram, openai) for fault in KINDS),
    ],
)
async def test_a_voice_in_trouble_is_spoken_for(service: Make, fault: str) -> None:
    keys = dict(pair.split("=") for pair in fault.split("&"))
    async with hedging(service, **keys) as (sim, call):
        await call.say(*TEXTS)
        await call.stopped()
        if fault == "fault=silent":  # nothing stays open
            await sim.ledger.wait_until(
                lambda ledger: all("socket" in entry.wire for entry in ledger.open), 5
            )
            assert len(sim.ledger.open) <= 2
        breaks = 3 if fault in BREAKING else 0
        assert_heard(call, exactly=service is cartesia or not breaks, breaks=breaks)
        assert not call.errors


@pytest.mark.parametrize("service", [*SOCKETS, openai])
async def test_metrics_are_of_the_outer_service(service: Make) -> None:
    """One time to the first audio, and the characters of every request."""
    async with hedging(service, fault="silent") as (_, call):
        reports: list[SpeechReport] = []

        async def take(_: object, report: SpeechReport) -> None:
            reports.append(report)

        call.service.add_event_handler("on_speech_report", take)
        await call.say(*TEXTS)
        await call.stopped()
        found = [data for frame in call.frames(MetricsFrame) for data in frame.data]
    (report,) = reports
    assert {each.processor for each in found} == {call.service.name}
    ttfb = [each.value for each in found if isinstance(each, TTFBMetricsData) and each.value]
    assert len(ttfb) == 1
    assert report.first_sound_secs is not None
    usage = sum(each.value for each in found if isinstance(each, TTSUsageMetricsData))
    assert usage == report.characters + report.extra_characters
    assert report.characters == sum(len(text.strip()) for text in TEXTS)
    assert report.extra_characters


@pytest.mark.parametrize("service", SOCKETS)
async def test_a_sentence_that_breaks_off_is_continued(service: Make) -> None:
    """Behind its last word; where no times tell which that is, the length of the audio does."""
    async with hedging(service, ["", "?fault=stall&after=1"]) as (_, call):
        await call.say(*TEXTS)
        await call.stopped()
        assert_heard(call, exactly=service is cartesia, breaks=1)


@pytest.mark.parametrize(
    ("service", "fault"),
    [(cartesia, "silent"), *itertools.product(SOCKETS, ("429", "cut&after=2"))],
)
async def test_a_lone_voice_is_asked_again_before_its_next_sentence(
    service: Make, fault: str
) -> None:
    """Also where it is asked for one sentence at a time, and the next one waits."""
    script = ["", f"?fault={fault}", *[""] * 8]
    async with Simulator(voice_script=script) as sim:
        voice = Voice("lone", service(sim, sample_rate=RATE))
        tts = HedgedTTSService([voice], stats=ProviderStats(), sample_rate=RATE)
        call = Call(tts)
        async with call:
            await call.say(*TEXTS)
            await call.stopped()
            is_guess = service is deepgram and fault.startswith("cut")
            assert_heard(call, exactly=not is_guess, breaks=1)
            assert not call.errors


def assert_heard(call: Call, *, exactly: bool, breaks: int) -> None:
    """Every word in its order; one that is estimated may be missing or doubled at a break."""
    matching = SequenceMatcher(a=call.words, b=WORDS, autojunk=False).get_matching_blocks()
    same = sum(block.size for block in matching)
    assert max(len(call.words), len(WORDS)) - same <= (0 if exactly else breaks)
    if exactly:
        assert call.text == "".join(TEXTS)


def rejected(
    kind: str, url: str, session: aiohttp.ClientSession, client: DefaultAsyncHttpxClient
) -> TTSService:
    """A service of a provider that rejects every request for half a minute."""
    options: dict[str, Any] = {"api_key": "any", "sample_rate": RATE}
    http: dict[str, Any] = options | {"base_url": url, "aiohttp_session": session}
    if kind == "openai":
        sim: Any = SimpleNamespace(openai_url=f"{url}/v1")
        return openai(sim, sample_rate=RATE, http_client=client)
    if kind == "cartesia over HTTP":
        settings = CartesiaHttpTTSService.Settings(voice="any")
        return CartesiaHttpTTSService(**http, settings=settings)
    if kind == "deepgram over HTTP":
        return DeepgramHttpTTSService(**http)
    if kind == "elevenlabs over HTTP":
        settings = ElevenLabsHttpTTSService.Settings(voice="any")
        return ElevenLabsHttpTTSService(**http, settings=settings)
    make: Make = {"cartesia": cartesia, "elevenlabs": elevenlabs, "deepgram": deepgram}[kind]
    names = ("cartesia_url", "elevenlabs_url", "deepgram_voice_url")
    socket_url = f"{url.replace('http', 'ws', 1)}/any"  # of its root no GET is recorded
    return make(SimpleNamespace(**dict.fromkeys(names, socket_url)), sample_rate=RATE)


@pytest.mark.parametrize(
    "kind",
    [
        *("openai", "cartesia over HTTP", "deepgram over HTTP", "elevenlabs over HTTP"),
        *("cartesia", "elevenlabs", "deepgram"),
    ],
)
async def test_a_voice_that_sends_retry_after_is_not_asked_before(kind: str) -> None:
    """By a response, or by that to the handshake of a websocket; its SDK repeats nothing."""
    async with (
        scripted(replying(b"busy", status=429, Retry_After="30")) as provider,
        aiohttp.ClientSession() as session,
        DefaultAsyncHttpxClient() as client,
        Simulator() as sim,
    ):
        first = rejected(kind, provider.url, session, client)
        voices = [
            Voice("first", first),
            Voice("second", cartesia(sim, sample_rate=RATE), same_voice=True),
        ]
        call = Call(HedgedTTSService(voices, stats=ProviderStats(), sample_rate=RATE))
        async with call:
            for number, text in enumerate(TEXTS, 1):
                await call.say(text)
                await call.stopped(number)
            assert call.words == WORDS
            assert len(provider.asked) == 1
            assert not call.errors
