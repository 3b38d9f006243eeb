"""Sessions in virtual time, and providers in the state that a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.providers import Terms
from pipecat_hedge.service.provider_stats import shared_stats
from pipecat_hedge.testing import Error, Say, ScriptedLLMService, Step, Wait
from tests.service.builders import racing
from tests.support.standing import standing

SORRY = "One moment, please."


class Scripts(ScriptedLLMService):
    """Plays what a function says, whenever it is asked; sums up in a time, or fails to."""

    def __init__(
        self, script: Callable[[], Sequence[Step]], sums_up_secs: float | None, **options: Any
    ):
        super().__init__([], **options)
        self._script, self._sums_up_secs = script, sums_up_secs

    async def _play(self, script: Sequence[Step], context: LLMContext) -> None:
        await super()._play(self._script(), context)

    async def run_inference(self, context: LLMContext, *args: Any, **kwargs: Any) -> str:
        await asyncio.sleep(self._sums_up_secs or 0.1)
        if self._sums_up_secs is None:
            raise RuntimeError("down")
        return "In short."


def provided(*script: Step, sums_up_secs: float | None = 0.2) -> Scripts:
    return Scripts(lambda: script, sums_up_secs)


def well(name: str, secs: float = 0.2) -> Scripts:
    return provided(Wait(secs), Say(f"From {name}."))


def down(secs: float = 0.1) -> Scripts:
    return provided(Wait(secs), Error(), sums_up_secs=None)


def hedged(*services: Scripts | Provider, **options: Any) -> HedgedLLMService:
    """A new session of providers a, b and so on."""
    options = {"policy": HedgePolicy.adaptive(fallback_text=SORRY), **options}
    return racing(*services, **options)


def now() -> float:
    return asyncio.get_running_loop().time()


def request(
    name: str, verdict: Literal["busy", "failed"] | None = None, before_secs: float = 0.0
) -> None:
    """Send a request to a provider; it has ended if there is a verdict."""
    health, at = shared_stats(), now() - before_secs
    permit = health.issue(f"{name} | scripted", "primary", Terms(), at)
    if verdict is not None:
        health.release(permit, verdict, at)


def rejects(name: str) -> None:
    """A provider that has eighty requests in flight, and has just rejected one."""
    for _ in range(79):
        request(name)
    request(name, "busy")


def opened(name: str, before_secs: float = 0.0) -> None:
    """A provider whose breaker has opened, some seconds before."""
    for _ in range(5):
        request(name, "failed", before_secs)
    assert standing(shared_stats(), f"{name} | scripted", now()).breaker != "closed"


def rests(name: str, secs: float) -> None:
    """A provider that has asked to be left alone for so long."""
    shared_stats().set_retry_after(f"{name} | scripted", now() + secs)


def uses_up(name: str) -> None:
    """A provider whose rate limit is used up."""
    shared_stats().set_used_up(f"{name} | scripted", until=float("inf"))


def unwell(name: str) -> None:
    """Open a provider's breaker, have its queue be too long and its rate limit be used up."""
    opened(name)
    uses_up(name)
    shared_stats().record(f"{name} | scripted").limit.set_queue(0, until=float("inf"))
