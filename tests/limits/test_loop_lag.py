"""How far an event loop is behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from pipecat_hedge import HedgePolicy
from pipecat_hedge.limits.background import LoopWork
from pipecat_hedge.limits.loop_lag import EVERY_SECS, LoopWatch
from pipecat_hedge.limits.overload import SAMPLES, Overload
from pipecat_hedge.service import HedgedLLMService, ProviderStats
from pipecat_hedge.testing import AutojumpLoop, Say, ScriptedLLMService, Wait
from tests.support.line import Line


@asynccontextmanager
async def watched() -> AsyncIterator[LoopWatch]:
    """Whether the running loop is watched, by one task."""
    watch = LoopWatch()
    work = LoopWork({"watches the loop": watch.run})
    work.hold()
    work.hold()
    try:
        yield watch
    finally:
        await work.release()
        await work.release()


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[float]:
    """Collect every lag."""
    lags: asyncio.Queue[float] = asyncio.Queue()
    sample: Callable[[Overload, float, float], None] = Overload.sample

    def spy(self: Overload, lag_secs: float, now: float) -> None:
        sample(self, lag_secs, now)
        lags.put_nowait(lag_secs)

    monkeypatch.setattr(Overload, "sample", spy)
    return lags


def block(secs: float) -> None:
    """Advance a virtual loop's clock, as a blocking call does."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpLoop)
    loop._jump(secs)


@pytest.mark.virtual_time
async def test_loop_without_lag_refuses_nothing() -> None:
    assert (LoopWatch().refusal(), LoopWatch().lag_now()) == (None, 0.0)
    async with watched() as watch:
        for _ in range(100):
            await asyncio.sleep(EVERY_SECS)
            assert watch.refusal() is None
            assert watch.lag_now() == 0.0


@pytest.mark.virtual_time
async def test_late_loop_refuses_hedges_until_it_recovers(samples: asyncio.Queue[float]) -> None:
    async with watched() as watch:
        for _ in range(SAMPLES + 1):
            await samples.get()
            block(EVERY_SECS + 0.3)
        assert await samples.get() == pytest.approx(0.3)
        assert watch.refusal() == "the event loop is 0.30 s behind"
        for _ in range(SAMPLES):
            assert await samples.get() == pytest.approx(0.0)
        assert watch.refusal() is None


@pytest.mark.virtual_time
async def test_lag_is_known_before_the_next_sample(samples: asyncio.Queue[float]) -> None:
    async with watched() as watch:
        await samples.get()
        block(EVERY_SECS + 0.3)
        assert watch.lag_now() == pytest.approx(0.3)
        await samples.get()
        assert watch.lag_now() == pytest.approx(0.3)
        await samples.get()
        assert watch.lag_now() == pytest.approx(0.0)


@pytest.mark.virtual_time
async def test_samples_expire_after_the_watch_ends(
    samples: asyncio.Queue[float],
) -> None:
    async with watched() as watch:
        for _ in range(SAMPLES):
            await samples.get()
            block(EVERY_SECS + 1.0)
        await samples.get()
        assert watch.refusal() is not None
    await asyncio.sleep(5.0)
    assert watch.refusal() is None


@pytest.mark.virtual_time
async def test_ended_watch_has_no_lag() -> None:
    async with watched() as watch:
        await asyncio.sleep(1.0)
    await asyncio.sleep(60.0)
    assert watch.lag_now() == 0.0


async def test_one_long_step_refuses_no_hedge(samples: asyncio.Queue[float]) -> None:
    async with watched() as watch:
        await samples.get()
        time.sleep(0.5)
        assert watch.lag_now() > 0.3
        while await samples.get() < 0.3:
            pass
        assert watch.lag_now() > 0.3
        assert watch.refusal() is None


async def test_sessions_watch_their_loop(
    samples: asyncio.Queue[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoopWatch, "run_if_real", LoopWatch.run)
    stats = ProviderStats()
    policy = HedgePolicy.after(0.0)
    services = [
        HedgedLLMService(
            [ScriptedLLMService([Wait(0.05), Say("Yes.")]) for _ in range(2)],
            stats=stats,
            policy=policy,
        )
        for _ in range(2)
    ]
    async with Line(services[0]) as line:
        async with Line(services[1]):
            await samples.get()
        assert samples.empty()
        await samples.get()
        overload = Overload()
        for _ in range(2 * SAMPLES):
            overload.sample(1.0, asyncio.get_running_loop().time())
        stats.loop_watch._loops[asyncio.get_running_loop()] = overload
        await line.ask()
        report = await line.report()
    assert report.outcome == "answered"
    assert len(report.attempts) == 1
    assert report.hedge_reason is not None
    assert report.hedge_reason.endswith("is skipped: the event loop is 1.00 s behind")
