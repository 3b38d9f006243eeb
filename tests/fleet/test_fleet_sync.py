"""What sharing costs the turns that run meanwhile, and what a process does with its store."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.fleet import sync as fleet_sync
from pipecat_hedge.fleet.document import Document
from pipecat_hedge.fleet.redis_store import RedisStore
from pipecat_hedge.fleet.sync import SLICE_SECS, FleetSync, pack, unpack
from pipecat_hedge.limits.admission_controller import AdmissionController
from pipecat_hedge.limits.fleet_advice import Finding
from pipecat_hedge.policy.backends import Backend
from pipecat_hedge.policy.latency_model import bucket_of
from pipecat_hedge.policy.provider_latency import ALL, COUNTS
from pipecat_hedge.policy.shared_store import Received, Slice, StoreUnavailable
from pipecat_hedge.policy.stats_store import FileStore
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.service.composition import ENVIRONMENT, default_store
from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from tests.support.line import Line
from tests.support.redis_server import RedisServer, needs_redis

Answer = Received | Exception


class Scripted:
    """A store that answers as it is told, and notes what happens to it."""

    def __init__(self, *answers: Answer, secs: float = 0.0):
        self._answers, self._secs = list(answers), secs
        self.time = 0.0
        self.written: list[Slice | None] = []
        self.read: list[Sequence[int]] = []
        self.noted: list[str] = []

    async def now(self) -> float:
        return self.time

    async def exchange(
        self, process: str, now: float, document: str, written: Slice | None, read: Sequence[int]
    ) -> Received:
        self.noted.append("begins")
        self.written.append(written)
        self.read.append(read)
        await asyncio.sleep(self._secs)
        answer = self._answers.pop(0) if self._answers else Received()
        if isinstance(answer, Exception):
            raise answer
        self.noted.append("ends")
        return answer

    async def close(self) -> None:
        self.noted.append("closes")

    def counted(self, key: str) -> list[tuple[int, int]]:
        """What was written of a provider: the slice, and how many observations."""
        slices = [each for each in self.written if each is not None and key in each.counts]
        return [(each.number, int(unpack(each.counts[key])[ALL].sum())) for each in slices]


def fleet_of(store: Scripted) -> FleetSync:
    return FleetSync(store, threading.Lock(), {}, {}, AdmissionController())


def document(**found: Any) -> str:
    return Document({"a": Finding("well", **found)}).text()


def seen(secs: float, times: int) -> bytes:
    """What another process has seen of a provider, of prompts of any size."""
    counts = np.zeros(COUNTS, np.int64)
    counts[ALL, 0, bucket_of(secs)] = times
    return pack(counts)


def hedged(stats: ProviderStats) -> HedgedLLMService:
    scripts = [[Wait(0.004), Say("Yes.")], [Wait(0.03), Say("No.")]]
    providers = [Provider(n, ScriptedLLMService(s)) for n, s in zip("ab", scripts, strict=True)]
    return HedgedLLMService(providers, policy=HedgePolicy.adaptive(), stats=stats, warm=False)


def median(stats: ProviderStats) -> float:
    known = stats.known([Backend("a", "b")], None, by_sentence=False)["a"].first_token
    return known.quantile(0.5)


# ---- no turn waits


@needs_redis
@pytest.mark.parametrize("how", ["killed", "hanging"])
async def test_turns_are_answered_while_redis_is_away(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """While an exchange waits in vain, and when Redis is back."""
    monkeypatch.setattr(fleet_sync, "EVERY_SECS", 0.02)
    with RedisServer() as server:
        stats = ProviderStats(RedisStore(server.url))
        results = asyncio.Queue[bool]()
        fleet = stats.fleet
        assert isinstance(fleet, FleetSync)
        sync = fleet.sync

        async def noted(**options: Any) -> bool:
            results.put_nowait(await sync(**options))
            return True

        async def until(result: bool) -> None:
            while await results.get() is not result:
                pass

        monkeypatch.setattr(fleet, "sync", noted)
        async with asyncio.timeout(40), Line(hedged(stats)) as line:
            await until(True)
            server.kill() if how == "killed" else server.hang()
            for _ in range(20):
                await line.ask()
            await until(False)
            server.start() if how == "killed" else server.go_on()
            await until(True)
            await line.ask()
            reports = [await line.report(turn) for turn in range(1, 22)]
        assert {report.outcome for report in reports} == {"answered"}


@pytest.mark.virtual_time
async def test_a_turn_takes_as_long_beside_a_store_that_hangs() -> None:
    """In virtual time, so exactly."""
    secs: list[float | None] = []
    for store in (None, Scripted(secs=1000.0)):
        async with Line(hedged(ProviderStats(store))) as line:
            await line.ask()
            await asyncio.sleep(5.0)
            await line.ask()
            secs.append((await line.report(2)).ttft_secs)
    assert secs[0] == secs[1]


async def test_the_event_loop_is_let_go_between_the_steps_of_an_exchange() -> None:
    """With 20 providers, and 250 processes' counts of each slice."""
    data = seen(0.3, 100)
    slices = {n: [(f"{k % 20} | m", data) for k in range(250)] for n in (0, -1, -2)}
    stats = ProviderStats(Scripted(Received(slices=slices)))
    for number in range(20):
        stats.record_first_token(Backend(str(number), "m"), 0.3, 100)
    assert stats.fleet is not None
    exchange, steps = asyncio.create_task(stats.fleet.sync()), 0
    while not exchange.done():
        await asyncio.sleep(0)
        steps += 1
    assert await exchange
    assert steps > 40


