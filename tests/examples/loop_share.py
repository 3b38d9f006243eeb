"""How long an event loop waits for work in another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


async def longest_share(work: Callable[..., Any], *arguments: Any) -> float:
    """Of the time that the work takes, the longest wait of the loop.

    The best of five runs, because other work on the machine can only make it worse.
    """
    loop = asyncio.get_running_loop()
    shares: list[float] = []
    for _ in range(5):
        started = last = loop.time()
        longest = 0.0
        working = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
        while not working.done():
            await asyncio.sleep(0)
            longest = max(longest, loop.time() - last)
            last = loop.time()
        assert await working
        shares.append(longest / (last - started))
    return min(shares)
