"""Tasks end with their scope."""

from __future__ import annotations

import asyncio

import pytest

from pipecat_hedge.race import TaskScope
from pipecat_hedge.race.task_scope import CLOSE_SECS

pytestmark = pytest.mark.virtual_time


class Work:
    """Tasks that run for ever and note when they are closed."""

    def __init__(self) -> None:
        self.closed: list[str] = []

    async def run(self, name: str, closing_secs: float) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(closing_secs)
            self.closed.append(name)

    async def in_scope(self, secs: float, error: Exception | None = None) -> None:
        """Leave a scope with one task after ``secs``, with an error or without."""
        async with TaskScope() as scope:
            scope.start(self.run("a", closing_secs=0.1), name="a")
            await asyncio.sleep(secs)
            if error is not None:
                raise error


async def test_leaving_cancels_and_awaits_every_task() -> None:
    work = Work()
    async with TaskScope() as scope:
        for name in "abc":
            scope.start(work.run(name, closing_secs=0.1), name=name)
        await asyncio.sleep(1)
    assert sorted(work.closed) == ["a", "b", "c"]
    assert scope.stragglers == frozenset()


async def test_task_cancelled_before_its_first_step() -> None:
    async with TaskScope() as scope:
        task = scope.start(Work().run("a", 0.0), name="a")
    assert task.cancelled()


async def test_errors_and_cancellations_propagate() -> None:
    failing, cancelled = Work(), Work()
    with pytest.raises(KeyError):
        await failing.in_scope(1, KeyError("mine"))
    caller = asyncio.create_task(cancelled.in_scope(60))
    await asyncio.sleep(1)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert failing.closed == cancelled.closed == ["a"]


async def test_leaving_is_bounded_and_names_stragglers() -> None:
    work, loop = Work(), asyncio.get_running_loop()
    async with TaskScope() as scope:
        slow = scope.start(work.run("slow", closing_secs=30), name="slow")
        scope.start(work.run("quick", closing_secs=0), name="quick")
        await asyncio.sleep(1)
        left_at = loop.time()
    assert loop.time() - left_at == pytest.approx(CLOSE_SECS)
    assert scope.stragglers == {slow}
    assert work.closed == ["quick"]
    await asyncio.wait([slow])


async def test_closing_task_is_not_cancelled_twice() -> None:
    work = Work()
    async with TaskScope() as scope:
        task = scope.start(work.run("a", closing_secs=0.3), name="a")
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.sleep(0.1)
    assert work.closed == ["a"]
