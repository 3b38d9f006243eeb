"""How far an event loop is behind, and what is learned of the answers that it reads late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from pipecat_hedge import HedgePolicy
from pipecat_hedge.providers.background import LoopWork
from pipecat_hedge.providers.latency import ProviderLatency
from pipecat_hedge.providers.loop_lag import EVERY_SECS, FRESH_SECS, SAMPLES, LoopLag, LoopWatch
from pipecat_hedge.providers.priors import prior_for
from pipecat_hedge.race import Attempt, Slot
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
    sample: Callable[[LoopLag, float, float], None] = LoopLag.sample

    def spy(self: LoopLag, lag_secs: float, now: float) -> None:
        sample(self, lag_secs, now)
        lags.put_nowait(lag_secs)

    monkeypatch.setattr(LoopLag, "sample", spy)
    return lags


def block(secs: float) -> None:
    """Advance a virtual loop's clock, as a blocking call does."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpLoop)
    loop._jump(secs)


@pytest.mark.virtual_time
async def test_lag_is_known_while_the_loop_is_late(samples: asyncio.Queue[float]) -> None:
    assert LoopWatch().lag_now() == 0.0
    async with watched() as watch:
        await samples.get()
        assert watch.lag_now() == 0.0
        for _ in range(SAMPLES):
            block(EVERY_SECS + 0.3)
            assert watch.lag_now() == pytest.approx(0.3), "before the next sample"
            assert await samples.get() == pytest.approx(0.3)
        assert watch.lag_now() == pytest.approx(0.3)
        assert await samples.get() == pytest.approx(0.0)
        assert watch.lag_now() == pytest.approx(0.0)
        block(9.0)
    assert watch.lag_now() == 0.0, "an ended watch is not late"


async def test_sessions_watch_their_loop_and_hedge_when_it_is_late(
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
        monkeypatch.setattr(LoopLag, "now_secs", lambda *_: 0.3)
        await line.ask()
        report = await line.report()
    assert report.outcome == "answered"
    assert [attempt.provider for attempt in report.attempts] == ["a", "b"]


def test_samples_expire_later_on_a_late_loop() -> None:
    lag = LoopLag()
    for _ in range(SAMPLES):
        lag.sample(0.3, 0.0)
    fresh_secs = FRESH_SECS + 2 * 0.3
    assert lag.mean_secs(fresh_secs) == lag.now_secs(fresh_secs) == pytest.approx(0.3)
    assert (lag.mean_secs(fresh_secs + 0.1), lag.now_secs(fresh_secs + 0.1)) == (None, 0.0)
    lag.sample(0.3, 60.0)
    assert lag.mean_secs(60.0) == pytest.approx(0.3 / SAMPLES)


def read_late(lags: Callable[[random.Random], float], turns: int = 600) -> ProviderLatency:
    """What is learned of answers that the loop reads late.

    Args:
        lags: Returns by how many seconds the loop is behind when it reads an answer.
        turns: How many answers there are; 95 % come after 0.3 to 0.5 s, the others after 3 to 5.
    """
    rng = random.Random(1)
    latency = ProviderLatency(prior_for("openai", "gpt-4.1"))
    for _ in range(turns):
        secs = rng.uniform(0.3, 0.5) if rng.random() < 0.95 else rng.uniform(3.0, 5.0)
        attempt = Attempt(0, Slot("a"), "primary", 0.0)
        latency.slow_period.sent(attempt, latency.late_secs(None))
        attempt.lag_secs, attempt.outcome = lags(rng), "won"
        read_at = secs + rng.uniform(0.0, attempt.lag_secs)
        attempt.first_token_at = attempt.ended_at = read_at
        latency.learn(attempt, read_at, read_at, None, with_sentence=False, is_silence=False)
    return latency


@pytest.mark.parametrize(
    "lags",
    [
        pytest.param(lambda rng: 0.3, id="always behind"),
        pytest.param(lambda rng: rng.choice([0.0, 0.3]), id="half of the time"),
        pytest.param(lambda rng: rng.choice([0.0, 0.05, 0.11, 0.4]), id="in steps"),
        pytest.param(lambda rng: 3.0 * (rng.random() < 0.3), id="blocked for long"),
    ],
)
def test_what_a_late_loop_reads_is_learned(lags: Callable[[random.Random], float]) -> None:
    """The answers' times come out as on a loop in time, and not as those of the slowest."""
    late, in_time = read_late(lags), read_late(lambda _: 0.0)
    curve, exact = (each.estimate(None, by_sentence=False).first_token for each in (late, in_time))
    assert curve.quantile(0.5) == pytest.approx(exact.quantile(0.5), rel=0.25)
    assert 0.01 <= float(curve.share_after(1.0)) <= float(exact.share_after(1.0)) + 0.02
    assert not late.slow_period.is_on


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
