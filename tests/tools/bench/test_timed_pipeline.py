"""The pipeline that benchmarks and drills time."""

from __future__ import annotations

import math

import pytest

from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from pipecat_hedge.tools.bench.timed_pipeline import TimedPipeline

pytestmark = pytest.mark.virtual_time


async def test_a_turn_is_told_whole():
    """All of its text, and that it came to its end."""
    line = TimedPipeline(ScriptedLLMService([Say("We are"), Wait(0.1), Say(" open.")]))
    await line.start()
    turn = await line.turn()
    await line.stop()
    assert (turn.text, turn.is_over) == ("We are open.", True)
    assert turn.ttft_secs < math.inf


async def test_a_turn_is_given_up():
    """One that does not end in time is interrupted, and the next one begins anew."""
    llm = ScriptedLLMService([Say("We"), Wait(math.inf)], [Say("Yes.")])
    line = TimedPipeline(llm)
    await line.start()
    turn = await line.turn(give_up_secs=5.0)
    assert (turn.text, turn.is_over) == ("We", False)
    assert llm.open_requests == 1
    await line.interrupt()
    assert (llm.open_requests, llm.closed_by_cancel) == (0, 1)
    turn = await line.turn(give_up_secs=5.0)
    await line.stop()
    assert (turn.text, turn.is_over) == ("Yes.", True)
