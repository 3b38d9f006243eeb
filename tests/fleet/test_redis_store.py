"""What processes share through a Redis, and what happens when that is not there."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest
from loguru import logger

from pipecat_hedge.fleet import sync as fleet_sync
from pipecat_hedge.fleet.fleet_latency import GENERATION
from pipecat_hedge.fleet.merge import VERSION
from pipecat_hedge.fleet.redis_store import (
    BATCH_SECS,
    DOCUMENT_SECS,
    POT_SECS,
    SUM_SECS,
    RedisStore,
)
from pipecat_hedge.limits.circuit_breaker import PROBES
from pipecat_hedge.policy.backends import Backend
from pipecat_hedge.policy.priors import prior_for
from pipecat_hedge.service.provider_stats import ProviderStats
from tests.support.redis_server import LossyProxy, RedisServer, needs_redis

CLAUDE, LOCAL = Backend("claude", "claude-haiku-4-5"), Backend("local", "qwen")

Make = Callable[..., ProviderStats]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """Makes processes: registries of their own that meet at a Redis."""
    made: list[ProviderStats] = []

    def make(url: str | None = None, **options: Any) -> ProviderStats:
        url = url or request.getfixturevalue("server").url
        made.append(ProviderStats(RedisStore(url, **options)))
        return made[-1]

    yield make
    for stats in made:
        assert stats.fleet is not None
        await stats.fleet._store.close()


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What the package logs from INFO on."""
    lines: list[str] = []
    handler = logger.add(
        lambda message: lines.append(f"{message.record['level'].name}: {message}".strip()),
        level="INFO",
        format="{message}",
        filter=lambda record: (record["name"] or "").startswith("pipecat_hedge"),
    )
    yield lines
    logger.remove(handler)


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
        stats.record_first_token(CLAUDE, secs * spread, tokens)


def median(stats: ProviderStats, tokens: int | None = 100) -> float:
    known = stats.known([CLAUDE], tokens, by_sentence=False)
    return known["claude"].first_token.quantile(0.5)


def now() -> float:
    return asyncio.get_running_loop().time()


def fail(stats: ProviderStats, backend: Backend, times: int = 5) -> None:
    for _ in range(times):
        stats.health.entry(backend.key).breaker.record("failed", now())


def answer(stats: ProviderStats, *backends: Backend) -> None:
    for backend in backends:
        stats.health.entry(backend.key).breaker.record("answered", now())


# ---- what is shared


@needs_redis
async def test_a_fresh_process_begins_with_what_the_others_have_seen(make: Make) -> None:
    """By prompt size and to the first sentence too, and hardly anything is assumed any more."""
    old, fresh, later = make(), make(), make()
    observe(old, 0.2, times=400, tokens=100)
    observe(old, 0.9, times=100, tokens=50_000)
    latency = old._of(CLAUDE)
    for _ in range(300):
        latency.record_sentence(0.33, censored=False)
    await sync(old, fresh)
    for stats in (fresh, later):
        if stats is later:  # asked before the first exchange
            assert median(later) == prior_for("claude", "claude-haiku-4-5").curve.quantile(0.5)
            await sync(later)
        assert median(stats, 100) == pytest.approx(0.2, rel=0.05)
        assert median(stats, 50_000) == pytest.approx(0.9, rel=0.1)
        sentence = stats.known([CLAUDE], 100, by_sentence=True)["claude"].sentence
        assert sentence is not None
        assert sentence.quantile(0.5) == pytest.approx(0.33, rel=0.02)
        assert stats.prior_weight(CLAUDE, 100) < 0.01
    alone = ProviderStats()
    assert alone.prior_weight(CLAUDE, 100) == 1.0


@needs_redis
async def test_all_that_is_known_of_a_provider_is_shared(make: Make) -> None:
    """Whole answers and waits as well, each under its own name."""
    old, fresh = make(), make()
    kinds = [Backend("claude", "m", measures=m) for m in ("first_token", "whole_answer", "wait")]
    for secs, backend in enumerate(kinds, start=1):
        for _ in range(200):
            old.record_first_token(backend, float(secs), None)
    await sync(old, fresh)
    for secs, backend in enumerate(kinds, start=1):
        known = fresh.known([backend], None, by_sentence=False)["claude"].first_token
        assert known.quantile(0.5) == pytest.approx(secs, rel=0.02)


