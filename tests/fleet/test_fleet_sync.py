"""What sharing costs the turns that run meanwhile: nothing that they would notice."""

from __future__ import annotations

import asyncio
import gc
import importlib
import itertools
import os
import statistics
import sys
import threading
import time
from asyncio import events
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.fleet import redis_store
from pipecat_hedge.fleet import sync as fleet_sync
from pipecat_hedge.fleet.fleet_latency import Place, Sum
from pipecat_hedge.fleet.merge import Finding, write
from pipecat_hedge.fleet.redis_store import RedisStore
from pipecat_hedge.fleet.sync import FleetSync
from pipecat_hedge.limits.admission_controller import AdmissionController
from pipecat_hedge.policy.backends import Backend
from pipecat_hedge.policy.latency_sketch import LatencyCounts
from pipecat_hedge.policy.shared_store import Batch, Received, Wanted
from pipecat_hedge.policy.stats_store import FileStore
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.service.composition import ENVIRONMENT, default_store
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from tests.support.line import Line
from tests.support.redis_server import RedisServer, needs_redis

TICK_SECS = 1 / os.sysconf("SC_CLK_TCK")
"""How far wrong the host's clock may be."""


def stolen_secs() -> float:
    """How long the machine's host has given its processors to others so far; 0 if nobody tells."""
    try:
        return int(Path("/proc/stat").read_text().split()[8]) * TICK_SECS
    except OSError:  # not on Linux
        return 0.0


def unscheduled_secs() -> float:
    """How long this thread was ready to run so far and did not; 0 if nobody tells."""
    try:
        waited = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        waited = 0.0
    return waited + stolen_secs()


class Steps:
    """How long each step of an event loop took, in seconds of its thread's processor time.

    Attributes:
        secs: Of each step; of a long one without what the machine's host took since ``look``.
    """

    def __init__(self) -> None:
        self.secs: list[float] = []
        self._stolen = stolen_secs()

    def look(self) -> None:
        """Read what the host has taken so far; now and then, since it takes a while."""
        self._stolen = stolen_secs()

    @contextmanager
    def timed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Time every step made inside; the garbage collector is left out of it."""
        run, thread, is_over = events.Handle._run, threading.get_ident(), False

        def timed_run(handle: Any) -> None:
            if threading.get_ident() != thread:
                return run(handle)
            began = time.thread_time()
            run(handle)
            if not is_over:
                took = time.thread_time() - began
                is_long = took > 0.005
                self.secs.append(took - (stolen_secs() - self._stolen) if is_long else took)
            return None

        gc.collect()
        gc.disable()
        with monkeypatch.context() as patched:
            patched.setattr(events.Handle, "_run", timed_run)
            try:
                yield
            finally:
                is_over = True  # the step that ends it pays for the collection
                gc.enable()


@dataclass(frozen=True, slots=True)
class Pair:
    """A turn and its neighbour.

    Parameters:
        later_secs: By how much the turn was slower.
        unscheduled_secs: What the machine took from both of them meanwhile.
    """

    later_secs: float
    unscheduled_secs: float

    def is_slower(self, sign: int) -> bool:
        """Whether it was slower by 20 ms, or faster with -1, and not on the machine's account."""
        return sign * self.later_secs - self.unscheduled_secs > 0.02


def hedged(stats: ProviderStats) -> HedgedLLMService:
    scripts = [[Wait(0.004), Say("Yes.")], [Wait(0.03), Say("No.")]]
    providers = [Provider(n, ScriptedLLMService(s)) for n, s in zip("ab", scripts, strict=True)]
    return HedgedLLMService(providers, policy=HedgePolicy.adaptive(), stats=stats, warm=False)


