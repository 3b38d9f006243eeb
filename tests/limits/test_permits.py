"""Waiting for permits on a loop: bounded, ordered, and without losing one on cancellation."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.limits.admission_controller import AdmissionController
from pipecat_hedge.limits.loop_lag import LoopWatch
from pipecat_hedge.limits.permit_queue import OPTIONAL, Ticket
from pipecat_hedge.limits.permits import Rejected, permit_for
from pipecat_hedge.limits.priority import WORK_CLASSES, WorkClass
from pipecat_hedge.limits.provider_health import Permit
from pipecat_hedge.limits.verdict import Verdict
from pipecat_hedge.race import TIERS, ConfigurationError, Tier
from pipecat_hedge.service import Provider
from pipecat_hedge.service.admission import Admission, admission_settings
from pipecat_hedge.service.provider_pool import ProviderPool
from pipecat_hedge.testing import AutojumpLoop, ScriptedLLMService

BUSY, FAILED = "busy", "failed"
WAIT_SECS = 2.0


@dataclass(frozen=True)
class Caller:
    """A request that holds its permit for a while and may be interrupted at any time.

    Parameters:
        comes_at: When it arrives.
        holds_secs: How long it holds its permit.
        gone_at: When it is interrupted; None if it is not.
        work: Its work class.
        tier: Its tier.
        keys: Its candidates.
        sheds: Whether limits reject it.
        is_refused: Whether the provider then rejects it for load.
    """

    comes_at: float
    holds_secs: float
    gone_at: float | None
    work: WorkClass
    tier: Tier
    keys: tuple[str, ...]
    sheds: bool
    is_refused: bool


times = st.floats(0.0, 5.0).map(lambda secs: round(secs, 1))  # makes events coincide
callers = st.builds(
    Caller,
    times,
    times,
    st.none() | times,
    st.sampled_from(WORK_CLASSES),
    st.sampled_from(TIERS),
    st.lists(st.sampled_from("ab"), min_size=1, unique=True).map(tuple),
    st.booleans(),
    st.booleans(),
)


def behind() -> str | None:
    return "the event loop is 0.31 s behind"


def in_time() -> str | None:
    return None


def ticket(
    *keys: str, work: WorkClass = "primary", wait_secs: float = 3.0, sheds: bool = False
) -> Ticket:
    now = asyncio.get_running_loop().time()
    return Ticket(work, "standard", now + wait_secs, keys, now, sheds=sheds)


def release(health: AdmissionController, permit: Permit, verdict: Verdict = "dropped") -> None:
    health.release(permit, verdict, asyncio.get_running_loop().time())


async def refusing(health: AdmissionController, key: str) -> list[Permit]:
    """A provider with two requests in flight that has just rejected a third."""
    permits = [await permit_for(health, ticket(key), in_time) for _ in range(3)]
    release(health, permits.pop(), BUSY)
    return permits


@given(st.lists(callers, max_size=15), st.integers(1, 3))
def test_no_permit_is_lost_and_no_caller_rejected(all_callers: list[Caller], most: int) -> None:
    health = AdmissionController(random.Random(1))
    all_are_bounded = all(caller.sheds or caller.work in OPTIONAL for caller in all_callers)
    ended: list[Caller] = []

    async def call(caller: Caller) -> None:
        loop = asyncio.get_running_loop()
        wanted = replace(
            ticket(*caller.keys, work=caller.work, wait_secs=WAIT_SECS, sheds=caller.sheds),
            tier=caller.tier,
        )
        try:
            permit = await permit_for(health, wanted, in_time)
        except Rejected:
            assert caller.sheds or wanted.is_optional
            assert loop.time() <= wanted.deadline + 0.01
            ended.append(caller)
            return
        assert loop.time() <= wanted.deadline + 0.01
        if all_are_bounded:
            assert health.entry(permit.key).limit.in_flight <= most
        verdict = "dropped"
        try:
            await asyncio.sleep(caller.holds_secs)
            verdict = BUSY if caller.is_refused else "answered"
        finally:
            release(health, permit, verdict)
        ended.append(caller)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for key in "ab":
            health.entry(key).limit.set_queue(most, until=float("inf"))
        tasks: list[asyncio.Task[None]] = []

        def start(caller: Caller) -> None:
            task = loop.create_task(call(caller))
            tasks.append(task)
            if caller.gone_at is not None:
                loop.call_at(caller.comes_at + caller.gone_at, task.cancel)

        for caller in all_callers:
            loop.call_at(caller.comes_at, start, caller)
        await asyncio.sleep(30.0)
        assert len(tasks) == len(all_callers)
        assert all(task.done() for task in tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
        runner.run(main())
    assert all(entry.limit.in_flight == 0 for entry in health.entries().values())
    assert health.waiting == 0
    assert {id(c) for c in all_callers if c.gone_at is None} <= {id(c) for c in ended}


@pytest.mark.virtual_time
async def test_permit_of_a_cancelled_waiter_goes_to_the_next() -> None:
    health, loop = AdmissionController(random.Random(1)), asyncio.get_running_loop()
    health.entry("a").limit.set_queue(1, until=float("inf"))
    held = await permit_for(health, ticket("a", sheds=True), in_time)
    tasks = [
        loop.create_task(permit_for(health, ticket("a", sheds=True), in_time)) for _ in range(2)
    ]
    await asyncio.sleep(0.01)
    release(health, held, "answered")
    tasks[0].cancel()
    permit = await tasks[1]
    assert tasks[0].cancelled()
    release(health, permit, "answered")
    assert health.entry("a").limit.in_flight == 0


@pytest.mark.virtual_time
@pytest.mark.parametrize("work", WORK_CLASSES)
async def test_late_loop_rejects_only_optional_work(work: WorkClass) -> None:
    health = AdmissionController(random.Random(1))
    wanted = ticket("a", work=work)
    if wanted.is_optional:
        with pytest.raises(Rejected, match=r"the event loop is 0\.31 s behind"):
            await permit_for(health, wanted, behind)
    else:
        release(health, await permit_for(health, wanted, behind))
    assert asyncio.get_running_loop().time() == 0.0


async def test_immediate_permit_has_zero_wait() -> None:
    health, loop = AdmissionController(random.Random(1)), asyncio.get_running_loop()
    candidates = ProviderPool([Provider("a", ScriptedLLMService([]))], health).candidates(
        loop.time()
    )
    settings = admission_settings("open", "standard", None, None)
    admission = Admission(health, candidates, settings, LoopWatch(), 3.0)
    assert await admission.admit(candidates.entries, "primary") == "a"
    assert admission.queued_secs == 0.0
    admission.close()
    assert health.entry("a").limit.in_flight == 0


@pytest.mark.virtual_time
async def test_end_of_retry_after_is_noticed() -> None:
    health = AdmissionController(random.Random(1))
    health.set_retry_after("a", 1.0)
    permit = await permit_for(health, ticket("a"), in_time)
    assert permit.waited_secs == pytest.approx(1.0, abs=0.15)
    release(health, permit)


@pytest.mark.virtual_time
async def test_caller_is_sent_at_its_deadline() -> None:
    health = AdmissionController(random.Random(1))
    permits = [await permit_for(health, ticket("a"), in_time) for _ in range(80)]
    release(health, permits.pop(), BUSY)
    permit = await permit_for(health, ticket("a"), in_time)
    assert permit.waited_secs == pytest.approx(3.0, abs=0.01)
    assert health.waiting == 0


@pytest.mark.virtual_time
async def test_caller_is_sent_when_a_request_ends() -> None:
    health = AdmissionController(random.Random(1))
    left = await refusing(health, "a")
    waiting = asyncio.create_task(permit_for(health, ticket("a"), in_time))
    await asyncio.sleep(0.05)
    assert health.waiting == 1
    release(health, left[0], "answered")
    assert (await waiting).waited_secs == pytest.approx(0.05)


@pytest.mark.virtual_time
async def test_shedding_request_is_rejected_at_its_deadline() -> None:
    health = AdmissionController(random.Random(1))
    health.entry("a | m").limit.set_queue(1, until=float("inf"))
    held = await permit_for(health, ticket("a | m", sheds=True), in_time)
    with pytest.raises(Rejected, match="no room within 3 s: a has 1 of 1 requests in flight"):
        await permit_for(health, ticket("a | m", sheds=True), in_time)
    assert asyncio.get_running_loop().time() == pytest.approx(3.0, abs=0.01)
    release(health, held)
    assert health.waiting == 0


@pytest.mark.virtual_time
async def test_shedding_request_is_rejected_at_open_breakers() -> None:
    health = AdmissionController(random.Random(1))
    for _ in range(5):
        release(health, await permit_for(health, ticket("a"), in_time), FAILED)
    with pytest.raises(Rejected, match=r"a is excluded by its breaker \(5 failures in a row"):
        await permit_for(health, ticket("a", sheds=True), in_time)
    release(health, await permit_for(health, ticket("a"), in_time))
    assert asyncio.get_running_loop().time() == 0.0


@pytest.mark.virtual_time
async def test_optional_work_without_room_is_rejected() -> None:
    health = AdmissionController(random.Random(1))
    health.set_rate_limit("a | m", 0, until=10.0, sent_at=0.0)
    with pytest.raises(Rejected, match="a has its rate limit used up for 10 s"):
        await permit_for(health, ticket("a | m", work="warm_up"), in_time)
    release(health, await permit_for(health, ticket("a | m"), in_time))
    assert asyncio.get_running_loop().time() == 0.0


@pytest.mark.parametrize(("processes", "ceiling"), [(1, 200), (8, 25), (1000, 1)])
def test_fleet_divides_the_ceiling(processes: int, ceiling: int) -> None:
    settings = admission_settings("shed", "standard", None, None)
    assert settings.divided(processes).bounds.ceiling == ceiling
    assert settings.divided(processes).bounds.floor == 1


def test_low_ceiling_lowers_the_floor() -> None:
    assert admission_settings("open", "standard", None, 4).bounds.floor == 4
    with pytest.raises(ConfigurationError, match="min_in_flight must not exceed max_in_flight"):
        admission_settings("open", "standard", 10, 4)
