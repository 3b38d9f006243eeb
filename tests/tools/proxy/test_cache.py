"""Whole answers are kept for a time and up to a size, and never mixed up."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.answers import store
from pipecat_hedge.tools.proxy.cache import AnswerCache, Kept, request_key
from pipecat_hedge.tools.proxy.settings import CacheSettings
from tests.support.redis_server import RedisServer, needs_redis

ANSWER = Kept(200, {"content-type": "text/event-stream"}, b"data: 1\n\n\xff\n\n")


@given(st.lists(st.tuples(st.text(), st.text(), st.binary(), st.text()), min_size=2, unique=True))
def test_different_requests_have_different_keys(
    requests: list[tuple[str, str, bytes, str]],
) -> None:
    keys = [
        request_key(tenant, path, body, {"anthropic-version": version})
        for tenant, path, body, version in requests
    ]
    assert all(one != other for one, other in itertools.combinations(keys, 2))


@pytest.fixture(params=["memory", "file"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> CacheSettings:
    if request.param == "memory":
        return CacheSettings(memory_mb=0.1)
    return CacheSettings(path=tmp_path / "answers.sqlite", disk_mb=0.1)


async def test_an_answer_is_kept_for_its_time(
    settings: CacheSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(store, "time", SimpleNamespace(time=lambda: now))
    cache = AnswerCache(settings)
    await cache.put("a", ANSWER, 60.0)
    assert await cache.get("a") == ANSWER
    assert await cache.get("b") is None
    now = 1061.0
    assert await cache.get("a") is None


async def test_the_size_is_bounded(settings: CacheSettings) -> None:
    cache = AnswerCache(settings)
    for number in range(100):
        await cache.put(str(number), Kept(200, {}, bytes(10_000)), 60.0 + number)
    kept = [number for number in range(100) if await cache.get(str(number)) is not None]
    assert 1 <= len(kept) <= 10
    assert kept[-1] == 99
    await cache.close()


async def test_a_file_outlives_the_process(tmp_path: Path) -> None:
    settings = CacheSettings(path=tmp_path / "answers.sqlite")
    before = AnswerCache(settings)
    await before.put("a", ANSWER, 60.0)
    await before.close()
    after = AnswerCache(settings)
    assert await after.get("a") == ANSWER
    await after.close()
    assert (tmp_path / "answers.sqlite").stat().st_mode & 0o77 == 0


async def test_a_file_is_closed_while_it_is_written(tmp_path: Path) -> None:
    """By the thread of a request whose client has left."""
    cache = AnswerCache(CacheSettings(path=tmp_path / "answers.sqlite"))
    large = Kept(200, {}, bytes(2**20))
    writing = [asyncio.create_task(cache.put(str(n), large, 60.0)) for n in range(20)]
    await asyncio.sleep(0)
    for task in writing:
        task.cancel()
    await cache.close()
    await asyncio.gather(*writing, return_exceptions=True)


@pytest.mark.live
@needs_redis
async def test_a_redis_is_shared_and_not_needed() -> None:
    with RedisServer() as server:
        await _share(server)


async def _share(server: RedisServer) -> None:
    settings = CacheSettings(redis_url=server.url)
    one, other = AnswerCache(settings), AnswerCache(settings)
    await one.put("a", ANSWER, 60.0)
    assert await other.get("a") == ANSWER
    server.kill()
    assert await other.get("b") is None
    await other.put("b", ANSWER, 60.0)
    await one.close()
    await other.close()