@needs_redis
async def test_cancelled_waits_are_shared_as_such(make: Make) -> None:
    """They make a provider slower, not faster, for everybody."""
    old, fresh = make(), make()
    for _ in range(200):
        old.record_first_token(CLAUDE, 0.2, 100)
        old.record_first_token(CLAUDE, 0.5, 100, censored=True)
    await sync(old, fresh)
    known = fresh.known([CLAUDE], 100, by_sentence=False)["claude"].first_token
    assert known.share_after(0.3) == pytest.approx(0.5, abs=0.03)
    assert known.share_after(0.6) > 0.3


@needs_redis
async def test_an_observation_counts_once(make: Make, server: RedisServer) -> None:
    """However often it is exchanged; and who made it does not take it for another's."""
    one, two = make(), make()
    observe(one, 0.2, times=100)
    for _ in range(5):
        await sync(one, two)
    observe(two, 0.2, times=50)
    for _ in range(5):
        await sync(one, two)
    assert server.counted() == {CLAUDE.key: 150}
    assert one.fleet is not None
    (others,) = (each for each, weight in one.fleet._fleet[CLAUDE.key].others if weight == 1.0)
    assert others.of("0").count == 50


@needs_redis
async def test_generations_follow_each_other(make: Make, server: RedisServer) -> None:
    """By count; the size of what is kept does not depend on how much was seen."""
    processes = [make() for _ in range(3)]
    for turn in range(12):
        observe(processes[turn % 3], 0.2 if turn < 6 else 0.4, times=1500)
        await sync(*processes)
    sums = server.control.hgetall(f"{{pipecat-hedge}}:1:sum:{CLAUDE.key}")
    assert isinstance(sums, dict)
    assert int(sums["g"]) == 3
    assert 0 < server.control.ttl(f"{{pipecat-hedge}}:1:was:{CLAUDE.key}") <= 7 * 86_400  # pyright: ignore[reportOperatorIssue]
    fresh = make()
    await sync(fresh)
    assert median(fresh) == pytest.approx(0.4, rel=0.05)


@needs_redis
async def test_a_change_that_one_process_sees_is_not_undone_by_what_the_others_saw_before(
    make: Make,
) -> None:
    """What they see from then on counts again."""
    one, two, three = make(), make(), make()
    observe(one, 0.2, times=600)
    observe(two, 0.2, times=600)
    await sync(one, two, one)
    observe(one, 1.0, times=12)
    assert median(one) == pytest.approx(1.0, rel=0.1)
    await sync(one, two, one, two, one)
    assert median(one) == pytest.approx(1.0, rel=0.1)
    observe(three, 1.5, times=600)
    await sync(three, one)
    assert one.fleet is not None
    told = one._of(CLAUDE)._all.others_told
    assert told == pytest.approx(600, rel=0.05)


@needs_redis
async def test_a_provider_that_two_have_found_down_is_left_alone_by_all(make: Make) -> None:
    """And tried again as soon as one of them had an answer."""
    processes = [make() for _ in range(4)]
    for stats in processes:
        answer(stats, CLAUDE, LOCAL)
    breakers = [stats.health.entry(CLAUDE.key).breaker for stats in processes]
    fail(processes[0], CLAUDE)
    await sync(*processes, *processes)
    assert [breaker.state(now()) for breaker in breakers] == ["open", *["closed"] * 3]
    fail(processes[1], CLAUDE)
    await sync(*processes, *processes)
    assert [breaker.state(now()) for breaker in breakers] == ["open"] * 4
    assert breakers[3].reason.startswith("the fleet: 2 of 4 processes")
    assert "5 failures in a row" in breakers[3].reason
    later = now() + 100.0
    assert breakers[0].state(later) == "half_open"
    for _ in range(PROBES):
        assert breakers[0].claim_probe(later)
        breakers[0].record("answered", later, probe=True)
    await sync(*processes)
    assert [breaker.state(now()) for breaker in breakers[1:]] == ["half_open"] * 3


