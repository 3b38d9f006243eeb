"""Keeps what a process knows and what its fleet knows in step, in the background.

No turn waits for it: turns read and write what is in memory. Once a second a task writes what this
process knows to the store, and reads what the others have written there. All that is written are
totals of this process alone, which replace what it wrote before.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress

import numpy as np
from loguru import logger

from pipecat_hedge.fleet.document import MOST_AGE_SECS, Document, UnknownVersion
from pipecat_hedge.policy.hedge_budget import HedgeBudget
from pipecat_hedge.providers.backends import MOST_PROVIDERS, record_key_of
from pipecat_hedge.providers.fleet_advice import Advice, Finding, Findings, advise
from pipecat_hedge.providers.latency import COUNTS, ProviderLatency
from pipecat_hedge.providers.registry import ProviderRegistry
from pipecat_hedge.providers.server_queue import LoadReading
from pipecat_hedge.providers.shared_store import Received, SharedStore, Slice, StoreUnavailable
from pipecat_hedge.providers.survival import Floats

EVERY_SECS = 1.0
CAP_SECS = 4.0
"""How long it takes at most until a store that was away is tried again."""
JITTER = 0.2
FLUSH_SECS = 0.5
"""How long the end of a process's last session waits for what is written then."""
SLICE_SECS = 3600
SLICES = 72
"""Slices kept: three days, so that a Monday starts with the estimates of the Friday before."""
ENOUGH = 4096
"""Observations of a provider after which older slices are not read."""
MOST_FIELDS = 2048
"""Fields of a slice after which no other process adds its own."""
MOST_KNOWN = 1000
"""Findings kept, of the processes read last."""
EVENING = 0.1
"""The part of the difference to the fleet's mean balance that a process evens out per exchange. The
mean is a second old, so a larger part would correct it twice."""
ENTRY = np.dtype([("at", "<u2"), ("count", "<u4")])

NO_ADVICE = Advice()


def pack(counts: np.ndarray) -> bytes:
    """Pack the non-zero counts and their positions as bytes.

    Args:
        counts: Whole numbers of shape ``COUNTS``.
    """
    flat = counts.ravel()
    used = np.flatnonzero(flat)
    entries = np.empty(used.size, ENTRY)
    entries["at"], entries["count"] = used, flat[used]
    return entries.tobytes()


def unpack(data: bytes) -> Floats:
    """Read what ``pack`` has written.

    Raises:
        ValueError: If it is something else.
    """
    counts = np.zeros(COUNTS)
    entries = np.frombuffer(data, ENTRY)
    if entries.size and int(entries["at"].max()) >= counts.size:
        raise ValueError("no such bucket")
    counts.ravel()[entries["at"]] = entries["count"]
    return counts


