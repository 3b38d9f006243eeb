"""What a process gets from its fleet, and what it adds."""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.fleet import sync as fleet_sync
from pipecat_hedge.fleet.counts import STEP, counts_of, fields_of
from pipecat_hedge.fleet.sync import HOUR_SECS
from pipecat_hedge.providers import Backend
from pipecat_hedge.providers.latency import ALL, COUNTS
from pipecat_hedge.providers.permits import Terms
from pipecat_hedge.providers.shared_store import Request, StoreRefused, StoreUnavailable
from pipecat_hedge.providers.verdict import Verdict
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from tests.support.learned import prior_weight
from tests.support.line import Line
from tests.support.memory_store import MemoryStore
from tests.support.standing import standing
from tests.support.waiting import until

CLAUDE, LOCAL = Backend("claude", "claude-haiku-4-5"), Backend("local", "qwen")
NOW = 1_800_000_000.0


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def process(store: MemoryStore, at: float = NOW) -> ProviderStats:
    stats = ProviderStats(store)
    assert stats.fleet is not None
    stats.fleet.clock = lambda: at
    return stats


async def sync(*processes: ProviderStats, **how: bool) -> bool:
    done: list[bool] = []
    for stats in processes:
        assert stats.fleet is not None
        stats.fleet.want([CLAUDE.key])
        done.append(await stats.fleet.sync(**how))
    return all(done)


def observe(stats: ProviderStats, secs: float, times: int = 100, tokens: int | None = 100) -> None:
    """Answers of around so many seconds."""
    for number in range(times):
        stats.record_wait(CLAUDE, secs * (0.9 + 0.01 * (number % 21)), tokens)


def median(stats: ProviderStats, backend: Backend = CLAUDE, tokens: int | None = 100) -> float:
    known = stats.estimates([backend], tokens, by_sentence=False)
    return known[backend.provider].first_token.quantile(0.5)


