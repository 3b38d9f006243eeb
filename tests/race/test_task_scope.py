"""Tasks end with their scope."""

from __future__ import annotations

import asyncio

import pytest

from pipecat_hedge.race.task_scope import CLOSE_SECS, TaskScope

pytestmark = pytest.mark.virtual_time


async def _for_ever(closed: list[str], name: str, closing_secs: float = 0.0) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await asyncio.sleep(closing_secs)
        closed.append(name)


async def test_leaving_cancels_and_awaits_every_task() -> None:
    closed: list[str] = []
    async with TaskScope() as scope:
        for name in "abc":
            scope.start(_for_ever(closed, name, closing_secs=0.1), name=name)
        await asyncio.sleep(1)
    assert sorted(closed) == ["a", "b", "c"]
    assert scope.stragglers == frozenset()


async def test_task_cancelled_before_its_first_step() -> None:
    async with TaskScope() as scope:
        task = scope.start(_for_ever([], "a"), name="a")
    assert task.cancelled()


async def test_body_error_propagates_without_a_group() -> None:
    closed: list[str] = []

    async def body() -> None:
        async with TaskScope() as scope:
            scope.start(_for_ever(closed, "a"), name="a")
            await asyncio.sleep(1)
            raise KeyError("mine")

    with pytest.raises(KeyError):
        await body()
    assert closed == ["a"]


async def test_cancellation_of_the_caller_propagates() -> None:
    closed: list[str] = []

    async def caller() -> None:
        async with TaskScope() as scope:
            scope.start(_for_ever(closed, "a", closing_secs=0.1), name="a")
            await asyncio.sleep(60)

    task = asyncio.create_task(caller())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == ["a"]


async def test_leaving_is_bounded_and_names_stragglers() -> None:
    closed: list[str] = []
    loop = asyncio.get_running_loop()
    async with TaskScope() as scope:
        slow = scope.start(_for_ever(closed, "slow", closing_secs=30), name="slow")
        scope.start(_for_ever(closed, "quick"), name="quick")
        await asyncio.sleep(1)
        left_at = loop.time()
    assert loop.time() - left_at == pytest.approx(CLOSE_SECS)
    assert scope.stragglers == {slow}
    assert closed == ["quick"]
    await asyncio.wait([slow])


async def test_closing_task_is_not_cancelled_twice() -> None:
    closed: list[str] = []
    async with TaskScope() as scope:
        task = scope.start(_for_ever(closed, "a", closing_secs=0.3), name="a")
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.sleep(0.1)
    assert closed == ["a"]