@needs_redis
async def test_a_machine_whose_own_network_is_broken_stops_nobody(make: Make) -> None:
    """Two of them neither: they find everybody down."""
    broken, well = [make(), make()], make()
    answer(well, CLAUDE, LOCAL)
    for stats in broken:
        fail(stats, CLAUDE)
        fail(stats, LOCAL)
    await sync(*broken, well, *broken, well)
    assert well.health.entry(CLAUDE.key).breaker.state(now()) == "closed"


@needs_redis
async def test_balances_even_out_and_nothing_is_lost(make: Make, server: RedisServer) -> None:
    """Whoever comes when; what is in all accounts and the pot together stays the same."""
    rng, processes = random.Random(5), [make() for _ in range(6)]
    for number, stats in enumerate(processes):
        stats.accounts.begin_turn(0.5)
        stats.accounts.accounts[0.5].balance = 2.0 * number - 8.0
    before = [stats.accounts.accounts[0.5].balance for stats in processes]

    def everything() -> float:
        (pot,) = server.names("*:pot:*")
        told = server.control.get(pot)
        return sum(s.accounts.accounts[0.5].balance for s in processes) + float(str(told))

    for _ in range(60):
        await sync(rng.choice(processes))
        assert everything() == pytest.approx(sum(before), abs=1e-5)
    after = [stats.accounts.accounts[0.5].balance for stats in processes]
    assert max(after) - min(after) < 0.1 * (max(before) - min(before))


@needs_redis
async def test_two_prefixes_do_not_meet(make: Make, server: RedisServer) -> None:
    """Neither curve, nor breaker, nor limit, nor balance."""
    here, there = [make(prefix="a"), make(prefix="a")], make(prefix="b")
    there.accounts.begin_turn(0.1)
    for stats in here:
        observe(stats, 0.2, times=500)
        answer(stats, LOCAL)
        fail(stats, CLAUDE)
        stats.accounts.begin_turn(0.1)
        stats.accounts.pay(0.1, 4.0)
    answer(there, CLAUDE, LOCAL)
    await sync(*here, there, *here, there)
    assert there.prior_weight(CLAUDE, 100) == 1.0
    assert there.health.entry(CLAUDE.key).breaker.state(now()) == "closed"
    assert there.accounts.accounts[0.1].balance == pytest.approx(0.05)
    assert all(key.startswith(("{a}:", "{b}:")) for key in server.names())
    assert server.counted("a") == {CLAUDE.key: 1000}
    assert server.counted("b") == {}


# ---- when it is not there


def allow_somebody(server: RedisServer) -> None:
    server.control.acl_setuser(
        "somebody", True, passwords=["+secret"], categories=["+@all"], keys=["*"]
    )


@needs_redis
async def test_away_at_the_start_and_in_the_middle(
    make: Make, server: RedisServer, said: list[str]
) -> None:
    """One word when it goes, one when it is back; what was learned meanwhile is told then."""
    server.kill()
    one, two = make(f"redis://somebody:secret@127.0.0.1:{server.port}"), make()
    observe(one, 0.2)
    assert not await sync(one)
    assert not await sync(one)
    observe(one, 0.2)
    assert said == [
        f"WARNING: redis://127.0.0.1:{server.port} (pipecat-hedge): no connection. Sessions go on "
        "with what this process knows, and what it learns is shared when that is possible again"
    ]
    server.start()
    allow_somebody(server)
    assert await sync(one, one)  # what it was about to tell, and then the rest
    assert said[1:] == [
        f"INFO: redis://127.0.0.1:{server.port} (pipecat-hedge): back, what was learned meanwhile "
        "is shared"
    ]
    await sync(two)
    assert server.counted() == {CLAUDE.key: 200}
    server.kill()
    assert not await sync(two)
    assert len(said) == 3
    server.start()
    allow_somebody(server)
    observe(two, 0.3)
    assert await sync(one, two, one, two)
    assert server.counted() == {CLAUDE.key: 300}
    assert len(said) == 4  # the first one has noticed nothing of the second time
    assert "secret" not in str(said)


