"""Keeps what a process knows and what its fleet knows in step, in the background.

Law: no turn waits for it. Turns read and write what is in memory; this takes what is new from
there, once a second, and puts there what others have found.

A store that is away changes nothing but that: what is seen meanwhile is kept, as counts, which do
not grow with time, and told when the store is back.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from loguru import logger

from pipecat_hedge.fleet.fleet_latency import FleetLatency
from pipecat_hedge.fleet.merge import UnknownVersion, advise, read_findings, write
from pipecat_hedge.limits.admission_controller import AdmissionController
from pipecat_hedge.limits.fleet_advice import NOTHING, Advice, Finding
from pipecat_hedge.policy.hedge_budget import HedgeBudget
from pipecat_hedge.policy.latency_sketch import LatencyCounts
from pipecat_hedge.policy.priors import prior_for
from pipecat_hedge.policy.provider_latency import OthersCurve, ProviderLatency, curves_of
from pipecat_hedge.policy.shared_store import Batch, Received, SharedStore, StoreUnavailable, Wanted

__all__ = ["FleetSync"]

NO_ADVICE = Advice()
EVERY_SECS = 1.0
CAP_SECS = 4.0
"""How long it takes at most until a store that was away is tried again."""
JITTER = 0.2
MOST_KNOWN = 1000
"""So many other processes are remembered, those who were heard last."""
FLUSH_SECS = 0.5
"""How long the last session of a process waits for what it has learned to be told."""


class FleetSync:
    """One process's part in a fleet.

    It runs on one event loop at a time, however many of a process's loops run it, and exchanges
    once at a time there: a new session's first exchange waits for the last word of those before.

    Attributes:
        processes: How many there are, this one included, as far as is known; of a large fleet, as
            many as are heard of at once. Stays what it was while the store is away.
    """

    def __init__(
        self,
        store: SharedStore,
        lock: threading.Lock,
        latencies: Mapping[str, ProviderLatency],
        accounts: Mapping[float, HedgeBudget],
        health: AdmissionController,
        *,
        rng: random.Random | None = None,
    ):
        """Name what is to be kept in step; nothing runs yet.

        Args:
            store: Where the fleet meets.
            lock: Held by whoever reads or changes latencies or accounts.
            latencies: By the provider's key.
            accounts: What may be spent on extra requests, by the budget.
            health: The registry of breakers and limits.
            rng: Spreads the exchanges of many processes; None rolls its own.
        """
        self._store = store
        self._lock = lock
        self._latencies, self._accounts, self._health = latencies, accounts, health
        self._rng = rng or random.Random()
        self._turn = threading.Lock()
        self._runs_on: asyncio.AbstractEventLoop | None = None
        self._users = 0
        self._curves: dict[str, dict[str, OthersCurve]] = {}
        self._is_away = False
        self._said: set[str] = set()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._process = uuid.uuid4().hex
        self._exchange = asyncio.Lock()
        self._batch = Batch(0)
        self._is_in_doubt = False
        self._again: dict[str, LatencyCounts] = {}
        self._fleet: dict[str, FleetLatency] = {}
        self._changes: dict[str, int] = {}
        self._others: dict[str, dict[str, Finding]] = {}
        self.processes = 1

    # ---- in the registries, with their locks held

    def introduce(self, key: str, latency: ProviderLatency) -> None:
        """Have a provider that is new here begin with what the fleet knows.

        Args:
            key: Its key.
            latency: What is known of it.
        """
        latency.news = LatencyCounts()
        if (curves := self._curves.get(key)) is not None:
            latency.inform(curves)

    # ---- in the background

    async def run(self) -> None:
        """Exchange once a second, until cancelled; on one loop of a process only."""
        loop = asyncio.get_running_loop()
        wait, is_ours = 0.0, False
        try:
            while True:
                await asyncio.sleep(wait * self._rng.uniform(1 - JITTER, 1 + JITTER))
                is_ours = is_ours or self._claim(loop)
                if not is_ours or await self.sync():
                    wait = EVERY_SECS
                else:
                    wait = min(max(2 * wait, EVERY_SECS), CAP_SECS)
        finally:
            if is_ours:
                await self._leave()

    async def flush(self) -> None:
        """Tell what has not been told, unless another loop will; for ``FLUSH_SECS`` at most."""
        loop = asyncio.get_running_loop()
        if self._is_away or not self._claim(loop):
            return
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECS):
                    was_in_doubt = self._is_in_doubt
                    if await self.sync() and was_in_doubt:
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
        async with self._exchange:  # at once: nobody uses it, and who comes now waits for this
            await self._store.close()
        with self._turn:
            if not self._users:
                self._runs_on = None

    async def sync(self) -> bool:
        """Exchange once.

        Returns:
            Whether the store could be used.
        """
        if os.getpid() != self._pid:  # forked: another process, with nothing added so far
            self._begin()
        async with self._exchange:
            return await self._sync()

    async def _sync(self) -> bool:
        now = asyncio.get_running_loop().time()
        own = self._findings(now)
        self._gather()
        wanted = {key: Wanted(each.place, each.wants) for key, each in self._fleet.items()}
        self._is_in_doubt = True
        try:
            received = await self._store.exchange(self._process, self._batch, write(own), wanted)
        except Exception as e:  # whatever a store raises, it must not end this
            self._say_away(str(e) if isinstance(e, StoreUnavailable) else type(e).__name__)
            return False
        self._say_back()
        self._settle(received)
        self._is_in_doubt = False
        self._follow(own, received.documents, asyncio.get_running_loop().time())
        await self._learn(received)
        for what in received.unusable:
            self._say_once(f"{self._store}: {what} cannot be used, and is passed over")
        return True

    # ---- what is told

    def _gather(self) -> None:
        """Make the next batch, unless it is not known what became of the last one."""
        if self._is_in_doubt:
            return
        counts, self._again = self._again, {}
        with self._lock:
            latencies = dict(self._latencies)
            balances = {_name(budget): each.balance for budget, each in self._accounts.items()}
        for key in self._fleet.keys() - latencies.keys():
            del self._fleet[key]
            self._changes.pop(key, None)
        for key, latency in latencies.items():
            with self._lock:
                news, changes = latency.take_news(), latency.changes
            fleet = self._fleet.setdefault(key, FleetLatency())
            if changes != self._changes.setdefault(key, changes):
                self._changes[key] = changes
                self._curves.pop(key, None)
                fleet.forget()
            if news:
                counts.setdefault(key, LatencyCounts()).merge(news)
        self._batch = Batch(self._batch.number + 1, counts, balances)

    def _findings(self, now: float) -> dict[str, Finding]:
        with self._health.lock:
            entries = self._health.entries()
        findings: dict[str, Finding] = {}
        for key, entry in entries.items():
            with self._health.lock:
                found = entry.finding(now)
            if replace(found, reason="") != NOTHING:
                findings[key] = found
        return findings

    # ---- what is received

    def _settle(self, received: Received) -> None:
        for key, place in received.places.items():
            if key in self._batch.counts:
                self._fleet.setdefault(key, FleetLatency()).added(self._batch.counts[key], place)
        with self._lock:
            for budget, account in self._accounts.items():
                if moved := received.moved.get(_name(budget)):
                    account.settle(moved)

    async def _learn(self, received: Received) -> None:
        """Take what others have seen, provider by provider, so that nobody waits for long."""
        for key in received.lost & self._fleet.keys():
            self._add_again(key, self._fleet[key].lost())
        for key, found in received.sums.items():
            fleet = self._fleet.setdefault(key, FleetLatency())
            self._add_again(key, fleet.found(found))
            await asyncio.sleep(0)
            with self._lock:
                latency = self._latencies.get(key)
                changes = 0 if latency is None else latency.changes
            prior = prior_for(key) if latency is None else latency.prior
            curves = curves_of(prior.curve, fleet.others)
            self._curves[key] = curves
            await asyncio.sleep(0)
            with self._lock:
                latency = self._latencies.get(key)
                if latency is not None and changes == latency.changes:
                    latency.inform(curves)

    def _add_again(self, key: str, counts: LatencyCounts) -> None:
        if counts:
            self._again.setdefault(key, LatencyCounts()).merge(counts)

    def _follow(self, own: Mapping[str, Finding], documents: Mapping[str, str], now: float) -> None:
        self.processes = 1 + len(documents)
        others: dict[str, dict[str, Finding]] = {}
        for process, text in documents.items():
            try:
                others[process] = read_findings(text)
            except UnknownVersion as e:
                self._say_once(
                    f"{self._store}: a process of another release shares the prefix ({e}): "
                    "breakers and limits are not shared with it",
                )
            except ValueError:
                self._say_once(f"{self._store}: a process's document cannot be read")
        advice = advise(own, self._others, others)
        # A sample of a large fleet: who is not in it this time still told what it told.
        known = {p: f for p, f in self._others.items() if p not in others} if documents else {}
        self._others = dict([*known.items(), *others.items()][-MOST_KNOWN:])
        with self._health.lock:
            for key, entry in self._health.entries().items():
                entry.follow(advice.get(key, NO_ADVICE), now)  # those nobody tells of, too

    # ---- what is said

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


def _name(budget: float) -> str:
    """An account's name in the fleet: the same for all who have the budget."""
    return f"budget {budget!r}"
