"""A Redis that is away, hangs, refuses or is named wrongly."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipecat_hedge.fleet.redis_store import RedisStore
from pipecat_hedge.providers import Backend
from pipecat_hedge.providers.shared_store import Request, StoreUnavailable
from pipecat_hedge.providers.stats_store import FileStore
from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.service import ProviderStats, composition
from pipecat_hedge.service.composition import ENVIRONMENT, default_store
from tests.support.redis_server import LossyProxy, RedisServer, needs_redis

CLAUDE, LOCAL = Backend("claude", "claude-haiku-4-5"), Backend("local", "qwen")
NOTHING = Request((), [], (), (), ["claude"])
Make = Callable[..., ProviderStats]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
async def make(server: RedisServer) -> AsyncIterator[Make]:
    """Processes that share a Redis."""
    stores: list[RedisStore] = []

    def make(url: str | None = None, **options: Any) -> ProviderStats:
        stores.append(RedisStore(url or server.url, **options))
        return ProviderStats(stores[-1])

    yield make
    for store in stores:
        await store.close()


async def sync(stats: ProviderStats) -> bool:
    assert stats.fleet is not None
    return await stats.fleet.sync()


def observe(stats: ProviderStats, times: int = 100) -> None:
    for _ in range(times):
        stats.record_wait(CLAUDE, 0.5, 100)


# ---- when it is not there


def allow_user(server: RedisServer) -> None:
    server.control.acl_setuser(
        "user", True, passwords=["+secret"], categories=["+@all"], keys=["*"]
    )


@needs_redis
async def test_outage_is_logged_once_and_observations_are_shared_afterwards(
    make: Make, server: RedisServer, logged: list[str]
) -> None:
    server.kill()
    stats = make(f"redis://user:secret@127.0.0.1:{server.port}")
    observe(stats)
    for _ in range(2):
        assert not await sync(stats)
    name = f"redis://127.0.0.1:{server.port} (pipecat-hedge)"
    assert logged == [
        f"WARNING: {name}: no connection. Sessions go on with what this process knows, and what it "
        "learns is shared when that is possible again"
    ]
    server.start()
    allow_user(server)
    observe(stats)
    assert await sync(stats)
    assert logged[1:] == [f"INFO: {name}: back, what was learned meanwhile is shared"]
    assert server.counted() == {CLAUDE.key: 200}
    server.control.flushall()
    assert await sync(stats), "an empty one is no problem"
    observe(stats)
    assert await sync(stats)
    assert server.counted() == {CLAUDE.key: 100}
    assert len(logged) == 2
    assert "secret" not in str(logged)


@needs_redis
async def test_hanging_redis_is_given_up_and_counts_once(
    make: Make, server: RedisServer, logged: list[str]
) -> None:
    stats = make()
    assert await sync(stats)
    observe(stats)
    server.hang()
    async with asyncio.timeout(3.0):
        assert not await sync(stats)
    assert "no answer within 0.5 s" in logged[0]
    server.go_on()
    assert await sync(stats)
    assert server.counted() == {CLAUDE.key: 100}


@pytest.mark.virtual_time
async def test_answer_at_the_very_end_of_the_timeout_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pipecat's ``wait_for2`` then raises a cancellation that ``asyncio.timeout`` does not know."""

    class CancelledWithResult(asyncio.CancelledError): ...

    class JustTooLate:
        def pipeline(self, **_: object) -> JustTooLate:
            return self

        def get(self, _: str) -> None: ...

        async def execute(self, **_: object) -> None:
            try:
                await asyncio.sleep(30.0)
            except asyncio.CancelledError:
                raise CancelledWithResult from None

        async def aclose(self) -> None: ...

    monkeypatch.setattr(RedisStore, "_connect", lambda _: JustTooLate())
    with pytest.raises(StoreUnavailable, match="no answer within"):
        await RedisStore("redis://localhost").read(NOTHING)


@needs_redis
async def test_lost_reply_does_not_count_twice(make: Make, server: RedisServer) -> None:
    """A Redis that has counted and cannot say so."""
    async with LossyProxy(server.port) as proxy:
        stats = make(f"redis://127.0.0.1:{proxy.port}")
        observe(stats)
        proxy.swallows = 1
        assert not await sync(stats)
        assert proxy.swallowed == 1
        assert await sync(stats)
        assert stats.fleet is not None
        await stats.fleet.flush()
        assert server.counted() == {CLAUDE.key: 100}


@needs_redis
async def test_redis_that_is_away_at_the_end_of_a_session_gets_its_counts_with_the_next(
    make: Make, server: RedisServer
) -> None:
    stats = make()
    observe(stats)
    server.kill()
    assert stats.fleet is not None
    await stats.fleet.flush()
    server.start()
    assert await sync(stats)
    assert server.counted() == {CLAUDE.key: 100}


