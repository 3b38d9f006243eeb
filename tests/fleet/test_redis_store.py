"""What processes share through a real Redis, and what happens without it."""

from __future__ import annotations

import asyncio
import json
import random
import shlex
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from pipecat_hedge.fleet import sync as fleet_sync
from pipecat_hedge.fleet.document import VERSION
from pipecat_hedge.fleet.redis_store import DOCUMENT_SECS, KEPT_SECS, RedisStore
from pipecat_hedge.providers import Backend
from pipecat_hedge.providers.circuit_breaker import RECOVERED
from pipecat_hedge.providers.priors import prior_for
from pipecat_hedge.service import ProviderStats
from tests.support.learned import prior_weight
from tests.support.redis_server import LossyProxy, RedisServer, needs_redis

pytestmark = needs_redis

CLAUDE, LOCAL = Backend("claude", "claude-haiku-4-5"), Backend("local", "qwen")

Make = Callable[..., ProviderStats]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
async def make(server: RedisServer) -> AsyncIterator[Make]:
    """Processes: registries of their own that share a Redis."""
    stores: list[RedisStore] = []

    def make(url: str | None = None, **options: Any) -> ProviderStats:
        stores.append(RedisStore(url or server.url, **options))
        return ProviderStats(stores[-1])

    yield make
    for store in stores:
        await store.close()


async def sync(*processes: ProviderStats) -> bool:
    results: list[bool] = []
    for stats in processes:
        assert stats.fleet is not None
        results.append(await stats.fleet.sync())
    return all(results)


def observe(stats: ProviderStats, secs: float, times: int = 100, tokens: int | None = 100) -> None:
    """Answers of around so many seconds."""
    for number in range(times):
        spread = 0.9 + 0.2 * (number % 21) / 20
        stats.record_wait(CLAUDE, secs * spread, tokens)


def median(stats: ProviderStats, tokens: int | None = 100, backend: Backend = CLAUDE) -> float:
    known = stats.estimates([backend], tokens, by_sentence=False)
    return known[backend.provider].first_token.quantile(0.5)


def now() -> float:
    return asyncio.get_running_loop().time()


def fail(stats: ProviderStats, *backends: Backend) -> None:
    for backend in backends:
        for _ in range(5):
            stats.record(backend.key).breaker.record("failed", now())


def answer(stats: ProviderStats, *backends: Backend) -> None:
    for backend in backends:
        stats.record(backend.key).breaker.record("answered", now())


def state(stats: ProviderStats, backend: Backend = CLAUDE) -> str:
    return stats.record(backend.key).breaker.state(now())


# ---- what is shared


async def test_fresh_process_begins_with_the_latencies_of_others(make: Make) -> None:
    """By prompt size; hardly anything is assumed any more."""
    old, fresh, later = make(), make(), make()
    observe(old, 0.2, times=400, tokens=100)
    observe(old, 0.9, times=100, tokens=50_000)
    await sync(old, fresh)
    assert median(later) == prior_for("claude", "claude-haiku-4-5").quantile(0.5)
    await sync(later)
    for stats in (fresh, later):
        assert median(stats, 100) == pytest.approx(0.2, rel=0.05)
        assert median(stats, 50_000) == pytest.approx(0.9, rel=0.1)
        assert prior_weight(stats, CLAUDE, 100) < 0.01


async def test_kinds_of_measurements_and_censored_waits_are_kept_apart(make: Make) -> None:
    old, fresh = make(), make()
    kinds = [Backend("claude", "m", measures=m) for m in ("first_token", "whole_answer", "wait")]
    for secs, backend in enumerate(kinds, start=1):
        for _ in range(200):
            old.record_wait(backend, float(secs), None)
            old.record_wait(backend, 5.0, None, censored=True)
    await sync(old, fresh)
    for secs, backend in enumerate(kinds, start=1):
        known = fresh.estimates([backend], None, by_sentence=False)["claude"].first_token
        assert known.share_after(0.97 * secs) > 0.9
        assert known.share_after(1.03 * secs) == pytest.approx(0.5, abs=0.03)


async def test_observation_counts_once(make: Make, server: RedisServer) -> None:
    one, two = make(), make()
    observe(one, 0.2, times=100)
    await sync(*[one, two] * 5)
    observe(two, 0.2, times=50)
    await sync(*[one, two] * 5)
    assert server.counted() == {CLAUDE.key: 150}


async def test_own_counts_are_not_taken_for_those_of_others(make: Make) -> None:
    one = make()
    observe(one, 0.2, times=20)
    await sync(one, one, one)
    assert prior_weight(one, CLAUDE, None) == pytest.approx(0.25, abs=0.03)


