"""Waiting for permits on a loop: bounded, ordered, and without losing one on cancellation."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from pipecat_hedge.limits import AdmissionController
from pipecat_hedge.limits.permit_queue import OPTIONAL, Ticket
from pipecat_hedge.limits.permits import Rejected, permit_for
from pipecat_hedge.limits.priority import WORK_CLASSES, WorkClass
from pipecat_hedge.limits.provider_health import Permit
from pipecat_hedge.limits.verdict import Verdict

KEY = "a | m"


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
