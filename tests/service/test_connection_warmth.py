"""When an idle connection is refreshed, and what is learned about its server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from pipecat_hedge.race import TaskScope
from pipecat_hedge.service import connection_warmth
from pipecat_hedge.service.connection_warmth import IdleLimits, WarmConnection
from pipecat_hedge.service.http_listener import _watched
from pipecat_hedge.service.stages import Stages, keep_alive_secs
from pipecat_hedge.testing import ScriptedLLMService

pytestmark = pytest.mark.virtual_time


class Server:
    """Closes idle connections and records when it got requests."""

    def __init__(self, closes_after: float):
        self.closes_after = closes_after
        self.listed_at: list[float] = []
        self._used_at = float("-inf")

    async def serve(self) -> bool:
        """Whether a request has to open a connection."""
        stages, now = _watched.get(), asyncio.get_running_loop().time()
        assert stages is not None
        new_connection = now - self._used_at >= self.closes_after
        stages.record_request("llm.example.com")
        if new_connection:
            await stages.record_event("connection.connect_tcp.started", {})
        await stages.record_event("http11.send_request_headers.started", {})
        self._used_at = now
        return new_connection

    async def list_models(self, service: Any) -> None:
        self.listed_at.append(asyncio.get_running_loop().time())
        await self.serve()


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> IdleLimits:
    known = IdleLimits()
    monkeypatch.setattr(connection_warmth, "_limits", known)
    return known


@pytest.fixture
async def scope() -> AsyncIterator[TaskScope]:
    async with TaskScope() as scope:
        yield scope


@pytest.fixture
def kept(
    monkeypatch: pytest.MonkeyPatch, scope: TaskScope
) -> Callable[..., tuple[WarmConnection, Server]]:
    def make(closes_after: float = 60.0, may_send: bool = True) -> tuple[WarmConnection, Server]:
        server, connection = Server(closes_after), WarmConnection(ScriptedLLMService([]))
        monkeypatch.setattr(connection_warmth, "open_connection", server.list_models)
        connection.keep(scope, lambda: may_send)
        return connection, server

    return make


async def turn(connection: WarmConnection, server: Server) -> bool:
    connection.turn_began()
    with connection.in_use(Stages()):
        return await server.serve()


Kept = Callable[..., tuple[WarmConnection, Server]]


async def test_connection_is_refreshed_while_the_session_is_active(kept: Kept) -> None:
    connection, server = kept()
    began = asyncio.get_running_loop().time()
    await turn(connection, server)
    await asyncio.sleep(1000)
    ages = [at - began for at in server.listed_at]
    assert ages == pytest.approx([45 * n for n in range(1, 7)])
    assert await turn(connection, server)
    await asyncio.sleep(50)
    assert not await turn(connection, server)
    connection.stop()
    await asyncio.sleep(1000)
    assert len(server.listed_at) == 7


async def test_learned_timeout_is_shared_between_sessions(kept: Kept) -> None:
    first, server = kept(closes_after=5.0)
    assert await turn(first, server)
    await asyncio.sleep(7)
    assert await turn(first, server)
    first.stop()
    second, server = kept(closes_after=5.0)
    was_cold = []
    for _ in range(10):
        was_cold.append(await turn(second, server))
        await asyncio.sleep(7)
    assert was_cold == [True] + [False] * 9
    second.stop()


async def test_refresh_learns_a_shorter_timeout(kept: Kept) -> None:
    connection, server = kept(closes_after=5.0)
    await turn(connection, server)
    await asyncio.sleep(120)
    assert not await turn(connection, server)
    gaps = [b - a for a, b in zip(server.listed_at, server.listed_at[1:], strict=False)]
    assert gaps[:4] == pytest.approx([22.5, 11.25, 5.625, 3.0])
    assert gaps[4:] == pytest.approx([3.0] * len(gaps[4:]))
    connection.stop()


async def test_very_short_timeout_is_not_refreshed(kept: Kept) -> None:
    connection, server = kept(closes_after=2.0)
    await turn(connection, server)
    await asyncio.sleep(3)
    await turn(connection, server)
    await asyncio.sleep(100)
    assert server.listed_at == []
    connection.stop()


@pytest.mark.parametrize(("expiry_secs", "every_secs"), [(4.0, 3.2), (5.0, 4.0), (3.5, None)])
async def test_connection_is_refreshed_before_its_client_expires(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, expiry_secs: float, every_secs: float | None
) -> None:
    monkeypatch.setattr(connection_warmth, "keepalive_expiry", lambda client: expiry_secs)
    connection, server = kept()
    await turn(connection, server)
    await asyncio.sleep(30)
    gaps = [b - a for a, b in zip(server.listed_at, server.listed_at[1:], strict=False)]
    assert gaps == pytest.approx([] if every_secs is None else [every_secs] * len(gaps))
    assert bool(gaps) is (every_secs is not None)
    connection.stop()


async def test_unavailable_provider_is_rechecked_later(kept: Kept) -> None:
    connection, server = kept(may_send=False)
    await turn(connection, server)
    await asyncio.sleep(200)
    assert server.listed_at == []
    connection.stop()


async def test_cancelled_request_opens_one_connection(kept: Kept) -> None:
    connection, server = kept()
    stages = Stages()
    with suppress(asyncio.CancelledError), connection.in_use(stages):
        await server.serve()
        raise asyncio.CancelledError
    for _ in range(3):
        connection.reopen(stages)
        await asyncio.sleep(0)
    await asyncio.sleep(0.1)
    assert len(server.listed_at) == 1
    connection.reopen(stages)  # one is idle
    await asyncio.sleep(0.1)
    assert len(server.listed_at) == 1
    connection.stop()


async def test_untraced_client_is_ignored(kept: Kept) -> None:
    connection, server = kept()
    connection.turn_began()
    with connection.in_use(stages := Stages()):
        pass
    connection.reopen(stages)
    await asyncio.sleep(200)
    assert server.listed_at == []


def test_shortest_timeout_counts_until_it_expires(limits: IdleLimits) -> None:
    assert limits.refresh_secs("a", 0.0) == 45.0
    limits.record_timeout("a", 120.0, 0.0)
    assert limits.refresh_secs("a", 0.0) == 96.0
    limits.record_closed("a", 20.0, 0.0)
    limits.record_timeout("a", 120.0, 1.0)
    limits.record_closed("a", 30.0, 1.0)
    assert limits.refresh_secs("a", 2.0) == 10.0
    assert limits.refresh_secs("b", 2.0) == 45.0
    assert limits.refresh_secs("a", 1000.0) == 45.0
    limits.record_timeout("a", 5.0, 1000.0)
    assert limits.refresh_secs("a", 1000.0) == 4.0
    limits.record_closed("b", 400.0, 1000.0)
    assert limits.refresh_secs("b", 1000.0) == 45.0


def test_number_of_hosts_is_bounded(limits: IdleLimits) -> None:
    for n in range(1000):
        limits.record_timeout(f"host-{n}", 10.0, 0.0)
    assert len(limits._timeouts) == 256
    assert limits.refresh_secs("host-999", 0.0) == 8.0


@pytest.mark.parametrize(
    ("header", "secs"),
    [
        ("timeout=5", 5.0),
        ("Timeout=75, max=99", 75.0),
        ("max=99,timeout=15", 15.0),
        ("timeout=soon", None),
        ("timeout=-1", None),
        ("300", None),
        (None, None),
    ],
)
def test_keep_alive_header_is_parsed(header: str | None, secs: float | None) -> None:
    assert keep_alive_secs({} if header is None else {"keep-alive": header}) == secs
