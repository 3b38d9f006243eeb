"""The registry of a process's providers, with budgets, saved statistics and the fleet.

A call has some twenty turns, too few to learn a provider's tail. So all services, loops and threads
share one ``ProviderStats``, and processes share statistics through a store. What is known of a
provider, and the lock, are in ``providers/registry.py``.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection
from weakref import WeakSet

from loguru import logger

from pipecat_hedge.policy.budget_accounts import BudgetAccounts, BudgetState
from pipecat_hedge.providers.backends import MOST_PROVIDERS, Backend, record_key_of
from pipecat_hedge.providers.background import LoopWork
from pipecat_hedge.providers.latency import ProviderLatency
from pipecat_hedge.providers.loop_lag import LoopWatch
from pipecat_hedge.providers.priors import prior_for
from pipecat_hedge.providers.registry import ProviderRegistry
from pipecat_hedge.providers.shared_store import SharedStore
from pipecat_hedge.providers.stats_store import Snapshot, StatsStore
from pipecat_hedge.service import composition
from pipecat_hedge.service.events import EventHub

VERSION = 2
"""The version of the saved format; a file of another version is set aside."""
SAVE_EVERY_SECS = 60.0
"""A crash loses at most this much."""


class ProviderStats(ProviderRegistry):
    """The statistics of a process: latencies, budgets, breakers and limits.

    Attributes:
        accounts: What may be spent on hedges, by budget.
        loop_watch: How far the event loops are behind.
        fleet: The connection to other processes; None without a shared store.
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
            store: Where statistics are saved between runs, or shared with other processes while
                sessions run; None keeps them in this process only.
            clock: Returns the time in seconds, to decide when to save.
        """
        self.loop_watch = LoopWatch()
        super().__init__(lag_secs=self.loop_watch.lag_now)
        self.accounts = BudgetAccounts(self.lock)
        shared = store if isinstance(store, SharedStore) else None
        self._store = None if isinstance(store, SharedStore) else store
        self._clock = clock
        self._saving = threading.Lock()
        self._saved_at = clock()
        self._slo_tracker: composition.SloTracker | None = None
        self.events = EventHub()
        works = {"watches the loop": self.loop_watch.run_if_real}
        self.fleet: composition.FleetSync | None = None
        if shared is not None:
            self.fleet = composition.join_fleet(shared, self, self.accounts)
            works["shares statistics"] = self.fleet.run
        self._background = LoopWork(works)
        if isinstance(store, Snapshot):  # no turn waits for the network
            threading.Thread(target=self._load, name="reads statistics", daemon=True).start()
        else:
            self._load()
        with _introducing:
            _registries.add(self)
            for follower in _followers:
                follower(self)

    @property
    def slo_tracker(self) -> composition.SloTracker:
        """How the SLOs of all services that use these statistics are met."""
        if self._slo_tracker is None:
            self._slo_tracker = composition.slo_tracker(self.events)
        return self._slo_tracker

    def budgets(self) -> tuple[BudgetState, ...]:
        """The state of each budget that was used lately."""
        return self.accounts.states()

    def _introduce(self, key: str, latency: ProviderLatency) -> None:
        if self.fleet is not None:
            self.fleet.introduce(key, latency)

    # ---- while there are sessions

    def begin_session(self, backends: Collection[Backend] = ()) -> None:
        """Watch the loop and share statistics with other processes, until ``end_session``.

        Each session calls it once, on its own event loop. Without a shared store nothing is shared.

        Args:
            backends: The providers of which the session wants to know what the fleet knows.
        """
        if self.fleet is not None:
            self.fleet.want([backend.key for backend in backends])
        self._background.hold()

    async def end_session(self) -> None:
        """End a session. The last session publishes what has not been shared yet."""
        if await self._background.release() and self.fleet is not None:
            await self.fleet.flush()

    @property
    def sessions(self) -> int:
        """The number of sessions now."""
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
        """Save the statistics, if there is a store and anything new.

        Of a simulated provider what the store had before stays there.
        """
        if self._store is None:
            return
        with self._saving:  # one at a time, or an older state might be saved last
            with self.lock:
                if not self._is_new:
                    return
                self._is_new, self._saved_at = False, self._clock()
                providers = dict(self._saved)
                latencies = [
                    (key, latency)
                    for key, latency in self.latencies().items()
                    if record_key_of(key) not in self.simulated
                    and (latency.seen or latency.silences)
                ]
            if not latencies:
                return
            for key, latency in latencies:
                with self.lock:  # one lock per provider: a turn waits for one at most
                    providers.pop(key, None)
                    providers[key] = latency.saved()
            for key in list(providers)[:-MOST_PROVIDERS]:
                del providers[key]
            try:
                self._store.save(json.dumps({"version": VERSION, "providers": providers}))
            except Exception as e:
                self._is_new = True  # try again next time
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
                    ProviderLatency(prior_for(key)).restore(saved)  # raises on invalid data
                with self.lock:
                    self._saved = dict(list(found["providers"].items())[-MOST_PROVIDERS:])
                    for key, latency in self.latencies().items():
                        if key in self._saved and not latency.seen:
                            latency.restore(self._saved[key])
                return
            why = f"of version {version}, which this release does not know"
        except Exception:  # invalid data must not prevent a service from starting
            why = "corrupt"
        try:
            self._store.set_aside(why)
        except Exception as e:
            logger.warning(f"statistics are {why}, and stay in place: {type(e).__name__}")


# ---- all registries of the process, for metrics recorders

_registries: WeakSet[ProviderStats] = WeakSet()
_followers: list[Callable[[ProviderStats], None]] = []
_introducing = threading.RLock()


def follow(follower: Callable[[ProviderStats], None]) -> None:
    """Call ``follower`` once with every registry of the process, existing and future.

    A registry belongs to the user and is freed with its last service: hold no reference to it.
    """
    with _introducing:
        _followers.append(follower)
        for stats in list(_registries):
            follower(stats)


def unfollow(follower: Callable[[ProviderStats], None]) -> None:
    """Stop following; does nothing for one that does not follow."""
    with _introducing:
        if follower in _followers:
            _followers.remove(follower)


_shared: ProviderStats | None = None
_shared_lock = threading.Lock()


def shared_stats() -> ProviderStats:
    """The process's own registry, created and loaded on first use."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = ProviderStats(composition.default_store())
        return _shared
