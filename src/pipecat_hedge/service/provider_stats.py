"""What a process has learned of its providers: one registry for every service, loop and thread.

A call has some twenty turns. Learned call by call, the tail of a provider would never be known, so
what one call has seen is there for the next, and, through a store, for the next process.

Everything is behind one lock, held for microseconds as a rule, for a millisecond when a curve is
made anew, and never while anything is awaited or written.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

from loguru import logger

from pipecat_hedge.limits.admission_controller import AdmissionController
from pipecat_hedge.limits.background import LoopWork
from pipecat_hedge.limits.loop_lag import LoopWatch
from pipecat_hedge.policy.backends import MOST_PROVIDERS
from pipecat_hedge.policy.budget_accounts import BudgetState
from pipecat_hedge.policy.latency_registry import LatencyRegistry
from pipecat_hedge.policy.priors import prior_for
from pipecat_hedge.policy.provider_latency import ProviderLatency
from pipecat_hedge.policy.shared_store import SharedStore
from pipecat_hedge.policy.stats_store import StatsStore
from pipecat_hedge.service import composition
from pipecat_hedge.service.events import EventHub
from pipecat_hedge.service.registries import introduce

__all__ = ["BudgetState", "ProviderStats", "shared_stats"]

VERSION = 1
SAVE_EVERY_SECS = 60.0


class ProviderStats(LatencyRegistry):
    """What a process knows of its providers: latencies, budgets, breakers and limits.

    Attributes:
        health: Breakers and limits, by provider.
        loop_watch: Whether the process itself is too busy.
        fleet: This process's part in a fleet; None if nothing is shared with other processes.
        events: The hub of every service that uses these statistics; see ``EventHub``.

    Services use the process's own unless they are given another: ``HedgedLLMService(stats=...)``.

    Example::

        stats = ProviderStats(FileStore("stats.json"))   # or ProviderStats(RedisStore())
        llm = HedgedLLMService([...], stats=stats)
    """

    def __init__(
        self,
        store: StatsStore | SharedStore | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Load what was saved, if anything.

        Args:
            store: Where statistics are kept between runs, or shared with other processes while
                sessions run; None keeps them in this process alone.
            clock: Tells when to save again, in seconds.
        """
        super().__init__(lambda: 1 if self.fleet is None else self.fleet.processes)
        shared = store if isinstance(store, SharedStore) else None
        self._store = None if isinstance(store, SharedStore) else store
        self._clock = clock
        self._saving = threading.Lock()
        self._saved_at = clock()
        self._slo_board: composition.SloBoard | None = None
        self.events = EventHub()
        self.loop_watch = LoopWatch()
        self.health = AdmissionController(lag_secs=self.loop_watch.lag_now)
        works = {"watches the loop": self.loop_watch.run_if_real}
        self.fleet: composition.FleetSync | None = None
        if shared is not None:
            self.fleet = composition.join_fleet(shared, self._lock, self, self.health)
            works["shares statistics"] = self.fleet.run
        self._background = LoopWork(works)
        self._load()
        introduce(self)

    @property
    def slo_board(self) -> composition.SloBoard:
        """How the SLOs of all services that use these statistics are met."""
        if self._slo_board is None:
            self._slo_board = composition.slo_board(self.events)
        return self._slo_board

    def answered_since(self, key: str) -> float:
        """See ``LatencyRegistry``."""
        return self.health.answered_since(key)

    def last_token_at(self, key: str) -> float:
        """See ``LatencyRegistry``."""
        return self.health.last_token_at(key)

    def _introduce(self, key: str, latency: ProviderLatency) -> None:
        if self.fleet is not None:
            self.fleet.introduce(key, latency)

    # ---- while there are sessions

    def hold(self) -> None:
        """Watch the loop and share what is known with other processes, until ``release``.

        Each session holds once, on its own event loop. Without a shared store nothing is shared.
        """
        self._background.hold()

    async def release(self) -> None:
        """End what ``hold`` began; the last session tells what has not been told yet."""
        if await self._background.release() and self.fleet is not None:
            await self.fleet.flush()

    @property
    def sessions(self) -> int:
        """How many sessions there are now."""
        return self._background.holders

    # ---- kept between runs

    @property
    def is_due(self) -> bool:
        """Whether it is time to save again."""
        return (
            self._store is not None
            and self._is_new
            and self._clock() - self._saved_at >= SAVE_EVERY_SECS
        )

    def save(self) -> None:
        """Keep what is known, if there is anything new and a store to keep it in."""
        if self._store is None:
            return
        with self._saving:  # one after the other, or an older one might come last
            with self._lock:
                if not self._is_new:
                    return
                self._is_new, self._saved_at = False, self._clock()
                providers = dict(self._kept)
                latencies = list(self.latencies.items())
            for key, latency in latencies:
                with self._lock:  # for each of them anew: a turn waits for one at most
                    providers.pop(key, None)
                    providers[key] = latency.saved()
            for key in list(providers)[:-MOST_PROVIDERS]:
                del providers[key]
            try:
                self._store.save(json.dumps({"version": VERSION, "providers": providers}))
            except Exception as e:
                self._is_new = True  # the next time is another try
                why = (e.strerror if isinstance(e, OSError) else None) or type(e).__name__
                logger.warning(f"statistics could not be saved to {self._store}: {why}")

    def _load(self) -> None:
        if self._store is None:
            return
        try:
            text = self._store.load()
        except Exception as e:
            logger.warning(f"statistics could not be read: {type(e).__name__}")
            return
        if text is None:
            return
        try:
            found = json.loads(text)
            version = found["version"]
            if version == VERSION:
                for key, saved in found["providers"].items():
                    ProviderLatency(prior_for(key)).restore(saved)  # refuses what cannot be used
                self._kept = dict(list(found["providers"].items())[-MOST_PROVIDERS:])
                return
            why = f"of version {version}, which this release does not know"
        except Exception:  # whatever it holds, it must not keep a service from starting
            why = "corrupt"
        try:
            self._store.set_aside(why)
        except Exception as e:
            logger.warning(f"statistics are {why}, and stay in place: {type(e).__name__}")


_shared: ProviderStats | None = None
_shared_lock = threading.Lock()


def shared_stats() -> ProviderStats:
    """The process's own registry, made and loaded when it is first asked for."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = ProviderStats(composition.default_store())
        return _shared