# ---- what is written, and what is made of what is read


@pytest.mark.virtual_time
async def test_totals_are_written_again_and_again_until_the_slice_is_over() -> None:
    """Each slice has what was seen in it, however often and late it is written."""
    store, backend = Scripted(), Backend("a", "b")
    stats = ProviderStats(store)
    assert stats.fleet is not None
    for store.time in (0.0, 1.0, SLICE_SECS + 1.0, SLICE_SECS + 2.0):
        stats.record_first_token(backend, 0.5, 100)
        assert await stats.fleet.sync()
    assert store.counted(backend.key) == [(0, 1), (0, 2), (0, 3), (1, 1)]
    assert [len(read) for read in store.read] == [fleet_sync.SLICES, 2, fleet_sync.SLICES, 2]


@pytest.mark.virtual_time
async def test_what_was_seen_while_the_store_was_away_is_written_afterwards() -> None:
    store, backend = Scripted(*[StoreUnavailable("no")] * 3), Backend("a", "b")
    stats = ProviderStats(store)
    assert stats.fleet is not None
    for number in range(5):
        stats.record_first_token(backend, 0.5, 100)
        assert await stats.fleet.sync() is (number > 2)
    assert store.counted(backend.key) == [(0, n) for n in range(1, 6)]


@pytest.mark.virtual_time
async def test_the_latest_slices_are_used_first() -> None:
    """Older ones only for as long as the later ones do not say enough; all of a slice counts."""
    two = [("a | b", seen(0.2, 3000)), ("a | b", seen(0.21, 3000))]
    old = [("a | b", seen(5.0, 100_000))]
    for later, expected in ((two, 0.21), (two[:1], 5.0)):
        stats = ProviderStats(Scripted(Received(slices={0: [], -1: later, -5: old})))
        assert stats.fleet is not None
        assert await stats.fleet.sync()
        assert median(stats) == pytest.approx(expected, rel=0.05)


@pytest.mark.virtual_time
async def test_only_so_many_providers_of_others_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet_sync, "MOST_PROVIDERS", 3)
    slices = {0: [(f"{n} | b", seen(0.2, 100)) for n in range(10)]}
    stats = ProviderStats(Scripted(Received(slices=slices)))
    assert stats.fleet is not None
    assert await stats.fleet.sync()
    weights = [stats.prior_weight(Backend(str(n), "b")) for n in range(10)]
    assert sum(weight < 1.0 for weight in weights) == 3


@pytest.mark.virtual_time
async def test_a_slice_that_is_full_takes_no_further_processes() -> None:
    store = Scripted(Received(fields=10**6), Received(fields=10**6))
    stats = ProviderStats(store)
    assert stats.fleet is not None
    stats.record_first_token(Backend("a", "b"), 0.5, 100)
    for store.time in (0.0, 1.0, SLICE_SECS + 1.0):
        assert await stats.fleet.sync()
    assert store.counted("a | b") == [(0, 1)] * 3, "this process was in before"


@given(st.lists(st.tuples(st.integers(0, 2849), st.integers(1, 2**32 - 1)), max_size=40))
def test_packed_counts_are_read_as_written(entries: list[tuple[int, int]]) -> None:
    counts = np.zeros(COUNTS, np.int64)
    for at, count in entries:
        counts.ravel()[at % counts.size] = count
    assert np.array_equal(unpack(pack(counts)), counts)


@given(st.binary(max_size=60))
def test_other_bytes_are_refused_or_read(data: bytes) -> None:
    try:
        counts = unpack(data)
    except ValueError:
        return
    assert counts.shape == COUNTS
    assert np.all(counts >= 0)


# ---- breakers


async def test_the_number_of_processes_stays_what_it_was_while_the_store_is_away() -> None:
    fleet = fleet_of(Scripted(Received(processes=3), ConnectionError(), Received(processes=2)))
    counted = [fleet.processes]
    for _ in range(3):
        await fleet.sync()
        counted.append(fleet.processes)
    assert counted == [1, 3, 3, 2]


