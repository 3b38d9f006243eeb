"""Tool calls that are long, or hang."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from pipecat.services.llm_service import LLMService

from pipecat_hedge import HedgePolicy
from pipecat_hedge.tools.simulator import Simulator
from tests.service.builders import Tool, racing
from tests.support.simulated import close, simulated

pytestmark = pytest.mark.live

STALL_SECS = 0.4
WHOLE = {"party": "two", "note": "by the window " * 10}
each_wire = pytest.mark.parametrize("wire", ["openai", "anthropic"])


def calling(wire: str, sim: Simulator, arguments: dict[str, str], **keys: Any) -> LLMService[Any]:
    """A service that calls ``book``, with a delta for each word of its arguments."""
    keys = {"ttft": 0.02, "tps": 40, "tool": "book", "args": quote(json.dumps(arguments)), **keys}
    return simulated(
        wire, sim, "fixed?" + "&".join(f"{key}={value}" for key, value in keys.items())
    )


@each_wire
@pytest.mark.parametrize("make", [HedgePolicy.fallback, HedgePolicy.adaptive])
async def test_long_tool_call_is_no_silence(
    wire: str, make: Callable[..., HedgePolicy], sim: Simulator
) -> None:
    members = calling(wire, sim, WHOLE), simulated(wire, sim, "fixed@ttft=0.02")
    llm = racing(*members, policy=make(stall_secs=STALL_SECS, commit="first_token"))
    line = await (tool := Tool()).asked(llm, tool.offered())
    await close(*members)
    assert [dict(call.arguments) for call in tool.calls] == [WHOLE]
    assert [len(report.attempts) for report in line.reports] == [1]
    (request,) = sim.ledger.requests
    assert (request.ended_secs or 0) - request.started_secs > 1.5 * STALL_SECS


@each_wire
async def test_provider_that_hangs_in_a_call_is_detected(wire: str, sim: Simulator) -> None:
    members = calling(wire, sim, WHOLE, fault="stall"), calling(wire, sim, WHOLE, tps=900)
    llm = racing(*members, policy=HedgePolicy.fallback(stall_secs=STALL_SECS))
    line = await (tool := Tool()).asked(llm, tool.offered())
    await close(*members)
    assert [dict(call.arguments) for call in tool.calls] == [WHOLE]
    hung, won = line.reports[0].attempts
    assert (hung.outcome, won.outcome, won.launch_reason) == ("superseded", "won", "silence")
