"""A race on a blocked event loop: the loop's delay is not a provider's silence."""

from __future__ import annotations

import asyncio

import pytest

from pipecat_hedge import HedgePolicy, TurnReport
from pipecat_hedge.testing import AutojumpLoop, Say, Step, Wait
from tests.service.builders import NEVER, Raising, asked, racing, scripted
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

READING = [Wait(0)] * 10
"""What an answer takes from the socket to the race: some rounds of the loop, and no time."""


async def held_up(*script: Step, secs: float) -> TurnReport:
    """A turn whose loop is blocked for ``secs`` from 0.2 s on; the hedge is due at 0.4 s."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpLoop)
    second = scripted(Wait(0.1), Say("Good evening."))
    async with Line(racing(scripted(*script), second, policy=HedgePolicy.after(0.4))) as line:
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


@pytest.mark.parametrize(("others", "outcome"), [("b", "answered"), ("", "failed")])
async def test_client_that_cancels_itself_fails_its_attempt(others: str, outcome: str) -> None:
    """From inside, as a broken cancel scope does."""
    second = [scripted(Say("Good evening.")) for _ in others]
    llm = racing(Raising(asyncio.CancelledError()), *second, policy=HedgePolicy.fallback())
    line = await asked(llm)
    report = line.reports[0]
    assert (report.outcome, report.attempts[0].outcome) == (outcome, "failed")
    assert len(line.errors) == (outcome == "failed")
