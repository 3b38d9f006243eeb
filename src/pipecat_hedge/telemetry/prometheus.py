"""Turns as Prometheus metrics: who is slow, what hedging buys and costs, what callers get.

Law: a metric is made of reports alone, so that it can say no more than they do: no key, no prompt,
no answer, nobody's session; and every turn counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from weakref import WeakSet

from prometheus_client import REGISTRY, CollectorRegistry, Metric
from prometheus_client.registry import Collector

from pipecat_hedge.limits.priority import Tier
from pipecat_hedge.policy.slo_outcome import Slo
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.reports import TurnReport
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.service.registries import follow, unfollow
from pipecat_hedge.telemetry.exposition import multiprocess_dir
from pipecat_hedge.telemetry.instruments import Instruments
from pipecat_hedge.telemetry.prometheus_names import Names
from pipecat_hedge.telemetry.prometheus_process import ProcessBeat
from pipecat_hedge.telemetry.prometheus_slo import SloTally
from pipecat_hedge.telemetry.prometheus_state import StateGauges
from pipecat_hedge.telemetry.prometheus_turns import TurnCounters
from pipecat_hedge.voice.turn_latency import TurnLatency, TurnLatencyObserver

__all__ = ["PrometheusRecorder"]

MOST_PROVIDERS, MOST_MODELS = 50, 100
"""Names that become labels; more of them are called ``other``."""


class PrometheusRecorder(Collector):
    """Counts every turn of every hedged service of the process.

    Make one where the process starts. What is served is ``prometheus_client``'s registry, by the
    functions of ``telemetry.exposition`` or, without native histograms, by any of its means.

    Example::

        recorder = PrometheusRecorder()
        exposition.start_http_server(9464)
        ...
        latency = TurnLatencyObserver()     # for each call, for voice-to-voice latency
        recorder.listen_to(latency)
    """

    def __init__(
        self,
        *,
        stats: ProviderStats | None = None,
        registry: CollectorRegistry | None = None,
        slos: Mapping[Tier, Slo] | None = None,
    ):
        """Be told of every turn from now on, until ``close``.

        Args:
            stats: Whose services' turns to count; by default those of all services of the process,
                whatever statistics they use.
            registry: Where the metrics are registered; ``prometheus_client``'s own by default.
                Of no account where processes write to ``PROMETHEUS_MULTIPROC_DIR``.
            slos: What callers are promised, by tier. What services promise themselves
                (``HedgedLLMService(slo=...)``, ``HedgePolicy.adaptive(slo=...)``) is known without
                it, and comes first.

        Raises:
            ConfigurationError: If there is one in this registry already, a tier is not known, or
                the folder of several processes is not there.
        """
        shared = multiprocess_dir()
        self._own = CollectorRegistry()
        self._registry = None if shared is not None else registry or REGISTRY
        self._stats: WeakSet[ProviderStats] = WeakSet()
        self._providers, self._models = Names(MOST_PROVIDERS), Names(MOST_MODELS)
        instruments = Instruments(self._own, in_files=shared is not None)
        self._slo = SloTally(slos or {}, instruments)
        self._counters = TurnCounters(
            instruments,
            providers=self._providers,
            models=self._models,
            slo=self._slo,
        )
        self._state = StateGauges(
            self._own, self._providers, self._models, lambda: list(self._stats)
        )
        if self._registry is not None:
            try:
                self._registry.register(self)
            except ValueError:
                raise ConfigurationError(
                    "there is a PrometheusRecorder in this registry already, and one counts the "
                    "turns of all services (unless it was given stats): use it, or close it first"
                ) from None
        self._beat = None if shared is None else ProcessBeat(shared, self._look)
        if stats is None:
            follow(self._take)
        else:
            self._take(stats)

    def close(self) -> None:
        """Count no more, and leave the registry."""
        unfollow(self._take)
        for stats in list(self._stats):
            stats.turn_hooks.remove(self.record)
            stats.slo_board.hooks.remove(self._slo.take)
        self._stats.clear()
        if self._beat is not None:
            self._beat.close()
        if self._registry is not None:
            self._registry.unregister(self)
            self._registry = None

    def listen_to(self, observer: TurnLatencyObserver) -> None:
        """Count what the callers of an observer's pipeline heard.

        Args:
            observer: The pipeline's observer.
        """

        async def heard(_: object, turn: TurnLatency) -> None:
            self.record_heard(turn)

        observer.add_event_handler("on_turn_latency", heard)

    def collect(self) -> Iterable[Metric]:
        """Tell how things stand and what was counted. Called by the registry, from any thread."""
        self._look()
        return self._own.collect()

    def describe(self) -> Iterable[Metric]:
        """Tell what there is, so that a registry refuses the same a second time."""
        return self._own.collect()

    def _take(self, stats: ProviderStats) -> None:
        """Count the turns and promises of a registry's services, those that were made included."""
        self._stats.add(stats)
        stats.turn_hooks.add(self.record)
        stats.slo_board.hooks.add(self._slo.take)
        for tier, slo in stats.slo_board.promises():
            self._slo.take(tier, slo, {})

    def _look(self) -> None:
        """See how things stand, and whom there is to count attempts of."""
        self._state.refresh()
        for stats in list(self._stats):
            for (provider, model), _ in self._state.providers(stats):
                self._counters.see(provider, model)

    # ---- what happened

    def record(self, report: TurnReport) -> None:
        """Count a turn; called by every service of the process.

        Args:
            report: The turn.
        """
        self._counters.count(report)

    def record_heard(self, turn: TurnLatency) -> None:
        """Count what a caller heard of a turn.

        Args:
            turn: The turn, from the caller's silence on.
        """
        self._counters.count_heard(turn)
