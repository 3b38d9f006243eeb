"""Turns as Prometheus metrics: who is slow, what hedging buys and costs, what callers get.

Law: a metric is made of reports alone, so that it can say no more than they do: no key, no prompt,
no answer, nobody's session; and every turn counts once.

What to count was chosen so that what an operator asks is one line of PromQL, and so that the
figures can be held against others. Counters of requests are counters of *requests*: an attempt for
which there was no room has sent none. Times to first token are of two kinds. A caller's is the
turn's. A provider's is the attempt's, and there the naive histogram lies: a provider that is slow
enough to be overtaken never shows a first token, so that it looks fast. So what was waited for in
vain is a histogram of its own (``attempt_unanswered_seconds``), each a lower bound, so that a
refusal is none; the rules in ``deploy/`` take both together. How much better a promise can be kept
is not a percentile's matter, but one of turns that were good and bad: they are counted apart by
``SloTally``, exactly, whatever the buckets are.

Times are classic histograms and native ones at once (``time_histogram.py``): which of them a
Prometheus takes is its own choice.

Sources of constants: 50 ms is less than any provider's first token and 30 s more than any caller
waits; between them the bounds are a quarter to a half apart, with the usual promises (0.8, 1.2 and
1.5 s) among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import product
from typing import Any, get_args
from weakref import WeakSet

from pipecat.utils.errors import ErrorCategory
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Metric
from prometheus_client.registry import Collector

from pipecat_hedge.attempt import EMPTY_ANSWER, MISSED_DEADLINE, STALLED, TIMED_OUT
from pipecat_hedge.errors import SHED, ConfigurationError
from pipecat_hedge.exposition import multiprocess_dir
from pipecat_hedge.facts import AttemptOutcome, FillerCause, LaunchReason, TurnOutcome
from pipecat_hedge.policies.slo import Slo
from pipecat_hedge.prometheus_names import NONE, Names
from pipecat_hedge.prometheus_process import ProcessBeat
from pipecat_hedge.prometheus_slo import SloTally
from pipecat_hedge.prometheus_state import StateGauges
from pipecat_hedge.provider_stats import ProviderStats
from pipecat_hedge.registries import follow, unfollow
from pipecat_hedge.reports import AttemptReport, FillerReport, TurnReport
from pipecat_hedge.time_histogram import FiledHistogram, HistogramSpec, TimeHistogram
from pipecat_hedge.turn_latency import TurnLatency, TurnLatencyObserver
from pipecat_hedge.work import TIERS, Tier

__all__ = ["BUCKETS", "PrometheusRecorder"]

BUCKETS = (
    *(0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5),
    *(3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0),
)
"""Bounds in seconds."""
MOST_PROVIDERS, MOST_MODELS, MOST_CATEGORIES = 50, 100, 30
"""Names that become labels; more of them are called ``other``."""
RESCUES = ("failure", "stall")
OUTCOMES: tuple[TurnOutcome, ...] = get_args(TurnOutcome)
ATTEMPT_OUTCOMES: tuple[AttemptOutcome, ...] = get_args(AttemptOutcome)
REASONS: tuple[LaunchReason, ...] = get_args(LaunchReason)
CAUSES: tuple[FillerCause, ...] = get_args(FillerCause)
WAITED = (STALLED.category, TIMED_OUT.category, MISSED_DEADLINE.category)
"""Failures that say no more than that it was waited for so long."""
CATEGORIES = (*(c.value for c in ErrorCategory), *WAITED, EMPTY_ANSWER.category, SHED)
"""What usually goes wrong."""


class PrometheusRecorder(Collector):
    """Counts every turn of every hedged service of the process.

    Make one where the process starts. What is served is ``prometheus_client``'s registry, by the
    functions of ``pipecat_hedge.exposition`` or, without native histograms, by any of its means.

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
        self._categories = Names(MOST_CATEGORIES)
        self._seen = set[tuple[str, str]]()
        self._priced = set[tuple[str, str]]()
        self._child = lru_cache(maxsize=None)(_child)
        self._slo = SloTally(slos or {}, self._own)
        self._make(TimeHistogram if shared is None else FiledHistogram)
        self._begin_at_zero()
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
                self._see(provider, model)

    # ---- what happened

    def record(self, report: TurnReport) -> None:
        """Count a turn; called by every service of the process.

        Args:
            report: The turn.
        """
        tier, outcome, of = report.tier, report.outcome, self._child
        degraded = "false" if report.degraded_reason is None else "true"
        winner = self._providers.of(report.winner)
        of(self._turns, outcome, tier, degraded).inc()
        if report.ttft_secs is not None:
            of(self._ttft, winner, outcome, tier).observe(report.ttft_secs)
        if report.ttfs_secs is not None:
            of(self._ttfs, winner, outcome, tier).observe(report.ttfs_secs)
        of(self._queued, tier).observe(report.queued_secs)
        if not report.attempts and report.degraded_reason is not None:
            of(self._shed, "turn").inc()
        for attempt in report.attempts:
            self._record_attempt(attempt, report)
        if report.filler is not None:
            of(self._fillers, report.filler.cause, _filler(report.filler)).inc()
        self._slo.record(report)

    def record_heard(self, turn: TurnLatency) -> None:
        """Count what a caller heard of a turn.

        Args:
            turn: The turn, from the caller's silence on.
        """
        last = turn.reports[-1] if turn.reports else None
        tier: Tier = "standard" if last is None else last.tier
        if (secs := turn.voice_to_voice_secs) is not None:
            winner = NONE if last is None else self._providers.of(last.winner)
            outcome = "answered" if last is None else last.outcome
            outcome = "interrupted" if turn.interrupted else outcome
            self._child(self._voice, winner, outcome, tier).observe(secs)
        self._slo.record_heard(turn, tier)

    def _record_attempt(self, attempt: AttemptReport, report: TurnReport) -> None:
        of, provider = self._child, self._providers.of(attempt.provider)
        reason, outcome = attempt.launch_reason, attempt.outcome
        won = outcome == "won"
        model = self._models.of(attempt.model)
        self._see(provider, model)
        of(self._attempts, provider, reason, outcome).inc()
        if attempt.error_category is not None:
            category = self._categories.of(attempt.error_category)
            of(self._failures, provider, category).inc()
            if category == SHED:
                of(self._shed, reason).inc()
        if reason == "hedge":
            of(self._hedges, provider, "won" if won else "lost").inc()
        elif reason in RESCUES and _follows_on(attempt, report):
            of(self._rescues, provider, reason, "continued" if won else "failed").inc()
        if attempt.ttft_secs is not None:
            of(self._attempt_ttft, provider, outcome).observe(attempt.ttft_secs)
        if attempt.sent_secs is None:
            return
        of(self._requests, provider, model).inc()
        waits = outcome != "failed" or attempt.error_category in WAITED
        if attempt.ttft_secs is None and waits:
            waited = attempt.ended_secs - attempt.launched_secs
            of(self._unanswered, provider, outcome, reason).observe(waited)
        if attempt.stages is not None and attempt.stages.is_cold:
            of(self._cold, provider).inc()
        use = "used" if won or _is_cut_short(attempt, report) else "wasted"
        estimated = "true" if attempt.tokens_estimated else "false"
        if attempt.input_tokens:
            of(self._tokens, provider, model, "input", use, estimated).inc(attempt.input_tokens)
        if attempt.output_tokens:
            of(self._tokens, provider, model, "output", use, estimated).inc(attempt.output_tokens)
        if attempt.usd:
            if (provider, model) not in self._priced:
                self._priced.add((provider, model))
                of(self._usd, provider, model, "used")
                of(self._usd, provider, model, "wasted")
            of(self._usd, provider, model, use).inc(attempt.usd)

    # ---- the metrics

    def _begin_at_zero(self) -> None:
        """Have the series there before the first event: to a rate, one that begins at 1 has none.

        What is rare is what alerts are about, and its first time counts.
        """
        for tier in TIERS:
            for outcome in OUTCOMES:
                for degraded in ("false", "true"):
                    self._child(self._turns, outcome, tier, degraded)
        for what in ("turn", *REASONS):
            self._child(self._shed, what)
        for cause, result in product(CAUSES, ("spoken", "withdrawn", "withheld")):
            self._child(self._fillers, cause, result)

    def _see(self, provider: str, model: str) -> None:
        """The same of a provider, from when it is known.

        That is when a session prepares for its first turn or begins it, and somebody looks then.
        """
        if (provider, model) in self._seen:
            return
        self._seen.add((provider, model))
        of = self._child
        for reason, outcome in product(REASONS, ATTEMPT_OUTCOMES):
            of(self._attempts, provider, reason, outcome)
        for result in ("won", "lost"):
            of(self._hedges, provider, result)
        for reason, result in product(RESCUES, ("continued", "failed")):
            of(self._rescues, provider, reason, result)
        for category in CATEGORIES:
            of(self._failures, provider, self._categories.of(category))
        of(self._cold, provider)
        of(self._requests, provider, model)
        ways = product(("input", "output"), ("used", "wasted"), ("true", "false"))
        for direction, use, estimated in ways:
            of(self._tokens, provider, model, direction, use, estimated)

    def _make(self, histograms: type[TimeHistogram | FiledHistogram]) -> None:
        def counter(name: str, told: str, *labels: str) -> Counter:
            return Counter(f"pipecat_hedge_{name}", told, labels, registry=self._own)

        def histogram(name: str, told: str, *labels: str) -> TimeHistogram | FiledHistogram:
            spec = HistogramSpec(f"pipecat_hedge_{name}_seconds", told, labels, BUCKETS)
            return histograms(spec, self._own)

        answer = ("provider", "outcome", "tier")
        self._turns = counter("turns", "Turns.", "outcome", "tier", "degraded")
        self._ttft = histogram(
            "turn_ttft", "From the context to the answer's first usable token.", *answer
        )
        self._ttfs = histogram(
            "turn_ttfs", "From the context to the answer's first speakable sentence.", *answer
        )
        self._voice = histogram(
            "voice_to_voice", "From the caller's silence to the answer's first sound.", *answer
        )
        self._queued = histogram("turn_queued", "What a turn waited until there was room.", "tier")
        self._attempts = counter(
            "attempts",
            "Attempts, whether there was room to send a request or not.",
            *("provider", "launch_reason", "outcome"),
        )
        self._requests = counter("requests", "Requests that were sent.", "provider", "model")
        self._failures = counter(
            "attempt_failures", "Attempts that failed, by what went wrong.", "provider", "category"
        )
        self._attempt_ttft = histogram(
            "attempt_ttft", "From an attempt's launch to its first token.", "provider", "outcome"
        )
        self._unanswered = histogram(
            "attempt_unanswered",
            "How long was waited for requests that ended without a token: they would have taken "
            "longer. A refusal is none.",
            *("provider", "outcome", "launch_reason"),
        )
        self._hedges = counter("hedges", "Hedges that were launched.", "provider", "result")
        self._rescues = counter(
            "rescues",
            "Attempts to continue an answer that broke off.",
            *("provider", "launch_reason", "result"),
        )
        self._shed = counter(
            "shed", "What there was no room for: attempts by launch reason, whole turns.", "what"
        )
        self._fillers = counter("fillers", "What was done about silences.", "cause", "result")
        self._cold = counter("cold_connections", "Requests that opened a connection.", "provider")
        self._tokens = counter(
            "tokens",
            "Tokens; wasted are those of attempts that nobody heard to the end.",
            *("provider", "model", "direction", "use", "estimated"),
        )
        self._usd = counter("cost_usd", "US dollars.", "provider", "model", "use")


def _child(metric: Any, *labels: str) -> Any:
    """A metric's series; remembered, for making its labels takes longer than counting."""
    return metric.labels(*labels)


def _follows_on(attempt: AttemptReport, report: TurnReport) -> bool:
    """Whether an attempt was launched when an answer had begun, to continue it."""
    committed = report.committed_secs
    return committed is not None and attempt.launched_secs >= committed


def _is_cut_short(attempt: AttemptReport, report: TurnReport) -> bool:
    """Whether it is the answer that the caller has heard the beginning of, and interrupted."""
    has_begun = attempt.ttft_secs is not None and attempt.provider == report.winner
    return has_begun and attempt.outcome == "interrupted"


def _filler(filler: FillerReport) -> str:
    if filler.spoken_secs is None:
        return "withheld"
    return "withdrawn" if filler.was_cut else "spoken"