@needs_redis
async def test_emptied(make: Make, server: RedisServer) -> None:
    """Everybody adds again what it had added, so nothing but what the dead had seen is lost."""
    processes = [make() for _ in range(3)]
    for stats in processes:
        observe(stats, 0.2)
        stats.accounts.begin_turn(0.1)
    await sync(*processes)
    server.control.flushall()
    await sync(*processes, *processes)
    assert server.counted() == {CLAUDE.key: 300}
    fresh = make()
    await sync(fresh)
    assert median(fresh) == pytest.approx(0.2, rel=0.05)
    server.control.flushall()
    observe(processes[0], 0.2)  # somebody has begun anew before the others notice
    await sync(processes[0], *processes, *processes)
    assert server.counted() == {CLAUDE.key: 400}


@needs_redis
async def test_hanging(make: Make, server: RedisServer, said: list[str]) -> None:
    """It is given up within a second; what it does when it goes on is done once."""
    stats = make()
    observe(stats, 0.2)
    await sync(stats)
    observe(stats, 0.2)
    server.hang()
    try:
        began = time.monotonic()
        assert not await sync(stats)
        assert time.monotonic() - began < 2.0
        assert not await sync(stats)
    finally:
        server.go_on()
    assert await sync(stats)
    assert await sync(stats)
    assert server.counted() == {CLAUDE.key: 200}
    assert len(said) == 2
    assert "no answer within 0.5 s" in said[0]


@needs_redis
async def test_a_reply_that_is_lost_has_nothing_counted_twice(
    make: Make, server: RedisServer
) -> None:
    """Nor added up twice in an account: the same batch comes again, and is known."""
    async with LossyProxy(server.port) as proxy:
        lossy, other = make(f"redis://127.0.0.1:{proxy.port}"), make()
        for stats in (lossy, other):
            stats.accounts.begin_turn(0.1)
        lossy.accounts.pay(0.1, 4.0)
        observe(lossy, 0.2, times=50)
        assert await sync(lossy, other)
        for _ in range(3):
            observe(lossy, 0.2, times=50)
            proxy.swallows = 2
            assert not await sync(lossy)
            observe(lossy, 0.2, times=50)
            assert not await sync(lossy)
            assert await sync(other)
            assert await sync(lossy, lossy)
        assert proxy.swallowed == 6
        assert server.counted() == {CLAUDE.key: 350}
        (pot,) = server.names("*:pot:*")
        left = sum(stats.accounts.accounts[0.1].balance for stats in (lossy, other))
        told = server.control.get(pot)
        assert left + float(str(told)) == pytest.approx(0.2 - 4.0, abs=1e-5)
        assert lossy.fleet is not None
        await lossy.fleet._store.close()


@needs_redis
@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ("password", "it refuses the user or password: check the URL"),
        ("replica", "it is a read-only replica: name the primary"),
        ("memory", "it is out of memory"),
    ],
)
async def test_refusals_are_said_once(
    make: Make, server: RedisServer, said: list[str], trouble: str, told: str
) -> None:
    """And sessions go on; when it works again, so does sharing."""
    stats = make()
    if trouble == "password":
        server.control.config_set("requirepass", "another")
    elif trouble == "replica":
        server.control.replicaof("127.0.0.1", "1")
    else:
        server.control.config_set("maxmemory", "1")
    observe(stats, 0.2)
    for _ in range(3):
        assert not await sync(stats)
    assert len(said) == 1
    assert told in said[0]
    if trouble == "password":
        server.control.config_set("requirepass", "")
    elif trouble == "replica":
        server.control.replicaof("NO", "ONE")
    else:
        server.control.config_set("maxmemory", "0")
    assert await sync(stats)
    assert len(said) == 2
    assert server.counted() == {CLAUDE.key: 100}


# ---- what does not belong there


