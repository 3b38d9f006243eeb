"""A race that begins on an eager end of turn: until the turn ends no hedge is sent."""

from __future__ import annotations

import asyncio

import pytest
from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    LLMContextFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
)

from pipecat_hedge import HedgePolicy, ProviderStats
from pipecat_hedge.testing import Error, Say, Wait
from tests.service.builders import NEVER, racing, said, scripted
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

POLICIES = [HedgePolicy.race(2), HedgePolicy.after(0.3), HedgePolicy.fallback(stall_secs=0.3)]


async def speculate(line: Line) -> None:
    """Send a turn that the caller has probably ended."""
    await line.send(UserStartedSpeakingFrame(), LLMContextFrame(said(), speculation=True))


@pytest.mark.parametrize(
    ("policy", "waits_secs"), list(zip(POLICIES, (0.0, 0.3, 0.3), strict=True))
)
async def test_hedge_clock_starts_when_the_turn_is_confirmed(
    policy: HedgePolicy, waits_secs: float
) -> None:
    llm = racing(scripted(Wait(NEVER)), scripted(Wait(0.1), Say("Yes.")), policy=policy)
    async with Line(llm) as line:
        await speculate(line)
        await asyncio.sleep(1.0)
        await line.send(UserStoppedSpeakingFrame())
        report = await line.report()
    assert [a.provider for a in report.attempts] == ["a", "b"]
    assert report.confirmed_secs == pytest.approx(1.0)
    assert report.attempts[1].launched_secs == pytest.approx(1.0 + waits_secs)
    assert report.ttft_secs == pytest.approx(1.1 + waits_secs)
    assert line.text == "Yes."


async def test_deadline_counts_from_the_confirmation() -> None:
    policy = HedgePolicy.fallback(deadline_secs=0.5)
    async with Line(racing(scripted(Wait(1.2), Say("Yes.")), policy=policy)) as line:
        await speculate(line)
        await asyncio.sleep(1.0)
        await line.send(UserStoppedSpeakingFrame())
        assert (await line.report()).outcome == "answered"


async def test_failed_first_provider_is_replaced_before_the_confirmation() -> None:
    llm = racing(scripted(Wait(0.1), Error()), scripted(Wait(0.1), Say("Yes.")))
    async with Line(llm) as line:
        await speculate(line)
        await asyncio.sleep(1.0)
        assert line.text == ""
        await line.send(UserStoppedSpeakingFrame())
        report = await line.report()
        await line.until(lambda: line.text == "Yes.")
    assert [a.launch_reason for a in report.attempts] == ["primary", "failure"]
    assert report.ttft_secs == pytest.approx(0.2)


@pytest.mark.parametrize("answer_secs", [0.2, 0.6], ids=["complete", "in progress"])
async def test_report_waits_for_the_turns_end(answer_secs: float) -> None:
    async with Line(racing(scripted(Wait(answer_secs), Say("Yes.")))) as line:
        await speculate(line)
        await asyncio.sleep(0.4)
        assert line.reports == []
        await line.send(EagerEndOfTurnCancelFrame())
        assert (await line.report()).outcome == "withdrawn"
        await line.send(LLMContextFrame(said()))
        report = await line.report(2)
    assert (report.outcome, report.confirmed_secs, line.text) == ("answered", None, "Yes.")


async def test_end_of_the_call_ends_a_speculation() -> None:
    async with Line(racing(scripted(Say("Yes.")))) as line:
        await speculate(line)
        await asyncio.sleep(0.4)
    assert [report.outcome for report in line.reports] == ["withdrawn"]


async def test_withdrawn_turns_teach_and_cost_nothing() -> None:
    """Twenty in one call: one request each, and afterwards nothing is known or spent."""
    stats, policy = ProviderStats(), HedgePolicy.adaptive(0.5)
    members = (scripted(Wait(2.0), Say("Yes.")), scripted(Wait(0.5), Say("No.")))
    llm = racing(*members, policy=policy, stats=stats)
    async with Line(llm) as line:
        for turn in range(20):
            await speculate(line)
            await asyncio.sleep(1.5)
            await line.send(EagerEndOfTurnCancelFrame())
            report = await line.report(turn + 1)
            assert (report.outcome, report.winner) == ("withdrawn", None)
            assert [a.provider for a in report.attempts] == ["a"]
        assert [state.prior_weight for state in llm.provider_states()] == [1.0, 1.0]
        (budget,) = stats.budgets()
        assert budget.balance == pytest.approx(20 * 0.5)
    assert line.text == ""