async def test_counts_from_before_a_change_are_withdrawn(make: Make, server: RedisServer) -> None:
    """Those of others are ignored until they see the same."""
    one, two = make(), make()
    observe(one, 0.2, times=600)
    observe(two, 0.2, times=600)
    await sync(one, two, one)
    observe(one, 1.0, times=12)
    assert median(one) == pytest.approx(1.0, rel=0.1)
    await sync(one, two, one)
    assert server.counted()[CLAUDE.key] < 620
    assert median(one) == pytest.approx(1.0, rel=0.1)
    assert prior_weight(one, CLAUDE, 100) > 0.2
    observe(two, 1.0, times=200)
    await sync(two, one)
    assert prior_weight(one, CLAUDE, 100) < 0.02


async def test_provider_that_two_processes_find_down_is_avoided_by_all(make: Make) -> None:
    """And tried again as soon as one of them had an answer."""
    processes = [make() for _ in range(4)]
    for stats in processes:
        answer(stats, CLAUDE, LOCAL)
    fail(processes[0], CLAUDE)
    await sync(*processes, *processes)
    assert [state(stats) for stats in processes] == ["open", *["closed"] * 3]
    fail(processes[1], CLAUDE)
    await sync(*processes, *processes)
    assert [state(stats) for stats in processes] == ["open"] * 4
    breakers = [stats.record(CLAUDE.key).breaker for stats in processes]
    assert breakers[3].reason.startswith("the fleet: 2 of 4 processes")
    assert "5 failures in a row" in breakers[3].reason
    later = now() + 100.0
    assert breakers[0].state(later) == "half_open"
    for _ in range(RECOVERED):
        assert breakers[0].claim_recovery(later)
        breakers[0].record("answered", later, is_recovery=True)
    await sync(*processes)
    assert [state(stats) for stats in processes[1:]] == ["half_open"] * 3


async def test_balances_even_out(make: Make) -> None:
    rng, processes = random.Random(5), [make() for _ in range(6)]
    for number, stats in enumerate(processes):
        stats.accounts.begin_turn(0.5)
        stats.accounts.accounts[0.5].withdraw(8.0 - 2.0 * number)
    before = [stats.accounts.accounts[0.5].balance for stats in processes]
    for _ in range(40):
        rng.shuffle(processes)
        await sync(*processes)
    after = [stats.accounts.accounts[0.5].balance for stats in processes]
    assert max(after) - min(after) < 0.1 * (max(before) - min(before))
    assert sum(after) == pytest.approx(sum(before), abs=2.0)


async def test_prefixes_are_separate(make: Make, server: RedisServer) -> None:
    here, there = [make(prefix="a"), make(prefix="a")], make(prefix="b")
    for stats in here:
        observe(stats, 0.2, times=500)
        answer(stats, LOCAL)
        fail(stats, CLAUDE)
    answer(there, CLAUDE, LOCAL)
    await sync(*here, there, *here, there)
    assert prior_weight(there, CLAUDE, 100) == 1.0
    assert state(there) == "closed"
    assert {key.partition(":")[0] for key in server.names()} == {"{a}", "{b}"}
    assert (server.counted("a"), server.counted("b")) == ({CLAUDE.key: 1000}, {})


async def test_every_key_expires(make: Make, server: RedisServer) -> None:
    one = make()
    observe(one, 0.2)
    answer(one, CLAUDE)
    await sync(one)
    ends = {"processes": 3 * DOCUMENT_SECS, "latency": KEPT_SECS}
    names = server.names()
    assert {name.split(":")[1] for name in names} == set(ends)
    for name in names:
        most = ends[name.split(":")[1]]
        assert most - 5 <= int(str(server.control.ttl(name))) <= most


# ---- when it is not there


def allow_user(server: RedisServer) -> None:
    server.control.acl_setuser(
        "user", True, passwords=["+secret"], categories=["+@all"], keys=["*"]
    )


async def test_outage_is_logged_once_and_observations_are_shared_afterwards(
    make: Make, server: RedisServer, logged: list[str]
) -> None:
    server.kill()
    one, two = make(f"redis://user:secret@127.0.0.1:{server.port}"), make()
    observe(one, 0.2)
    assert not await sync(one)
    assert not await sync(one)
    observe(one, 0.2)
    name = f"redis://127.0.0.1:{server.port} (pipecat-hedge)"
    assert logged == [
        f"WARNING: {name}: no connection. Sessions go on with what this process knows, and what it "
        "learns is shared when that is possible again"
    ]
    server.start()
    allow_user(server)
    assert await sync(one, two)
    assert logged[1:] == [f"INFO: {name}: back, what was learned meanwhile is shared"]
    assert server.counted() == {CLAUDE.key: 200}
    server.kill()
    assert not await sync(two)
    server.start()
    allow_user(server)
    observe(two, 0.2)
    assert await sync(one, two)
    assert server.counted() == {CLAUDE.key: 300}, "it came back empty"
    assert "secret" not in str(logged)


async def test_hanging_redis_is_given_up_and_counts_nothing_twice(
    make: Make, server: RedisServer, logged: list[str]
) -> None:
    stats = make()
    observe(stats, 0.2)
    await sync(stats)
    observe(stats, 0.2)
    server.hang()
    try:
        assert not await sync(stats)
        assert not await sync(stats)
    finally:
        server.go_on()
    assert await sync(stats, stats)
    assert server.counted() == {CLAUDE.key: 200}
    assert len(logged) == 2
    assert "no answer within 0.5 s" in logged[0]


