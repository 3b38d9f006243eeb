"""What leaves a task scope, and when."""

from __future__ import annotations

import asyncio

import anyio
from anyio.abc import TaskGroup

from pipecat_hedge.race import TaskScope


async def test_a_scope_left_while_a_client_has_just_connected_leaves_no_task() -> None:
    """Then anyio has cancelled the client's task, and takes that back."""
    scope, attempts = TaskScope(), list[TaskGroup]()

    async def request() -> None:
        async with anyio.create_task_group() as connecting:
            attempts.append(connecting)
            await asyncio.sleep(60)
        await asyncio.sleep(60)  # for the response

    task = scope.start(request(), name="request")
    await asyncio.sleep(0)
    attempts[0].cancel_scope.cancel()
    assert task.cancelling()
    await scope.close()
    assert task.cancelled()


async def test_a_scope_that_is_left_twice_does_not_interrupt_how_a_task_closes() -> None:
    scope, closed = TaskScope(), asyncio.Event()

    async def request() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            closed.set()

    task = scope.start(request(), name="request")
    await asyncio.sleep(0)
    scope.cancel(task)
    await asyncio.sleep(0)
    await scope.close()
    assert closed.is_set()
