"""Where a caller's requests go if providers reject, state ``Retry-After`` or are half-open."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from pipecat_hedge.providers.concurrency_limit import SHED_BOUNDS
from pipecat_hedge.providers.loop_lag import LoopWatch
from pipecat_hedge.service.provider_stats import shared_stats
from pipecat_hedge.testing import Say, Step, Wait
from tests.no_harm.virtual import (
    down,
    hedged,
    now,
    opened,
    provided,
    rejects,
    rests,
    well,
)
from tests.service.builders import said
from tests.support.line import Line
from tests.support.standing import standing

pytestmark = pytest.mark.virtual_time

RECOVERED_SECS = 70.0


async def asked(line: Line) -> tuple[str, float]:
    """What is answered, and after how long."""
    await line.ask()
    report = await line.report()
    return line.text, round(report.ttft_secs or math.inf, 2)


@pytest.mark.parametrize("secs", [1.0, 20.0])
@pytest.mark.parametrize("fails_after_secs", [0.01, 0.3, 1.5])
async def test_provider_with_retry_after_is_asked_when_the_others_have_failed(
    fails_after_secs: float, secs: float
) -> None:
    """Also if one of them has an open breaker."""
    async with Line(hedged(well("a"), down(fails_after_secs))) as line:
        opened("b")
        rests("a", secs)
        text, wait_secs = await asked(line)
    assert text == "From a."
    assert wait_secs <= fails_after_secs + 0.2


async def test_provider_that_rejects_for_load_is_asked_if_no_other_is_left() -> None:
    """A bare service would ask it, too."""
    llm = hedged(down(), well("b"))
    async with Line(llm) as line:
        rejects("b")
        assert await asked(line) == ("From b.", 0.3)
        began = now()
        assert await llm.run_inference(said()) == "In short."
        assert now() - began == pytest.approx(0.3)


@pytest.mark.parametrize("later_secs", [0.0, RECOVERED_SECS], ids=["open", "half-open"])
async def test_rejecting_provider_comes_after_one_that_may_answer(
    later_secs: float,
) -> None:
    async with Line(hedged(well("a"), well("b"))) as line:
        opened("b")
        await asyncio.sleep(later_secs)
        rejects("a")
        assert await asked(line) == ("From b.", 0.2)


@pytest.mark.parametrize("is_behind", [False, True])
async def test_replacement_and_inference_avoid_a_rejecting_provider(
    monkeypatch: pytest.MonkeyPatch, is_behind: bool
) -> None:
    """Also while the event loop is behind, which stops hedges only."""
    if is_behind:
        monkeypatch.setattr(LoopWatch, "why_behind", lambda self: "the event loop is 9.00 s behind")
    llm = hedged(down(), well("b"), well("c"))
    async with Line(llm) as line:
        rejects("b")
        if not is_behind:
            opened("c")
        assert await asked(line) == ("From c.", 0.3)
        began = now()
        assert await llm.run_inference(said()) == "In short."
        assert now() - began == pytest.approx(0.3)


@pytest.mark.parametrize("admission", ["open", "shed"])
async def test_replacement_goes_to_a_provider_with_room(admission: str) -> None:
    """Not to a provider whose headers say that its rate limit is used up."""
    async with Line(hedged(down(), well("b"), well("c"), admission=admission)) as line:
        shared_stats().set_used_up("b | scripted", until=now() + 60)
        assert await asked(line) == ("From c.", 0.3)


async def test_slow_inferences_do_not_lower_the_limit() -> None:
    """An inference of six seconds is no evidence of a provider's capacity."""
    health = shared_stats()
    for bounds in ({}, {"admission": "shed"}):
        sessions = [hedged(provided(sums_up_secs=6.0), **bounds) for _ in range(40)]
        if bounds:
            health.record("a | scripted").limit.acquire("one", now(), bounds=SHED_BOUNDS)
        before = standing(health, "a | scripted", now()).limit
        for part in (sessions[:2], sessions[2:4], sessions[4:6]) if bounds else (sessions,):
            await asyncio.gather(*(llm.run_inference(said()) for llm in part))
        assert standing(health, "a | scripted", now()).limit >= before


async def test_event_loop_lag_does_not_mark_a_provider_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Six answers are read three seconds after they came; the order stays as it is."""
    lag = 0.0
    monkeypatch.setattr(LoopWatch, "lag_now", lambda self: lag)
    calm: Sequence[Step] = [Wait(0.5), Say("Yes, do come. ")]
    async with Line(hedged(provided(*calm), well("b", 0.5))) as line:
        for _ in range(30):
            await line.ask()
            await asyncio.sleep(1.0)
    late: Sequence[Step] = [Wait(3.5), Say("Yes, do come. "), Wait(2.0), Say("Bye.")]
    async with AsyncExitStack() as stack:
        lines = [
            await stack.enter_async_context(Line(hedged(provided(*late), well("b", 3.5))))
            for _ in range(6)
        ]
        lag = 3.0
        turns = [asyncio.create_task(each.ask()) for each in lines]
        await asyncio.sleep(3.6)
        lag = 0.0
        async with Line(hedged(provided(*calm), well("b", 0.5))) as line:
            await line.ask()
            report = await line.report()
        await asyncio.gather(*turns)
    assert report.routing_reason is None
    assert [attempt.provider for attempt in report.attempts] == ["a"]
    assert shared_stats().slow() == set()
