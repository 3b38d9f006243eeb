"""Turns that kept a promise and turns that did not, counted, so that PromQL can tell the burn.

Law: what a turn says is said by ``policies/slo.py``, here as everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from pipecat_hedge.errors import ConfigurationError
from pipecat_hedge.policies.slo import Slo, judge
from pipecat_hedge.promise import judge_voice
from pipecat_hedge.reports import TurnReport
from pipecat_hedge.turn_latency import TurnLatency
from pipecat_hedge.work import TIERS, Tier

__all__ = ["SloTally"]


class SloTally:
    """Counters of the turns that a promise was about, and of those that broke it."""

    def __init__(self, slos: Mapping[Tier, Slo], registry: CollectorRegistry):
        """Begin at zero.

        Args:
            slos: What is promised, by tier.
            registry: Where the metrics are made.

        Raises:
            ConfigurationError: If a tier is not known, or what it is promised is no ``Slo``.
        """
        self._slos = dict(slos)
        labels = ("tier", "objective")
        turns = Counter(
            "pipecat_hedge_slo_turns",
            "Turns that a promise was about.",
            labels,
            registry=registry,
        )
        missed = Counter(
            "pipecat_hedge_slo_missed", "Of them, those that broke it.", labels, registry=registry
        )
        objective = Gauge(
            "pipecat_hedge_slo_objective_seconds",
            "Within what time the answer is promised.",
            labels,
            registry=registry,
            multiprocess_mode="livemax",
        )
        share = Gauge(
            "pipecat_hedge_slo_share_ratio",
            "For what share of turns it is promised.",
            ("tier",),
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._counters: dict[tuple[Tier, str], tuple[Counter, Counter]] = {}
        for tier, slo in self._slos.items():
            if tier not in TIERS:
                raise ConfigurationError(
                    f"slos: there is no tier {tier!r}: write {', '.join(repr(t) for t in TIERS)}"
                )
            if not isinstance(slo, Slo):
                raise ConfigurationError(f"slos[{tier!r}] must be an Slo, got {slo!r}")
            share.labels(tier).set(slo.share)
            for name, secs in slo.promises():
                objective.labels(tier, name).set(secs)
                self._counters[tier, name] = (turns.labels(tier, name), missed.labels(tier, name))

    def record(self, report: TurnReport) -> None:
        """Count a turn.

        Args:
            report: The turn.
        """
        slo = self._slos.get(report.tier)
        if slo is None:
            return
        for objective, kept in judge(slo, report).items():
            self._count(report.tier, objective, kept)

    def record_heard(self, turn: TurnLatency, tier: Tier, *, may_wait: bool = False) -> None:
        """Count what a caller heard.

        Args:
            turn: The turn, from the caller's silence on.
            tier: Whose it is.
            may_wait: Whether it may be that nothing was said because the caller has not finished.
        """
        slo = self._slos.get(tier)
        if slo is not None and slo.voice_to_voice_secs is not None:
            kept = judge_voice(slo.voice_to_voice_secs, turn, may_wait=may_wait)
            if kept is not None:
                self._count(tier, "voice_to_voice", kept)

    def _count(self, tier: Tier, objective: str, kept: bool) -> None:
        turns, missed = self._counters[tier, objective]
        turns.inc()
        if not kept:
            missed.inc()
