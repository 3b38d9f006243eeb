"""Turns that kept a promise and turns that did not, counted, so that PromQL can tell the burn.

Law: a turn is good, bad, or says nothing, and it is said once; a filler keeps no promise.

Bad is whoever waited longer, or in vain: a turn that fails, one that nobody was asked for or that
ended in the ``fallback_text``, one that the caller gave up on after the promise's time. A turn that
was interrupted before that time, without an answer yet, says nothing; nor does the sentence of an
answer that is a tool call alone: the caller waits on, and the answer to the tool is a turn itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from pipecat_hedge.errors import ConfigurationError
from pipecat_hedge.policies.slo import Slo
from pipecat_hedge.reports import TurnReport
from pipecat_hedge.turn_latency import TurnLatency
from pipecat_hedge.work import TIERS, Tier

__all__ = ["SloTally", "is_kept", "is_kept_by_voice"]


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
            for name, secs in _objectives(slo).items():
                if secs is not None:
                    objective.labels(tier, name).set(secs)
                    self._counters[tier, name] = (
                        turns.labels(tier, name),
                        missed.labels(tier, name),
                    )

    def record(self, report: TurnReport) -> None:
        """Count a turn.

        Args:
            report: The turn.
        """
        slo = self._slos.get(report.tier)
        if slo is None:
            return
        if slo.ttft_secs is not None:
            self._count(report.tier, "ttft", is_kept(slo.ttft_secs, report.ttft_secs, report))
        if slo.ttfs_secs is not None and (
            report.ttfs_secs is not None or report.outcome != "answered_with_tools"
        ):
            self._count(report.tier, "ttfs", is_kept(slo.ttfs_secs, report.ttfs_secs, report))

    def record_heard(self, turn: TurnLatency, tier: Tier) -> None:
        """Count what a caller heard.

        Args:
            turn: The turn, from the caller's silence on.
            tier: Whose it is.
        """
        slo = self._slos.get(tier)
        if slo is not None and slo.voice_to_voice_secs is not None:
            kept = is_kept_by_voice(slo.voice_to_voice_secs, turn)
            self._count(tier, "voice_to_voice", kept)

    def _count(self, tier: Tier, objective: str, kept: bool | None) -> None:
        if kept is None:
            return
        turns, missed = self._counters[tier, objective]
        turns.inc()
        if not kept:
            missed.inc()


def is_kept(promised_secs: float, secs: float | None, report: TurnReport) -> bool | None:
    """Whether a turn kept a promise; None if it does not say.

    Args:
        promised_secs: Within what time.
        secs: What it took; None if there was no answer.
        report: The turn.
    """
    if _is_degraded(report):
        return False
    if secs is not None:
        return secs <= promised_secs
    is_cut = report.outcome == "interrupted" or _has_left(report)
    return None if is_cut and report.duration_secs <= promised_secs else False


def is_kept_by_voice(promised_secs: float, turn: TurnLatency) -> bool | None:
    """Whether the caller heard the answer in time; None if the turn does not say.

    Args:
        promised_secs: Within what time from the caller's silence.
        turn: The turn.
    """
    if turn.anchor != "user_silence":
        return None
    if any(_is_degraded(report) for report in turn.reports):
        return False
    secs = turn.voice_to_voice_secs
    if secs is not None:
        return secs <= promised_secs
    return None if turn.interrupted else False


def _is_degraded(report: TurnReport) -> bool:
    """Whether the caller got no answer, or not all of one."""
    if report.degraded_reason is not None:
        return True
    return report.outcome == "failed" and not _has_left(report)


def _has_left(report: TurnReport) -> bool:
    """Whether the caller went while waiting for room: nobody was asked, and nothing is wrong."""
    return report.outcome == "failed" and not (report.attempts or report.degraded_reason)


def _objectives(slo: Slo) -> dict[str, float | None]:
    return {
        "ttft": slo.ttft_secs,
        "ttfs": slo.ttfs_secs,
        "voice_to_voice": slo.voice_to_voice_secs,
    }
