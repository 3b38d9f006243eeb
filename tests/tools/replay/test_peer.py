"""Calls that cannot be made, and a bad line; test_conversation.py has the calls that can be."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pipecat_hedge.tools.replay import Caller, CallError, Network
from pipecat_hedge.tools.replay.peer import impair

SOUND, CONTROL, HANDSHAKE = b"\x80\x60sound", b"\x80\xc8report", b"\x16\x03hello"
NO_SDP = "is not a SmallWebRTC endpoint: its answer has no sdp"
NO_DESCRIPTION = "is not a session description for the offer"


@pytest.mark.live
@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (404, {}, "rejected the offer with 404: is it a bot with a SmallWebRTC endpoint"),
        (500, {"error": "no room"}, "rejected the offer with 500.*no room"),
        (200, ["no"], NO_SDP),
        (200, None, NO_SDP),
        (200, {"sdp": None, "type": "answer"}, NO_DESCRIPTION),
        (200, {"sdp": 3, "type": "answer"}, NO_DESCRIPTION),
        (200, {"sdp": "", "type": "answer"}, NO_DESCRIPTION),
        (200, {"sdp": "x=y", "type": "offer"}, NO_DESCRIPTION),
    ],
)
async def test_server_that_is_no_bot_is_an_error(status: int, answer: Any, message: str) -> None:
    async def offer(request: web.Request) -> web.Response:
        assert (await request.json())["type"] == "offer"
        return web.json_response(answer, status=status)

    app = web.Application()
    app.router.add_post("/api/offer", offer)
    async with TestServer(app) as server:
        with pytest.raises(CallError, match=message):
            async with Caller(str(server.make_url(""))):
                pass


async def sent(network: Network, *packets: tuple[bytes, int]) -> list[tuple[bytes, float]]:
    """What comes out of a connection on this network, in order, and after how many seconds."""
    loop = asyncio.get_running_loop()
    came: list[tuple[bytes, float]] = []
    began = loop.time()

    async def send(data: bytes) -> None:
        came.append((data, loop.time() - began))

    ice = SimpleNamespace(send=send)
    transport = SimpleNamespace(transport=SimpleNamespace(_connection=ice))
    transceiver = SimpleNamespace(sender=SimpleNamespace(transport=transport))
    connection: Any = SimpleNamespace(getTransceivers=lambda: [transceiver])
    impair(connection, network)
    for data, times in packets:
        for _ in range(times):
            await ice.send(data)
    await asyncio.sleep(1)
    return came


@pytest.mark.virtual_time
async def test_lost_packets_are_sound_and_the_same_every_time() -> None:
    packets = ((SOUND, 2000), (CONTROL, 100), (HANDSHAKE, 100))
    first, second = [await sent(Network(loss=0.2, seed=7), *packets) for _ in range(2)]
    assert first == second
    assert sum(data == SOUND for data, _ in first) == pytest.approx(1600, abs=60)
    assert sum(data != SOUND for data, _ in first) == 200


@pytest.mark.virtual_time
async def test_jitter_delays_sound_only() -> None:
    control, *sounds = await sent(Network(jitter_secs=0.05), (SOUND, 500), (CONTROL, 1))
    assert control == (CONTROL, 0)
    delays = [secs for _, secs in sounds]
    assert len(delays) == 500
    assert 0 <= min(delays) < 0.005
    assert 0.045 < max(delays) <= 0.05


@pytest.mark.virtual_time
async def test_good_line_is_left_alone() -> None:
    assert await sent(Network(), (SOUND, 10)) == [(SOUND, 0)] * 10