@needs_redis
@pytest.mark.parametrize("how", ["killed and started again", "hanging"])
async def test_no_turn_waits_for_a_redis_that_is_away(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Redis goes in the middle of 200 turns.

    Each turn has a neighbour that is asked at the same instant on the same loop, of a service that
    shares nothing. No step of that loop, the exchanges' included, holds it for 10 ms of processor
    time, which would slow both; two may seem to where the host has taken a tick that its clock does
    not tell, but an exchange that did would do so dozens of times. A busy machine may take 20 ms
    from either of two neighbours: what the thread waited for a processor, or its host had taken
    away, is not counted, and what nobody can account for may happen to ours once more than to
    theirs.
    """
    monkeypatch.setattr(fleet_sync, "EVERY_SECS", 0.05)
    monkeypatch.setattr(fleet_sync, "CAP_SECS", 0.1)
    steps = Steps()
    with RedisServer() as server:
        pairs = await outage(server, monkeypatch, how, steps)
    longest = max(pair.later_secs for pair in pairs)
    print(f"slower than its neighbour by up to {longest * 1e3:.1f} ms, {how}")
    *_, third, _, last = sorted(steps.secs)
    print(f"the longest step took {last * 1e3:.1f} ms of processor time")
    assert last < 0.01 + TICK_SECS
    assert third < 0.01
    assert abs(statistics.median(pair.later_secs for pair in pairs)) < 0.002
    ours, theirs = (sum(pair.is_slower(sign) for pair in pairs) for sign in (1, -1))
    assert ours <= theirs + 1


async def outage(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, how: str, steps: Steps
) -> list[Pair]:
    """Each of 200 turns beside its neighbour."""
    shared, alone = ProviderStats(RedisStore(server.url)), ProviderStats()
    pairs: list[Pair] = []
    exchanged: list[bool] = []
    assert shared.fleet is not None
    sync = shared.fleet.sync

    async def noted() -> bool:
        exchanged.append(await sync())
        return exchanged[-1]

    monkeypatch.setattr(shared.fleet, "sync", noted)
    async with Line(hedged(shared)) as with_redis, Line(hedged(alone)) as without:
        lines = (with_redis, without)
        await asyncio.gather(*(line.ask() for line in lines))  # pays for imports and caches
        with steps.timed(monkeypatch):
            for turn in range(200):
                if turn == 70:
                    server.kill() if how.startswith("killed") else server.hang()
                elif turn == 140:
                    while False not in exchanged:  # quick turns may be over before one times out
                        await asyncio.sleep(0.01)
                    server.start() if how.startswith("killed") else server.go_on()
                asked = lines if turn % 2 else lines[::-1]
                unscheduled = unscheduled_secs()
                steps.look()
                await asyncio.gather(*(line.ask() for line in asked))
                ours, theirs = [await line.report(turn + 2) for line in lines]
                assert ours.outcome == theirs.outcome == "answered"
                later = (ours.ttft_secs or 0.0) - (theirs.ttft_secs or 0.0)
                pairs.append(Pair(later, unscheduled_secs() - unscheduled))
    was_away = exchanged.index(False)
    assert True in exchanged[:was_away]
    assert True in exchanged[was_away:]
    return pairs


class Full:
    """A store with as many sums as a large fleet has, all of them news each time."""

    def __init__(self, providers: int):
        counts = LatencyCounts()
        for part in "0123s":
            for bucket in range(200, 450):
                counts.of(part).answered[bucket] = 4
                counts.of(part).censored[bucket] = 1
        self._sums = {
            f"provider {number} | model": Sum(Place("e", 0), 4000, counts, counts)
            for number in range(providers)
        }

    async def exchange(
        self, process: str, batch: Batch, document: str, wanted: Mapping[str, Wanted]
    ) -> Received:
        return Received(sums=self._sums)

    async def close(self) -> None:
        pass


async def test_no_step_of_an_exchange_holds_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 20 providers of which a thousand observations each are known here, and many more there.

    Asserted of processor time, of which a busy machine takes nothing away.
    """
    stats = ProviderStats(Full(20))
    for number in range(20):
        for turn in range(600):
            backend = Backend(f"provider {number}", "model")
            stats.record_first_token(backend, 0.3 + turn % 97 / 300, 100 + 3000 * (turn % 3))
    assert stats.fleet is not None
    steps = Steps()
    with steps.timed(monkeypatch):
        assert await stats.fleet.sync()
    print(f"longest step {max(steps.secs) * 1e3:.1f} ms of {len(steps.secs)}")
    assert stats._of(Backend("provider 7", "model"))._all.others_told > 1000
    assert max(steps.secs) < 0.01


def test_what_is_noted_for_others_costs_a_turn_next_to_nothing() -> None:
    """Under 50 µs; each observation is one count more, whatever has been seen before."""

    def cost(stats: ProviderStats) -> float:
        took: list[float] = []
        for _ in range(30):
            began = time.thread_time()
            for turn in range(100):
                stats.record_first_token(Backend("a", "b"), 0.3 + turn / 1000, 100)
            took.append((time.thread_time() - began) / 100)
        return min(took)

    alone, shared = cost(ProviderStats()), cost(ProviderStats(Full(0)))
    print(f"{(shared - alone) * 1e6:.1f} µs more than {alone * 1e6:.1f} µs")
    assert shared - alone < 50e-6


# ---- the registry's part


class Scripted:
    """A store that does what it is told."""

    def __init__(self, *results: Received | Exception):
        self._results = list(results)
        self.batches: list[Batch] = []
        self.closed = 0

    async def exchange(
        self, process: str, batch: Batch, document: str, wanted: Mapping[str, Wanted]
    ) -> Received:
        self.batches.append(batch)
        result = self._results.pop(0) if self._results else Received()
        if isinstance(result, Exception):
            raise result
        return result

    async def close(self) -> None:
        self.closed += 1


def fleet_of(store: Scripted) -> FleetSync:
    return FleetSync(store, threading.Lock(), {}, {}, AdmissionController())


async def test_how_many_processes_there_are_is_known() -> None:
    """By their documents; while the store is away it is what it was."""
    two = Received(documents={"one": "{}", "other": "{}"})
    fleet = fleet_of(Scripted(Received(), two, ConnectionError(), Received(documents={"one": ""})))
    seen = [fleet.processes]
    for _ in range(4):
        await fleet.sync()
        seen.append(fleet.processes)
    assert seen == [1, 1, 3, 3, 2]


def document(**found: Any) -> str:
    return write({"a": Finding("well", **found)})


def told(*documents: str) -> Received:
    return Received(documents={f"process {n}": text for n, text in enumerate(documents)})


@pytest.mark.virtual_time
async def test_who_was_heard_last_is_remembered() -> None:
    """Of a fleet that is larger than what is kept: who came first is not forgotten first."""
    everybody = [{f"{n} {m}": document() for m in range(64)} for n in range(17)]
    samples = [*everybody, everybody[0], everybody[5]]
    fleet = fleet_of(Scripted(*[Received(documents=sample) for sample in samples]))
    for _ in samples:
        assert await fleet.sync()
    known = list(fleet._others)
    assert len(known) == fleet_sync.MOST_KNOWN
    assert known[-128:] == [*everybody[0], *everybody[5]]


@pytest.mark.virtual_time
async def test_an_answer_while_the_store_was_away_is_a_reason_to_try() -> None:
    """However long ago it was."""
    fleet = fleet_of(Scripted(told(document()), told(document(closings=1))))
    breaker = fleet._health.entry("a").breaker
    assert await fleet.sync()
    for _ in range(5):
        breaker.record("failed", 0.0)
    assert breaker.state(1.0) == "open"
    await asyncio.sleep(10.0)
    assert await fleet.sync()
    assert breaker.state(asyncio.get_running_loop().time()) == "half_open"


@pytest.mark.virtual_time
async def test_it_comes_back_to_a_store_that_is_away_within_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most four, and a fifth more by chance; whatever the store raises."""
    store = Scripted(*[ZeroDivisionError()] * 6)
    stats = ProviderStats(store)
    assert stats.fleet is not None
    times: list[float] = []
    sync = stats.fleet.sync

    async def noted() -> bool:
        times.append(asyncio.get_running_loop().time())
        return await sync()

    monkeypatch.setattr(stats.fleet, "sync", noted)
    stats.hold()
    await asyncio.sleep(60)
    await stats.release()
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    for gap, expected in zip(gaps, [1, 2, 4, 4, 4, 4, 1, 1, 1], strict=False):
        assert 0.8 * expected <= gap <= 1.2 * expected
    assert len({batch.number for batch in store.batches[:7]}) == 1
    assert store.closed == 2


@pytest.mark.virtual_time
async def test_a_service_shares_while_its_session_runs() -> None:
    """Several sessions share one exchange; a service that was never set up ends all the same."""
    store = Scripted()
    stats = ProviderStats(store)
    never = hedged(stats)
    await never.cleanup()
    async with Line(hedged(stats)) as one:
        async with Line(hedged(stats)) as two:
            await asyncio.gather(one.ask(), two.ask())
            await asyncio.sleep(10)
            assert 8 <= len(store.batches) <= 14
        await one.ask()
    told = LatencyCounts()
    for batch in store.batches:
        for counts in batch.counts.values():
            told.merge(counts)
    assert sum(sketch.count for part, sketch in told.parts.items() if part != "s") >= 3
    assert store.closed >= 1


@pytest.mark.virtual_time
async def test_a_stranger_in_a_reply_is_passed_over() -> None:
    """Sums of providers that are not asked here are kept for when they are."""
    counts = LatencyCounts()
    for _ in range(100):
        counts.add("0", 0.2, censored=False)
    place = Place("e", 0)
    store = Scripted(
        Received(
            sums={"a | b": Sum(place, 100, counts)},
            places={"nobody": place},
            moved={"nothing": 3.0},
            documents={"x": "no document"},
        )
    )
    stats = ProviderStats(store)
    assert stats.fleet is not None
    assert await stats.fleet.sync()
    known = stats.known([Backend("a", "b")], 100, by_sentence=False)["a"].first_token
    assert known.quantile(0.5) == pytest.approx(0.2, rel=0.05)


@pytest.mark.virtual_time
async def test_what_cannot_be_used_is_said_a_hundred_times_at_most() -> None:
    """A damaged store does not fill the log."""
    store = Scripted(*[Received(unusable=frozenset({f"key {n}"})) for n in range(150)])
    fleet = fleet_of(store)
    for _ in range(150):
        assert await fleet.sync()
    assert len(fleet._said) == 100


@pytest.mark.virtual_time
async def test_the_last_word_is_whole() -> None:
    """An exchange whose outcome is not known is repeated first, and then comes the rest."""
    store = Scripted(TimeoutError())
    stats = ProviderStats(store)
    assert stats.fleet is not None
    stats.record_first_token(Backend("a", "b"), 0.2, 100)
    stats.fleet._is_away = True  # as after an earlier failure, so nothing is said of this one
    assert not await stats.fleet.sync()
    stats.record_first_token(Backend("a", "b"), 0.3, 100)
    await stats.fleet.flush()
    assert len(store.batches) == 1  # a store that is away is not waited for
    stats.fleet._is_away = False
    await stats.fleet.flush()
    assert [batch.number for batch in store.batches] == [1, 1, 2]
    assert store.batches[0] is store.batches[1]
    assert [batch.counts["a | b"].of("0").count for batch in store.batches] == [1, 1, 1]


class Slow:
    """A store whose every exchange takes a while; notes what happens to it, in order."""

    def __init__(self) -> None:
        self.noted: list[str] = []
        self.batches: list[Batch] = []

    async def exchange(
        self, process: str, batch: Batch, document: str, wanted: Mapping[str, Wanted]
    ) -> Received:
        self.noted.append("begins")
        self.batches.append(batch)
        await asyncio.sleep(0.3)
        self.noted.append("ends")
        return Received(moved=dict.fromkeys(batch.balances, 1.0))

    async def close(self) -> None:
        self.noted.append("closes")


@pytest.mark.virtual_time
async def test_the_last_word_and_a_new_sessions_first_are_not_exchanged_at_once() -> None:
    """Nothing is settled twice, and what the new session uses is not closed under it."""
    store = Slow()
    stats = ProviderStats(store)
    stats.accounts.begin_turn(0.5)
    before = stats.accounts.accounts[0.5].balance
    stats.hold()
    await asyncio.sleep(0.5)
    assert store.noted == ["begins", "ends"]
    leaving = asyncio.create_task(stats.release())
    await asyncio.sleep(0.1)
    stats.hold()
    await leaving
    await asyncio.sleep(0.3)
    assert store.noted[2:] == ["closes", *["begins", "ends"] * 2]
    assert [batch.number for batch in store.batches] == [1, 2, 3]
    assert stats.accounts.accounts[0.5].balance == pytest.approx(before - 3.0)
    assert stats.fleet is not None
    assert stats.fleet._runs_on is asyncio.get_running_loop()
    await stats.release()
    assert store.noted[-1] == "closes"
    assert stats.fleet._runs_on is None


# ---- configuration


@pytest.mark.parametrize(
    ("url", "prefix", "message"),
    [
        ("http://localhost", "p", "url is none of a Redis"),
        ("redis://localhost:port", "p", "url is none of a Redis"),
        ("redis://localhost?no_such_option=1", "p", "url is none of a Redis"),
        ("", "p", "REDIS_URL is not set"),
        (3, "p", "url must be a str"),
        ("redis://localhost", "", "prefix must be 1 to 100 characters"),
        ("redis://localhost", "a b", "prefix must be 1 to 100 characters"),
        ("redis://localhost", "{a}", "prefix must be 1 to 100 characters"),
        ("redis://localhost", None, "prefix must be 1 to 100 characters"),
    ],
)
def test_what_cannot_work_is_refused(url: Any, prefix: Any, message: str) -> None:
    """At construction, with the remedy."""
    with pytest.raises(ConfigurationError, match=message):
        RedisStore(url, prefix=prefix)


def test_no_password_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in its name, nor in what is said of a URL that cannot work."""
    monkeypatch.setenv("REDIS_URL", "rediss://user:secret@host:6390/2?db=2")
    assert str(RedisStore(prefix="bot")) == "rediss://host:6390/2 (bot)"
    assert str(RedisStore("unix:///run/redis.sock")) == "unix:///run/redis.sock (pipecat-hedge)"
    for url in ("redis://user:secret@host:secret", "redis://user:secret@[host"):
        with pytest.raises(ConfigurationError) as refused:
            RedisStore(url)
        assert "secret" not in str(refused.value)


def test_without_redis_py_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra."""
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'pipecat-hedge\[redis\]'"):
        RedisStore("redis://localhost")


def test_the_environment_names_a_redis(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its own variable first; REDIS_URL only where that says nothing, and redis-py is there."""
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere")
    assert default_store() is None
    monkeypatch.setenv(ENVIRONMENT, "rediss://here:1/3")
    assert str(default_store()) == "rediss://here:1/3 (pipecat-hedge)"
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "stats.json"))
    assert isinstance(default_store(), FileStore)
    monkeypatch.delenv(ENVIRONMENT)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    said: list[str] = []
    handler = logger.add(lambda message: said.append(str(message)), level="INFO")
    assert str(default_store()) == "redis://elsewhere (pipecat-hedge)"
    logger.remove(handler)
    assert len(said) == 1
    assert "(from REDIS_URL); PIPECAT_HEDGE_STATS=off disables this" in said[0]
    monkeypatch.setenv("REDIS_URL", "postgres://elsewhere")
    assert isinstance(default_store(), FileStore)
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere")
    composition = importlib.import_module("pipecat_hedge.service.composition")
    monkeypatch.setattr(composition, "find_spec", lambda name: None)
    assert isinstance(default_store(), FileStore)


async def test_a_reply_that_makes_no_sense_is_as_good_as_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is a store that cannot be used."""
    store = RedisStore("redis://127.0.0.1:1")
    for reply in (b"{", b"[]", b'{"mark": {"c": 1}}', b"\xff", b'{"unusable": 3}'):

        async def run(asked: str, reply: bytes = reply) -> bytes:
            return reply

        monkeypatch.setattr(store, "_run", run)
        with pytest.raises(redis_store.StoreUnavailable, match="cannot be read"):
            await store.exchange("p", Batch(1), "", {})