@needs_redis
async def test_what_else_is_under_its_keys_is_passed_over_and_said_once(
    make: Make, server: RedisServer, said: list[str]
) -> None:
    """Keys of another type and with something else in them; nothing of the rest is lost."""
    one, two = make(), make()
    root = "{pipecat-hedge}"
    server.control.set(f"{root}:1:sum:{CLAUDE.key}", "mine")
    server.control.sadd(f"{root}:processes", "x", "y", "z")
    server.control.set(f"{root}:process:x", "no document")
    server.control.hset(f"{root}:process:y", "no", "string")
    server.control.set(f"{root}:process:z", b"\xff\xfe")
    for stats in (one, two):
        stats.accounts.begin_turn(0.1)
    observe(one, 0.2, times=60)
    for _ in range(60):
        one.record_first_token(LOCAL, 0.1, None)
    for _ in range(3):
        assert await sync(one, two)
    assert len(said) == 3  # each of the two processes for itself, of what it comes across
    assert sum("a process's document cannot be read" in line for line in said) == 2
    assert f":1:sum:{CLAUDE.key} cannot be used, and is passed over" in str(said)
    assert two._of(LOCAL)._all.others_told == 60
    server.control.delete(f"{root}:1:sum:{CLAUDE.key}")
    observe(one, 0.2, times=1)
    for _ in range(2):
        assert await sync(one, two)
    assert server.counted()[CLAUDE.key] == 61
    server.control.hset(f"{root}:1:sum:{CLAUDE.key}", mapping={"0a77": "x", "0q1": "4", "b": " "})
    observe(one, 0.2, times=10)
    assert await sync(one, two)
    assert two._of(CLAUDE)._all.others_told == 71
    (pot,) = server.names("*:pot:*")
    for wrong in ("nan", "many", "1e99"):
        server.control.set(pot, wrong)
        assert await sync(one, two)
        assert server.control.get(pot) == wrong
    server.control.delete(pot, f"{root}:1:providers")
    server.control.sadd(pot, "no number")
    server.control.set(f"{root}:1:providers", "no set")
    server.control.delete(f"{root}:processes")
    server.control.set(f"{root}:processes", "no set")
    server.control.hset(f"{root}:1:sum:{LOCAL.key}", "n", "no number")
    assert await sync(one, two)
    assert await sync(one, two)
    assert one.health.lock.acquire(blocking=False)
    one.health.lock.release()
    assert all(line.startswith("INFO") for line in said)


@needs_redis
@pytest.mark.parametrize("wrong", ["text", "set", "list", "hash", "numbers", "bytes"])
async def test_whatever_is_put_into_any_key_nothing_is_raised(
    make: Make, server: RedisServer, wrong: str
) -> None:
    """And once it is gone again, all is shared as before."""
    one, two = make(), make()
    for stats in (one, two):
        observe(stats, 0.2)
        stats.accounts.begin_turn(0.1)
        answer(stats, CLAUDE)
    await sync(one, two, one, two)
    told, fields = server.control, ("e", "g", "n", "0a1", "number", "cclaude", "p")
    for key in sorted(server.names()):
        is_hash = told.type(key) == "hash"
        if wrong == "numbers" and is_hash:
            for value in ("nan", "-1", "1e300", "0.5", ""):
                told.hset(key, mapping=dict.fromkeys(fields, value))
                observe(one, 0.2, times=1)
                assert await sync(one, two)
            continue
        told.delete(key)
        if wrong == "text":
            told.set(key, "text")
        elif wrong == "set":
            told.sadd(key, "member")
        elif wrong == "list":
            told.rpush(key, "item")
        elif wrong == "hash":
            told.hset(key, "field", "value")
        else:
            told.set(key, bytes(range(256)))
        observe(one, 0.2, times=1)
        assert await sync(one, two, one, two)
    told.flushall()
    await sync(one, two, one, two, one, two)
    fresh = make()
    await sync(fresh)
    assert median(fresh) == pytest.approx(0.2, rel=0.05)
    assert server.counted()[CLAUDE.key] >= 200


@needs_redis
async def test_processes_of_another_release_are_not_listened_to(
    make: Make, server: RedisServer, said: list[str]
) -> None:
    """Which is said once."""
    stats = make()
    answer(stats, CLAUDE, LOCAL)
    down = {"found": "down", "open_secs": 50, "reason": "", "closings": 0}
    well = {**down, "found": "well"}
    some = [f"{VERSION}0", f"{VERSION}1"]
    for version in (VERSION, VERSION + 1):
        for number in range(3):
            name = f"{version}{number}"
            document = {"version": version, "providers": {CLAUDE.key: down, LOCAL.key: well}}
            server.control.set(f"{{pipecat-hedge}}:process:{name}", json.dumps(document))
            server.control.sadd("{pipecat-hedge}:processes", name)
        if version == VERSION:
            server.control.srem("{pipecat-hedge}:processes", *some)
    await sync(stats, stats)
    assert stats.health.entry(CLAUDE.key).breaker.state(now()) == "closed"
    assert len(said) == 1
    assert f"a process of another release shares the prefix (version {VERSION + 1})" in said[0]
    server.control.sadd("{pipecat-hedge}:processes", *some)
    await sync(stats)
    assert stats.health.entry(CLAUDE.key).breaker.state(now()) == "open"


