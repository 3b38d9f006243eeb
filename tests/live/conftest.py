"""The simulated providers of these tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pipecat_hedge.tools.simulator import Simulator


@pytest.fixture
async def sim() -> AsyncIterator[Simulator]:
    async with Simulator(seed=1) as simulator:
        yield simulator