async def added(store: MemoryStore, key: str = CLAUDE.key) -> int:
    """How many observations the fleet knows of this hour and the one before."""
    hour = int(NOW // HOUR_SECS)
    found = await store.read(Request((hour, hour - 1), [key], (), (), ()))
    return sum(int(counts_of(sums)[ALL].sum()) for sums in found.latencies.values())


def now() -> float:
    return asyncio.get_running_loop().time()


def requests(stats: ProviderStats, verdict: Verdict, backend: Backend, times: int = 1) -> None:
    for _ in range(times):
        permit = stats.issue(backend.record_key, "primary", Terms(), now())
        if verdict == "answered":
            stats.record_first_token(permit, now())
        stats.release(permit, verdict, now(), has_begun=verdict == "answered")


def breaker(stats: ProviderStats, backend: Backend = CLAUDE) -> str:
    return standing(stats, backend.record_key, now()).breaker


# ---- latencies


async def test_new_process_knows_what_the_fleet_has_seen_before_its_first_turn(
    store: MemoryStore,
) -> None:
    old, fresh = process(store), process(store)
    observe(old, 2.0, times=400)
    await sync(old, fresh)
    assert median(fresh) == pytest.approx(2.0, rel=0.05)
    assert prior_weight(fresh, CLAUDE, 100) < 0.05


async def test_own_observations_are_not_taken_for_others(store: MemoryStore) -> None:
    alone = process(store)
    observe(alone, 2.0, times=40)
    before = prior_weight(alone, CLAUDE, 100)
    for _ in range(3):
        await sync(alone)
    assert prior_weight(alone, CLAUDE, 100) == before
    assert await added(store) == 40


async def test_each_minute_adds_what_is_new(store: MemoryStore) -> None:
    stats = process(store)
    for times in (100, 0, 50):
        observe(stats, 0.5, times=times)
        await sync(stats)
    assert await added(store) == 150


async def test_kinds_of_measurements_and_cut_waits_are_kept_apart(store: MemoryStore) -> None:
    old, fresh = process(store), process(store)
    kinds = [Backend("claude", "m", measures=m) for m in ("first_token", "whole_answer", "wait")]
    for secs, backend in enumerate(kinds, start=1):
        for _ in range(200):
            old.record_wait(backend, float(secs), None)
            old.record_wait(backend, 5.0, None, censored=True)
    assert old.fleet is not None
    assert fresh.fleet is not None
    await old.fleet.sync()
    fresh.fleet.want([backend.key for backend in kinds])
    await fresh.fleet.sync()
    for secs, backend in enumerate(kinds, start=1):
        known = fresh.estimates([backend], None, by_sentence=False)["claude"].first_token
        assert known.quantile(0.4) == pytest.approx(secs, rel=0.05)
        assert known.quantile(0.8) > 5.0


@pytest.mark.parametrize(("hours", "expected"), [(0, 0.5), (2, 0.5), (40, 0.5), (80, None)])
async def test_older_hours_are_read_where_the_later_ones_say_little(
    store: MemoryStore, hours: int, expected: float | None
) -> None:
    old, fresh = process(store, NOW - hours * HOUR_SECS), process(store)
    observe(old, 0.5, times=400)
    await sync(old, fresh)
    assert (prior_weight(fresh, CLAUDE, 100) < 0.1) is (expected is not None)


async def test_latest_hours_come_first(store: MemoryStore) -> None:
    for hours, secs in ((2, 3.0), (0, 0.5)):
        old = process(store, NOW - hours * HOUR_SECS)
        observe(old, secs, times=1500)
        await sync(old)
    fresh = process(store)
    await sync(fresh)
    assert median(fresh) == pytest.approx(0.5, rel=0.05)


async def test_nothing_of_a_simulated_provider_is_shared(store: MemoryStore) -> None:
    stats = process(store)
    stats.mark_simulated(CLAUDE)
    observe(stats, 0.2)
    requests(stats, "failed", CLAUDE, times=5)
    await sync(stats)
    assert await added(store) == 0
    assert "report_down" not in store.calls


@pytest.mark.parametrize(("before_secs", "after_secs"), [(0.2, 2.0), (0.5, 0.1)])
async def test_counts_from_before_a_change_are_not_added(
    store: MemoryStore, before_secs: float, after_secs: float
) -> None:
    stats = process(store)
    observe(stats, before_secs, times=300)
    await sync(stats)
    observe(stats, after_secs, times=60)
    await sync(stats)
    assert 300 <= await added(store) < 360


@given(
    st.lists(
        st.tuples(
            st.integers(0, COUNTS[0] - 1),
            st.integers(0, 1),
            st.integers(0, COUNTS[2] - 1),
            st.integers(1, 10**6),
        ),
        max_size=20,
    )
)
def test_counts_are_read_as_written_within_a_step(entries: list[tuple[int, ...]]) -> None:
    counts = np.zeros(COUNTS, np.int64)
    for model, censored, bucket, count in entries:
        counts[model, censored, bucket] += count
        if model < ALL:
            counts[ALL, censored, bucket] += count
    found = counts_of(fields_of(counts))
    assert found.sum() == counts.sum()
    for model, censored, bucket in np.argwhere(found).tolist():
        beside = counts[model, censored, max(bucket - STEP, 0) : bucket + STEP + 1]
        assert beside.sum() > 0


@given(st.dictionaries(st.text(max_size=6), st.integers(-5, 10**12), max_size=5))
def test_fields_of_another_kind_are_left_out(fields: dict[str, int]) -> None:
    assert counts_of(fields).shape == COUNTS


# ---- budgets


async def test_a_fleet_that_has_spent_its_budget_hedges_later(store: MemoryStore) -> None:
    spender, saver, fresh = (process(store) for _ in range(3))
    for stats, cost in ((spender, 1.0), (saver, 0.0)):
        for _ in range(300):
            stats.accounts.begin_turn(0.1)
            stats.accounts.pay(0.1, 0.3 * cost)
    fresh.accounts.begin_turn(0.1)
    alone = fresh.accounts.share(0.1, 1.0)
    await sync(saver, fresh)
    calm = fresh.accounts.share(0.1, 1.0)
    await sync(spender, fresh)
    assert calm > alone > fresh.accounts.share(0.1, 1.0)
    await sync(spender, fresh)
    (account,) = fresh.accounts.accounts.values()
    assert account.fleet_ratio == pytest.approx(1.5, abs=0.01)
    assert not fresh.accounts.permits(0.1, 1.0)


# ---- providers that are down


async def test_new_process_avoids_a_provider_that_two_have_found_down(store: MemoryStore) -> None:
    one, two, fresh = (process(store) for _ in range(3))
    for stats in (one, two):
        requests(stats, "failed", CLAUDE, times=5)
        requests(stats, "answered", LOCAL)
        await sync(stats)
    await sync(fresh)
    assert breaker(fresh) == "open"
    found = standing(fresh, CLAUDE.record_key, now())
    assert found.breaker_reason.startswith("the fleet: 5 failures in a row")


async def test_one_process_alone_is_not_believed(store: MemoryStore) -> None:
    one, fresh = process(store), process(store)
    requests(one, "failed", CLAUDE, times=5)
    requests(one, "answered", LOCAL)
    for _ in range(3):
        await sync(one)
    await sync(fresh)
    assert breaker(fresh) == "closed"


async def test_a_process_whose_own_network_goes_down_is_not_believed(store: MemoryStore) -> None:
    one, two, fresh = (process(store) for _ in range(3))
    for stats in (one, two):
        for backend in (CLAUDE, LOCAL):
            requests(stats, "answered", backend)
        for backend in (CLAUDE, LOCAL):
            requests(stats, "failed", backend, times=5)
        await sync(stats)
    assert "report_down" not in store.calls
    await sync(fresh)
    assert breaker(fresh) == "closed"


async def test_a_provider_that_answers_one_process_is_tried_by_the_others(
    store: MemoryStore,
) -> None:
    one, two, follower = (process(store) for _ in range(3))
    for stats in (one, two):
        requests(stats, "failed", CLAUDE, times=5)
        requests(stats, "answered", LOCAL)
        await sync(stats)
    await sync(follower)
    assert breaker(follower) == "open"
    requests(one, "answered", CLAUDE)  # sent while it was open
    assert breaker(one) == "closed"
    await sync(one, follower)
    assert breaker(follower) == "half_open"
    assert breaker(two) == "open", "its own requests have opened it"


# ---- in the background


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchanges follow each other at once."""
    for name in ("EVERY_SECS", "TICK_SECS"):
        monkeypatch.setattr(fleet_sync, name, 0.02)


async def test_no_turn_waits_for_a_store_that_hangs(store: MemoryStore) -> None:
    store.secs = 30.0
    llm = HedgedLLMService(
        [Provider("a", ScriptedLLMService([Wait(0.05), Say("Yes.")]))],
        policy=HedgePolicy.adaptive(),
        stats=ProviderStats(store),
    )
    async with asyncio.timeout(5.0), Line(llm) as line:
        await line.ask()
        assert line.text == "Yes."
        assert store.calls == ["read"]


async def test_a_session_s_providers_are_read_when_it_starts(store: MemoryStore) -> None:
    old = process(store)
    observe(old, 2.0, times=400)
    await sync(old)
    fresh = process(store)
    fresh.begin_session([CLAUDE])
    read = fresh.fleet._sums  # pyright: ignore[reportOptionalMemberAccess, reportPrivateUsage]
    await until(lambda: CLAUDE.key in read, 5.0)
    assert median(fresh) == pytest.approx(2.0, rel=0.05)  # the first time that it is asked for
    await fresh.end_session()


async def test_last_session_adds_the_rest_and_closes_the_connection(store: MemoryStore) -> None:
    stats = process(store)
    stats.begin_session([CLAUDE])
    stats.begin_session([CLAUDE])
    await until(lambda: "read" in store.calls, 5.0)
    observe(stats, 0.5)
    await stats.end_session()
    assert "add" not in store.calls
    await stats.end_session()
    assert store.calls[-2:] == ["add", "close"]
    assert await added(store) == 100


@pytest.mark.virtual_time
async def test_end_of_a_session_in_mid_add_does_not_count_twice(store: MemoryStore) -> None:
    """The add is cancelled, and has counted."""
    stats = process(store)
    stats.begin_session([CLAUDE])
    observe(stats, 0.5)
    store.reply_secs = 0.3
    await until(lambda: "add" in store.calls, 120.0)
    observe(stats, 0.5, times=30)
    await stats.end_session()
    assert store.calls.count("add") == 2
    assert await added(store) == 130


async def test_add_without_a_reply_is_not_repeated_and_a_refused_one_is(
    store: MemoryStore,
) -> None:
    stats = process(store)
    for problem, known in (
        (StoreUnavailable("no answer"), 0),
        (StoreRefused("read-only"), 30),
        (RuntimeError("a bug"), 30),
    ):
        await sync(stats)
        observe(stats, 0.5, times=30)
        store.problem = problem
        assert not await sync(stats, reads=False)
        store.problem = None
        assert await sync(stats)
        assert await added(store) == known


async def test_hanging_store_does_not_delay_the_end(store: MemoryStore) -> None:
    stats = process(store)
    stats.begin_session([CLAUDE])
    await until(lambda: "read" in store.calls, 5.0)
    observe(stats, 0.5)
    store.secs = 30.0
    async with asyncio.timeout(3.0):
        await stats.end_session()


async def test_outage_is_logged_once_and_nothing_is_lost(
    store: MemoryStore, logged: list[str], quick: None
) -> None:
    stats = process(store)
    store.problem = StoreUnavailable("no connection")
    stats.begin_session([CLAUDE])
    observe(stats, 0.5)
    await until(lambda: len(store.calls) > 3, 5.0)
    assert logged == [
        "WARNING: memory: no connection. Sessions go on with what this process knows, and what it "
        "learns is shared when that is possible again"
    ]
    store.problem = None
    await until(lambda: "add" in store.calls[:-1], 5.0)  # one that is under way would be cut off
    await until(lambda: len(logged) > 1, 5.0)
    assert logged[1:] == ["INFO: memory: back, what was learned meanwhile is shared"]
    await stats.end_session()
    assert await added(store) == 100


async def test_a_store_s_error_ends_nothing(store: MemoryStore, logged: list[str]) -> None:
    stats = process(store)
    store.problem = RuntimeError("a bug, with a password")
    observe(stats, 0.5)
    assert not await sync(stats)
    assert "RuntimeError" in logged[0]
    assert "password" not in logged[0]
    store.problem = None
    assert await sync(stats)
    assert await added(store) == 100


def test_one_loop_of_a_process_exchanges_for_all(store: MemoryStore, quick: None) -> None:
    """When its sessions have ended, another one takes over."""
    stats = process(store)

    async def hold(secs: float) -> None:
        stats.begin_session([CLAUDE])
        await asyncio.sleep(secs)

    async def exchanges() -> None:
        before = len(store.calls)
        await until(lambda: len(store.calls) > before, 5.0)

    with asyncio.Runner() as one, asyncio.Runner() as other:
        one.run(hold(0.05))
        before = len(store.calls)
        assert before
        other.run(hold(0.1))
        assert len(store.calls) == before
        one.run(stats.end_session())
        other.run(exchanges())
        other.run(stats.end_session())


async def test_forked_process_adds_only_what_it_has_seen(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = process(store)
    observe(stats, 0.5)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    observe(stats, 0.5, times=0)
    await sync(stats)
    assert await added(store) == 0
    observe(stats, 0.5, times=30)
    await sync(stats)
    assert await added(store) == 30