@needs_redis
async def test_what_nobody_touches_goes_by_itself(make: Make, server: RedisServer) -> None:
    """Every key has an end: a process's word soon, a purse's after an hour, latencies in a week."""
    one, two = make(), make()
    observe(one, 0.2)
    one.accounts.begin_turn(0.5)
    one.accounts.accounts[0.5].balance = 3.0
    answer(one, CLAUDE)
    await sync(one, two)
    for _ in range(2):  # a generation that is full is followed by the next
        observe(one, 0.2, times=GENERATION)
        await sync(one, two)
    secs = {name: server.control.ttl(name) for name in server.names("*")}
    ends = {
        ":process:": DOCUMENT_SECS,
        ":processes": SUM_SECS,
        ":sum:": SUM_SECS,
        ":was:": SUM_SECS,
        ":providers": SUM_SECS,
        ":pot:": POT_SECS,
        ":batch:": BATCH_SECS,
    }
    for part, most in ends.items():
        found = [left for name, left in secs.items() if part in name]
        assert found, part
        assert all(0.9 * most - 2 <= int(str(left)) <= most for left in found), part
    assert all(any(part in name for part in ends) for name in secs)
    (pot,) = server.names("*:pot:*")
    server.control.expire(pot, 60)
    await sync(one)
    assert int(str(server.control.ttl(pot))) > 60, "what is touched stays"


class Skewed(asyncio.SelectorEventLoop):
    """A loop whose clock is ahead, as that of a machine that was started earlier."""

    ahead_secs = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_secs


