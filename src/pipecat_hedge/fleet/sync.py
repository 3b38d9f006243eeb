"""One process's part in a fleet: adds what it has seen to the fleet's sums, and reads them.

No turn waits for it: turns read and write what is in memory. A task reads the sums when the first
session starts, then each minute, and adds what this process has seen since; the last session's end
adds the rest. What a store has not refused is added once: without its reply, it may not count.

The fleet's sums include this process's own, which are subtracted. Older hours are read, the latest
first, until ``ENOUGH`` observations are known, which is how old ones fade.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress

from loguru import logger

from pipecat_hedge.fleet.counts import counts_of, fields_of, without
from pipecat_hedge.policy.budget_accounts import BudgetAccounts
from pipecat_hedge.providers.backends import MOST_PROVIDERS, record_key_of
from pipecat_hedge.providers.latency import ProviderLatency
from pipecat_hedge.providers.registry import ProviderRegistry
from pipecat_hedge.providers.shared_store import (
    Delta,
    News,
    Request,
    SharedStore,
    StoreRefused,
    StoreUnavailable,
    Sums,
)
from pipecat_hedge.providers.survival import Floats

EVERY_SECS = 60.0
TICK_SECS = 1.0
"""How soon a provider that is new here is read, and one that is down is reported."""
CAP_SECS = 10.0
"""How long it takes at most until a store that was away is tried again."""
JITTER = 0.2
FLUSH_SECS = 0.5
"""How long the end of a process's last session waits for what is written then."""
HOUR_SECS = 3600
HOURS = (3, 12, 72)
"""Hours that are read while all of a session's providers have fewer than ``ENOUGH`` in later ones.
A fleet that is calm at night so begins its day with what it knew the day before."""
ENOUGH = 1024
"""Observations after which older hours are left out."""
WINDOW_SECS = 600
"""A budget's window; the present one and the one before count."""
DOWN_SECS = 180.0
"""How long a report that a provider is down holds. Processes that believe it try the provider after
``TRY_SECS`` and then each minute, and report again, so that an outage of an hour is known for an
hour."""
TRY_SECS = 20.0
"""How long the breaker opens for such a report: a call should be long enough to try again."""


