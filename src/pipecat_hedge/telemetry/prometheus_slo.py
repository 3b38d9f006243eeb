"""Turns that kept a promise and turns that did not, counted, so that PromQL can tell the burn.

Law: what a turn says is said by ``policies/slo.py``, here as everywhere else; and it says it once.

Who has made a promise judges his turns himself, and what he says is counted. Only where nobody has
made one to a tier, what the operator promises is held against its turns here.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from prometheus_client import Gauge

from pipecat_hedge.limits.priority import TIERS, Tier
from pipecat_hedge.policy.slo import OBJECTIVES, Objective
from pipecat_hedge.policy.slo_outcome import Slo, classify
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.reports import TurnReport
from pipecat_hedge.telemetry.event_counter import Count
from pipecat_hedge.telemetry.instruments import Instruments
from pipecat_hedge.telemetry.slo_tracker import judge_voice
from pipecat_hedge.voice.turn_latency import TurnLatency

__all__ = ["SloTally"]


class SloTally:
    """Counters of the turns that a promise was about, and of those that broke it."""

    def __init__(self, slos: Mapping[Tier, Slo], instruments: Instruments):
        """Begin at zero.

        Args:
            slos: What is promised, by tier, where services have promised nothing themselves.
            instruments: Makes the metrics.

        Raises:
            ConfigurationError: If a tier is not known, or what it is promised is no ``Slo``.
        """
        self._slos = dict(slos)
        labels = ("tier", "objective")
        self._turns = instruments.counter("slo_turns", "Turns that a promise was about.", *labels)
        self._missed = instruments.counter("slo_missed", "Of them, those that broke it.", *labels)
        self._objective = Gauge(
            "pipecat_hedge_slo_objective_seconds",
            "Within what time the answer is promised.",
            labels,
            registry=instruments.registry,
            multiprocess_mode="livemax",
        )
        self._share = Gauge(
            "pipecat_hedge_slo_share_ratio",
            "For what share of turns it is promised.",
            ("tier",),
            registry=instruments.registry,
            multiprocess_mode="livemax",
        )
        self._counters: dict[tuple[Tier, str], tuple[Count, Count]] = {}
        self._promised: dict[Tier, set[Slo]] = {}
        for tier, slo in self._slos.items():
            if tier not in TIERS:
                raise ConfigurationError(
                    f"slos: there is no tier {tier!r}: write {', '.join(repr(t) for t in TIERS)}"
                )
            if not isinstance(slo, Slo):
                raise ConfigurationError(f"slos[{tier!r}] must be an Slo, got {slo!r}")
            self._show(tier, {slo})

    def take(self, tier: Tier, slo: Slo, kept: Mapping[Objective, bool]) -> None:
        """Take what a service says of its promise; see ``SloBoard.hooks``.

        Args:
            tier: To whom it is made. What the operator promises them does not count any more.
            slo: What is promised.
            kept: By objective, whether that was kept.
        """
        if slo not in (promised := self._promised.setdefault(tier, set())):
            self._slos.pop(tier, None)
            promised.add(slo)
            self._show(tier, promised)
        for objective, was_kept in kept.items():
            self._count(tier, objective, was_kept)

    def _show(self, tier: Tier, slos: AbstractSet[Slo]) -> None:
        """What is promised to a tier; of several promises the one that is easiest to keep."""
        self._share.labels(tier).set(min(slo.share for slo in slos))
        for name in OBJECTIVES:
            secs = [within for slo in slos if (within := slo.within(name)) is not None]
            if secs:
                self._objective.labels(tier, name).set(max(secs))
                labels = (tier, name)
                self._counters[labels] = (
                    self._turns.labels(*labels),
                    self._missed.labels(*labels),
                )

    def record(self, report: TurnReport) -> None:
        """Count a turn.

        Args:
            report: The turn.
        """
        slo = self._slos.get(report.tier)
        if slo is None:
            return
        for objective, kept in classify(slo, report).items():
            self._count(report.tier, objective, kept)

    def record_heard(self, turn: TurnLatency, tier: Tier) -> None:
        """Count what a caller heard.

        Args:
            turn: The turn, from the caller's silence on.
            tier: Whose it is.
        """
        slo = self._slos.get(tier)
        if slo is not None and slo.voice_to_voice_secs is not None:
            kept = judge_voice(slo.voice_to_voice_secs, turn)
            if kept is not None:
                self._count(tier, "voice_to_voice", kept)

    def _count(self, tier: Tier, objective: str, kept: bool) -> None:
        turns, missed = self._counters[tier, objective]
        turns.inc()
        if not kept:
            missed.inc()
