"""The platform of the "jagged edges" report, in virtual time."""

import argparse
import asyncio

import numpy as np
import pytest
from scripts.jagged_platform import GOAL_MS, measured

from pipecat_hedge.testing import AutojumpLoop

pytestmark = pytest.mark.slow


def test_hedging_and_known_answers_reach_what_the_report_reached() -> None:
    load = argparse.Namespace(callers=20, turns=250, capacity=12, seed=1, pause=3.0)
    with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
        waits, extra = runner.run(measured(0.25, 0.4, load))
    for share, goal in zip((0.5, 0.95, 0.99), GOAL_MS, strict=True):
        assert 1_000 * np.quantile(waits, share) <= goal
    assert extra <= 0.25