class FleetSync:
    """One process's part in a fleet.

    It runs on one event loop at a time, and exchanges once at a time there. Each
    ``latencies_every``-th exchange has latencies, too: an entry is one to three KiB.

    Attributes:
        processes: How many there are, this one included. Stays what it was while the store is away.
    """

    latencies_every = 5

    def __init__(
        self,
        store: SharedStore,
        registry: ProviderRegistry,
        accounts: Mapping[float, HedgeBudget],
    ):
        """Name what is to be kept in step; nothing runs yet.

        Args:
            store: Where the fleet meets.
            registry: What this process knows; its lock protects the accounts, too.
            accounts: What may be spent on extra requests, by the budget.
        """
        self._store = store
        self._registry, self._lock, self._accounts = registry, registry.lock, accounts
        self._rng = random.Random()
        self._turn = threading.Lock()
        self._runs_on: asyncio.AbstractEventLoop | None = None
        self._users = 0
        self._is_away = False
        self._said: set[str] = set()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._process = uuid.uuid4().hex
        self._exchange = asyncio.Lock()
        self._slice: int | None = None
        self._is_written = False
        self._fields = 0
        self._read_slice: int | None = None
        self._older: dict[str, Floats] = {}
        self._others: dict[str, Floats] = {}
        self._findings: dict[str, Findings] = {}
        self._balances: list[Mapping[float, float]] = []
        self.processes = 1
        with self._lock:
            for latency in self._registry.latencies().values():
                latency.totals = np.zeros(COUNTS, np.int64)

    def introduce(self, key: str, latency: ProviderLatency) -> None:
        """Have a provider that is new here begin with what the fleet knows; hold the lock.

        Args:
            key: Its key.
            latency: What is known of it.
        """
        latency.totals = np.zeros(COUNTS, np.int64)
        if (others := self._others.get(key)) is not None:
            latency.inform(others)

    # ---- in the background

    async def run(self) -> None:
        """Exchange once a second, until cancelled; on one loop of a process only."""
        loop = asyncio.get_running_loop()
        wait, is_ours = 0.0, False
        try:
            for number in itertools.count():
                await asyncio.sleep(wait * self._rng.uniform(1 - JITTER, 1 + JITTER))
                is_ours = is_ours or self._claim(loop)
                if not is_ours or await self.sync(latencies=number % self.latencies_every == 0):
                    wait = EVERY_SECS
                else:
                    wait = min(max(2 * wait, EVERY_SECS), CAP_SECS)
        finally:
            if is_ours:
                await self._leave()

    async def flush(self) -> None:
        """Write what is known, unless another loop will; for ``FLUSH_SECS`` at most."""
        loop = asyncio.get_running_loop()
        if self._is_away or not self._claim(loop):
            return
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECS):
                    await self.sync()
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

    async def sync(self, *, latencies: bool = True) -> bool:
        """Exchange once.

        Args:
            latencies: Whether latencies are exchanged, too.

        Returns:
            Whether the store could be used.
        """
        if os.getpid() != self._pid:  # forked: another process, which has seen nothing so far
            self._begin()
        async with self._exchange:
            try:
                await self._sync(latencies)
            except Exception as e:  # whatever a store raises, it must not end this
                self._say_away(str(e) if isinstance(e, StoreUnavailable) else type(e).__name__)
                return False
        self._say_back()
        return True

    async def _sync(self, latencies: bool) -> None:
        loop, now = asyncio.get_running_loop(), await self._store.now()
        self._even_out()
        with self._lock:
            balances = {budget: account.balance for budget, account in self._accounts.items()}
        own = self._own_findings(loop.time())
        loads = {
            key: (each.running, each.waiting, round(loop.time() - each.read_at, 2))
            for key, each in self._registry.loads.own.items()
            if loop.time() - each.read_at <= MOST_AGE_SECS
        }
        document = Document(own, balances, loads).text()
        current = int(now // SLICE_SECS)
        totals, read = dict[str, np.ndarray](), list[int]()
        if latencies:
            self._slice = current if self._slice is None else self._slice
            totals = self._totals()
            read = [current, current - 1]
            if self._read_slice != current:
                read = list(range(current, current - SLICES, -1))
        is_full = self._fields >= MOST_FIELDS and not self._is_written
        written = Slice(self._slice or 0, {key: pack(each) for key, each in totals.items()})
        received = await self._store.exchange(
            self._process, now, document, written if latencies and not is_full else None, read
        )
        self.processes = received.processes
        self._follow(own, received.documents, loop.time())
        if latencies:
            self._is_written, self._fields = self._is_written or not is_full, received.fields
            if self._slice != current:
                self._next_slice(current, totals)
            await self._learn(current, received)

    # ---- latencies

    def _totals(self) -> dict[str, np.ndarray]:
        """What this process has seen in its slice, by provider."""
        totals: dict[str, np.ndarray] = {}
        with self._lock:
            for key, latency in self._registry.latencies().items():
                if record_key_of(key) in self._registry.simulated:
                    continue
                if latency.totals is not None and latency.totals.any():
                    totals[key] = latency.totals.copy()
        return totals

    def _next_slice(self, current: int, written: Mapping[str, np.ndarray]) -> None:
        """Begin another slice with what has come since the last one was written."""
        self._slice, self._is_written, self._fields = current, False, 0
        with self._lock:
            latencies = self._registry.latencies()
            for key, totals in written.items():
                latency = latencies.get(key)
                if latency is not None and latency.totals is not None:
                    np.maximum(latency.totals - totals, 0, out=latency.totals)

    async def _learn(self, current: int, received: Received) -> None:
        """Take what others have seen, step by step, so that the event loop is not held."""
        if len(received.slices) > 2:
            self._older.clear()
        found: dict[str, Floats] = {}
        for number in sorted(received.slices, reverse=True):
            sums = found if number >= current - 1 else self._older
            in_slice: dict[str, Floats] = {}
            for index, (key, data) in enumerate(received.slices[number]):
                if index % 32 == 31:
                    await asyncio.sleep(0)
                try:
                    counts = unpack(data)
                except ValueError:
                    self._say_once(f"{self._store}: counts of {key} cannot be used")
                    continue
                in_slice[key] = in_slice[key] + counts if key in in_slice else counts
            for key, counts in in_slice.items():
                known = [each[key] for each in (found, self._older) if key in each]
                if sum(float(each.sum()) for each in known) < ENOUGH:
                    sums[key] = sums[key] + counts if key in sums else counts
        self._read_slice = current
        for key, counts in self._older.items():
            found[key] = found[key] + counts if key in found else counts
        self._others = dict(list(found.items())[:MOST_PROVIDERS])
        with self._lock:
            latencies = self._registry.latencies()
        for key, latency in latencies.items():
            await asyncio.sleep(0)
            with self._lock:
                latency.inform(self._others.get(key))

    # ---- breakers and budgets

    def _own_findings(self, now: float) -> dict[str, Finding]:
        with self._lock:
            records = self._registry.records().items()
            simulated = self._registry.simulated
            found = {key: each.finding(now) for key, each in records if key not in simulated}
        return {key: each for key, each in found.items() if each.found != "unsure" or each.closings}

    def _follow(self, own: Findings, documents: Mapping[str, str], now: float) -> None:
        others: dict[str, Findings] = {}
        balances: list[Mapping[float, float]] = []
        loads: dict[str, LoadReading] = {}
        for process, text in documents.items():
            try:
                document = Document.of(text)
            except UnknownVersion as e:
                self._say_once(
                    f"{self._store}: a process of another release shares the prefix ({e}): "
                    "breakers and budgets are not shared with it",
                )
            except ValueError:
                self._say_once(f"{self._store}: a process's document cannot be read")
            else:
                others[process] = document.providers
                balances.append(document.balances)
                for key, (running, waiting, age_secs) in document.loads.items():
                    found = LoadReading(running, waiting, now - age_secs)
                    if process < self._process and (
                        key not in loads or found.read_at > loads[key].read_at
                    ):
                        loads[key] = found
        self._balances = balances
        self._registry.loads.shared = loads
        advice = advise(own, self._findings, others)
        # Of a large fleet only a sample is read: the others' findings are remembered.
        known = {p: f for p, f in self._findings.items() if p not in others} if documents else {}
        self._findings = dict([*known.items(), *others.items()][-MOST_KNOWN:])
        with self._lock:
            for key, record in self._registry.records().items():
                record.follow(advice.get(key, NO_ADVICE), now)

    def _even_out(self) -> None:
        """Bring each account a little nearer to the fleet's mean."""
        with self._lock:
            for budget, account in self._accounts.items():
                others = [each[budget] for each in self._balances if budget in each]
                mean = (account.balance + sum(others)) / (1 + len(others))
                account.withdraw(EVENING * (account.balance - mean))

    # ---- what is logged

    def _say_away(self, why: str) -> None:
        if not self._is_away:
            self._is_away = True
            logger.warning(
                f"{self._store}: {why}. Sessions go on with what this process knows, and what it "
                "learns is shared when that is possible again"
            )
        else:
            logger.debug(f"{self._store}: {why}")

    def _say_back(self) -> None:
        if self._is_away:
            self._is_away = False
            logger.info(f"{self._store}: back, what was learned meanwhile is shared")

    def _say_once(self, what: str) -> None:
        if what not in self._said and len(self._said) < 100:
            self._said.add(what)
            logger.info(what)
