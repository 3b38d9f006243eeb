"""Deepgram Flux and Cartesia's turns, hedged, on real sockets: only a stuck one is replaced."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from pipecat.frames.frames import (
    InputAudioRawFrame,
    STTMetadataFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.cartesia.turns.stt import CartesiaTurnsSTTService
from pipecat.services.deepgram.flux.stt import DeepgramFluxSTTService
from pipecat.services.stt_service import STTService
from websockets.asyncio.server import ServerConnection, serve

from pipecat_hedge import HedgedSTTService, ProviderStats
from tests.support.line import Line
from tests.support.recognition import ScriptedRescue

pytestmark = [pytest.mark.live, pytest.mark.realtime]

RATE = 16_000
CHUNK = RATE // 50
SOUND, SILENCE = b"\0\10" * CHUNK, bytes(2 * CHUNK)


def flux(event: str, transcript: str) -> dict[str, Any]:
    if event == "connected":
        return {"type": "Connected", "request_id": "1"}
    names = {"start": "StartOfTurn", "update": "Update", "end": "EndOfTurn"}
    return {"type": "TurnInfo", "event": names[event], "transcript": transcript}


def cartesia(event: str, transcript: str) -> dict[str, Any]:
    return {"type": event if event == "connected" else f"turn.{event}", "transcript": transcript}


class TurnServer:
    """Says how long each turn was; of the connections that are open, none says more if stuck."""

    def __init__(self, message: Callable[[str, str], dict[str, Any]]):
        self._message = message
        self._open: set[ServerConnection] = set()
        self._stuck: set[ServerConnection] = set()
        self.connections = 0
        self.left = asyncio.Event()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[str]:
        async with serve(self._listen, "127.0.0.1", 0) as server:
            host, port = next(iter(server.sockets)).getsockname()
            yield f"ws://{host}:{port}"

    def get_stuck(self) -> None:
        self._stuck |= self._open

    async def _listen(self, socket: ServerConnection) -> None:
        self.connections += 1
        self._open.add(socket)
        self.left.clear()

        async def say(event: str, transcript: str = "") -> None:
            if socket not in self._stuck:
                await socket.send(json.dumps(self._message(event, transcript)))

        await say("connected")
        heard_secs = silent_secs = 0.0
        async for audio in socket:
            if isinstance(audio, str):
                break  # the client closes
            secs = len(audio) / 2 / RATE
            if any(audio):
                if not heard_secs:
                    await say("start")
                heard_secs, silent_secs = heard_secs + secs, 0.0
                if round(heard_secs * 50) % 10 == 0:
                    await say("update", "so far")
            elif heard_secs:
                silent_secs += secs
                if silent_secs >= 0.3:
                    await say("end", f"{heard_secs:.1f} seconds")
                    heard_secs = 0.0
        self._open.discard(socket)
        if not self._open:
            self.left.set()


class Phone(Line):
    def __init__(self, stt: HedgedSTTService):
        self.context = LLMContext()
        user = LLMContextAggregatorPair(self.context).user()
        super().__init__(stt.primary, nested=stt, processors=[user])
        self._due_at = 0.0

    async def _play(self, chunk: bytes, secs: float) -> None:
        for _ in range(round(secs * RATE / CHUNK)):
            await self.send(InputAudioRawFrame(chunk, RATE, 1))
            self._due_at += CHUNK / RATE
            await asyncio.sleep(self._due_at - asyncio.get_running_loop().time())

    async def speak(self, secs: float, then: Callable[[], None] | None = None) -> None:
        """Speak so long; ``then`` is called in mid-utterance."""
        self._due_at = asyncio.get_running_loop().time()
        await self.send(VADUserStartedSpeakingFrame())
        await self._play(SOUND, 0.5)
        if then is not None:
            then()
        await self._play(SOUND, secs - 0.5)
        await self._play(SILENCE, 0.2)
        await self.send(VADUserStoppedSpeakingFrame(stop_secs=0.2))
        await self._play(SILENCE, 0.6)

    @property
    def said(self) -> list[object]:
        messages = cast(list[dict[str, Any]], self.context.messages)
        return [message["content"] for message in messages]


async def hold(
    message: Callable[[str, str], dict[str, Any]], service: Callable[..., STTService]
) -> None:
    """Hold a call whose recogniser gets stuck in the third utterance."""
    server, rescue = TurnServer(message), ScriptedRescue(lambda _: "rescued")
    async with server.run() as url:
        stt = HedgedSTTService(
            lambda: service(api_key="any", url=url), rescue, stats=ProviderStats()
        )
        phone = Phone(stt)
        async with phone:
            await phone.speak(1.0)
            await phone.speak(1.0)
            assert server.connections == 1
            await phone.speak(4.5, then=server.get_stuck)
            await phone.speak(1.0)
            assert phone.said == ["1.0 seconds", "1.0 seconds", "4.5 seconds", "1.0 seconds"]
            assert {frame.ttfs_p99_latency for frame in phone.frames(STTMetadataFrame)} == {0.0}
        assert server.connections == 2
        await asyncio.wait_for(server.left.wait(), 5)
    assert rescue.heard == []


async def test_only_a_stuck_one_is_replaced() -> None:
    """Its turns are its own; the fresh one hears the utterance from its beginning."""
    async with asyncio.TaskGroup() as calls:
        calls.create_task(hold(flux, DeepgramFluxSTTService), name="flux")
        calls.create_task(hold(cartesia, CartesiaTurnsSTTService), name="cartesia")
