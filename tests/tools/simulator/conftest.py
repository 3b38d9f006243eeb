"""The SDKs that talk to a running simulator."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pipecat_hedge.tools.simulator import Simulator

from .sdk import SDKS, Sdk


@pytest.fixture(params=list(SDKS))
async def sdk(request: pytest.FixtureRequest, sim: Simulator) -> AsyncIterator[Sdk]:
    client = SDKS[request.param](sim)
    yield client
    await client.close()