@needs_redis
def test_clocks_that_differ_by_years_do_no_harm(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machines' wall clocks and the processes' own: only lengths of time are told."""
    wall = time.time
    years = (0.0, 3e8, -3e8, 9e8)
    runners = [
        asyncio.Runner(loop_factory=type("Ahead", (Skewed,), {"ahead_secs": max(ahead, 0.0)}))
        for ahead in years
    ]
    processes = [ProviderStats(RedisStore(server.url)) for _ in years]

    async def fails(stats: ProviderStats) -> None:
        fail(stats, CLAUDE)

    async def answers(stats: ProviderStats) -> None:
        answer(stats, CLAUDE, LOCAL)

    async def exchanges(stats: ProviderStats) -> None:
        assert await sync(stats)

    async def open_secs(stats: ProviderStats) -> float:
        return stats.health.entry(CLAUDE.key).breaker.open_secs(now())

    async def closes(stats: ProviderStats) -> None:
        assert stats.fleet is not None
        await stats.fleet._store.close()

    def run(does: Callable[[ProviderStats], Coroutine[Any, Any, Any]], *which: int) -> list[Any]:
        told: list[Any] = []
        for n in which or range(len(processes)):
            monkeypatch.setattr(time, "time", lambda ahead=years[n]: wall() + ahead)
            told.append(runners[n].run(does(processes[n])))
        return told

    try:
        run(answers)
        run(fails, 0, 2)
        run(exchanges)
        run(exchanges)
        left = run(open_secs)
        assert all(30.0 < secs <= 60.0 for secs in left), left
        names = server.names("*:process:*")
        assert len(names) == len(processes)
        assert all(0 < int(str(server.control.ttl(name))) <= DOCUMENT_SECS for name in names)
    finally:
        monkeypatch.setattr(time, "time", wall)
        run(closes)
        for runner in runners:
            runner.close()


# ---- processes and loops


KILLED = """
import asyncio, sys
from pipecat_hedge.fleet import redis_store
from pipecat_hedge.policy.backends import Backend
from pipecat_hedge.service.provider_stats import ProviderStats
redis_store.DOCUMENT_SECS = 1

async def main():
    stats = ProviderStats(redis_store.RedisStore(sys.argv[1]))
    for _ in range(100):
        stats.record_first_token(Backend("claude", "claude-haiku-4-5"), 0.2, 100)
    breaker = stats.health.entry("claude | claude-haiku-4-5").breaker
    for _ in range(5):
        breaker.record("failed", 0.0)
    assert await stats.fleet.sync()
    print("told", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@needs_redis
async def test_of_a_process_that_is_killed_only_what_it_has_seen_stays(
    make: Make, server: RedisServer
) -> None:
    """Its document goes with Redis's own clock, and then its name."""
    server.control.config_set("notify-keyspace-events", "Ex")
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, server.url], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "told\n"
        with server.control.pubsub() as expired:
            expired.subscribe("__keyevent@0__:expired")
            process.kill()
            heard = (expired.get_message(timeout=20) for _ in itertools.count())
            assert any("}:process:" in str(each and each["data"]) for each in heard)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # pyright: ignore[reportOptionalMemberAccess]
    fresh = make()
    await sync(fresh)
    assert fresh.health.entry(CLAUDE.key).breaker.state(now()) == "closed"
    assert server.control.scard("{pipecat-hedge}:processes") == 1
    assert median(fresh) == pytest.approx(0.2, rel=0.02)


@needs_redis
async def test_the_last_session_tells_what_has_not_been_told(
    make: Make, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves neither a task nor a connection; until then one connection serves them all."""
    monkeypatch.setattr(fleet_sync, "EVERY_SECS", 1000.0)
    stats = make()
    for _ in range(3):
        stats.hold()
    observe(stats, 0.2)
    for _ in range(2):
        await stats.release()
    assert server.counted() in ({}, {CLAUDE.key: 100})  # the first exchange may not be over
    observe(stats, 0.2)
    await stats.release()
    assert server.counted() == {CLAUDE.key: 200}
    server.control.ping()  # the end of a connection is noticed before what comes after it
    clients = server.control.client_list(_type="normal")
    assert isinstance(clients, list)
    assert len(clients) == 1
    await ProviderStats().release()  # of one that nobody holds


@needs_redis
async def test_a_last_word_is_not_waited_for(make: Make, server: RedisServer) -> None:
    """A Redis that hangs just then holds nobody's end up."""
    stats = make()
    await sync(stats)
    stats.hold()
    observe(stats, 0.2)
    server.hang()
    try:
        began = time.monotonic()
        await stats.release()
        assert time.monotonic() - began < 1.5
    finally:
        server.go_on()


@needs_redis
def test_one_loop_of_a_process_speaks_for_all(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its sessions have ended, another one takes over."""
    monkeypatch.setattr(fleet_sync, "EVERY_SECS", 0.02)
    stats = ProviderStats(RedisStore(server.url))
    assert stats.fleet is not None
    exchanged: list[int] = []
    exchange = stats.fleet._store.exchange
    both = threading.Barrier(2, timeout=20)
    changed = threading.Condition()

    async def noted(*args: Any) -> Any:
        received = await exchange(*args)
        with changed:
            exchanged.append(threading.get_ident())
            changed.notify_all()
        return received

    monkeypatch.setattr(stats.fleet._store, "exchange", noted)
    first_is_gone = threading.Event()

    def wait_for(condition: Callable[[], bool]) -> None:
        with changed:
            assert changed.wait_for(condition, timeout=20)

    async def session() -> None:
        stats.hold()
        await asyncio.to_thread(both.wait)
        await asyncio.to_thread(wait_for, lambda: len(exchanged) >= 5)
        speaker = exchanged[0]
        assert set(exchanged[:5]) == {speaker}
        if threading.get_ident() != speaker:
            assert await asyncio.to_thread(first_is_gone.wait, 20)
            mine = threading.get_ident()
            await asyncio.to_thread(wait_for, lambda: mine in exchanged)
        await stats.release()
        first_is_gone.set()

    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(session())
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(set(exchanged)) == 2


@needs_redis
async def test_a_forked_process_is_another(
    make: Make, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a name of its own, and what its parent has added is its parent's."""
    stats = make()
    observe(stats, 0.2)
    await sync(stats)
    monkeypatch.setattr(fleet_sync.os, "getpid", lambda: 1)
    observe(stats, 0.2)
    await sync(stats)
    assert server.counted() == {CLAUDE.key: 200}
    assert server.control.scard("{pipecat-hedge}:processes") == 2
