"""Timing several pieces of work against each other on a machine that others use too.

They are done turn and turn about in small batches. Counted is processor time of this thread, which
a busy neighbour inflates less than the clock on the wall, and of each the quickest batch: what
slows a batch down is somebody else's, or Python's garbage collector's, and nothing quickens one.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

__all__ = ["quickest"]

BATCH = 10
"""Timed together: asking for the time takes time, and a long batch is seldom left in peace."""


async def quickest(
    *works: Callable[[], Awaitable[None]], rounds: int, batch: int = BATCH
) -> list[float]:
    """Time some pieces of work.

    Args:
        *works: Each does its work once.
        rounds: How many batches of each.
        batch: How often it is done in one.

    Returns:
        How long each takes in its quickest batch, in seconds.
    """
    found = [float("inf")] * len(works)
    for _ in range(rounds):
        for number, work in enumerate(works):
            began = time.thread_time()
            for _ in range(batch):
                await work()
            found[number] = min(found[number], (time.thread_time() - began) / batch)
    return found
