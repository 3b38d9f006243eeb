"""The pipeline that benchmarks and drills time."""

from __future__ import annotations

import math

import pytest

from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from pipecat_hedge.tools.bench.timed_pipeline import TimedPipeline

pytestmark = pytest.mark.virtual_time


async def test_an_interrupted_turn_leaves_nothing_for_the_next():
    llm = ScriptedLLMService([Say("We"), Wait(math.inf)], [Say("We are"), Wait(0.1), Say(" open.")])
    pipeline = TimedPipeline(llm)
    await pipeline.start()
    turn = await pipeline.turn(give_up_secs=5.0)
    assert (turn.text, turn.is_over, llm.open_requests) == ("We", False, 1)
    await pipeline.interrupt()
    assert (llm.open_requests, llm.closed_by_cancel) == (0, 1)
    turn = await pipeline.turn(give_up_secs=5.0)
    await pipeline.stop()
    assert (turn.text, turn.is_over) == ("We are open.", True)
    assert turn.ttft_secs < math.inf
