"""A losing request is closed, or runs on as a latency probe."""

from __future__ import annotations

import asyncio

import pytest
from pipecat.frames.frames import LLMThoughtTextFrame

from pipecat_hedge import HedgedLLMService, Provider
from pipecat_hedge.limits import LATENCY_PROBE_INTERVAL
from pipecat_hedge.testing import Say, Wait
from tests.service.builders import asked, racing, scripted
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

TURNS = 60
REASONS = [LLMThoughtTextFrame("Let me think about this. "), Wait(0.5)] * 4


def reasoning() -> HedgedLLMService:
    """The second provider reasons for two seconds and always loses."""
    slow = Provider("b", scripted(*REASONS, Say("Good evening.")), usd_per_mtok=(1.0, 2.0))
    return racing(scripted(Wait(0.1), Say("Hello there.")), slow)


async def test_probe_is_reported_with_its_latency() -> None:
    reports = (await asked(reasoning(), TURNS, pause_secs=3.0)).reports
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


@pytest.mark.parametrize("is_interrupted", [False, True])
async def test_end_of_the_call_ends_and_reports_a_probe(is_interrupted: bool) -> None:
    """So does an interruption."""
    async with Line(reasoning()) as line:
        for _ in range(4):
            await line.ask()
        assert len(line.reports) < 4, "no loser was let run on"
        if is_interrupted:
            await line.interrupt()
            await asyncio.sleep(0.1)
            assert len(line.reports) == 4
    assert sorted(report.turn for report in line.reports) == [1, 2, 3, 4]
