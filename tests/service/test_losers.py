"""A losing request is closed, or runs on as a latency probe."""

from __future__ import annotations

import asyncio

import pytest
from pipecat.frames.frames import LLMThoughtTextFrame

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.limits import LATENCY_PROBE_INTERVAL
from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

TURNS = 60
REASONS = [LLMThoughtTextFrame("Let me think about this. "), Wait(0.5)] * 4


def racing() -> HedgedLLMService:
    """The second provider reasons for two seconds and always loses."""
    quick = ScriptedLLMService([Wait(0.1), Say("Hello there.")])
    slow = ScriptedLLMService([*REASONS, Say("Good evening.")])
    providers = [Provider("a", quick), Provider("b", slow, usd_per_mtok=(1.0, 2.0))]
    return HedgedLLMService(providers, policy=HedgePolicy.race(2))


async def test_probe_is_reported_with_its_latency() -> None:
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


async def test_call_end_reports_a_running_probe() -> None:
    async with Line(racing()) as line:
        for _ in range(4):
            await line.ask()
        assert len(line.reports) < 4, "no loser was let run on"
    assert sorted(report.turn for report in line.reports) == [1, 2, 3, 4]


async def test_interruption_ends_a_probe() -> None:
    async with Line(racing()) as line:
        for _ in range(4):
            await line.ask()
        await line.interrupt()
        await asyncio.sleep(0.1)
        assert len(line.reports) == 4