class FleetSync:
    """Reads and adds to a fleet's sums, on one event loop of a process at a time.

    Attributes:
        clock: Returns the time in seconds since 1970.
    """

    def __init__(
        self,
        store: SharedStore,
        registry: ProviderRegistry,
        accounts: BudgetAccounts,
        clock: Callable[[], float] = time.time,
    ):
        """Name what is shared; nothing runs yet.

        Args:
            store: Where the sums are.
            registry: What this process knows; its lock protects the accounts, too.
            accounts: What may be spent on extra requests.
            clock: Returns the time in seconds since 1970. Clocks of processes need not agree.
        """
        self._store = store
        self._registry, self._accounts = registry, accounts
        self.clock = clock
        self._turn = threading.Lock()
        self._runs_on: asyncio.AbstractEventLoop | None = None
        self._users = 0
        self._away_since: float | None = None
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._process = uuid.uuid4().hex
        self._exchange = asyncio.Lock()
        self._wanted: dict[str, None] = {}
        self._own: dict[tuple[str, int], Counter[str]] = {}
        self._sums: dict[str, dict[int, Sums]] = {}
        self._down: dict[str, float] = {}
        with self._registry.lock:
            self._accounts.take_delta()
            for latency in self._registry.latencies().values():
                latency.share()

    def want(self, keys: Collection[str]) -> None:
        """Read what the fleet knows of providers soon, by the keys of their statistics."""
        self._wanted |= dict.fromkeys(keys)

    def introduce(self, key: str, latency: ProviderLatency) -> None:
        """Have a provider that is new here begin with what the fleet knows; hold the lock.

        Args:
            key: The key of its statistics.
            latency: What is known of it.
        """
        latency.share()
        if key in self._sums:
            latency.inform(self._others(key))
        else:
            self._wanted[key] = None

    # ---- in the background

    async def run(self) -> None:
        """Read now, then add and read each minute, until cancelled."""
        loop = asyncio.get_running_loop()
        is_ours, wait, due_at, failures = False, 0.0, 0.0, 0
        try:
            while True:
                await asyncio.sleep(wait)
                is_ours = is_ours or self._claim(loop)
                wait = TICK_SECS * random.uniform(1 - JITTER, 1 + JITTER)
                is_due = loop.time() >= due_at
                if not is_ours or not (is_due or self._wanted or any(self._findings())):
                    continue
                if not await self.sync(adds=is_due and due_at > 0):
                    failures += 1
                    wait = min(wait * 2.0 ** min(failures, 8), CAP_SECS)
                    continue
                failures = 0
                if is_due:
                    due_at = loop.time() + EVERY_SECS * random.uniform(1 - JITTER, 1 + JITTER)
        finally:
            if is_ours:
                await self._leave()

    async def flush(self) -> None:
        """Add what was seen, unless another loop will; for ``FLUSH_SECS`` at most."""
        loop = asyncio.get_running_loop()
        if self._away_since is not None or not self._claim(loop):
            return
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECS):
                    await self.sync(adds=True, reads=False)
        finally:
            await self._leave()

    def _claim(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether it may be used on this loop; then ``_leave`` has to be called."""
        with self._turn:
            if self._runs_on is None or self._runs_on.is_closed():
                self._runs_on, self._users, self._exchange = loop, 0, asyncio.Lock()
            self._users += self._runs_on is loop
            return self._runs_on is loop

    async def _leave(self) -> None:
        with self._turn:
            self._users -= 1
        if self._users:
            return
        async with self._exchange:
            await self._store.close()
        with self._turn:
            if not self._users:
                self._runs_on = None

    async def sync(self, *, adds: bool = True, reads: bool = True) -> bool:
        """Exchange once.

        Args:
            adds: Whether what this process has seen is added.
            reads: Whether the sums are read.

        Returns:
            Whether the store could be used.
        """
        if os.getpid() != self._pid:  # forked: another process, which has seen nothing so far
            self._begin()
        async with self._exchange:
            try:
                now = self.clock()
                await self._report()
                if reads:  # first: to a store that hangs nothing is added, and so nothing is lost
                    await self._read(now)
                if adds:
                    await self._add(now)
            except Exception as e:  # whatever a store raises, it must not end this
                self._say_away(str(e) if isinstance(e, StoreUnavailable) else type(e).__name__)
                return False
        self._say_back()
        return True

    # ---- sums

    async def _add(self, now: float) -> None:
        hour = int(now // HOUR_SECS)
        with self._registry.lock:
            taken = {
                key: latency.totals.copy()
                for key, latency in self._registry.latencies().items()
                if record_key_of(key) not in self._registry.simulated
                and latency.totals is not None
                and latency.totals.any()
            }
            budgets = self._accounts.delta()
        delta = Delta(
            hour,
            {key: fields_of(counts) for key, counts in taken.items()},
            int(now // WINDOW_SECS),
            {budget: counts for budget, counts in budgets.items() if any(counts.values())},
        )
        if not delta.latencies and not delta.budgets:
            return
        is_refused = False
        try:
            await self._store.add(delta)
        except StoreRefused:
            is_refused = True
            raise
        finally:  # also without a reply, or cancelled as a session ends: it may have counted
            if not is_refused:
                for key, fields in delta.latencies.items():
                    self._own.setdefault((key, hour), Counter()).update(fields)
                with self._registry.lock:
                    latencies = self._registry.latencies()
                    for key, counts in taken.items():
                        if key in latencies:
                            latencies[key].added(counts)
                    self._accounts.take_delta(budgets)

    async def _read(self, now: float) -> None:
        hour, window = int(now // HOUR_SECS), int(now // WINDOW_SECS)
        with self._registry.lock:
            known = [k for k in self._registry.latencies() if k in self._sums]
            providers = {record_key_of(key) for key in [*known, *self._wanted]}
            budgets = list(self._accounts.delta())
        new, self._wanted = list(self._wanted)[:MOST_PROVIDERS], {}
        try:
            request = Request((hour,), [*known, *new], (window, window - 1), budgets, providers)
            news = await self._store.read(request)
            self._take(news)
            read = 1
            for hours in HOURS:
                if new and sum(map(self._seen, new)) < ENOUGH:
                    earlier = range(hour - read, hour - hours, -1)
                    self._take(await self._store.read(Request(earlier, new, (), (), ())))
                read = hours
        except BaseException:
            self._wanted = dict.fromkeys(new) | self._wanted
            raise
        self._own = {at: own for at, own in self._own.items() if at[1] >= hour - 1}
        for key in [*known, *new]:
            self._sums[key] = {h: s for h, s in self._sums[key].items() if h > hour - HOURS[-1]}
            with self._registry.lock:
                if (latency := self._registry.latencies().get(key)) is not None:
                    latency.inform(self._others(key))
            await asyncio.sleep(0)
        with self._registry.lock:
            self._accounts.heed(news.budgets)
        self._follow(providers, news)

    def _take(self, news: News) -> None:
        for (key, hour), sums in news.latencies.items():
            others = without(sums, self._own.get((key, hour), {}))
            self._sums.setdefault(key, {})[hour] = others

    def _seen(self, key: str) -> int:
        return sum(sum(sums.values()) for sums in self._sums.get(key, {}).values())

    def _others(self, key: str) -> Floats | None:
        """What the other processes have seen, the latest hours first, until it is enough."""
        found: Counter[str] = Counter()
        for _, sums in sorted(self._sums[key].items(), reverse=True):
            if found.total() >= ENOUGH:
                break
            found.update(sums)
        return counts_of(found) if found else None

    # ---- providers that are down

    def _findings(self) -> tuple[dict[str, float], list[str]]:
        """What is to be reported: providers that are down, and since when; those that are up again.

        Only a process to which another provider has answered since is believed: its own network is
        well.
        """
        now = asyncio.get_running_loop().time()
        with self._registry.lock:
            simulated = self._registry.simulated
            records = {k: r for k, r in self._registry.records().items() if k not in simulated}
            since = {key: record.down_since(now) for key, record in records.items()}
            well = [record for key, record in records.items() if since[key] is None]
            down = {
                key: at
                for key, at in since.items()
                if at is not None
                and at != self._down.get(key)
                and any(record.has_answered_since(at, now) for record in well)
            }
            up = [
                key
                for key, at in self._down.items()
                if key in records
                and since[key] is None
                and records[key].has_answered_since(at, now)
            ]
        return down, up

    async def _report(self) -> None:
        down, up = self._findings()
        for key in up:
            await self._store.report_up(key)
            del self._down[key]
        for key, at in down.items():
            with self._registry.lock:
                why = self._registry.record(key).breaker.reason or "silent in a row"
            await self._store.report_down(key, self._process, why, DOWN_SECS)
            self._down[key] = at

    def _follow(self, providers: Collection[str], news: News) -> None:
        now = asyncio.get_running_loop().time()
        with self._registry.lock:
            for key in providers:
                self._registry.record(key).follow(news.down.get(key), TRY_SECS, now)
                if key in news.down:
                    self._down.setdefault(key, now)

    # ---- what is logged

    def _say_away(self, why: str) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            logger.warning(
                f"{self._store}: {why}. Sessions go on with what this process knows, and what it "
                "learns is shared when that is possible again"
            )
        else:
            logger.debug(f"{self._store}: {why}")

    def _say_back(self) -> None:
        if self._away_since is not None:
            self._away_since = None
            logger.info(f"{self._store}: back, what was learned meanwhile is shared")
