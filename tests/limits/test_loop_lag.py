"""How far an event loop is behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from pipecat_hedge import HedgedLLMService, HedgePolicy
from pipecat_hedge.limits.background import LoopWork
from pipecat_hedge.limits.loop_lag import EVERY_SECS, LoopWatch
from pipecat_hedge.limits.overload import SAMPLES, Overload
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.testing import AutojumpLoop, Say, ScriptedLLMService, Wait
from tests.support.line import Line


@asynccontextmanager
async def watched() -> AsyncIterator[LoopWatch]:
    """A watch of the running loop, held twice and run by one task."""
    watch = LoopWatch()
    work = LoopWork({"watches the loop": watch.run})
    work.hold()
    work.hold()
    assert work.holders == 2
    try:
        yield watch
    finally:
        assert [await work.release() for _ in range(3)] == [False, True, False]


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
async def test_late_loop_refuses_hedges_until_it_recovers(samples: asyncio.Queue[float]) -> None:
    assert (LoopWatch().refusal(), LoopWatch().lag_now()) == (None, 0.0)
    async with watched() as watch:
        await samples.get()
        assert (watch.refusal(), watch.lag_now()) == (None, 0.0)
        for _ in range(SAMPLES):
            block(EVERY_SECS + 0.3)
            assert watch.lag_now() == pytest.approx(0.3), "before the next sample"
            assert await samples.get() == pytest.approx(0.3)
        assert watch.refusal() == "the event loop is 0.30 s behind"
        for _ in range(SAMPLES):
            assert await samples.get() == pytest.approx(0.0)
        assert (watch.refusal(), watch.lag_now()) == (None, pytest.approx(0.0))
        block(9.0)
    assert watch.lag_now() == 0.0, "an ended watch is not late"


async def test_sessions_watch_their_loop(
    samples: asyncio.Queue[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoopWatch, "run_if_real", LoopWatch.run)
    stats = ProviderStats()
    services = [
        HedgedLLMService(
            [ScriptedLLMService([Wait(0.05), Say("Yes.")]) for _ in range(2)],
            stats=stats,
            policy=HedgePolicy.after(0.0),
        )
        for _ in range(2)
    ]
    async with Line(services[0]) as line:
        async with Line(services[1]):
            await samples.get()
        assert samples.empty(), "one task samples for both"
        monkeypatch.setattr(Overload, "refusal", lambda *_: "the event loop is late")
        await line.ask()
        report = await line.report()
    assert report.outcome == "answered"
    assert len(report.attempts) == 1
    assert (report.hedge_reason or "").endswith("is skipped: the event loop is late")