async def test_lost_reply_counts_nothing_twice(make: Make, server: RedisServer) -> None:
    async with LossyProxy(server.port) as proxy:
        lossy, other = make(f"redis://127.0.0.1:{proxy.port}"), make()
        observe(lossy, 0.2, times=50)
        assert await sync(lossy, other)
        for _ in range(3):
            observe(lossy, 0.2, times=50)
            proxy.swallows = 2
            assert not await sync(lossy)
            observe(lossy, 0.2, times=50)
            assert not await sync(lossy)
            assert await sync(other, lossy)
        assert proxy.swallowed == 6
        assert server.counted() == {CLAUDE.key: 350}
        assert lossy.fleet is not None
        await lossy.fleet.flush()  # closes its connection before the proxy goes


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
async def test_refusal_is_explained_once(
    make: Make, server: RedisServer, logged: list[str], broken: str, mended: str, meaning: str
) -> None:
    stats = make()
    server.control.execute_command(*shlex.split(broken))
    observe(stats, 0.2)
    for _ in range(3):
        assert not await sync(stats)
    assert len(logged) == 1
    assert meaning in logged[0]
    server.control.execute_command(*shlex.split(mended))
    assert await sync(stats)
    assert len(logged) == 2
    assert server.counted() == {CLAUDE.key: 100}


# ---- what does not belong there


@pytest.mark.parametrize(
    "fields",
    [
        {"x": "value", "x y": "value", f"x {CLAUDE.key}": "value"},
        {"x": bytes(range(256)), f"x {CLAUDE.key}": bytes(range(256))},
    ],
)
async def test_foreign_values_are_logged_once_and_raise_nothing(
    make: Make, server: RedisServer, logged: list[str], fields: dict[str, Any]
) -> None:
    one, two = make(), make()
    for stats in (one, two):
        observe(stats, 0.2)
        answer(stats, CLAUDE)
    await sync(one, two)
    for key in server.names():
        server.control.hset(key, mapping=fields)
    for _ in range(3):
        observe(one, 0.2, times=1)
        assert await sync(one, two)
    assert 0 < len(logged) <= 8
    assert all(line.startswith("INFO") for line in logged)
    server.control.flushall()
    await sync(one, two)
    assert server.counted()[CLAUDE.key] == 203


async def test_key_of_another_type_is_an_outage(
    make: Make, server: RedisServer, logged: list[str]
) -> None:
    stats = make()
    observe(stats, 0.2)
    assert await sync(stats)
    for key in server.names():
        server.control.set(key, "text")
    assert not await sync(stats)
    assert not await sync(stats)
    (line,) = logged
    assert "is of another type: choose another prefix" in line
    server.control.flushall()
    assert await sync(stats)


async def test_other_releases_are_ignored_and_logged_once(
    make: Make, server: RedisServer, logged: list[str]
) -> None:
    stats = make()
    answer(stats, CLAUDE, LOCAL)
    await sync(stats)
    (key,) = server.names("*:processes:*")
    down = {"found": "down", "open_secs": 50, "reason": "", "closings": 0}
    well = {**down, "found": "well"}
    document = {"providers": {CLAUDE.key: down, LOCAL.key: well}, "balances": {}, "loads": {}}
    for version, expected in ((VERSION + 1, "closed"), (VERSION, "open")):
        for number in range(3):
            text = json.dumps({**document, "version": version})
            server.control.hset(key, f"{version}{number}", text)
        await sync(stats, stats)
        assert state(stats) == expected
    assert len(logged) == 1
    assert f"a process of another release shares the prefix (version {VERSION + 1})" in logged[0]


# ---- processes and loops


async def test_last_session_writes_the_rest_and_closes_the_connection(
    make: Make, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_sync, "EVERY_SECS", 1000.0)
    stats = make()
    for _ in range(3):
        stats.begin_session()
    observe(stats, 0.2)
    for _ in range(2):
        await stats.end_session()
    observe(stats, 0.2)
    await stats.end_session()
    assert server.counted() == {CLAUDE.key: 200}
    server.control.ping()  # the end of a connection is noticed before what comes after it
    clients = server.control.client_list(_type="normal")
    assert isinstance(clients, list)
    assert len(clients) == 1


async def test_hanging_redis_does_not_delay_the_end(make: Make, server: RedisServer) -> None:
    stats = make()
    await sync(stats)
    stats.begin_session()
    observe(stats, 0.2)
    server.hang()
    try:
        async with asyncio.timeout(20):
            await stats.end_session()
    finally:
        server.go_on()


async def test_forked_process_writes_under_its_own_name(
    make: Make, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = make()
    observe(stats, 0.2)
    await sync(stats)
    monkeypatch.setattr(fleet_sync.os, "getpid", lambda: 1)
    await sync(stats)
    observe(stats, 0.2)
    await sync(stats)
    assert server.counted() == {CLAUDE.key: 200}
