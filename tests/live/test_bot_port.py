"""The example bot's port, as other web pages and impatient strangers find it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiortc import RTCPeerConnection

from tests.live.bot_process import BotProcess

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

FOREIGN = {"Origin": "https://evil.example.com"}
ROUTES = [
    ("GET", "/"),
    ("GET", "/page/page.js"),
    ("GET", "/metrics"),
    ("GET", "/hedge/live"),
    ("GET", "/status"),
    ("GET", "/nowhere"),
    ("POST", "/start"),
    ("POST", "/api/offer"),
    ("PATCH", "/api/offer"),
    ("OPTIONS", "/api/offer"),
    ("POST", "/sessions/1/api/offer"),
]


async def offer() -> dict[str, Any]:
    """A real offer, whose peer never connects."""
    peer = RTCPeerConnection()
    peer.addTransceiver("audio")
    peer.createDataChannel("signalling")
    await peer.setLocalDescription(await peer.createOffer())
    told = {"type": "offer", "sdp": peer.localDescription.sdp}
    await peer.close()
    return told


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.realtime
async def test_foreign_pages_are_forbidden_and_sessions_are_few(
    session: aiohttp.ClientSession,
) -> None:
    """What a foreign page or a malformed offer asks for takes no session from a caller."""
    limits = ("--allow-origin", "https://bot.example.com", "--max-sessions", "3")
    async with BotProcess(*limits) as bot:
        await assert_foreign_pages_are_forbidden(bot, session)
        await assert_malformed_offers_are_rejected(bot, session)
        await assert_sessions_are_few(bot, session)


async def assert_foreign_pages_are_forbidden(
    bot: BotProcess, session: aiohttp.ClientSession
) -> None:
    """On every route, without a header that lets a page read it; a named origin is allowed."""
    for method, path in ROUTES:
        for headers in (FOREIGN, {"Origin": "null"}, {"Host": "evil.example.com"}):
            preflight = {"Access-Control-Request-Method": "POST"} if method == "OPTIONS" else {}
            async with session.request(
                method, bot.url + path, headers=headers | preflight
            ) as answer:
                assert answer.status == 403, (method, path, headers)
                assert "--allow-origin" in await answer.text()
                told = {name.lower() for name in answer.headers}
                assert not any(name.startswith("access-control") for name in told)
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await session.ws_connect(f"{bot.url}/ws-client", headers=FOREIGN)
    for headers in (
        {},
        {"Origin": bot.url},
        {"Origin": "http://localhost:3000"},
        {"Origin": "https://bot.example.com", "Host": "bot.example.com"},
    ):
        async with session.get(bot.url, headers=headers) as answer:
            assert answer.status == 200


async def assert_malformed_offers_are_rejected(
    bot: BotProcess, session: aiohttp.ClientSession
) -> None:
    bodies = {
        b"{": 400,
        b"[]": 400,
        b'{"type": "answer", "sdp": "v=0"}': 400,
        b'{"type": "offer", "sdp": "no sdp"}': 400,
        b'{"type": "offer", "sdp": 7}': 400,
        json.dumps({"type": "offer", "sdp": "v=0\r\n" * 20_000}).encode(): 413,
    }
    for body, status in bodies.items():
        for path in ("/api/offer", "/sessions/1/api/offer"):
            async with session.post(bot.url + path, data=body) as answer:
                assert answer.status == status, body[:40]


async def assert_sessions_are_few(bot: BotProcess, session: aiohttp.ClientSession) -> None:
    """Those that are offered at the same time too; without a connection there is room again."""
    told = await offer()

    async def call() -> int:
        async with session.post(f"{bot.url}/api/offer", json=told) as answer:
            return answer.status

    assert sorted(await asyncio.gather(*(call() for _ in range(8)))) == [200] * 3 + [503] * 5
    assert await call() == 503
    async with asyncio.timeout(60):
        while await call() == 503:
            await asyncio.sleep(1.0)
