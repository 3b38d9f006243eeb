"""How things stand, as Prometheus gauges: read when somebody asks, and kept nowhere else.

Law: to look changes nothing; and one series a provider, a model and a state, whoever calls.

In one process the gauges are read when they are scraped. Where several processes write to one
folder, a scrape reaches one of them only: there each writes its own every few seconds
(``prometheus_process.py``), and they are added up, or the worst of them counts. So do several
registries of one process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, Gauge

from pipecat_hedge.race.reports import BreakerState
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.telemetry.prometheus_names import Names

if TYPE_CHECKING:
    from typing import Literal

    Together = Literal["livesum", "livemax", "livemin"]

__all__ = ["StateGauges"]

MOST_ACCOUNTS = 20
"""Of budgets; the others share a label."""
STATES: tuple[BreakerState, ...] = get_args(BreakerState)


class StateGauges:
    """Gauges of what the registries of providers know."""

    def __init__(
        self,
        registry: CollectorRegistry,
        providers: Names,
        models: Names,
        stats: Callable[[], Iterable[ProviderStats]],
        clock: Callable[[], float] = time.monotonic,
    ):
        """Make the gauges; ``refresh`` fills them.

        Args:
            registry: Where they are made.
            providers: The providers' names as labels.
            models: The models' names as labels.
            stats: What is known of the providers.
            clock: The event loops' time.
        """

        def gauge(name: str, told: str, labels: tuple[str, ...], mode: Together) -> Gauge:
            return Gauge(
                f"pipecat_hedge_{name}", told, labels, registry=registry, multiprocess_mode=mode
            )

        who = ("provider", "model")
        self._providers, self._models = providers, models
        self._accounts = Names(MOST_ACCOUNTS)
        self._stats, self._clock = stats, clock
        self._lock = threading.Lock()
        self._told: set[tuple[str, str]] = set()
        self._owed: set[str] = set()
        self._breaker = gauge(
            "breaker_state",
            "Registries, one a process as a rule, in which a provider's breaker is in this state.",
            (*who, "state"),
            "livesum",
        )
        self._limit = gauge(
            "concurrency_limit", "Requests that a provider may have at once.", who, "livesum"
        )
        self._in_flight = gauge(
            "requests_in_flight", "Requests that a provider has now.", who, "livesum"
        )
        self._rests = gauge(
            "provider_rests_seconds",
            "How long a provider has asked to be left alone yet (Retry-After).",
            who,
            "livemax",
        )
        self._slow = gauge(
            "provider_slow",
            "Registries in which a provider has turned slow, compared with what was usual for it.",
            who,
            "livesum",
        )
        self._waiting = gauge(
            "queue_depth", "Requests that wait until there is room for them.", (), "livesum"
        )
        self._sessions = gauge("sessions", "Calls that are being held.", (), "livesum")
        self._lag = gauge(
            "event_loop_lag_seconds",
            "How far behind the worst event loop was in the last half second.",
            (),
            "livemax",
        )
        self._budget = gauge(
            "budget_requests_per_turn",
            "Extra requests that hedging may make, per turn on average.",
            ("budget",),
            "livemax",
        )
        self._balance = gauge(
            "budget_balance_requests",
            "Hedging credit above half of what the account holds, in requests.",
            ("budget",),
            "livemin",
        )

    def refresh(self) -> None:
        """Look how things stand now; from any thread."""
        with self._lock:
            registries, now = list(self._stats()), self._clock()
            self._tell_providers(registries, now)
            self._tell_budgets(registries)
            self._waiting.set(sum(stats.health.waiting for stats in registries))
            self._sessions.set(sum(stats.sessions for stats in registries))
            lags = [stats.loop_watch.lag_secs(now) or 0.0 for stats in registries]
            self._lag.set(max(lags, default=0.0))

    def _tell_providers(self, registries: Iterable[ProviderStats], now: float) -> None:
        told: dict[tuple[str, str], list[tuple[BreakerState, int, int, float, bool]]] = {}
        told |= {who: [] for who in self._told}  # a registry that has gone leaves nothing behind
        for stats in registries:
            health, slow = stats.health, stats.slow()
            for who, key in self.providers(stats):
                state, (in_flight, limit) = health.state(key, now), health.occupancy(key, now)
                rests = health.retry_after_secs(key, now)
                told.setdefault(who, []).append((state, in_flight, limit, rests, key in slow))
        self._told |= told.keys()
        for who, each in told.items():
            for state in STATES:
                self._breaker.labels(*who, state).set(sum(s == state for s, *_ in each))
            self._in_flight.labels(*who).set(sum(n for _, n, *_ in each))
            self._limit.labels(*who).set(sum(n for _, _, n, *_ in each))
            self._rests.labels(*who).set(max((n for *_, n, _ in each), default=0.0))
            self._slow.labels(*who).set(sum(slow for *_, slow in each))

    def providers(self, stats: ProviderStats) -> list[tuple[tuple[str, str], str]]:
        """Whom a registry knows: the labels of provider and model, and the key.

        Args:
            stats: The registry.
        """
        with stats.health.lock:
            keys = list(stats.health.entries())
        named = [(key, *key.partition(" | ")[::2]) for key in keys]
        return [((self._providers.of(a), self._models.of(b)), key) for key, a, b in named]

    def _tell_budgets(self, registries: Iterable[ProviderStats]) -> None:
        balances: dict[str, list[tuple[float, float]]] = {name: [] for name in self._owed}
        for stats in registries:
            for state in stats.budgets():
                name = self._accounts.of(f"{state.budget:g}")
                balances.setdefault(name, []).append((state.budget, state.balance))
        self._owed |= balances.keys()
        for name, accounts in balances.items():
            self._budget.labels(name).set(max((budget for budget, _ in accounts), default=0.0))
            self._balance.labels(name).set(min((balance for _, balance in accounts), default=0.0))
