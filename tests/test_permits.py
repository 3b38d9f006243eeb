"""Waiting for permits on a loop: whatever is cancelled when, none is lost and none is too many."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.admission import Admission
from pipecat_hedge.ending import ANSWERED, DROPPED
from pipecat_hedge.health import Health
from pipecat_hedge.members import Members
from pipecat_hedge.permits import Shed, permit_for
from pipecat_hedge.policies.permit_queue import Ticket
from pipecat_hedge.provider import Provider
from pipecat_hedge.testing import AutojumpLoop, ScriptedLLMService
from pipecat_hedge.work import TIERS, WORK_CLASSES, Tier, WorkClass


@dataclass(frozen=True)
class Caller:
    """Somebody who asks, holds the permit for a while, and may be interrupted at any time.

    Parameters:
        comes_at: When.
        holds_secs: For how long, once it is had.
        gone_at: When it is interrupted, wherever it is then; None if it is not.
        work: What for.
        tier: Whose.
        keys: Whose permit would do.
    """

    comes_at: float
    holds_secs: float
    gone_at: float | None
    work: WorkClass
    tier: Tier
    keys: tuple[str, ...]


times = st.floats(0.0, 5.0).map(lambda secs: round(secs, 1))  # so that things happen together
callers = st.builds(
    Caller,
    times,
    times,
    st.none() | times,
    st.sampled_from(WORK_CLASSES),
    st.sampled_from(TIERS),
    st.lists(st.sampled_from("ab"), min_size=1, unique=True).map(tuple),
)


def busy(work: WorkClass, tier: Tier) -> str | None:
    return "the event loop is 0.31 s behind" if work == "hedge" else None


def idle(work: WorkClass, tier: Tier) -> str | None:
    return None


@given(st.lists(callers, max_size=15), st.integers(1, 3))
def test_no_permit_is_lost_and_none_is_too_many(everybody: list[Caller], most: int) -> None:
    """In flight is never over the limit; at the end all are back and nobody waits."""
    health = Health(random.Random(1))
    ends: list[str] = []

    async def call(caller: Caller) -> None:
        try:
            permit = await permit_for(
                health, caller.keys, caller.work, caller.tier, 2.0, sheds=idle
            )
        except Shed:
            ends.append("shed")
            return
        assert 1 <= health.of(permit.key).limit.in_flight <= most
        ending = DROPPED
        try:
            await asyncio.sleep(caller.holds_secs)
            ending = ANSWERED
        finally:
            health.give_back(permit, ending, asyncio.get_running_loop().time())
        ends.append("done")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for key in "ab":
            health.of(key).limit.believe(most, until=float("inf"))
        tasks: list[asyncio.Task[None]] = []

        def start(caller: Caller) -> None:
            task = loop.create_task(call(caller))
            tasks.append(task)
            if caller.gone_at is not None:
                loop.call_at(caller.comes_at + caller.gone_at, task.cancel)

        for caller in everybody:
            loop.call_at(caller.comes_at, start, caller)
        await asyncio.sleep(30.0)
        assert len(tasks) == len(everybody)
        assert all(task.done() for task in tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
        runner.run(main())
    assert all(entry.limit.in_flight == 0 for entry in health.entries().values())
    assert len(health._queue) == 0
    assert not health._granted
    gone = sum(caller.gone_at is not None for caller in everybody)
    assert len(everybody) - gone <= len(ends) <= len(everybody)


@pytest.mark.virtual_time
async def test_a_permit_that_comes_while_its_waiter_is_cancelled_goes_back() -> None:
    """Both in one instant: the next in the queue gets it."""
    health = Health(random.Random(1))
    loop = asyncio.get_running_loop()
    health.of("a").limit.believe(1, until=float("inf"))
    now = loop.time()
    held = health.take(Ticket("primary", "standard", now, ("a",), now), now)
    assert held is not None
    tasks = [
        loop.create_task(permit_for(health, ["a"], "primary", "standard", 3.0, sheds=idle))
        for _ in range(2)
    ]
    await asyncio.sleep(0.01)
    health.give_back(held, ANSWERED, loop.time())
    tasks[0].cancel()
    permit = await tasks[1]
    assert tasks[0].cancelled()
    health.give_back(permit, ANSWERED, loop.time())
    assert health.of("a").limit.in_flight == 0


@pytest.mark.virtual_time
async def test_a_process_that_is_behind_sheds_and_says_why() -> None:
    health = Health(random.Random(1))
    with pytest.raises(Shed, match="the event loop is"):
        await permit_for(health, ["a"], "hedge", "standard", 3.0, sheds=busy)
    permit = await permit_for(health, ["a"], "primary", "standard", 3.0, sheds=busy)
    health.give_back(permit, DROPPED, 0.0)


async def test_a_turn_that_finds_room_at_once_has_not_waited() -> None:
    """Not even for as long as it takes to find out, on a clock that goes on meanwhile."""
    health, loop = Health(random.Random(1)), asyncio.get_running_loop()
    line_up = Members([Provider("a", ScriptedLLMService([]))], health).line_up(loop.time())
    admission = Admission(health, line_up, "standard", idle, 3.0)
    assert await admission.admit(line_up.entries, "primary") == "a"
    assert admission.queued_secs == 0.0
    admission.close()
    assert health.of("a").limit.in_flight == 0


@pytest.mark.virtual_time
async def test_what_time_alone_sets_free_is_found() -> None:
    """As when a provider's word on its rate limit is no longer news."""
    health = Health(random.Random(1))
    health.allow("a", 0, until=1.0, sent_at=0.0)
    permit = await permit_for(health, ["a"], "primary", "standard", 3.0, sheds=idle)
    assert permit.waited_secs == pytest.approx(1.0, abs=0.15)
    health.give_back(permit, DROPPED, 2.0)


@pytest.mark.virtual_time
async def test_who_may_not_wait_is_told_why_at_once() -> None:
    health = Health(random.Random(1))
    health.allow("a | m", 0, until=10.0, sent_at=0.0)
    with pytest.raises(Shed, match="a has its rate limit used up for 10 s"):
        await permit_for(health, ["a | m"], "warm_up", "standard", 0, sheds=idle)
    assert asyncio.get_running_loop().time() == 0.0