@pytest.mark.virtual_time
async def test_an_answer_while_the_store_was_away_is_a_reason_to_try() -> None:
    first, second = (Received(documents={"p": text}) for text in (document(), document(closings=1)))
    health = AdmissionController()
    fleet = FleetSync(Scripted(first, second), threading.Lock(), {}, {}, health)
    breaker = health.entry("a").breaker
    assert await fleet.sync()
    for _ in range(5):
        breaker.record("failed", 0.0)
    assert breaker.state(1.0) == "open"
    await asyncio.sleep(10.0)
    assert await fleet.sync()
    assert breaker.state(asyncio.get_running_loop().time()) == "half_open"


# ---- when it runs


@pytest.mark.virtual_time
async def test_a_store_that_is_away_is_tried_again_within_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most four, and a fifth more by chance; whatever the store raises."""
    stats = ProviderStats(Scripted(*[ZeroDivisionError()] * 6))
    times: list[float] = []
    fleet = stats.fleet
    assert isinstance(fleet, FleetSync)
    sync = fleet.sync

    async def noted(**options: Any) -> bool:
        times.append(asyncio.get_running_loop().time())
        return await sync(**options)

    monkeypatch.setattr(fleet, "sync", noted)
    stats.hold()
    await asyncio.sleep(60)
    await stats.release()
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    for gap, expected in zip(gaps, [1, 2, 4, 4, 4, 4, 1, 1, 1], strict=False):
        assert 0.8 * expected <= gap <= 1.2 * expected


@pytest.mark.virtual_time
async def test_a_service_shares_while_its_session_runs() -> None:
    """Several sessions share one exchange; a service that was never set up ends all the same."""
    store = Scripted()
    stats = ProviderStats(store)
    await hedged(stats).cleanup()
    async with Line(hedged(stats)) as one:
        async with Line(hedged(stats)) as two:
            await asyncio.gather(one.ask(), two.ask())
            await asyncio.sleep(10)
            assert 8 <= store.noted.count("begins") <= 14
        await one.ask()
    assert store.written[-1] is not None
    assert sum(int(unpack(data)[ALL].sum()) for data in store.written[-1].counts.values()) >= 3
    assert store.noted[-1] == "closes"


@pytest.mark.virtual_time
async def test_a_new_session_waits_for_the_last_exchange_of_the_one_before() -> None:
    """And what it uses is not closed under it."""
    store = Scripted(secs=0.3)
    stats = ProviderStats(store)
    stats.hold()
    await asyncio.sleep(0.5)
    assert store.noted == ["begins", "ends"]
    leaving = asyncio.create_task(stats.release())
    await asyncio.sleep(0.1)
    stats.hold()
    await leaving
    await asyncio.sleep(0.3)
    assert store.noted[2:] == ["closes", *["begins", "ends"] * 2]
    await stats.release()
    assert store.noted[-1] == "closes"


@pytest.mark.virtual_time
async def test_what_cannot_be_used_is_logged_a_hundred_times_at_most() -> None:
    lines: list[str] = []
    handler = logger.add(lambda message: lines.append(str(message)), level="INFO")
    fleet = fleet_of(Scripted(*[Received(unusable=frozenset({f"key {n}"})) for n in range(150)]))
    for _ in range(150):
        assert await fleet.sync()
    logger.remove(handler)
    assert len(lines) == 100


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
def test_what_cannot_work_is_refused_with_the_remedy(url: Any, prefix: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RedisStore(url, prefix=prefix)


def test_no_password_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "rediss://user:secret@host:6390/2?db=2")
    assert str(RedisStore(prefix="bot")) == "rediss://host:6390/2 (bot)"
    assert str(RedisStore("unix:///run/redis.sock")) == "unix:///run/redis.sock (pipecat-hedge)"
    for url in ("redis://user:secret@host:secret", "redis://user:secret@[host"):
        with pytest.raises(ConfigurationError) as refused:
            RedisStore(url)
        assert "secret" not in str(refused.value)


def test_without_redis_py_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(ConfigurationError, match=r'pip install "pipecat-hedge\[redis\]"'):
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
    lines: list[str] = []
    handler = logger.add(lambda message: lines.append(str(message)), level="INFO")
    assert str(default_store()) == "redis://elsewhere (pipecat-hedge)"
    logger.remove(handler)
    assert len(lines) == 1
    assert "(from REDIS_URL); PIPECAT_HEDGE_STATS=off disables this" in lines[0]
    monkeypatch.setenv("REDIS_URL", "postgres://elsewhere")
    assert isinstance(default_store(), FileStore)
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere")
    composition = importlib.import_module("pipecat_hedge.service.composition")
    monkeypatch.setattr(composition, "find_spec", lambda name: None)
    assert isinstance(default_store(), FileStore)
