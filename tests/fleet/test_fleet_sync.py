"""What sharing statistics costs the turns, and what a process exchanges with its store."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.fleet import sync as fleet_sync
from pipecat_hedge.fleet.document import Document
from pipecat_hedge.fleet.redis_store import RedisStore
from pipecat_hedge.fleet.sync import SLICE_SECS, FleetSync, pack, unpack
from pipecat_hedge.providers import Backend, ProviderRegistry
from pipecat_hedge.providers.latency import ALL, COUNTS
from pipecat_hedge.providers.latency_model import bucket_of
from pipecat_hedge.providers.server_queue import LoadReading
from pipecat_hedge.providers.shared_store import Received, Slice, StoreUnavailable
from pipecat_hedge.providers.stats_store import FileStore
from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.service import ProviderStats, composition
from pipecat_hedge.service.composition import ENVIRONMENT, default_store
from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from tests.support.learned import prior_weight
from tests.support.line import Line

Answer = Received | Exception


class Scripted:
    """A store that returns or raises the given answers, and records its calls."""

    def __init__(self, *answers: Answer, secs: float = 0.0):
        self._answers, self._secs = list(answers), secs
        self.time = 0.0
        self.written: list[Slice | None] = []
        self.read: list[Sequence[int]] = []
        self.noted: list[str] = []
        self.begun_at: list[float] = []
        self.documents: list[str] = []

    async def now(self) -> float:
        return self.time

    async def exchange(
        self, process: str, now: float, document: str, written: Slice | None, read: Sequence[int]
    ) -> Received:
        self.noted.append("begins")
        self.begun_at.append(asyncio.get_running_loop().time())
        self.documents.append(document)
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


def fleet_of(store: Scripted, health: ProviderRegistry | None = None) -> FleetSync:
    return FleetSync(store, health or ProviderRegistry(), {})


async def synced(store: Scripted) -> ProviderStats:
    """Statistics after one exchange."""
    stats = ProviderStats(store)
    assert await exchange(stats)
    return stats


async def exchange(stats: ProviderStats) -> bool:
    assert stats.fleet is not None
    return await stats.fleet.sync()


def seen(secs: float, times: int) -> bytes:
    """What another process has seen of a provider, of prompts of any size."""
    counts = np.zeros(COUNTS, np.int64)
    counts[ALL, 0, bucket_of(secs)] = times
    return pack(counts)


def hedged(stats: ProviderStats) -> HedgedLLMService:
    scripts = [[Wait(0.004), Say("Yes.")], [Wait(0.03), Say("No.")]]
    providers = [Provider(n, ScriptedLLMService(s)) for n, s in zip("ab", scripts, strict=True)]
    return HedgedLLMService(providers, policy=HedgePolicy.adaptive(), stats=stats, warm=False)


@pytest.mark.virtual_time
@pytest.mark.parametrize(("process", "is_followed"), [("0", True), ("~", False)])
async def test_a_server_s_load_is_read_by_the_first_process(
    process: str, is_followed: bool
) -> None:
    await asyncio.sleep(10.0)
    health, text = ProviderRegistry(), Document({}, {}, {"gpu": (3, 2, 0.5)}).text()
    store = Scripted(Received(documents={process: text}))
    health.loads.own["cpu"] = LoadReading(1, 0, 8.0)
    assert await fleet_of(store, health).sync()
    assert health.loads.shared == ({"gpu": LoadReading(3, 2, 9.5)} if is_followed else {})
    assert Document.of(store.documents[0]).loads == {"cpu": (1, 0, 2.0)}


@pytest.mark.virtual_time
async def test_no_turn_waits_for_a_store_that_hangs() -> None:
    secs: list[float | None] = []
    for store in (None, Scripted(secs=1000.0)):
        async with Line(hedged(ProviderStats(store))) as line:
            await line.ask()
            await asyncio.sleep(5.0)
            await line.ask()
            secs.append((await line.report(2)).ttft_secs)
    assert secs[0] == secs[1]


async def test_exchange_yields_to_the_event_loop() -> None:
    """With 20 providers, and 250 processes' counts of each slice."""
    data = seen(0.3, 100)
    slices = {n: [(f"{k % 20} | m", data) for k in range(250)] for n in (0, -1, -2)}
    stats = ProviderStats(Scripted(Received(slices=slices)))
    for number in range(20):
        stats.record_wait(Backend(str(number), "m"), 0.3, 100)
    task, steps = asyncio.create_task(exchange(stats)), 0
    while not task.done():
        await asyncio.sleep(0)
        steps += 1
    assert await task
    assert steps > 40


# ---- latencies


async def written(store: Scripted, times: Sequence[float]) -> list[tuple[int, int]]:
    """What a process writes that sees one answer before each exchange."""
    stats = ProviderStats(store)
    for store.time in times:
        stats.record_wait(Backend("a", "b"), 0.5, 100)
        await exchange(stats)
    return store.counted("a | b")


@pytest.mark.virtual_time
async def test_totals_of_a_slice_are_written_until_it_is_over() -> None:
    store = Scripted()
    found = await written(store, (0.0, 1.0, SLICE_SECS + 1.0, SLICE_SECS + 2.0))
    assert found == [(0, 1), (0, 2), (0, 3), (1, 1)]
    assert [len(read) for read in store.read] == [fleet_sync.SLICES, 2, fleet_sync.SLICES, 2]


