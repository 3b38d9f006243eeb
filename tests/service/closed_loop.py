"""Closes event loops under running turns and prints what the process still counts, as JSON.

A program of its own: tasks that never end leave their traces when they are garbage.
"""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

from pipecat.frames.frames import LLMContextFrame

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.providers import CircuitBreakerSettings
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.testing import Error, Say, ScriptedLLMService, Wait
from tests.service.builders import NEVER, said
from tests.support.line import Line

kept: list[Any] = []


def closed_in_mid_turn(services: list[HedgedLLMService], secs: float, turns: int = 1) -> None:
    """Run services, send each some turns, and close their loop while the last one runs."""

    async def ask() -> None:
        lines = [await Line(service).__aenter__() for service in services]
        for _ in range(turns):
            for line in lines:
                await line.send(LLMContextFrame(said("Hello?")))
                await asyncio.sleep(secs)
        kept.extend(lines)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(ask())
    loop.close()


def counted(stats: ProviderStats, service: HedgedLLMService) -> dict[str, Any]:
    states = service.provider_states()
    return {
        "in flight": [state.in_flight for state in states],
        "sessions": stats.sessions,
    }


def racing(stats: ProviderStats, *, losers: str = "cancel", quick: bool = False) -> Any:
    first = ScriptedLLMService([Say("Yes.")] if quick else [Wait(NEVER)])
    policy = HedgePolicy.race(2, losers=losers, drain_share=1.0)  # type: ignore[arg-type]
    return HedgedLLMService([first, ScriptedLLMService([Wait(NEVER)])], policy=policy, stats=stats)


def mid_turn() -> dict[str, Any]:
    stats = ProviderStats()
    service = racing(stats)
    closed_in_mid_turn([service], 0.05)
    return {**counted(stats, service), "is running": service.is_running}


def drained_loser() -> dict[str, Any]:
    stats = ProviderStats()
    service = racing(stats, losers="drain", quick=True)
    closed_in_mid_turn([service], 0.05)
    return counted(stats, service)


def garbage() -> dict[str, Any]:
    stats = ProviderStats()
    closed_in_mid_turn([racing(stats)], 0.05)
    kept.clear()
    gc.collect()
    return counted(stats, racing(stats))


def room() -> dict[str, Any]:
    """A caller who has the only room when the loop is closed, and one who comes after it."""
    stats = ProviderStats()

    def service() -> HedgedLLMService:
        member = Provider("a", ScriptedLLMService([Wait(0.2), Say("Yes.")]))
        return HedgedLLMService([member], stats=stats, admission="shed", max_in_flight=1)

    first = service()
    closed_in_mid_turn([first], 0.02)

    async def ask() -> str:
        async with Line(service()) as line:
            await line.ask()
            return line.text

    return {"then": asyncio.run(ask()), **counted(stats, first)}


def half_open() -> dict[str, Any]:
    """A turn that tries a half-open provider."""
    stats, settings = ProviderStats(), CircuitBreakerSettings(failures=1, recovery_secs=0.05)
    broken = ScriptedLLMService([Error()], [Wait(NEVER)])
    service = HedgedLLMService(
        [Provider("a", broken, breaker=settings), ScriptedLLMService([Say("Yes.")], [Wait(NEVER)])],
        policy=HedgePolicy.after(10.0),
        stats=stats,
    )
    closed_in_mid_turn([service], 0.2, turns=2)
    key = next(key for key in stats.records() if key.startswith("a"))
    states = counted(stats, service)
    now = asyncio.new_event_loop().time()
    return {
        **states,
        "asked": len(broken.contexts),
        "may recover": stats.claim_recovery(key, now),
    }


if __name__ == "__main__":
    scenarios = (mid_turn, drained_loser, garbage, room, half_open)
    print(json.dumps({each.__name__: each() for each in scenarios}))
