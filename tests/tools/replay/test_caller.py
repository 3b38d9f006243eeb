"""Calls that cannot be made say why, and what to do. The calls that can are in ``tests/live``."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pipecat_hedge import HedgeError
from pipecat_hedge.tools.replay.caller import Caller, CallError

pytestmark = pytest.mark.live


async def test_nobody_answers(unused_tcp_port: int) -> None:
    """The bot has not been started."""
    with pytest.raises(CallError, match=r"nobody answers at .*/api/offer: start the bot first"):
        async with Caller(f"http://127.0.0.1:{unused_tcp_port}"):
            pass


@pytest.mark.parametrize(
    ("status", "answer", "told"),
    [
        (404, {}, "refused the offer with 404: is it a bot with a SmallWebRTC endpoint"),
        (200, {}, "is no SmallWebRTC endpoint: its answer has no sdp"),
        (200, ["no"], "is no SmallWebRTC endpoint: its answer has no sdp"),
        (200, None, "is no SmallWebRTC endpoint: its answer has no sdp"),
        (200, {"sdp": None, "type": "answer"}, "is no session description that fits the offer"),
        (200, {"sdp": 3, "type": "answer"}, "is no session description that fits the offer"),
        (200, {"sdp": "", "type": "answer"}, "is no session description that fits the offer"),
        (200, {"sdp": "x=y", "type": "offer"}, "is no session description that fits the offer"),
        (500, {"error": "no room"}, "refused the offer with 500.*no room"),
    ],
)
async def test_somebody_else_answers(status: int, answer: Any, told: str) -> None:
    """An address of something that is no bot."""

    async def offer(request: web.Request) -> web.Response:
        assert (await request.json())["type"] == "offer"
        return web.json_response(answer, status=status)

    app = web.Application()
    app.router.add_post("/api/offer", offer)
    async with TestServer(app) as server:
        with pytest.raises(CallError, match=told):
            async with Caller(str(server.make_url(""))):
                pass


@pytest.mark.parametrize("url", ["127.0.0.1:7860", "ftp://127.0.0.1", "http://[::1", ""])
def test_what_is_no_address(url: str) -> None:
    """Is refused before anything is tried."""
    with pytest.raises(HedgeError, match=r"url must be like http://127\.0\.0\.1:7860"):
        Caller(url)
