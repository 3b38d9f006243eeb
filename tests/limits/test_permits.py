"""Waiting for permits on a loop: bounded, ordered, and without losing one on cancellation."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.limits import AdmissionController
from pipecat_hedge.limits.permit_queue import OPTIONAL, Ticket
from pipecat_hedge.limits.permits import Rejected, permit_for
from pipecat_hedge.limits.priority import WORK_CLASSES, WorkClass
from pipecat_hedge.limits.provider_health import Permit
from pipecat_hedge.limits.verdict import Verdict
from pipecat_hedge.testing import AutojumpLoop

KEY = "a | m"


times = st.floats(0.0, 5.0).map(lambda secs: round(secs, 1))  # makes events coincide
callers = st.tuples(
    times,
    times,
    st.none() | times,
    st.sampled_from(WORK_CLASSES),
    st.lists(st.sampled_from("ab"), min_size=1, unique=True),
    st.booleans(),
    st.sampled_from(["answered", "busy"]),
)
"""When a request arrives, for how long it holds its permit, when it is interrupted; its work class,
candidates, whether limits reject it, and how it ends."""


def in_time() -> str | None:
    return None


def ticket(
    *keys: str,
    work: WorkClass = "primary",
    sheds: bool = False,
) -> Ticket:
    now = asyncio.get_running_loop().time()
    return Ticket(work, "standard", now + 3.0, keys or (KEY,), now, sheds=sheds)


def release(health: AdmissionController, permit: Permit, verdict: Verdict = "dropped") -> None:
    health.release(permit, verdict, asyncio.get_running_loop().time())


@pytest.fixture
def health() -> AdmissionController:
    return AdmissionController(random.Random(1))


@given(st.lists(callers, max_size=15))
def test_no_permit_is_lost_and_no_caller_rejected(all_callers: list[Any]) -> None:
    health = AdmissionController(random.Random(1))

    async def call(
        holds_secs: float, work: WorkClass, keys: list[str], sheds: bool, verdict: Verdict
    ) -> None:
        wanted = ticket(*keys, work=work, sheds=sheds)
        try:
            permit = await permit_for(health, wanted, in_time)
        except Rejected:
            assert sheds or wanted.is_optional
            return
        assert permit.acquired_at <= wanted.deadline + 0.01
        try:
            await asyncio.sleep(holds_secs)
        except asyncio.CancelledError:
            verdict = "dropped"
            raise
        finally:
            release(health, permit, verdict)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []

        def start(gone_after: float | None, *caller: Any) -> None:
            tasks.append(task := loop.create_task(call(*caller)))
            if gone_after is not None:
                loop.call_later(gone_after, task.cancel)

        for key in "ab":
            health.entry(key).limit.set_queue(1, until=float("inf"))
        for comes_at, holds_secs, gone_after, *caller in all_callers:
            loop.call_at(comes_at, start, gone_after, holds_secs, *caller)
        await asyncio.sleep(30.0)
        assert all(task.cancelled() or task.exception() is None for task in tasks)

    with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
        runner.run(main())
    assert all(entry.limit.in_flight == 0 for entry in health.entries().values())
    assert health.waiting == 0


@pytest.mark.virtual_time
async def test_permit_of_a_cancelled_waiter_goes_to_the_next(health: AdmissionController) -> None:
    health.entry(KEY).limit.set_queue(1, until=float("inf"))
    held = await permit_for(health, ticket(sheds=True), in_time)
    first, second = (
        asyncio.create_task(permit_for(health, ticket(sheds=True), in_time)) for _ in range(2)
    )
    await asyncio.sleep(0.01)
    release(health, held, "answered")
    first.cancel()
    release(health, await second, "answered")
    assert first.cancelled()
    assert health.entry(KEY).limit.in_flight == 0


@pytest.mark.virtual_time
async def test_late_loop_rejects_only_optional_work(health: AdmissionController) -> None:
    sent: set[WorkClass] = set()
    for work in WORK_CLASSES:
        with suppress(Rejected):
            await permit_for(health, ticket(work=work), lambda: "the event loop is behind")
            sent.add(work)
    assert sent == {*WORK_CLASSES} - OPTIONAL
    assert asyncio.get_running_loop().time() == 0.0


@pytest.mark.virtual_time
async def test_end_of_retry_after_is_noticed(health: AdmissionController) -> None:
    health.set_retry_after(KEY, 1.0)
    permit = await permit_for(health, ticket(), in_time)
    assert permit.waited_secs == pytest.approx(1.0, abs=0.15)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("in_flight", "released_at", "waited_secs"), [(80, 9.0, 3.0), (3, 0.05, 0.05)]
)
async def test_caller_is_sent_at_its_deadline_or_when_a_request_ends(
    health: AdmissionController, in_flight: int, released_at: float, waited_secs: float
) -> None:
    permits = [await permit_for(health, ticket(), in_time) for _ in range(in_flight)]
    release(health, permits.pop(), "busy")
    asyncio.get_running_loop().call_at(released_at, release, health, permits[0], "answered")
    permit = await permit_for(health, ticket(), in_time)
    assert permit.waited_secs == pytest.approx(waited_secs, abs=0.01)
    assert health.waiting == 0


@pytest.mark.virtual_time
async def test_shedding_request_is_rejected_at_its_deadline(health: AdmissionController) -> None:
    health.entry(KEY).limit.set_queue(1, until=float("inf"))
    await permit_for(health, ticket(sheds=True), in_time)
    with pytest.raises(Rejected, match="no room within 3 s: a has 1 of 1 requests in flight"):
        await permit_for(health, ticket(sheds=True), in_time)
    assert asyncio.get_running_loop().time() == pytest.approx(3.0, abs=0.01)
    assert health.waiting == 0


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_open_at_first", [True, False])
async def test_shedding_request_is_rejected_at_open_breakers(
    health: AdmissionController, is_open_at_first: bool
) -> None:
    permits = [await permit_for(health, ticket(), in_time) for _ in range(5)]

    def fail() -> None:
        for permit in permits:
            release(health, permit, "failed")

    if is_open_at_first:
        fail()
    else:
        health.entry(KEY).limit.set_queue(1, until=float("inf"))
        asyncio.get_running_loop().call_at(0.05, fail)
    with pytest.raises(Rejected, match=r"every breaker is open: a is excluded by its breaker \(5"):
        await permit_for(health, ticket(sheds=True), in_time)
    assert asyncio.get_running_loop().time() == pytest.approx(0.0 if is_open_at_first else 0.1)


@pytest.mark.virtual_time
async def test_optional_work_without_room_is_rejected(health: AdmissionController) -> None:
    health.set_rate_limit(KEY, 0, until=10.0, sent_at=0.0)
    with pytest.raises(Rejected, match="a has its rate limit used up for 10 s"):
        await permit_for(health, ticket(work="warm_up"), in_time)
    await permit_for(health, ticket(), in_time)
    assert asyncio.get_running_loop().time() == 0.0