@pytest.mark.virtual_time
async def test_nothing_of_a_simulated_provider_is_shared() -> None:
    store = Scripted()
    stats = ProviderStats(store)
    stats.mark_simulated(Backend("a", "m"))
    for name in "ab":
        provider = Provider(name, ScriptedLLMService([Wait(0.1), Say("Yes.")], model="m"))
        async with Line(HedgedLLMService([provider], stats=stats)) as line:
            await line.ask()
    shared = "".join(store.documents)
    assert ("a | m" in shared, "b | m" in shared) == (False, True)
    assert (bool(store.counted("a | m")), bool(store.counted("b | m"))) == (False, True)


@pytest.mark.virtual_time
async def test_full_slice_takes_no_further_processes() -> None:
    store = Scripted(Received(fields=10**6), Received(fields=10**6))
    found = await written(store, (0.0, 1.0, SLICE_SECS + 1.0))
    assert found == [(0, 1), (0, 2), (0, 3)], "this process was in before"


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("later", "expected"), [((0.2, 0.21), 0.21), ((0.2,), 5.0)], ids=["enough", "too few"]
)
async def test_latest_slices_are_used_first(later: tuple[float, ...], expected: float) -> None:
    """Older ones only if the later ones do not hold enough."""
    slices = {
        0: [],
        -1: [("a | b", seen(secs, 3000)) for secs in later],
        -5: [("a | b", seen(5.0, 100_000))],
    }
    stats = await synced(Scripted(Received(slices=slices)))
    known = stats.estimates([Backend("a", "b")], None, by_sentence=False)["a"].first_token
    assert known.quantile(0.5) == pytest.approx(expected, rel=0.05)


@pytest.mark.virtual_time
async def test_providers_of_others_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_sync, "MOST_PROVIDERS", 3)
    slices = {0: [(f"{n} | b", seen(0.2, 100)) for n in range(10)]}
    stats = await synced(Scripted(Received(slices=slices)))
    weights = [prior_weight(stats, Backend(str(n), "b")) for n in range(10)]
    assert sum(weight < 1.0 for weight in weights) == 3


@given(st.lists(st.tuples(st.integers(0, 2849), st.integers(1, 2**32 - 1)), max_size=40))
def test_packed_counts_are_read_as_written(entries: list[tuple[int, int]]) -> None:
    counts = np.zeros(COUNTS, np.int64)
    for at, count in entries:
        counts.ravel()[at % counts.size] = count
    assert np.array_equal(unpack(pack(counts)), counts)


@given(st.binary(max_size=60))
def test_damaged_counts_are_read_or_refused(data: bytes) -> None:
    try:
        counts = unpack(data)
    except ValueError:
        return
    assert counts.shape == COUNTS
    assert np.all(counts >= 0)


# ---- breakers


async def test_last_number_of_processes_is_kept_in_an_outage() -> None:
    fleet = fleet_of(Scripted(Received(processes=3), ConnectionError(), Received(processes=2)))
    counted = [fleet.processes]
    for _ in range(3):
        await fleet.sync()
        counted.append(fleet.processes)
    assert counted == [1, 3, 3, 2]


# ---- when it runs


@pytest.mark.virtual_time
async def test_failing_store_is_tried_again_within_seconds() -> None:
    """At most four, and a fifth more or less by chance; whatever the store raises."""
    store = Scripted(*[ZeroDivisionError()] * 6)
    stats = ProviderStats(store)
    stats.begin_session()
    await asyncio.sleep(60)
    await stats.end_session()
    gaps = [later - earlier for earlier, later in itertools.pairwise(store.begun_at)]
    for gap, expected in zip(gaps, [1, 2, 4, 4, 4, 4, 1, 1, 1], strict=False):
        assert 0.8 * expected <= gap <= 1.2 * expected


@pytest.mark.virtual_time
async def test_sessions_share_one_exchange() -> None:
    store = Scripted()
    stats = ProviderStats(store)
    await hedged(stats).cleanup()  # a service that was never set up
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
async def test_new_session_waits_for_the_last_exchange_of_the_previous() -> None:
    store = Scripted(secs=0.3)
    stats = ProviderStats(store)
    stats.begin_session()
    await asyncio.sleep(0.5)
    assert store.noted == ["begins", "ends"]
    leaving = asyncio.create_task(stats.end_session())
    await asyncio.sleep(0.1)
    stats.begin_session()
    await leaving
    await asyncio.sleep(0.3)
    assert store.noted[2:] == ["closes", *["begins", "ends"] * 2]
    await stats.end_session()
    assert store.noted[-1] == "closes"


@pytest.mark.virtual_time
async def test_unusable_counts_are_logged_a_hundred_times_at_most(logged: list[str]) -> None:
    slices = {0: [(f"key {n}", b"x") for n in range(150)]}
    assert await fleet_of(Scripted(Received(slices=slices))).sync()
    assert len(logged) == 100


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
            await store.now()


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


def test_one_loop_of_a_process_exchanges_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """When its sessions have ended, another one takes over."""
    monkeypatch.setattr(fleet_sync, "EVERY_SECS", 0.01)
    store = Scripted()
    stats = ProviderStats(store)
    with asyncio.Runner() as one, asyncio.Runner() as other:

        async def hold(secs: float) -> None:
            stats.begin_session()
            await asyncio.sleep(secs)

        async def exchanges(number: int) -> None:
            while len(store.begun_at) < number:
                await asyncio.sleep(0.001)

        one.run(hold(0.0))
        one.run(exchanges(3))
        before = len(store.begun_at)
        other.run(hold(0.05))
        assert len(store.begun_at) == before
        one.run(stats.end_session())
        other.run(exchanges(len(store.begun_at) + 2))
        other.run(stats.end_session())
    assert store.noted[-1] == "closes"
