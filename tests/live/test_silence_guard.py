"""Silence on real sockets: what Pipecat's services pass on of a stream before its first token.

The second provider answers after 0.3 s. In virtual time: ``tests/service/test_silence.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pipecat_hedge import HedgePolicy, ProviderStats, TurnReport
from tests.live.scripted_provider import Reply, ScriptedProvider, scripted_providers
from tests.service.builders import racing
from tests.support.line import Line
from tests.support.simulated import close

pytestmark = [pytest.mark.live, pytest.mark.realtime]

SLACK_SECS = 2.0


async def held(wire: str, first: Reply, policy: HedgePolicy, turns: int) -> list[TurnReport]:
    """The reports of a call whose first provider always replies so."""
    a = ScriptedProvider("a", wire, first)
    b = ScriptedProvider("b", wire, Reply(first_secs=0.3))
    async with scripted_providers(a, b):
        services = [a.service(), b.service()]
        async with Line(racing(*services, policy=policy, stats=ProviderStats())) as line:
            for turn in range(turns):
                await asyncio.sleep(1.5 if turn else 0.0)
                await line.ask()
        await close(*services)
    return sorted(line.reports, key=lambda report: report.turn)


async def of_both_wires(
    first: Reply, policy: HedgePolicy, mosts: Sequence[float]
) -> list[list[str]]:
    """The providers that each turn asked, by wire; each turn has waited for so long at most."""
    calls = await asyncio.gather(
        *(held(wire, first, policy, len(mosts)) for wire in ("openai", "anthropic"))
    )
    for reports in calls:
        for report, most_secs in zip(reports, mosts, strict=True):
            assert report.ttft_secs is not None
            assert report.ttft_secs <= most_secs + SLACK_SECS
    return [["".join(a.provider for a in r.attempts) + (r.winner or "-") for r in c] for c in calls]


async def test_model_that_thinks_is_heard_once_its_time_is_known() -> None:
    """One that was cut still thinks when the next turn begins, and is not asked beside that."""
    policy = HedgePolicy.adaptive(order="given")
    for asked in await of_both_wires(Reply(first_secs=4.0, thinks=True), policy, [3.0] * 4):
        assert [providers[0] for providers in asked[2:]] == ["a", "a"]
        assert any(providers[-1] == "a" for providers in asked[2:])
