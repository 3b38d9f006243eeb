"""How far an event loop is behind, and whether it is too far for hedges."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from pipecat_hedge import HedgePolicy
from pipecat_hedge.providers.background import LoopWork
from pipecat_hedge.providers.loop_lag import EVERY_SECS, LoopWatch
from pipecat_hedge.providers.overload import FRESH_SECS, SAMPLES, Overload
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.service.provider_stats import shared_stats
from pipecat_hedge.testing import AutojumpLoop, Say, Wait
from tests.service.builders import racing, scripted
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
async def test_late_loop_sends_no_hedges_until_it_recovers(samples: asyncio.Queue[float]) -> None:
    assert (LoopWatch().why_behind(), LoopWatch().lag_now()) == (None, 0.0)
    async with watched() as watch:
        await samples.get()
        assert (watch.why_behind(), watch.lag_now()) == (None, 0.0)
        for _ in range(SAMPLES):
            block(EVERY_SECS + 0.3)
            assert watch.lag_now() == pytest.approx(0.3), "before the next sample"
            assert await samples.get() == pytest.approx(0.3)
        assert watch.why_behind() == "the event loop is 0.30 s behind"
        for _ in range(SAMPLES):
            assert await samples.get() == pytest.approx(0.0)
        assert (watch.why_behind(), watch.lag_now()) == (None, pytest.approx(0.0))
        block(9.0)
    assert watch.lag_now() == 0.0, "an ended watch is not late"


async def test_sessions_watch_their_loop(
    samples: asyncio.Queue[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoopWatch, "run_if_real", LoopWatch.run)
    stats = ProviderStats()
    services = [
        racing(*(scripted(Wait(0.05), Say("Yes.")) for _ in "ab"), stats=stats) for _ in range(2)
    ]
    async with Line(services[0]) as line:
        async with Line(services[1]):
            await samples.get()
        assert samples.empty(), "one task samples for both"
        monkeypatch.setattr(Overload, "why_behind", lambda *_: "the event loop is late")
        await line.ask()
        report = await line.report()
    assert report.outcome == "answered"
    assert len(report.attempts) == 1
    assert (report.hedge_reason or "").endswith("is skipped: the event loop is late")


def behind(lag_secs: float, it: Overload | None = None, times: int = 2 * SAMPLES) -> Overload:
    """A loop with a constant lag; the last sample is at time 0."""
    it = it or Overload()
    for number in range(times):
        it.sample(lag_secs, number * 1e-6)
    return it


@pytest.mark.parametrize(
    ("lag_secs", "reason"), [(0.09, None), (0.11, "the event loop is 0.11 s behind")]
)
def test_lag_of_100_ms_stops_hedges(lag_secs: float, reason: str | None) -> None:
    assert behind(lag_secs).why_behind(0.0) == reason


def test_few_long_steps_change_nothing() -> None:
    it = behind(0.0)
    reasons = [it.why_behind(1.0)]
    for _ in range(SAMPLES // 2 + 1):
        it.sample(2.0, 1.0)
        reasons.append(it.why_behind(1.0))
    assert [reason is None for reason in reasons] == [True] * (SAMPLES // 2 + 1) + [False]


def test_hedges_resume_at_half_the_lag() -> None:
    it = behind(0.3)
    is_behind = [
        behind(lag_secs, it).why_behind(0.0) is not None for lag_secs in (0.06, 0.04, 0.06)
    ]
    assert is_behind == [True, False, False]


def test_samples_expire_later_on_a_late_loop() -> None:
    it = behind(0.3)
    fresh_secs = FRESH_SECS + 2 * 0.3
    assert it.why_behind(fresh_secs) is not None
    assert it.why_behind(fresh_secs + 0.1) is None
    it.sample(0.3, 60.0)
    assert it.why_behind(60.0) is None
    assert it.lag_secs(60.0) == pytest.approx(0.3 / SAMPLES)
    assert it.lag_secs(90.0) is None


@pytest.mark.virtual_time
async def test_late_loop_marks_no_provider_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six answers are read three seconds after they came; the order stays as it is."""
    lag = 0.0
    monkeypatch.setattr(LoopWatch, "lag_now", lambda self: lag)

    def line(secs: float) -> Line:
        script = (Wait(secs), Say("Yes. "), Wait(2.0), Say("Bye."))
        return Line(racing(scripted(*script), scripted(*script), policy=HedgePolicy.adaptive()))

    async with line(0.5) as calm:
        for _ in range(30):
            await calm.ask()
            await asyncio.sleep(1.0)
    async with AsyncExitStack() as stack:
        late = [await stack.enter_async_context(line(3.5)) for _ in range(6)]
        lag = 3.0
        turns = [asyncio.create_task(each.ask()) for each in late]
        await asyncio.sleep(3.6)
        lag = 0.0
        async with line(0.5) as calm:
            await calm.ask()
            report = await calm.report()
        await asyncio.gather(*turns)
    assert report.routing_reason is None
    assert [attempt.provider for attempt in report.attempts] == ["a"]
    assert shared_stats().slow() == set()
