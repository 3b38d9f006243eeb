"""A bot without Pipecat: a peer that answers a known time after the caller falls silent.

It runs on the caller's own loop, so that one clock tells when its first loud sample was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import fractions
import json
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from aiohttp import web
from aiohttp.test_utils import TestServer
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack
from av import AudioFrame

from pipecat_hedge.race import TaskScope
from pipecat_hedge.tools.replay.audio import BOT_LEVEL, CALLER_LEVEL, FRAME, RATE
from pipecat_hedge.tools.replay.peer import loopback_only

HUSH_SECS = 0.4
"""Silence that ends the caller's turn."""


class Voice(MediaStreamTrack):
    """Sends silence, or a tone for a time."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._sent = 0
        self._began_at: float | None = None
        self.speaks: tuple[float, float] = (0.0, 0.0)
        self.first_loud_at: list[float] = []
        self._was_loud = False

    async def recv(self) -> AudioFrame:
        loop = asyncio.get_running_loop()
        self._began_at = self._began_at or loop.time()
        due = self._began_at + self._sent / RATE
        if (wait := due - loop.time()) > 0:
            await asyncio.sleep(wait)
        begins, ends = self.speaks
        is_loud = begins <= due < ends
        if is_loud and not self._was_loud:
            self.first_loud_at.append(loop.time())
        self._was_loud = is_loud
        samples = np.zeros(FRAME, np.int16)
        if is_loud:
            time = (self._sent + np.arange(FRAME)) / RATE
            samples = (9000 * np.sin(2 * np.pi * 330 * time)).astype(np.int16)
        frame = AudioFrame.from_ndarray(samples[np.newaxis, :], layout="mono")
        frame.sample_rate, frame.time_base = RATE, fractions.Fraction(1, RATE)
        frame.pts = self._sent
        self._sent += FRAME
        return frame


@dataclass
class ScriptedBot:
    """Answers every turn after a delay; falls silent when it is spoken to.

    Attributes:
        voices: One a call, in the order of the calls.
        url: Where it is, once entered.
    """

    delay_secs: Callable[[int], float] = lambda turn: 0.3
    _: KW_ONLY
    speaks_secs: float = 1.0
    answers: bool = True
    messages: Callable[[int], list[dict[str, Any]]] = lambda turn: []
    when_interrupted: dict[str, Any] | None = None
    hangs_up_after: int | None = None
    port: int | None = None

    async def __aenter__(self) -> Self:
        self.voices: list[Voice] = []
        self._calls: list[RTCPeerConnection] = []
        self._scope = TaskScope()
        app = web.Application()
        app.router.add_post("/api/offer", self._offer)
        self._server = TestServer(app, port=self.port)
        await self._server.start_server()
        self.url = str(self._server.make_url(""))
        return self

    async def __aexit__(self, *_: object) -> None:
        for call in self._calls:
            await call.close()
        await self._scope.close()
        await self._server.close()

    async def _offer(self, request: web.Request) -> web.Response:
        offer = await request.json()
        call = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        voice = Voice()
        self._calls.append(call)
        self.voices.append(voice)
        channels: list[Any] = []

        @call.on("track")
        def on_track(track: MediaStreamTrack) -> None:
            self._scope.start(self._listen(call, track, voice, channels), name="bot")

        call.on("datachannel", channels.append)
        await call.setRemoteDescription(RTCSessionDescription(offer["sdp"], offer["type"]))
        call.addTrack(voice)
        with loopback_only():
            await call.setLocalDescription(await call.createAnswer())
        mine = call.localDescription
        return web.json_response({"sdp": mine.sdp, "type": mine.type})

    async def _listen(
        self, call: RTCPeerConnection, track: MediaStreamTrack, voice: Voice, channels: list[Any]
    ) -> None:
        loop = asyncio.get_running_loop()
        last_loud: float | None = None
        turn = 0
        with contextlib.suppress(MediaStreamError):
            while True:
                frame = await track.recv()
                assert isinstance(frame, AudioFrame)
                now = loop.time()
                samples = frame.to_ndarray().reshape(-1, len(frame.layout.channels))[:, 0]
                if np.abs(samples.astype(np.int32)).max() > max(CALLER_LEVEL, BOT_LEVEL):
                    last_loud = now
                    if self.when_interrupted and voice.speaks[0] <= now < voice.speaks[1]:
                        channels[0].send(json.dumps(self.when_interrupted))
                    voice.speaks = (0.0, 0.0)
                elif last_loud is not None and now - last_loud >= HUSH_SECS:
                    last_loud = None
                    turn += 1
                    if self.hangs_up_after is not None and turn > self.hangs_up_after:
                        await call.close()
                        return
                    if self.answers:
                        begins = now + self.delay_secs(turn)
                        voice.speaks = (begins, begins + self.speaks_secs)
                    for message in self.messages(turn):
                        channels[0].send(json.dumps(message))
