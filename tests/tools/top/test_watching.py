"""Asking over a line that is slow, or somebody who answers oddly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from pipecat_hedge.telemetry.live import KEPT_TURNS, LIVE_PATH
from pipecat_hedge.tools.top import watching
from pipecat_hedge.tools.top.fleet import Bot, Fleet
from pipecat_hedge.tools.top.watching import watch
from tests.tools.top.test_fleet import answer, turn

pytestmark = pytest.mark.live

WAIT_SECS = 30.0
SEGMENT = 1448
"""Bytes of an answer in one packet of Ethernet."""


@asynccontextmanager
async def serving(body: bytes, *, piece: int | None = None) -> AsyncIterator[str]:
    """A bot that answers with this, in pieces of so many bytes; its address."""

    async def live(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(body))})
        await response.prepare(request)
        for begin in range(0, len(body), step := piece or len(body)):
            await response.write(body[begin : begin + step])
            await asyncio.sleep(0)  # whoever reads takes what is there
        await response.write_eof()
        return response

    app = web.Application()
    app.add_routes([web.get(LIVE_PATH, live)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}{LIVE_PATH}"
    finally:
        await runner.cleanup()


async def watched(*urls: str, answers: int, aways: int = 0) -> tuple[Fleet, list[str]]:
    """What is known after so many answers and so many who went away, and why these did."""
    fleet, away, done, count = Fleet(urls), list[str](), asyncio.Event(), 0

    def look() -> None:
        if len(away) > aways or (count >= answers and len(away) == aways):
            done.set()

    def turned(bot: Bot, turns: Sequence[dict[str, Any]]) -> None:
        nonlocal count
        count += 1
        look()

    def left(bot: Bot) -> None:
        away.append(bot.why)
        look()

    async with asyncio.timeout(WAIT_SECS), asyncio.TaskGroup() as group:
        task = group.create_task(watch(fleet, 0.01, turned=turned, left=left))
        await done.wait()
        task.cancel()
    return fleet, away


async def test_a_body_that_comes_in_pieces_is_read_to_its_end() -> None:
    """All that a busy bot keeps is some hundred packets."""
    turns = [turn(number) for number in range(1, KEPT_TURNS + 1)]
    body = json.dumps(answer(turns=turns, next=KEPT_TURNS)).encode()
    assert len(body) > 40 * SEGMENT
    async with serving(body, piece=SEGMENT) as url:
        fleet, away = await watched(url, answers=5)
    assert away == []
    assert len(fleet.turns()) == KEPT_TURNS
    assert fleet.bots[0].after == KEPT_TURNS


@pytest.mark.parametrize(
    "odd",
    [
        answer(next=None),
        answer(turns=[{"number": 1}]),
        answer(turns=[turn(at=1e300)]),
        answer(providers=[{}]),
        answer(slos=[{"tier": "standard"}]),
        "[" * 100_000,
    ],
    ids=["next", "turn", "time", "provider", "promise", "depth"],
)
async def test_an_odd_answer_is_one_bots_alone(odd: object) -> None:
    """It is said of that bot; the others are asked on."""
    body = odd if isinstance(odd, str) else json.dumps(odd)
    async with serving(json.dumps(answer()).encode()) as url, serving(body.encode()) as other:
        fleet, away = await watched(url, other, answers=5, aways=1)
    assert fleet.bots[0].away_since is None
    (why,) = away
    assert "feed of turns: see docs/slo.md" in why


async def test_an_answer_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no feed may be anything."""
    monkeypatch.setattr(watching, "MOST_BYTES", 10_000)
    async with serving(b"a" * 20_000) as url:
        _, away = await watched(url, answers=0, aways=1)
    assert away == ["it answers with more than 0.01 MB: see docs/slo.md"]