@needs_redis
@pytest.mark.parametrize(
    ("broken", "mended", "meaning"),
    [
        (
            "CONFIG SET requirepass another",
            "CONFIG SET requirepass ''",
            "it refuses the user or password: check the URL",
        ),
        (
            "REPLICAOF 127.0.0.1 1",
            "REPLICAOF NO ONE",
            "it is a read-only replica: name the primary",
        ),
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "it is out of memory"),
    ],
)
async def test_rejection_is_explained_once(
    make: Make, server: RedisServer, logged: list[str], broken: str, mended: str, meaning: str
) -> None:
    stats = make()
    server.control.execute_command(*shlex.split(broken))
    observe(stats)
    for _ in range(3):
        assert not await sync(stats)
    assert len(logged) == 1
    assert meaning in logged[0]
    server.control.execute_command(*shlex.split(mended))
    assert await sync(stats)
    assert len(logged) == 2
    assert server.counted() == {CLAUDE.key: 100}


@needs_redis
async def test_key_of_another_type_is_an_outage(
    make: Make, server: RedisServer, logged: list[str]
) -> None:
    stats = make()
    observe(stats)
    await sync(stats)
    (key,) = server.names("*latency*")
    server.control.delete(key)
    server.control.set(key, "value")
    observe(stats)
    assert not await sync(stats)
    assert "a key under the prefix is of another type: choose another prefix" in logged[0]


@needs_redis
async def test_redis_that_refuses_one_key_counts_the_others_once(
    make: Make, server: RedisServer
) -> None:
    stats = make()
    observe(stats)
    assert await sync(stats)
    (key,) = server.names("*latency*")
    server.control.set(key, "value")
    observe(stats)
    for _ in range(7):
        stats.record_wait(LOCAL, 0.5, 100)
    assert stats.fleet is not None
    for _ in range(3):
        await stats.fleet.sync(reads=False)
    server.control.delete(key)
    assert server.counted() == {LOCAL.key: 7}


# ---- configuration


@pytest.mark.parametrize(
    ("url", "prefix", "message"),
    [
        ("http://localhost", "p", "url is none of a Redis"),
        ("redis://user:secret@host:secret", "p", "url is none of a Redis"),
        ("redis://user:secret@[host", "p", "url is none of a Redis"),
        ("redis://localhost?no_such_option=1", "p", "url is none of a Redis"),
        ("", "p", "REDIS_URL is not set"),
        (3, "p", "url must be a str"),
        (b"redis://user:secret@host", "p", "url must be a str .*, got bytes"),
        ("redis://user:12/secret@host:6379", "p", "url has an @ after its address"),
        ("redis://user:12/secret@12@host", "p", "url has an @ after its address"),
        ("unix://user:secret#1@/run/redis.sock", "p", "url has an @ after its address"),
        ("rediss://user:12?secret@host", "p", "url has an @ after its address"),
        ("redis:user:secret@host", "p", "url has an @ after its address"),
        ("redis://localhost", "", "prefix must be 1 to 100 characters"),
        ("redis://localhost", "{a}", "prefix must be 1 to 100 characters"),
        ("redis://localhost", None, "prefix must be 1 to 100 characters"),
    ],
)
def test_invalid_url_is_refused_without_its_password(url: Any, prefix: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        RedisStore(url, prefix=prefix)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rediss://user:secret@host:6390/2?db=2", "rediss://host:6390/2 (pipecat-hedge)"),
        ("unix:///run/redis@1.sock", "unix:///run/redis@1.sock (pipecat-hedge)"),
    ],
)
def test_password_is_not_shown(url: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(RedisStore(url)) == shown
    monkeypatch.setenv("REDIS_URL", url)
    assert str(RedisStore(prefix="pipecat-hedge")) == shown


@pytest.mark.parametrize("url", ["valkey://user:secret@host", "redis:user:secret@host"])
def test_malformed_url_in_the_environment_is_refused_without_its_password(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, url)
    with pytest.raises(ConfigurationError) as refused:
        default_store()
    assert "secret" not in str(refused.value)


async def test_password_that_cannot_be_sent_is_not_quoted() -> None:
    """As one of the environment that is not UTF-8."""
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        store = RedisStore(f"redis://user:secret\udce9@127.0.0.1:{port}")
        with pytest.raises(StoreUnavailable, match="UnicodeEncodeError"):
            await store.read(NOTHING)


def test_without_redis_py_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(ConfigurationError, match=r'pip install "pipecat-hedge\[redis\]"'):
        RedisStore("redis://localhost")


@pytest.mark.parametrize(
    ("stats", "redis_url", "has_redis_py", "store"),
    [
        ("rediss://here:1/3", "redis://elsewhere", True, "rediss://here:1/3 (pipecat-hedge)"),
        ("stats.json", "redis://elsewhere", True, FileStore),
        (None, "redis://elsewhere", True, "redis://elsewhere (pipecat-hedge)"),
        (None, "postgres://elsewhere", True, FileStore),
        (None, "redis://elsewhere", False, FileStore),
    ],
)
def test_environment_names_the_store(
    stats: str | None,
    redis_url: str,
    has_redis_py: bool,
    store: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    logged: list[str],
) -> None:
    """Its own variable comes first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.delenv(ENVIRONMENT)
    if stats is not None:
        monkeypatch.setenv(ENVIRONMENT, stats)
    if not has_redis_py:
        monkeypatch.setattr(composition, "find_spec", lambda name: None)
    found = default_store()
    assert isinstance(found, FileStore) if store is FileStore else str(found) == store
    if str(found).startswith(redis_url):
        assert "(from REDIS_URL); PIPECAT_HEDGE_STATS=off disables this" in "".join(logged)
