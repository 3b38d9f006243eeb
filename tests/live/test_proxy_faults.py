"""Hundreds of streams through the proxy while its upstreams fail, in both wires."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from pipecat_hedge.providers import ProviderRegistry, Terms
from pipecat_hedge.providers.priority import WorkClass
from pipecat_hedge.providers.standing import Standing
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.tools.proxy import ProxyServer, ProxySettings
from pipecat_hedge.tools.proxy import proxied_turn as turn_module
from pipecat_hedge.tools.proxy import response as response_module
from tests.live.faulty_upstream import PATHS, FaultyUpstream, events, faulty_upstream

pytestmark = pytest.mark.live

WIRES = pytest.mark.parametrize("wire", ["anthropic", "openai"])
MESSAGES = [{"role": "user", "content": "Haben Sie offen?"}]
REPLACED = ["silent", "hang", "error_first", "529", "cut_first"]
KEPT = ["well", "dribble", "slow_close", "huge"]


@asynccontextmanager
async def proxied(
    upstream: FaultyUpstream, races: dict[str, tuple[str, ...]], **model: Any
) -> AsyncIterator[str]:
    """A proxy with a model for each race, in each wire; its address."""
    models = {
        f"{wire}:{name}": {
            "wire": wire,
            "policy": "after(0.3, probes=False)",
            "upstreams": [
                {
                    "name": f"{name} {number}",
                    "base_url": upstream.url + ("" if wire == "anthropic" else "/v1"),
                    "model": each,
                }
                for number, each in enumerate(race)
            ],
            **model,
        }
        for wire in PATHS
        for name, race in races.items()
    }
    settings = ProxySettings.model_validate({"listen": "127.0.0.1:0", "models": models})
    async with ProxyServer(settings, ProviderStats()) as server:
        yield f"http://127.0.0.1:{server.port}"


def asked(wire: str, model: str) -> dict[str, Any]:
    return {"model": model, "messages": MESSAGES, "stream": True, "max_tokens": 99}


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=2**18) as session:
        yield session


async def ask(
    session: aiohttp.ClientSession, url: str, wire: str, model: str
) -> tuple[int, bytes, bool]:
    """Ask for an answer: its status, the bytes up to its last event, and whether it ended well."""
    found, last = bytearray(), events(wire)[-1]
    async with session.post(url + PATHS[wire], json=asked(wire, model)) as answer:
        try:
            async for chunk in answer.content.iter_any():
                found += chunk
                if found.endswith(last):
                    return answer.status, bytes(found), True
        except aiohttp.ClientError:
            return answer.status, bytes(found), False
        return answer.status, bytes(found), True


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_hundreds_of_streams_lose_nothing_when_upstreams_fail() -> None:
    races = {name: (name, "well") for name in (*REPLACED, *KEPT)}
    counts = {"huge": 2}
    async with (
        faulty_upstream() as upstream,
        proxied(upstream, races) as url,
        client() as session,
    ):
        direct = {
            (wire, name): await ask(session, upstream.url, wire, name)
            for wire in PATHS
            for name in KEPT
        }
        kinds = [
            (wire, name) for wire in PATHS for name in races for _ in range(counts.get(name, 20))
        ]
        asking = [ask(session, url, wire, f"{wire}:{name}") for wire, name in kinds]
        answers = await asyncio.gather(*asking)
        wrong: Counter[tuple[str, str]] = Counter()
        for (wire, name), answer in zip(kinds, answers, strict=True):
            # A slow machine hedges sound upstreams as well: either is an answer.
            expected = {direct[wire, "well"], direct.get((wire, name), direct[wire, "well"])}
            wrong[wire, name] += answer not in expected
        assert +wrong == Counter()
        await upstream.wait_idle(2.0)


@WIRES
async def test_a_cut_passes_what_came_and_ends_with_an_error_event(wire: str) -> None:
    async with (
        faulty_upstream() as upstream,
        proxied(upstream, {"cut": ("cut", "well")}) as url,
        client() as session,
    ):
        asking = [ask(session, url, wire, f"{wire}:cut") for _ in range(50)]
        for status, found, _ in await asyncio.gather(*asking):
            *passed, error, _ = found.split(b"\n\n")
            assert status == 200
            assert [each + b"\n\n" for each in passed] == events(wire)[: len(passed)]
            assert len(passed) == 5
            assert b'"error"' in error
        await upstream.wait_idle(1.0)


@WIRES
async def test_a_loser_is_closed_before_the_winner_s_next_event(wire: str) -> None:
    async with (
        faulty_upstream() as upstream,
        proxied(upstream, {"race": ("silent", "slow")}, policy="race(2, probes=False)") as url,
        client() as session,
    ):
        text = events(wire)[3 if wire == "anthropic" else 1]
        for _ in range(10):
            body = asked(wire, f"{wire}:race")
            async with session.post(url + PATHS[wire], json=body) as answer:
                found = b""
                while not found.endswith(text):
                    found += await answer.content.readany()
                came_at = time.monotonic()
                await answer.content.readany()
                next_at = time.monotonic()
            closed = [at for model, at in upstream.lost_at if model == "silent"]
            assert len(closed) == 1
            print(f"closed after {1000 * (closed[0] - came_at):.1f} ms")
            assert closed[0] < next_at
            await upstream.wait_idle(1.0)
            upstream.lost_at.clear()


@pytest.mark.parametrize("stage", ["before", "after"])
async def test_hundreds_of_clients_that_leave_close_every_request(stage: str) -> None:
    async with (
        faulty_upstream() as upstream,
        proxied(upstream, {"x": ("silent",) * 2 if stage == "before" else ("slow",) * 2}) as url,
        client() as session,
    ):
        asking = [
            asyncio.ensure_future(ask(session, url, wire, f"{wire}:x"))
            for wire in PATHS
            for _ in range(100)
        ]
        while len(upstream.seen) < len(asking):
            await asyncio.sleep(0.02)
        if stage == "after":
            await asyncio.sleep(0.35)
        assert upstream.running
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await upstream.wait_idle(1.0)


@WIRES
async def test_clients_that_never_read_hold_upstreams_back_and_are_let_go(
    wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_module, "WRITE_SECS", 1.0)
    monkeypatch.setattr(response_module, "MAX_SILENCE_SECS", 0.5)
    async with (
        faulty_upstream() as upstream,
        proxied(upstream, {"endless": ("endless",)}) as url,
    ):
        body = json.dumps(asked(wire, f"{wire}:endless")).encode()
        host, port = url.removeprefix("http://").split(":")
        head = (
            f"POST {PATHS[wire]} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writers: list[asyncio.StreamWriter] = []
        for _ in range(40):
            _, writer = await asyncio.open_connection(host, int(port), limit=2**10)
            writers.append(writer)
            writer.write(head.encode() + body)
        while len(upstream.seen) < len(writers):
            await asyncio.sleep(0.02)
        await upstream.wait_idle(10.0)
        print(f"{upstream.sent_bytes / len(writers) / 2**20:.1f} MB a stream")
        assert upstream.sent_bytes < 16 * 2**20 * len(writers)
        for writer in writers:
            writer.transport.abort()


@WIRES
async def test_a_flood_without_anything_usable_is_a_fault(
    wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_module, "MAX_HELD_BYTES", 2**20)
    async with (
        faulty_upstream() as upstream,
        proxied(upstream, {"flood": ("blank_flood", "well")}, policy="fallback()") as url,
        client() as session,
    ):
        found = await ask(session, url, wire, f"{wire}:flood")
        assert found == await ask(session, upstream.url, wire, "well")
        assert upstream.sent_bytes < 16 * 2**20
        await upstream.wait_idle(1.0)


@WIRES
async def test_a_hedge_that_had_no_room_is_sent_when_there_is_some(
    wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside an upstream that never answers, nothing else would end the stream."""
    standing, calls = ProviderRegistry.standing, itertools.count()

    def without_room_at_first(
        self: ProviderRegistry, keys: Iterable[str], work: WorkClass, terms: Terms, now: float
    ) -> list[Standing]:
        found = standing(self, keys, work, terms, now)
        if next(calls):
            return found
        return [replace(each, ineligible="has 10 of 10 requests in flight") for each in found]

    monkeypatch.setattr(ProviderRegistry, "standing", without_room_at_first)
    async with (
        faulty_upstream() as upstream,
        proxied(upstream, {"race": ("hang", "well")}, policy="race(2, probes=False)") as url,
        client() as session,
    ):
        found = await ask(session, url, wire, f"{wire}:race")
        assert found == (200, b"".join(events(wire)), True)
        assert next(calls) > 1
