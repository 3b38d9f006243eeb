"""How errors and rate limits of real SDKs are read, over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from pipecat_hedge import HedgePolicy
from pipecat_hedge.service.provider_client import attempt_error
from pipecat_hedge.tools.simulator import Simulator
from tests.support.line import Line
from tests.support.simulated import WIRES, anthropic, close, line_to, simulated

pytestmark = pytest.mark.live

DRAIN = HedgePolicy.race(2, losers="drain")


@pytest.mark.parametrize("wire", WIRES)
async def test_failures_are_classified(wire: str, sim: Simulator) -> None:
    """As load, as a lost connection, and as lasting, for any prompt or for this one."""
    busy, lost, lasting, neither = {"is_busy"}, {"is_connection"}, {"permanent"}, set[str]()
    of_prompt = {"permanent", "is_of_prompt"}
    cases = {
        **dict.fromkeys(["429", "529", "busy_in_band"], busy),
        **dict.fromkeys(["reset", "refused"], lost),
        **dict.fromkeys(["500", "503", "402"], neither),
        # Anthropic's is overloaded_error.
        "error_in_band": busy if wire == "anthropic" else neither,
        **dict.fromkeys(["401", "403", "404"], lasting),
        **dict.fromkeys(["400", "413", "422"], of_prompt),
    }

    async def classified(fault: str) -> set[str]:
        refused = fault == "refused"
        behaviour = "fixed" if refused else f"fixed@fault={fault}"
        service = simulated(wire, sim, behaviour, url=sim.refused_url if refused else None)
        async with Line(service) as line:
            await line.ask()
        await close(service)
        (frame,) = line.errors
        error = attempt_error(frame)
        flags = ("is_busy", "is_connection", "permanent", "is_of_prompt")
        return {flag for flag in flags if getattr(error, flag)}

    found = await asyncio.gather(*map(classified, cases))
    assert dict(zip(cases, found, strict=True)) == cases


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("fault", ["", ",fault=429"], ids=["answer", "rejection"])
async def test_provider_that_reports_no_requests_left_is_not_asked(
    wire: str, fault: str, sim: Simulator
) -> None:
    first = simulated(wire, sim, f"fixed@requests_left=0,reset=30{fault}")
    second = simulated(wire, sim, "fixed@requests_left=7,reset=30")
    async with line_to(first, second, policy=HedgePolicy.fallback()) as line:
        for _ in range(3):
            await line.ask()
        await line.report(3)
    asked = ["".join(a.provider for a in report.attempts) for report in line.reports]
    assert asked == ["ab" if fault else "a", "b", "b"]


async def test_attempts_of_one_client_have_their_own_rate_limits(sim: Simulator) -> None:
    """The client's hook is added once, and another owner's hook stays where it was."""
    seen: list[Any] = []

    async def theirs(response: Any) -> None:
        seen.append(response)

    client = AsyncAnthropic(api_key="any", base_url=sim.anthropic_url)
    client._client.event_hooks["response"].append(theirs)
    members = [
        anthropic(client, f"fixed@ttft=0.2,requests_left={left},reset=30") for left in (0, 7)
    ]
    async with line_to(*members, policy=DRAIN, warm=False) as line:
        await line.ask()
        await sim.wait_idle(1.0)
        await line.ask()
        await line.report(2)
    hooks = client._client.event_hooks["response"]
    assert hooks[0] is theirs
    assert len(hooks) == len(set(hooks))
    assert [len(report.attempts) for report in line.reports] == [2, 1]
    assert line.reports[1].winner == "b"
    assert len(seen) == 3
