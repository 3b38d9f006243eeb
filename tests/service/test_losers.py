"""What becomes of a request that has lost: it is closed, or it is the one that is let run on."""

from __future__ import annotations

import asyncio

import pytest
from pipecat.frames.frames import LLMThoughtTextFrame

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.limits.admission_controller import LATENCY_PROBE_INTERVAL
from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

TURNS = 60
REASONS = [LLMThoughtTextFrame("Let me think about this. "), Wait(0.5)] * 4


def racing() -> HedgedLLMService:
    """The second provider reasons for two seconds, and loses every time."""
    quick = ScriptedLLMService([Wait(0.1), Say("Hello there.")])
    slow = ScriptedLLMService([*REASONS, Say("Good evening.")])
    providers = [Provider("a", quick), Provider("b", slow, usd_per_mtok=(1.0, 2.0))]
    return HedgedLLMService(providers, policy=HedgePolicy.race(2))


async def test_a_loser_that_runs_on_is_reported_with_what_it_took() -> None:
    """Those are few; every other one is closed when it has lost."""
    async with Line(racing()) as line:
        for _ in range(TURNS):
            await line.ask()
            await asyncio.sleep(3.0)
        reports = line.reports
    assert sorted(report.turn for report in reports) == [*range(1, TURNS + 1)]
    losers = [report.attempts[1] for report in reports]
    assert all(loser.outcome == "superseded" for loser in losers)
    let_run = [loser for loser in losers if loser.ended_secs > 0.15]
    assert 1 <= len(let_run) <= 1 + 2 * TURNS // LATENCY_PROBE_INTERVAL
    for loser in let_run:
        assert loser.ttft_secs is not None
        assert 2.0 <= loser.ttft_secs <= loser.ended_secs <= 2.1
        assert loser.input_tokens is not None
        assert loser.output_tokens is not None
        assert loser.output_tokens >= 4 * 6
        assert loser.usd == (loser.input_tokens + 2 * loser.output_tokens) / 1e6


async def test_the_call_ends_while_a_loser_runs_on() -> None:
    """Every turn is reported, with what the loser took until then."""
    async with Line(racing()) as line:
        for _ in range(4):
            await line.ask()
        assert len(line.reports) < 4, "no loser was let run on"
    assert sorted(report.turn for report in line.reports) == [1, 2, 3, 4]


async def test_an_interruption_ends_a_loser_that_runs_on() -> None:
    """Its turn is reported then."""
    async with Line(racing()) as line:
        for _ in range(4):
            await line.ask()
        await line.interrupt()
        await asyncio.sleep(0.1)
        assert len(line.reports) == 4
