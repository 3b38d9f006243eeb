"""A store of a fleet's sums in memory."""

from __future__ import annotations

import asyncio
from collections import Counter

from pipecat_hedge.providers.shared_store import Delta, News, Request


class MemoryStore:
    """Sums that processes of one test share.

    Attributes:
        problem: What every call raises; None for nothing.
        secs: How long every call takes.
        reply_secs: How long an add takes after it has counted.
        calls: The names of the calls so far.
    """

    def __init__(self) -> None:
        self.problem: Exception | None = None
        self.secs = self.reply_secs = 0.0
        self.calls: list[str] = []
        self._sums: dict[tuple[str, str, int], Counter[str]] = {}
        self._leases: dict[tuple[str, str], tuple[str, float]] = {}

    def __str__(self) -> str:
        return "memory"

    async def add(self, delta: Delta) -> None:
        await self._begin("add")
        for key, sums in delta.latencies.items():
            self._sums.setdefault(("latency", key, delta.hour), Counter()).update(sums)
        for key, sums in delta.budgets.items():
            self._sums.setdefault(("budget", key, delta.window), Counter()).update(sums)
        await asyncio.sleep(self.reply_secs)

    async def read(self, request: Request) -> News:
        await self._begin("read")
        budgets: dict[str, Counter[str]] = {key: Counter() for key in request.budgets}
        for key, sums in budgets.items():
            for window in request.windows:
                sums.update(self._sums.get(("budget", key, window), {}))
        return News(
            {
                (key, hour): dict(self._sums.get(("latency", key, hour), {}))
                for key in request.latencies
                for hour in request.hours
            },
            budgets,
            {
                key: reason
                for key in request.providers
                if (reason := self._lease("down", key)) is not None
            },
        )

    async def report_down(self, provider: str, process: str, reason: str, secs: float) -> None:
        await self._begin("report_down")
        until = asyncio.get_running_loop().time() + secs
        if self._lease("suspect", provider) in (None, process):
            self._leases["suspect", provider] = process, until
        else:
            self._leases["down", provider] = reason, until

    async def report_up(self, provider: str) -> None:
        await self._begin("report_up")
        for kind in ("suspect", "down"):
            self._leases.pop((kind, provider), None)

    async def close(self) -> None:
        self.calls.append("close")

    async def _begin(self, call: str) -> None:
        self.calls.append(call)
        await asyncio.sleep(self.secs)
        if self.problem is not None:
            raise self.problem

    def _lease(self, kind: str, provider: str) -> str | None:
        value, until = self._leases.get((kind, provider), ("", 0.0))
        return value if asyncio.get_running_loop().time() < until else None
