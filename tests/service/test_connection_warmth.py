"""When an idle connection is refreshed, and what is learned about its server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from pipecat_hedge.race import TaskScope
from pipecat_hedge.service import connection_warmth
from pipecat_hedge.service.connection_warmth import IdleLimits, WarmConnection
from pipecat_hedge.service.http_listener import _watched
from pipecat_hedge.service.stages import Stages, keep_alive_secs
from tests.service.builders import scripted

pytestmark = pytest.mark.virtual_time


class Kept:
    """A connection that is kept open to a server that closes idle ones.

    Attributes:
        listed_at: When the server was asked for its models.
    """

    def __init__(self, scope: TaskScope, patched: pytest.MonkeyPatch):
        self._scope, self._patched = scope, patched
        self.closes_after = 60.0
        self.listed_at: list[float] = []
        self._used_at = float("-inf")
        patched.setattr(connection_warmth, "open_connection", self._list_models)
        self.renew()

    def renew(self) -> None:
        """Go on with another session."""
        self.connection = WarmConnection(scripted())
        self.connection.keep(self._scope, lambda: True)

    def expire_in_client(self, secs: float) -> None:
        """Have the client itself close idle connections."""
        self._patched.setattr(connection_warmth, "keepalive_expiry", lambda client: secs)
        self.renew()

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

    async def _list_models(self, service: Any) -> None:
        self.listed_at.append(asyncio.get_running_loop().time())
        await self.serve()

    async def turn(self, *, idle_secs: float = 0.0) -> bool:
        """Whether a turn has to open a connection. The session is idle after it."""
        self.connection.turn_began()
        async with self.connection.in_use(Stages()):
            new_connection = await self.serve()
        await asyncio.sleep(idle_secs)
        return new_connection

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in pairwise(self.listed_at)]


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> IdleLimits:
    known = IdleLimits()
    monkeypatch.setattr(connection_warmth, "_limits", known)
    return known


@pytest.fixture
async def kept(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kept]:
    async with TaskScope() as scope:
        kept = Kept(scope, monkeypatch)
        yield kept
        kept.connection.stop()


async def test_connection_is_refreshed_while_the_session_is_active(kept: Kept) -> None:
    began = asyncio.get_running_loop().time()
    await kept.turn(idle_secs=1000)
    assert [at - began for at in kept.listed_at] == pytest.approx([45 * n for n in range(1, 7)])
    assert await kept.turn(idle_secs=50)
    assert not await kept.turn()
    kept.connection.stop()
    await asyncio.sleep(1000)
    assert len(kept.listed_at) == 7


async def test_learned_timeout_is_shared_between_sessions(kept: Kept) -> None:
    kept.closes_after = 5.0
    assert [await kept.turn(idle_secs=7) for _ in range(2)] == [True, True]
    kept.connection.stop()
    kept.renew()
    was_cold = [await kept.turn(idle_secs=7) for _ in range(10)]
    assert was_cold[1:] == [False] * 9


async def test_server_that_closes_early_unannounced_leaves_one_turn_cold(kept: Kept) -> None:
    """Such as uvicorn and vLLM, after 5 s. If nothing were learned, all 19 were cold."""
    kept.closes_after = 5.0
    was_cold = [await kept.turn(idle_secs=7 + 2 * n) for n in range(20)]
    assert sum(was_cold[1:]) == 1


@pytest.mark.parametrize(("expiry_secs", "every_secs"), [(4.0, 3.2), (5.0, 4.0), (3.5, None)])
async def test_connection_is_refreshed_before_its_client_expires(
    kept: Kept, expiry_secs: float, every_secs: float | None
) -> None:
    kept.expire_in_client(expiry_secs)
    await kept.turn(idle_secs=30)
    assert bool(kept.gaps) is (every_secs is not None)
    assert kept.gaps == pytest.approx([every_secs] * len(kept.gaps))


def test_shortest_timeout_counts_until_it_expires(limits: IdleLimits) -> None:
    assert limits.refresh_secs("a", 0.0) == 45.0
    limits.record_timeout("a", 120.0, 0.0)
    assert limits.refresh_secs("a", 0.0) == 96.0
    limits.record_closed("a", 20.0, 0.0)
    limits.record_timeout("a", 120.0, 1.0)
    limits.record_closed("a", 30.0, 1.0)
    assert limits.refresh_secs("a", 2.0) == 10.0
    assert limits.refresh_secs("b", 2.0) == limits.refresh_secs("a", 1000.0) == 45.0
    limits.record_timeout("a", 5.0, 1000.0)
    assert limits.refresh_secs("a", 1000.0) == 4.0
    limits.record_timeout("c", 2.0, 1000.0)
    assert limits.refresh_secs("c", 1000.0) is None, "too short to be worth it"
    limits.record_closed("b", 400.0, 1000.0)
    assert limits.refresh_secs("b", 1000.0) == 45.0


TIMEOUTS = {"timeout=5": 5.0, "Timeout=75, max=99": 75.0, "max=99,timeout=15": 15.0}


@pytest.mark.parametrize("header", [*TIMEOUTS, "timeout=soon", "timeout=-1", "300", None])
def test_keep_alive_header_is_parsed(header: str | None) -> None:
    headers = {} if header is None else {"keep-alive": header}
    assert keep_alive_secs(headers) == TIMEOUTS.get(header or "")
