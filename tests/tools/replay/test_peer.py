"""Calls that cannot be made, and a bad line; test_conversation.py has the calls that can be."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pipecat_hedge import HedgeError
from pipecat_hedge.tools.replay import Caller, CallError, Network
from pipecat_hedge.tools.replay.peer import impair

SOUND, CONTROL, HANDSHAKE = b"\x80\x60sound", b"\x80\xc8report", b"\x16\x03hello"


@pytest.mark.live
async def test_address_without_a_server_is_an_error(unused_tcp_port: int) -> None:
    with pytest.raises(CallError, match=r"nothing answers at .*/api/offer: start the bot first"):
        async with Caller(f"http://127.0.0.1:{unused_tcp_port}"):
            pass


@pytest.mark.live
@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (404, {}, "refused the offer with 404: is it a bot with a SmallWebRTC endpoint"),
        (500, {"error": "no room"}, "refused the offer with 500.*no room"),
        (200, ["no"], "is not a SmallWebRTC endpoint: its answer has no sdp"),
        (200, None, "is not a SmallWebRTC endpoint: its answer has no sdp"),
        (200, {"sdp": None, "type": "answer"}, "is not a session description for the offer"),
        (200, {"sdp": 3, "type": "answer"}, "is not a session description for the offer"),
        (200, {"sdp": "", "type": "answer"}, "is not a session description for the offer"),
        (200, {"sdp": "x=y", "type": "offer"}, "is not a session description for the offer"),
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


@pytest.mark.parametrize("url", ["127.0.0.1:7860", "ftp://127.0.0.1", "http://[::1", ""])
def test_wrong_address_is_refused(url: str) -> None:
    with pytest.raises(HedgeError, match=r"url must be like http://127\.0\.0\.1:7860"):
        Caller(url)


class Line:
    """What a connection sends into, and what came out at which time."""

    def __init__(self, network: Network):
        self.came: list[tuple[float, bytes]] = []
        self._ice = SimpleNamespace(send=self._send)
        sender = SimpleNamespace(
            transport=SimpleNamespace(transport=SimpleNamespace(_connection=self._ice))
        )
        connection: Any = SimpleNamespace(getTransceivers=lambda: [SimpleNamespace(sender=sender)])
        impair(connection, network)

    async def _send(self, data: bytes) -> None:
        self.came.append((asyncio.get_running_loop().time(), data))

    async def send(self, data: bytes, times: int = 1) -> None:
        for _ in range(times):
            await self._ice.send(data)


@pytest.mark.virtual_time
async def test_lost_packets_are_sound_and_the_same_every_time() -> None:
    kept: list[int] = []
    for _ in range(2):
        line = Line(Network(loss=0.2, seed=7))
        await line.send(SOUND, 2000)
        await line.send(CONTROL, 100)
        await line.send(HANDSHAKE, 100)
        await asyncio.sleep(1)
        kept.append(sum(data == SOUND for _, data in line.came))
        assert sum(data != SOUND for _, data in line.came) == 200
    assert kept[0] == kept[1] == pytest.approx(1600, abs=60)


@pytest.mark.virtual_time
async def test_jitter_delays_sound_only() -> None:
    line = Line(Network(jitter_secs=0.05))
    begun = asyncio.get_running_loop().time()
    await line.send(SOUND, 500)
    await line.send(CONTROL)
    assert [data for _, data in line.came] == [CONTROL]
    await asyncio.sleep(1)
    delays = [at - begun for at, data in line.came if data == SOUND]
    assert len(delays) == 500
    assert 0 <= min(delays) < 0.005
    assert 0.045 < max(delays) <= 0.05


@pytest.mark.virtual_time
async def test_good_line_is_left_alone() -> None:
    line = Line(Network())
    await line.send(SOUND, 10)
    assert len(line.came) == 10


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss": 1.0}, "loss must be a share"),
        ({"loss": "0.1"}, "loss must be a share from 0 to below 1, got '0.1'"),
        ({"jitter_secs": -0.1}, "jitter_secs must be from 0"),
        ({"jitter_secs": None}, "jitter_secs must be from 0 to 1 s, got None"),
        ({"seed": 0.5}, "seed must be a whole number, got 0.5"),
    ],
)
def test_impossible_line_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(HedgeError, match=message):
        Network(**fields)
