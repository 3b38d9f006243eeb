"""Voices whose connections are lost are asked again, where Pipecat's service gives itself up."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, Self, TypeAlias
from urllib.parse import urlsplit

import numpy as np
import pytest
from pipecat.services.asyncai.tts import AsyncAITTSService
from pipecat.services.rime.tts import RimeTTSService
from pipecat.services.tts_service import TTSService
from websockets.asyncio.server import ServerConnection, serve

from pipecat_hedge import HedgedTTSService, ProviderStats, SpeechReport, Voice
from pipecat_hedge.tools.simulator import Simulator
from tests.live.test_voices import NAMED, SOCKETS, Call, Make
from tests.no_harm.conditions import Network, network

pytestmark = pytest.mark.live

RATE = 16000
TEXT = "Yes, we do. "
WORDS = ["yes", "we", "do"]
CUT = "?fault=cut&after=1"
Around: TypeAlias = Callable[[TTSService], TTSService]
URLS = ("cartesia_url", "elevenlabs_url", "deepgram_voice_url")


def hedged(service: TTSService) -> TTSService:
    return HedgedTTSService([Voice("only", service)], stats=ProviderStats(), sample_rate=RATE)


def bare(service: TTSService) -> TTSService:
    return service


class Turns(Call):
    """A call whose turns are spoken one after another."""

    def __init__(self, service: TTSService):
        super().__init__(service)
        self.is_over = asyncio.Event()
        self._most_secs = 1.0
        if isinstance(service, HedgedTTSService):
            self._most_secs = 20.0
            service.add_event_handler("on_speech_report", self._take)

    async def _take(self, _: object, report: SpeechReport) -> None:
        self.is_over.set()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    async def turn(self) -> list[str]:
        """Have a turn spoken: the words that are heard, of a bare service within a second."""
        self.forget()
        self.is_over.clear()
        await self.say(TEXT)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._most_secs):
                await self.is_over.wait()
        return self.words if self.audio else []


@asynccontextmanager
async def behind_network(service: Make, script: list[str]) -> AsyncIterator[tuple[Network, Any]]:
    """A service that reaches its simulated provider through a network."""
    async with Simulator(voice_script=script) as sim:
        port = urlsplit(sim.url).port
        assert port is not None
        async with network(port) as net:
            urls = {each: getattr(sim, each).replace(f":{port}", f":{net.port}") for each in URLS}
            made: Any = service(SimpleNamespace(**urls), sample_rate=RATE)
            yield net, made


async def all_at_once(hold: Callable[[Make, Around], Coroutine[Any, Any, None]]) -> None:
    """Hold a call with each service, hedged and bare."""
    async with asyncio.TaskGroup() as calls:
        for service, around in itertools.product(SOCKETS, (hedged, bare)):
            calls.create_task(hold(service, around), name=f"{NAMED[service]}, {around.__name__}")


async def test_three_lost_connections_silence_no_voice() -> None:
    """Three connections that are lost within seconds: Pipecat gives the service up for the call."""
    script = [CUT] * 4 + [""] * 9

    async def hold(service: Make, around: Around) -> None:
        async with behind_network(service, script) as (_, made), Turns(around(made)) as call:
            first, *_, before, now = [await call.turn() for _ in range(5)]
            assert first != WORDS
            assert before == now == (WORDS if around is hedged else [])
            assert made.is_usable is (around is hedged)

    await all_at_once(hold)


async def test_a_provider_that_was_away_for_a_second_is_heard_at_once() -> None:
    """Pipecat waits for 4 s and more before it opens a connection that is read."""

    async def hold(service: Make, around: Around) -> None:
        async with behind_network(service, []) as (net, made), Turns(around(made)) as call:
            assert await call.turn() == WORDS
            net.go_down()
            await asyncio.sleep(1)
            net.come_back()
            assert await call.turn() == (WORDS if around is hedged else [])

    await all_at_once(hold)


class Provider:
    """A voice's server that speaks every second text; it notes what it gets, by connection."""

    def __init__(self) -> None:
        self.got: list[list[dict[str, Any]]] = []
        self._texts = 0

    async def serve(self, connection: ServerConnection) -> None:
        got = list[dict[str, Any]]()
        self.got.append(got)
        async for message in connection:
            sent = json.loads(message)
            got.append(sent)
            if not (sent.get("transcript") or sent.get("text") or "").strip():
                continue
            self._texts += 1
            if self._texts % 2:
                continue
            audio = np.resize(np.repeat(np.array([8000, -8000], np.int16), 20), RATE // 2).tobytes()
            context = sent.get("context_id") or sent.get("contextId")
            names = {"context_id": context, "contextId": context, "type": "chunk"}
            data = base64.b64encode(audio).decode()
            await connection.send(json.dumps(names | {"audio": data, "data": data}))


def asyncai(url: str) -> TTSService:
    settings = AsyncAITTSService.Settings(voice="any")
    return AsyncAITTSService(api_key="any", url=url, settings=settings, sample_rate=RATE)


def rime(url: str) -> TTSService:
    settings = RimeTTSService.Settings(voice="any")
    return RimeTTSService(api_key="any", url=url, settings=settings, sample_rate=RATE)


@pytest.mark.parametrize("service", [asyncai, rime])
async def test_a_new_connection_hears_nothing_of_a_context_of_the_old_one(service: Any) -> None:
    provider = Provider()
    async with serve(provider.serve, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with Turns(hedged(service(f"ws://127.0.0.1:{port}"))) as call:
            await call.say(TEXT)
            await call.is_over.wait()
            assert call.audio
    old, new = ([str(each) for each in got] for got in provider.got)
    assert TEXT.strip() in "".join(old)
    assert TEXT.strip() in new[1 if service is asyncai else 0]
    (context,) = {each["context_id"] for each in provider.got[0] if "context_id" in each} or {""}
    assert not context or context not in "".join(new)
