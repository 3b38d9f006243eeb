"""Waits for what no event tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], object], secs: float = 10.0) -> None:
    """Wait until something holds, which may be a coroutine's answer.

    Raises:
        TimeoutError: If it does not hold after so many seconds.
    """
    async with asyncio.timeout(secs):
        while True:
            found = holds()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.005)
