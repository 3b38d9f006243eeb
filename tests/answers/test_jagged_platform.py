"""The platform of the "jagged edges" report, in virtual time."""

import argparse
import asyncio

import numpy as np
import pytest
from scripts.jagged_platform import FLOOR, LINE, REPORTED_MS, measured

from pipecat_hedge.providers import LatencyProfile
from pipecat_hedge.testing import AutojumpLoop

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("profile", [LINE, FLOOR], ids=["line", "floor"])
def test_p95_and_p99_are_those_of_the_report(profile: LatencyProfile) -> None:
    """Whatever is assumed below the p50; the new p50 depends on that."""
    load = argparse.Namespace(callers=20, turns=150, capacity=12, seed=1, pause=3.0)
    budget, known = 0.25, 0.4
    with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
        waits, extra = runner.run(measured(budget, known, load, profile))
    for share, goal in zip((0.95, 0.99), REPORTED_MS[1:], strict=True):
        assert 1_000 * np.quantile(waits, share) <= goal
    assert bool(np.median(waits) >= 0.12) is (profile is FLOOR)
    assert extra <= 1.1 * budget * (1 - known)
