"""Where a caller's requests go if providers refuse, rest or are half-open; in virtual time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from pipecat_hedge import HedgePolicy, Provider
from pipecat_hedge.limits.concurrency_limit import SHED_BOUNDS
from pipecat_hedge.limits.loop_lag import LoopWatch
from pipecat_hedge.limits.permits import RECHECK_SECS
from pipecat_hedge.service.provider_stats import shared_stats
from pipecat_hedge.testing import Say, Step, Wait
from tests.no_harm.virtual import (
    SORRY,
    down,
    hedged,
    now,
    opened,
    provided,
    refuses,
    rests,
    well,
)
from tests.service.builders import said
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

RECOVERED_SECS = 70.0


async def asked(line: Line) -> tuple[str, float]:
    """What is answered, and after how long."""
    await line.ask()
    report = await line.report()
    return line.text, round(report.ttft_secs or math.inf, 2)


async def test_who_waits_for_room_has_time_left_for_an_answer() -> None:
    """At most half of the turn's deadline is waited."""
    policy = HedgePolicy.after(0.5, deadline_secs=2.0, fallback_text=SORRY)
    async with Line(hedged(well("a"), policy=policy)) as line:
        refuses("a")
        assert await asked(line) == ("From a.", 1.2)


async def test_so_has_a_rescue() -> None:
    """At most half of the time in which its provider has to answer."""
    second = Provider("b", well("b"), timeout_secs=2.0)
    async with Line(hedged(down(), second)) as line:
        refuses("b")
        assert await asked(line) == ("From b.", 1.3)


@pytest.mark.parametrize("fails_after_secs", [0.01, 0.3, 1.5])
async def test_who_rests_for_a_moment_is_asked_when_that_is_over(fails_after_secs: float) -> None:
    """If the others have failed; also if one of them has an open breaker."""
    async with Line(hedged(well("a"), down(fails_after_secs))) as line:
        opened("b")
        rests("a", 1.0)
        text, secs = await asked(line)
    assert text == "From a."
    assert secs <= max(1.0, fails_after_secs) + 0.2 + RECHECK_SECS


async def test_who_rests_for_longer_is_not() -> None:
    async with Line(hedged(well("a"), down())) as line:
        rests("a", 20.0)
        assert (await asked(line))[0] == SORRY


@pytest.mark.parametrize("later_secs", [0.0, RECOVERED_SECS], ids=["open", "half-open"])
async def test_nobody_waits_for_a_refusing_provider_if_another_may_answer(
    later_secs: float,
) -> None:
    async with Line(hedged(well("a"), well("b"))) as line:
        opened("b")
        await asyncio.sleep(later_secs)
        refuses("a")
        assert await asked(line) == ("From b.", 0.2)


@pytest.mark.parametrize("is_behind", [False, True])
async def test_nor_does_a_rescue_or_an_inference(
    monkeypatch: pytest.MonkeyPatch, is_behind: bool
) -> None:
    """Though the event loop is behind, which stops hedges only."""
    if is_behind:
        monkeypatch.setattr(LoopWatch, "refusal", lambda self: "the event loop is 9.00 s behind")
    llm = hedged(down(), well("b"), well("c"))
    async with Line(llm) as line:
        refuses("b")
        if not is_behind:
            opened("c")
        assert await asked(line) == ("From c.", 0.3)
        began = now()
        assert await llm.run_inference(said()) == "In short."
        assert now() - began == pytest.approx(0.3)


@pytest.mark.parametrize("admission", ["open", "shed"])
async def test_a_rescue_goes_where_there_is_room(admission: str) -> None:
    """And not to a provider whose rate limit is used up, by its own word."""
    async with Line(hedged(down(), well("b"), well("c"), admission=admission)) as line:
        shared_stats().health.set_used_up("b | scripted", until=now() + 60)
        assert await asked(line) == ("From c.", 0.3)


async def test_a_replaced_inference_has_time_left_for_its_answer() -> None:
    """Half of its provider's time at most is waited for room."""
    llm = hedged(down(), Provider("b", well("b"), timeout_secs=10.0))
    async with Line(llm):
        refuses("b")
        for _ in range(320):  # so that it goes on to refuse
            shared_stats().health.entry("b | scripted").limit.acquire(object(), now())
        began = now()
        assert await llm.run_inference(said()) == "In short."
        assert now() - began == pytest.approx(5.3, abs=0.2)


async def test_a_half_open_provider_that_refuses_is_asked_in_the_end() -> None:
    """As nobody else is left."""
    async with Line(hedged(down(), well("b"))) as line:
        opened("b")
        await asyncio.sleep(RECOVERED_SECS)
        refuses("b")
        text, secs = await asked(line)
        assert text == "From b."
        assert secs < 3.5


async def test_a_caller_who_hangs_up_while_there_is_no_room_has_interrupted() -> None:
    async with Line(hedged(well("a"))) as line:
        refuses("a")
        turn = asyncio.create_task(line.ask())
        await asyncio.sleep(0.5)
        await line.interrupt()
        await turn
        report = await line.report()
    assert (report.outcome, report.attempts) == ("interrupted", ())


async def test_who_waits_for_a_limit_of_its_own_is_in_nobodys_way() -> None:
    """A session that sheds waits; one beside it that does not is answered at once."""
    sheds = hedged(well("a"), admission="shed", max_in_flight=1, tier="premium")
    others = [Line(hedged(well("a"), tier="economy")) for _ in range(3)]
    async with Line(hedged(provided(Wait(20.0), Say("At last.")))) as slow, Line(sheds) as one:
        held = asyncio.create_task(slow.ask())
        await asyncio.sleep(0.1)
        waiting = asyncio.create_task(one.ask())
        await asyncio.sleep(0.1)
        for line in others:
            async with line:
                assert await asked(line) == ("From a.", 0.2)
        await asyncio.gather(held, waiting)
    assert one.text == SORRY


async def test_summaries_are_not_late_first_tokens() -> None:
    """An inference of six seconds says nothing of how many requests a provider bears."""
    health = shared_stats().health
    for bounds in ({}, {"admission": "shed"}):
        sessions = [hedged(provided(sums_up_secs=6.0), **bounds) for _ in range(40)]
        if bounds:
            health.entry("a | scripted").limit.acquire("one", now(), bounds=SHED_BOUNDS)
        before = health.occupancy("a | scripted", now())[1]
        for part in (sessions[:3], sessions[3:6]) if bounds else (sessions,):
            await asyncio.gather(*(llm.run_inference(said()) for llm in part))
        assert health.occupancy("a | scripted", now())[1] >= before


async def test_a_stall_of_our_own_loop_turns_no_provider_slow(
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
