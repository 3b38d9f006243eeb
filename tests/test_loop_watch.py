"""How far behind an event loop is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from pipecat_hedge.loop_watch import EVERY_SECS, LoopWatch
from pipecat_hedge.loop_work import LoopWork
from pipecat_hedge.policies.overload import SAMPLES, Overload
from pipecat_hedge.provider_stats import ProviderStats
from pipecat_hedge.service import HedgedLLMService
from pipecat_hedge.testing import AutojumpLoop, Say, ScriptedLLMService
from tests.line import Line


@asynccontextmanager
async def watched() -> AsyncIterator[LoopWatch]:
    """The running loop is watched, by one task however many hold it."""
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
def samples(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[tuple[float, float]]:
    """Every lag and share of a core, as soon as the policy has been told."""
    told: asyncio.Queue[tuple[float, float]] = asyncio.Queue()
    sample: Callable[[Overload, float, float, float], None] = Overload.sample

    def spy(self: Overload, lag_secs: float, core_share: float, now: float) -> None:
        sample(self, lag_secs, core_share, now)
        told.put_nowait((lag_secs, core_share))

    monkeypatch.setattr(Overload, "sample", spy)
    return told


def block(secs: float) -> None:
    """As a call that blocks, on a virtual loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpLoop)
    loop._jump(secs)


@pytest.mark.virtual_time
async def test_a_loop_that_keeps_up_sheds_nothing() -> None:
    """Nor does one that nobody watches."""
    assert LoopWatch().sheds("background") is None
    async with watched() as watch:
        for _ in range(100):
            await asyncio.sleep(EVERY_SECS)
            assert watch.sheds("background") is None


@pytest.mark.virtual_time
async def test_a_loop_that_is_behind_sheds_in_order(
    samples: asyncio.Queue[tuple[float, float]],
) -> None:
    """Each timer is 0.3 s late; once none is, everybody is admitted."""
    async with watched() as watch:
        for _ in range(SAMPLES + 1):
            await samples.get()
            block(EVERY_SECS + 0.3)
        assert await samples.get() == (pytest.approx(0.3), 0.0)
        assert watch.sheds("primary", "economy") == "the event loop is 0.30 s behind"
        assert watch.sheds("primary") is None
        assert watch.sheds("tool_follow_up", "premium") is None
        assert watch.sheds("hedge", "premium") is not None
        for _ in range(SAMPLES):
            assert await samples.get() == (pytest.approx(0.0), 0.0)
        assert watch.sheds("background") is None


@pytest.mark.virtual_time
async def test_a_watch_that_has_ended_sheds_nothing_for_long(
    samples: asyncio.Queue[tuple[float, float]],
) -> None:
    """What it has seen last is soon too old."""
    async with watched() as watch:
        for _ in range(SAMPLES):
            await samples.get()
            block(EVERY_SECS + 1.0)
        await samples.get()
        assert watch.sheds("primary") is not None
    await asyncio.sleep(5.0)
    assert watch.sheds("background") is None


@pytest.mark.virtual_time
async def test_the_processor_does_not_count_on_a_virtual_loop(
    samples: asyncio.Queue[tuple[float, float]],
) -> None:
    """Its seconds have nothing to do with the loop's."""
    async with watched():
        busy_until = time.thread_time() + 0.05
        while time.thread_time() < busy_until:
            pass
        assert await samples.get() == (0.0, 0.0)


async def test_a_real_loop_that_is_blocked(samples: asyncio.Queue[tuple[float, float]]) -> None:
    """For half a second, once: what can always wait does, and no caller is turned away."""
    async with watched() as watch:
        await samples.get()
        time.sleep(0.5)
        lag_secs, _ = await samples.get()
        while lag_secs < 0.3:
            lag_secs, _ = await samples.get()
        reason = watch.sheds("background")
        assert reason is not None
        assert reason.endswith("s behind")
        assert watch.sheds("primary", "economy") is None
        while watch.sheds("background") is not None:
            await samples.get()


async def test_a_real_loop_whose_thread_is_busy(
    samples: asyncio.Queue[tuple[float, float]],
) -> None:
    """The share of a core is that of its thread."""
    async with watched():
        await samples.get()
        _, idle = await samples.get()
        busy_until = time.thread_time() + 0.3
        while time.thread_time() < busy_until:
            pass
        _, busy = await samples.get()
    assert idle < 0.1 < busy <= 1.01


async def test_the_sessions_of_a_process_watch_their_loop(
    samples: asyncio.Queue[tuple[float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first to the last, and what they see reaches their turns."""
    monkeypatch.setattr(LoopWatch, "run_if_real", LoopWatch.run)
    stats = ProviderStats()
    services = [
        HedgedLLMService([ScriptedLLMService([Say("Yes.")])], stats=stats) for _ in range(2)
    ]
    async with Line(services[0]) as line:
        async with Line(services[1]):
            await samples.get()
        assert samples.empty()
        await samples.get()
        overload = Overload()
        for _ in range(2 * SAMPLES):
            overload.sample(1.0, 0.0, asyncio.get_running_loop().time())
        stats.loop_watch._loops[asyncio.get_running_loop()] = overload
        await line.ask()
        report = await line.report()
    assert report.degraded_reason == "the event loop is 1.00 s behind"
    assert report.attempts == ()
