"""The counters and histograms that turns are counted in.

What to count was chosen so that what an operator asks is one line of PromQL, and so that the
figures can be held against others. Counters of requests are counters of *requests*: an attempt for
which there was no room has sent none, nor has one that was withdrawn while it connected. Times to
first token are of two kinds. A caller's is the turn's. A provider's is the attempt's, and there the
naive histogram lies: a provider that is slow enough to be overtaken never shows a first token, so
that it looks fast. So what was waited for in vain is a histogram of its own
(``attempt_unanswered_seconds``), each a lower bound, so that a refusal is none; the rules in
``deploy/`` take both together. How much better a promise can be kept is not a percentile's matter,
but one of turns that were good and bad: they are counted apart by ``SloTally``, exactly, whatever
the buckets are.

Times are classic histograms and native ones at once (``time_histogram.py``): which of them a
Prometheus takes is its own choice.

Sources of constants: 50 ms is less than any provider's first token and 30 s more than any caller
waits; between them the bounds are a quarter to a half apart, with the usual promises (0.8, 1.2 and
1.5 s) among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Any, get_args

from pipecat.utils.errors import ErrorCategory

from pipecat_hedge.limits.priority import TIERS, Tier
from pipecat_hedge.race.attempt import EMPTY_ANSWER, MISSED_DEADLINE, STALLED, TIMED_OUT
from pipecat_hedge.race.errors import SHED
from pipecat_hedge.race.events import AttemptOutcome, FillerCause, LaunchReason, TurnOutcome
from pipecat_hedge.race.reports import AttemptReport, FillerReport, TurnReport
from pipecat_hedge.telemetry.event_counter import Count
from pipecat_hedge.telemetry.instruments import CountSeries, Instruments, TimesSeries
from pipecat_hedge.telemetry.prometheus_names import NONE, Names
from pipecat_hedge.telemetry.prometheus_slo import SloTally
from pipecat_hedge.voice.turn_latency import TurnLatency

__all__ = ["BUCKETS", "TurnCounters"]

BUCKETS = (
    *(0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5),
    *(3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0),
)
"""Bounds in seconds."""
MOST_CATEGORIES = 30
"""Kinds of failure that become labels; more of them are called ``other``."""
MOST_KINDS = 4096
"""Of attempts, by all their labels together, whose series are found at once."""
RESCUES = ("failure", "stall")
OUTCOMES: tuple[TurnOutcome, ...] = get_args(TurnOutcome)
ATTEMPT_OUTCOMES: tuple[AttemptOutcome, ...] = get_args(AttemptOutcome)
REASONS: tuple[LaunchReason, ...] = get_args(LaunchReason)
CAUSES: tuple[FillerCause, ...] = get_args(FillerCause)
WAITED = (STALLED.category, TIMED_OUT.category, MISSED_DEADLINE.category)
"""Failures that say no more than that it was waited for so long."""
CATEGORIES = (*(c.value for c in ErrorCategory), *WAITED, EMPTY_ANSWER.category, SHED)
"""What usually goes wrong."""


class TurnCounters:
    """Counts turns, one after the other."""

    def __init__(
        self,
        instruments: Instruments,
        *,
        providers: Names,
        models: Names,
        slo: SloTally,
    ):
        """Begin at zero.

        Args:
            instruments: Makes the metrics.
            providers: The providers' names as labels.
            models: The models' names as labels.
            slo: Counts the turns that keep a promise.
        """
        self._providers, self._models, self._slo = providers, models, slo
        self._categories = Names(MOST_CATEGORIES)
        self._seen = set[tuple[str, str]]()
        self._child = lru_cache(maxsize=None)(_child)
        self._series = lru_cache(MOST_KINDS)(self._find_series)
        self._make(instruments)
        self._begin_at_zero()

    def count(self, report: TurnReport) -> None:
        """Count a turn.

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
            self._count_attempt(attempt, report)
        if report.filler is not None:
            of(self._fillers, report.filler.cause, _filler(report.filler)).inc()
        self._slo.record(report)

    def count_heard(self, turn: TurnLatency) -> None:
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

    def _count_attempt(self, attempt: AttemptReport, report: TurnReport) -> None:
        of, reason, outcome = self._child, attempt.launch_reason, attempt.outcome
        won = outcome == "won"
        use = "used" if won or _is_cut_short(attempt, report) else "wasted"
        series = self._series(
            *(attempt.provider, attempt.model, reason, outcome),
            *(use, attempt.tokens_estimated, bool(attempt.usd)),
        )
        provider = series.provider
        series.attempts.inc()
        if attempt.error_category is not None:
            category = self._categories.of(attempt.error_category)
            of(self._failures, provider, category).inc()
            if category == SHED:
                of(self._shed, reason).inc()
        if series.hedges is not None:
            series.hedges.inc()
        elif reason in RESCUES and _follows_on(attempt, report):
            of(self._rescues, provider, reason, "continued" if won else "failed").inc()
        if attempt.ttft_secs is not None:
            of(self._attempt_ttft, provider, outcome).observe(attempt.ttft_secs)
        if attempt.sent_secs is None:
            return
        series.requests.inc()
        waits = outcome != "failed" or attempt.error_category in WAITED
        if attempt.ttft_secs is None and waits:
            waited = attempt.ended_secs - attempt.launched_secs
            of(self._unanswered, provider, outcome, reason).observe(waited)
        if attempt.stages is not None and attempt.stages.new_connection:
            of(self._cold, provider).inc()
        if attempt.input_tokens:
            series.input_tokens.inc(attempt.input_tokens)
        if attempt.output_tokens:
            series.output_tokens.inc(attempt.output_tokens)
        if series.usd is not None and attempt.usd:
            series.usd.inc(attempt.usd)

    def _find_series(
        self,
        provider: str,
        model: str | None,
        reason: LaunchReason,
        outcome: AttemptOutcome,
        use: str,
        is_estimated: bool,
        is_priced: bool,
    ) -> _AttemptSeries:
        """The series of such attempts, those that nearly every one of them is counted in."""
        of = self._child
        provider, model = self._providers.of(provider), self._models.of(model)
        self.see(provider, model)
        if is_priced:
            for each in ("used", "wasted"):
                of(self._usd, provider, model, each)
        tokens = partial(of, self._tokens, provider, model)
        estimated = "true" if is_estimated else "false"
        result = "won" if outcome == "won" else "lost"
        return _AttemptSeries(
            provider=provider,
            attempts=of(self._attempts, provider, reason, outcome),
            hedges=of(self._hedges, provider, result) if reason == "hedge" else None,
            requests=of(self._requests, provider, model),
            input_tokens=tokens("input", use, estimated),
            output_tokens=tokens("output", use, estimated),
            usd=of(self._usd, provider, model, use) if is_priced else None,
        )

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

    def see(self, provider: str, model: str) -> None:
        """Have a provider's series there, from when it is known.

        That is when a session prepares for its first turn or begins it, and somebody looks then.

        Args:
            provider: Its label.
            model: Its model's label.
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

    def _make(self, instruments: Instruments) -> None:
        counter = instruments.counter

        def histogram(name: str, told: str, *labels: str) -> TimesSeries:
            return instruments.histogram(name, told, BUCKETS, *labels)

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


@dataclass(frozen=True, slots=True)
class _AttemptSeries:
    """What attempts are counted in that have all of their labels in common."""

    provider: str
    attempts: Count
    hedges: Count | None
    requests: Count
    input_tokens: Count
    output_tokens: Count
    usd: Count | None


def _child(metric: CountSeries | TimesSeries, *labels: str) -> Any:
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
