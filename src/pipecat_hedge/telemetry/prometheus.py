"""Counts the turns of every hedged service of the process as Prometheus metrics.

Labels come from reports only and contain no prompt, answer, key, error message or session.
``docs/metrics.md`` lists the metrics.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import get_args
from weakref import WeakSet

from pipecat.utils.errors import ErrorCategory

from pipecat_hedge.policy.slo import Slo
from pipecat_hedge.race.attempt import EMPTY_ANSWER, MISSED_DEADLINE, STALLED, TIMED_OUT
from pipecat_hedge.race.errors import INCOMPLETE_CALL, ConfigurationError, missing_extra
from pipecat_hedge.race.events import AttemptOutcome, FillerCause, LaunchReason, TurnOutcome
from pipecat_hedge.race.reports import (
    TIERS,
    AttemptReport,
    FillerReport,
    SpeechReport,
    Tier,
    TranscriptReport,
    TurnReport,
)
from pipecat_hedge.service.provider_stats import ProviderStats, follow, unfollow
from pipecat_hedge.voice.turn_latency import TurnLatencyObserver
from pipecat_hedge.voice.turn_timeline import TurnLatency

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError:
    raise missing_extra("PrometheusRecorder", "prometheus-client", "prometheus") from None

from pipecat_hedge.telemetry.prometheus_state import Labels, state_metrics
from pipecat_hedge.telemetry.slo_tracker import SloCounted

BUCKETS = (
    *(0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5),
    *(3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0),
)
"""Upper bounds in seconds: no first token arrives within 50 ms, and no caller waits 30 s."""
MAX_PROVIDERS = 50
"""Distinct providers; further ones are counted as ``other``."""
MAX_MODELS = 100
"""Distinct models; further ones are counted as ``other``."""
MAX_LABEL_LENGTH = 120
"""Longer values are cut."""
CONTINUATION_REASONS = ("failure", "stall")
TIMEOUTS = (STALLED.category, TIMED_OUT.category, MISSED_DEADLINE.category)
"""Failures that are right-censored waits; other failures carry no information on latency."""
CATEGORIES = (
    *(c.value for c in ErrorCategory),
    *TIMEOUTS,
    EMPTY_ANSWER.category,
    INCOMPLETE_CALL,
)


class PrometheusRecorder(Collector):
    """Counts every turn of every hedged service of the process.

    Create one at start-up and serve ``prometheus_client``'s registry as usual. In multi-process
    mode the state gauges (breakers, limits, queue, budgets, sessions, event loop) are not served,
    because they are read at scrape time.

    Example::

        recorder = PrometheusRecorder()
        prometheus_client.start_http_server(9464)
        ...
        latency = TurnLatencyObserver()     # one per call, for voice-to-voice latency
        recorder.listen_to(latency)
    """

    def __init__(
        self, *, stats: ProviderStats | None = None, registry: CollectorRegistry = REGISTRY
    ):
        """Start counting; ``close`` stops it.

        Args:
            stats: Counts only services that use these statistics; None counts all services of the
                process.
            registry: The registry to add the metrics to.

        Raises:
            ConfigurationError: If the registry already has a recorder.
        """
        self._registry = registry
        self._metrics = CollectorRegistry()
        self._stats: WeakSet[ProviderStats] = WeakSet()
        self._provider = _LabelValues(MAX_PROVIDERS)
        self._model = _LabelValues(MAX_MODELS)
        self._known = set[Labels]()
        self._slos: dict[Tier, dict[str, float]] = {}
        self._define_metrics()
        try:
            registry.register(self)
        except ValueError:
            raise ConfigurationError(
                "registry has a PrometheusRecorder already, and each turn would be counted twice: "
                "use that one, or close() it first"
            ) from None
        if stats is None:
            follow(self._subscribe)
        else:
            self._subscribe(stats)

    def close(self) -> None:
        """Stop counting and leave the registry. A second call does nothing."""
        unfollow(self._subscribe)
        for stats in list(self._stats):
            stats.events.unsubscribe(self.record)
            stats.events.unsubscribe(self.record_transcript)
            stats.events.unsubscribe(self.record_speech)
            stats.events.unsubscribe(self._record_slo)
        self._stats.clear()
        if self._registry is not None:
            self._registry.unregister(self)
            self._registry = None

    def listen_to(self, observer: TurnLatencyObserver) -> None:
        """Count the voice-to-voice latencies of a pipeline.

        Args:
            observer: The pipeline's observer.
        """

        async def on_turn_latency(_: object, turn: TurnLatency) -> None:
            self.record_latency(turn)

        observer.add_event_handler("on_turn_latency", on_turn_latency)

    def collect(self) -> Iterable[Metric]:
        """Return the current metrics; the registry calls it at each scrape, from any thread."""
        registries = list(self._stats)
        for stats in registries:
            for _, labels in self._labels(stats):
                self._start_at_zero(labels)
        yield from self._metrics.collect()
        yield from state_metrics(registries, self._labels)

    describe = collect
    """Called when the recorder is registered, before it counts; it finds duplicate metrics."""

    def record(self, report: TurnReport) -> None:
        """Count a turn; the services call it."""
        tier, outcome, winner = report.tier, report.outcome, self._provider(report.winner)
        self._turns.labels(outcome, tier, _flag(report.degraded_reason is not None)).inc()
        if report.ttft_secs is not None:
            self._turn_ttft.labels(winner, outcome, tier).observe(report.ttft_secs)
        if report.ttfs_secs is not None:
            self._turn_ttfs.labels(winner, outcome, tier).observe(report.ttfs_secs)
        if not report.attempts and report.degraded_reason is not None:
            self._rejected.inc()
        for attempt in report.attempts:
            self._record_attempt(attempt, report)
        if report.known_answer is not None:
            self._known_answers.labels(report.known_answer).inc()
        if report.filler is not None:
            self._fillers.labels(report.filler.cause, _result(report.filler)).inc()

    def record_transcript(self, report: TranscriptReport) -> None:
        """Count an utterance; a ``TranscriptTiming`` calls it."""
        recogniser = self._provider(report.recogniser)
        self._utterances.labels(recogniser, _flag(report.is_rescued)).inc()
        if report.transcript_secs is not None:
            self._transcript.labels(recogniser).observe(report.transcript_secs)

    def record_speech(self, report: SpeechReport) -> None:
        """Count what was spoken; a ``HedgedTTSService`` calls it."""
        voice = self._provider(report.voice)
        counts = {"spoken": 0, "interrupted": 0}
        counts |= {"rescued": report.rescued, "left_out": report.left_out}
        rest = "interrupted" if report.was_interrupted else "spoken"
        counts[rest] = report.sentences - report.rescued - report.left_out
        for result, sentences in counts.items():
            self._sentences.labels(voice, result).inc(sentences)
        self._characters.labels(voice, "false").inc(report.characters)
        self._characters.labels(voice, "true").inc(report.extra_characters)
        if report.first_sound_secs is not None:
            self._first_sound.labels(voice).observe(report.first_sound_secs)
            self._speech_silent.labels(voice).observe(report.silent_secs)

    def record_latency(self, turn: TurnLatency) -> None:
        """Count the voice-to-voice latency of a turn; see ``listen_to``."""
        if (secs := turn.voice_to_voice_secs) is None:
            return
        last = turn.reports[-1] if turn.reports else None
        winner = self._provider(None if last is None else last.winner)
        outcome = "answered" if last is None else last.outcome
        outcome = "interrupted" if turn.interrupted else outcome
        tier = "standard" if last is None else last.tier
        self._voice_to_voice.labels(winner, outcome, tier).observe(secs)

    def _subscribe(self, stats: ProviderStats) -> None:
        self._stats.add(stats)
        stats.events.subscribe(TurnReport, self.record)
        stats.events.subscribe(TranscriptReport, self.record_transcript)
        stats.events.subscribe(SpeechReport, self.record_speech)
        stats.events.subscribe(SloCounted, self._record_slo)
        for tier, slo in stats.slo_tracker.slos():
            self._show_slo(tier, slo)

    def _labels(self, stats: ProviderStats) -> list[tuple[str, Labels]]:
        """Return the key and the label values of each provider in a registry."""
        with stats.lock:
            names = [(key, *key.partition(" | ")[::2]) for key in stats.records()]
        return [(key, (self._provider(name), self._model(model))) for key, name, model in names]

    def _record_attempt(self, attempt: AttemptReport, report: TurnReport) -> None:
        provider, model = self._provider(attempt.provider), self._model(attempt.model)
        self._start_at_zero((provider, model))
        reason, outcome, won = attempt.launch_reason, attempt.outcome, attempt.outcome == "won"
        self._attempts.labels(provider, reason, outcome).inc()
        if attempt.error_category is not None:
            self._failures.labels(provider, attempt.error_category).inc()
        if reason == "hedge":
            self._hedges.labels(provider, "won" if won else "lost").inc()
        elif reason in CONTINUATION_REASONS and _is_continuation(attempt, report):
            result = "continued" if won else "failed"
            self._continuations.labels(provider, reason, result).inc()
        if attempt.ttft_secs is not None:
            self._attempt_ttft.labels(provider, outcome).observe(attempt.ttft_secs)
        if attempt.sent_secs is None:  # no request was made
            return
        self._requests.labels(provider, model).inc()
        is_censored = outcome != "failed" or attempt.error_category in TIMEOUTS
        if attempt.ttft_secs is None and is_censored:
            waited_secs = attempt.ended_secs - attempt.launched_secs
            self._censored.labels(provider, outcome, reason).observe(waited_secs)
        if attempt.stages is not None and attempt.stages.new_connection:
            self._cold_connections.labels(provider).inc()
        use = "used" if won or _is_interrupted_answer(attempt, report) else "wasted"
        estimated = _flag(attempt.tokens_estimated)
        for direction, tokens in (
            ("input", attempt.input_tokens),
            ("output", attempt.output_tokens),
        ):
            if tokens:
                self._tokens.labels(provider, model, direction, use, estimated).inc(tokens)
        if attempt.usd:
            for each in ("used", "wasted"):
                self._usd.labels(provider, model, each)
            self._usd.labels(provider, model, use).inc(attempt.usd)

    def _record_slo(self, counted: SloCounted) -> None:
        if not counted.met:
            self._show_slo(counted.tier, counted.slo)
        for objective, was_met in counted.met.items():
            self._slo_turns.labels(counted.tier, objective).inc()
            self._slo_missed.labels(counted.tier, objective).inc(not was_met)

    def _show_slo(self, tier: Tier, slo: Slo) -> None:
        """Show a tier's SLO: of several the most lenient, or alerts would fire for none of them."""
        shown = self._slos.setdefault(tier, {})
        shown["share"] = min(slo.share, shown.get("share", 1.0))
        self._slo_share.labels(tier).set(shown["share"])
        for objective, secs in slo.objectives():
            shown[objective] = max(secs, shown.get(objective, 0.0))
            self._slo_objective.labels(tier, objective).set(shown[objective])
            self._slo_turns.labels(tier, objective)
            self._slo_missed.labels(tier, objective)

    def _start_at_zero(self, labels: Labels) -> None:
        """Create a provider's series at 0: ``rate()`` misses the first increase otherwise."""
        if labels in self._known:
            return
        self._known.add(labels)
        provider, model = labels
        for reason, outcome in product(get_args(LaunchReason), get_args(AttemptOutcome)):
            self._attempts.labels(provider, reason, outcome)
        for result in ("won", "lost"):
            self._hedges.labels(provider, result)
        for reason, result in product(CONTINUATION_REASONS, ("continued", "failed")):
            self._continuations.labels(provider, reason, result)
        for category in CATEGORIES:
            self._failures.labels(provider, category)
        self._cold_connections.labels(provider)
        self._requests.labels(provider, model)
        for kind in product(("input", "output"), ("used", "wasted"), ("true", "false")):
            self._tokens.labels(provider, model, *kind)

    def _define_metrics(self) -> None:
        def counter(name: str, documentation: str, labels: str) -> Counter:
            full_name = f"pipecat_hedge_{name}"
            return Counter(full_name, documentation, labels.split(), registry=self._metrics)

        def histogram(name: str, documentation: str, labels: str) -> Histogram:
            full_name = f"pipecat_hedge_{name}_seconds"
            return Histogram(
                full_name, documentation, labels.split(), registry=self._metrics, buckets=BUCKETS
            )

        answer = "provider outcome tier"
        self._turns = counter("turns", "Turns.", "outcome tier degraded")
        self._turn_ttft = histogram(
            "turn_ttft", "From the context to the answer's first usable token.", answer
        )
        self._turn_ttfs = histogram(
            "turn_ttfs", "From the context to the answer's first speakable sentence.", answer
        )
        self._voice_to_voice = histogram(
            "voice_to_voice", "From the end of the caller's speech to the answer's sound.", answer
        )
        self._attempts = counter(
            "attempts", "Attempts, with or without a request.", "provider launch_reason outcome"
        )
        self._requests = counter("requests", "Requests that were sent.", "provider model")
        self._failures = counter(
            "attempt_failures", "Failed attempts by error category.", "provider category"
        )
        self._attempt_ttft = histogram(
            "attempt_ttft", "From an attempt's launch to its first token.", "provider outcome"
        )
        self._censored = histogram(
            "attempt_censored_ttft",
            "Elapsed time of requests that ended before a first token (right-censored).",
            "provider outcome launch_reason",
        )
        self._hedges = counter("hedges", "Hedges that were launched.", "provider result")
        self._continuations = counter(
            "continuations",
            "Attempts to continue an answer that broke off.",
            "provider launch_reason result",
        )
        self._rejected = counter("rejected", "Turns that no provider had room for.", "")
        self._known_answers = counter(
            "known_answers", "Turns answered without a provider, by source.", "source"
        )
        self._fillers = counter("fillers", "Fillers by result.", "cause result")
        self._utterances = counter("utterances", "The caller's utterances.", "recogniser rescued")
        self._transcript = histogram(
            "transcript", "From the end of speech to its last transcript.", "recogniser"
        )
        self._sentences = counter("sentences", "Sentences to be spoken.", "voice result")
        self._characters = counter(
            "speech_characters", "Characters to be spoken, and asked for again.", "voice extra"
        )
        self._first_sound = histogram(
            "first_sound", "From the first sentence's text to its first sound.", "voice"
        )
        self._speech_silent = histogram(
            "speech_silent", "Silence heard between the sentences of an answer.", "voice"
        )
        self._cold_connections = counter(
            "cold_connections", "Requests that opened a connection.", "provider"
        )
        self._tokens = counter(
            "tokens",
            "Tokens; those of attempts whose answer did not play are wasted.",
            "provider model direction use estimated",
        )
        self._usd = counter("cost_usd", "US dollars.", "provider model use")
        self._slo_turns = counter("slo_turns", "Turns to which an SLO applied.", "tier objective")
        self._slo_missed = counter("slo_missed", "Turns that missed an SLO.", "tier objective")
        self._slo_objective = Gauge(
            "pipecat_hedge_slo_objective_seconds",
            "The SLO's limit.",
            ("tier", "objective"),
            registry=self._metrics,
            multiprocess_mode="max",
        )
        self._slo_share = Gauge(
            "pipecat_hedge_slo_share_ratio",
            "The SLO's target share of turns.",
            ("tier",),
            registry=self._metrics,
            multiprocess_mode="min",
        )
        for labels in product(get_args(TurnOutcome), TIERS, ("false", "true")):
            self._turns.labels(*labels)
        for labels in product(get_args(FillerCause), ("spoken", "withdrawn", "withheld")):
            self._fillers.labels(*labels)


class _LabelValues:
    """Maps names to label values: at most ``limit`` distinct ones, then ``other``."""

    def __init__(self, limit: int):
        self._limit = limit
        self._values = dict[str, str]()

    def __call__(self, name: str | None) -> str:
        if not name:
            return "none"  # Prometheus treats an empty label as absent
        if name not in self._values and len(self._values) < self._limit:
            self._values[name] = name[:MAX_LABEL_LENGTH]
        return self._values.get(name, "other")


def _is_continuation(attempt: AttemptReport, report: TurnReport) -> bool:
    """Whether an attempt was launched after the commit, to continue the answer."""
    committed = report.committed_secs
    return committed is not None and attempt.launched_secs >= committed


def _is_interrupted_answer(attempt: AttemptReport, report: TurnReport) -> bool:
    """Whether the attempt's answer was playing when the caller interrupted."""
    has_begun = attempt.ttft_secs is not None and attempt.provider == report.winner
    return has_begun and attempt.outcome == "interrupted"


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _result(filler: FillerReport) -> str:
    if filler.spoken_secs is None:
        return "withheld"
    return "withdrawn" if filler.was_cut else "spoken"
