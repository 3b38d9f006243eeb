"""A race on a blocked event loop: the loop's delay is not a provider's silence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, TurnReport
from pipecat_hedge.service.admission import Admission
from pipecat_hedge.testing import AutojumpLoop, Say, ScriptedLLMService, Step, Wait
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

HEDGE_SECS = 0.4
NEVER = float("inf")
READING = [Wait(0)] * 10
"""What an answer takes from the socket to the race: some rounds of the loop, and no time."""


async def held_up(*script: Step, secs: float) -> TurnReport:
    """A turn whose loop is blocked for ``secs`` from 0.2 s on; the hedge is due at 0.4 s."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpLoop)
    providers = [
        Provider("a", ScriptedLLMService(script)),
        Provider("b", ScriptedLLMService([Wait(0.1), Say("Good evening.")])),
    ]
    llm = HedgedLLMService(providers, policy=HedgePolicy.after(HEDGE_SECS))
    async with Line(llm) as line:
        loop.call_later(0.2, loop._jump, secs)
        await line.ask()
        return await line.report()


@pytest.mark.parametrize("secs", [0.3, 0.6, 3.0])
async def test_unread_answer_prevents_a_hedge(secs: float) -> None:
    report = await held_up(Wait(0.3), *READING, Say("Hello."), secs=secs)
    assert [attempt.provider for attempt in report.attempts] == ["a"]


@pytest.mark.parametrize(("secs", "hedged_at"), [(0.1, 0.4), (0.21, 0.41), (0.3, 0.6), (3.0, 3.7)])
async def test_silent_provider_is_hedged_after_the_delay(secs: float, hedged_at: float) -> None:
    report = await held_up(Wait(NEVER), secs=secs)
    assert report.winner == "b"
    assert report.attempts[1].launched_secs == pytest.approx(hedged_at)


async def test_each_timer_is_rechecked_once() -> None:
    report = await held_up(*(step for _ in range(99) for step in (Wait(0.01), Say(" "))), secs=0.3)
    assert report.attempts[1].launched_secs == pytest.approx(0.6)


@pytest.mark.parametrize(("secs", "looks"), [(0.3, 1), (1.0, 2)])
async def test_hedge_eligibility_is_read_once_per_launch(
    secs: float, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    refusals = Admission.refusals

    def look(*args: Any) -> dict[str, str]:
        looked.append("a look")
        return refusals(*args)

    monkeypatch.setattr(Admission, "refusals", look)
    report = await held_up(Wait(secs), Say("Hello."), secs=0.0)
    assert len(looked) == len(report.attempts) == looks


class CancelsItself(ScriptedLLMService):
    """Its client cancels the request from inside, as a broken cancel scope does."""

    async def _play(self, script: Any, context: Any) -> None:
        raise asyncio.CancelledError


@pytest.mark.parametrize(("others", "outcome"), [("b", "answered"), ("", "failed")])
async def test_client_that_cancels_itself_fails_its_attempt(others: str, outcome: str) -> None:
    providers = [Provider("a", CancelsItself([Say("?")]))]
    providers += [Provider(name, ScriptedLLMService([Say("Good evening.")])) for name in others]
    async with Line(HedgedLLMService(providers, policy=HedgePolicy.fallback())) as line:
        await line.ask()
        report = await line.report()
        assert (report.outcome, report.attempts[0].outcome) == (outcome, "failed")
        assert len(line.errors) == (outcome == "failed")
