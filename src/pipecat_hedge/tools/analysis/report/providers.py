"""What each provider did: requests, answers, failures, times, tokens and dollars. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pipecat_hedge.policy.latency_model import LatencyModel
from pipecat_hedge.policy.survival import SurvivalCurve
from pipecat_hedge.race.reports import AttemptReport
from pipecat_hedge.tools.analysis.report.turns import (
    LoggedTurn,
    connecting_secs,
    waited_secs,
    was_sent,
)
from pipecat_hedge.tools.analysis.report.waits import CurvePoint, Estimate, Waits

__all__ = [
    "WAITED_FOR",
    "Connections",
    "ProviderFigures",
    "Spending",
    "provider_figures",
    "usual",
]

WAITED_FOR = 10
"""Beyond a time that fewer requests than this were waited for, nothing is known; as in `whatif`."""
CURVE_POINTS = 120


@dataclass(frozen=True, slots=True)
class Spending:
    """What requests used and cost, as far as it is known.

    Parameters:
        requests: How many requests there were.
        input_tokens: Their prompts' tokens; None if no request tells.
        output_tokens: Their answers' tokens; None if no request tells.
        estimated: How many requests' token counts are estimates.
        without_tokens: How many tell no count of tokens at all.
        usd: What they cost; None if no request tells.
        without_price: How many do not tell what they cost.
    """

    requests: int
    input_tokens: int | None
    output_tokens: int | None
    estimated: int
    without_tokens: int
    usd: float | None
    without_price: int

    @classmethod
    def of(cls, attempts: Iterable[AttemptReport]) -> Spending:
        """Add up.

        Args:
            attempts: The requests.
        """
        requests = estimated = without_tokens = without_price = 0
        said, heard, dollars = list[int](), list[int](), list[float]()
        for attempt in attempts:
            requests += 1
            estimated += attempt.tokens_estimated
            without_tokens += attempt.input_tokens is None and attempt.output_tokens is None
            without_price += attempt.usd is None
            if attempt.input_tokens is not None:
                said.append(attempt.input_tokens)
            if attempt.output_tokens is not None:
                heard.append(attempt.output_tokens)
            if attempt.usd is not None:
                dollars.append(attempt.usd)
        return cls(
            requests,
            sum(said) if said else None,
            sum(heard) if heard else None,
            estimated,
            without_tokens,
            sum(dollars) if dollars else None,
            without_price,
        )


@dataclass(frozen=True, slots=True)
class Connections:
    """What opening connections cost, where the log tells.

    Parameters:
        told: Requests that tell whether a connection was opened for them.
        cold: Those for which one was.
        opening: How long that took.
    """

    told: int
    cold: int
    opening: Waits


@dataclass(frozen=True, slots=True)
class ProviderFigures:
    """One provider.

    Parameters:
        provider: Its name.
        models: The models that were asked, the most often asked first.
        requests: Requests that were sent to it.
        by_reason: The same, by why: ``primary``, ``hedge``, ``failure``, ``stall``.
        outcomes: The same, by what became of them: ``won``, ``superseded``, ``failed``,
            ``interrupted``.
        failures: Those that failed, by why.
        not_sent: Attempts for which there was no room, or that were over before there was.
        answered: Times to the first token of those that had one.
        cut_short: Requests that were cancelled before that.
        p50: Half of its requests answer within this, the cancelled ones counted in; None if it
            never answered. So on for the others.
        p95: The 95th percentile.
        p99: The 99th percentile.
        curve: The share of its requests that have answered, over time.
        spending: What its requests used and cost.
        connections: What opening connections cost.
        server: How long its server says that it worked, where it does.
    """

    provider: str
    models: tuple[str, ...]
    requests: int
    by_reason: dict[str, int]
    outcomes: dict[str, int]
    failures: dict[str, int]
    not_sent: int
    answered: Waits
    cut_short: int
    p50: Estimate | None
    p95: Estimate | None
    p99: Estimate | None
    curve: tuple[CurvePoint, ...]
    spending: Spending
    connections: Connections
    server: Waits

    @property
    def failed(self) -> int:
        """How many of its requests failed."""
        return self.outcomes.get("failed", 0)


def provider_figures(turns: Sequence[LoggedTurn]) -> tuple[ProviderFigures, ...]:
    """What each provider did, whoever was asked first most often before the others.

    Args:
        turns: The turns.
    """
    sent: dict[str, list[AttemptReport]] = {}
    unsent: Counter[str] = Counter()
    for turn in turns:
        for attempt in turn.report.attempts:
            mine = sent.setdefault(attempt.provider, [])
            if was_sent(attempt, turn.lacks):
                mine.append(attempt)
            else:
                unsent[attempt.provider] += 1
    figures = [_figures(name, mine, unsent[name]) for name, mine in sent.items()]
    figures.sort(key=lambda f: (-f.by_reason.get("primary", 0), -f.requests, f.provider))
    return tuple(figures)


def usual(attempts: Iterable[AttemptReport]) -> tuple[SurvivalCurve, float] | None:
    """How long requests take, those counted in that were cancelled before they answered.

    Args:
        attempts: Requests to one provider.

    Returns:
        The survival curve by Kaplan and Meier (see ``latency_model.py``), and the time up to which
        it is known; None if none was answered.
    """
    waits = [
        waited_secs(attempt)
        for attempt in attempts
        if attempt.ttft_secs is not None or not _is_failure(attempt)
    ]
    if not any(not censored for _, censored in waits):
        return None
    mean = float(np.mean([secs for secs, _ in waits]))
    model = LatencyModel(
        SurvivalCurve.of([0.0], [1.0], mean or 1.0),
        prior_weight=0,
        half_life=math.inf,
    )
    for secs, censored in waits:
        model.record(secs, censored=censored)
    longest = np.sort([secs for secs, _ in waits])
    return model.curve, float(longest[-min(WAITED_FOR, len(longest))])


def _is_failure(attempt: AttemptReport) -> bool:
    """Whether it ended in an error, and not only in silence; as `whatif` takes it."""
    return attempt.error_category not in (None, "timeout", "stalled", "deadline")


def _figures(name: str, sent: Sequence[AttemptReport], unsent: int) -> ProviderFigures:
    known = usual(sent)
    answered = [a.ttft_secs for a in sent if a.ttft_secs is not None]
    cut_short = sum(a.ttft_secs is None and a.outcome != "failed" for a in sent)
    is_cut = any(a.ttft_secs is None and not _is_failure(a) for a in sent)
    waits = Waits.of(answered)
    connecting = [(a, connecting_secs(a)) for a in sent]
    cold = [a for a, _ in connecting if a.stages is not None and a.stages.new_connection]
    server = [
        a.stages.server_secs
        for a in sent
        if a.stages is not None and a.stages.server_secs is not None
    ]
    return ProviderFigures(
        name,
        tuple(model for model, _ in Counter(a.model for a in sent if a.model).most_common()),
        len(sent),
        dict(Counter(a.launch_reason for a in sent)),
        dict(Counter(a.outcome for a in sent)),
        dict(Counter(a.error_category or "unknown" for a in sent if a.outcome == "failed")),
        unsent,
        waits,
        cut_short,
        _estimate(known, waits.p50_secs, 0.5, is_cut=is_cut),
        _estimate(known, waits.p95_secs, 0.95, is_cut=is_cut),
        _estimate(known, waits.p99_secs, 0.99, is_cut=is_cut),
        _curve(known),
        Spending.of(sent),
        Connections(
            sum(a.stages is not None and a.stages.new_connection is not None for a in sent),
            len(cold),
            Waits.of([secs for _, secs in connecting if secs]),
        ),
        Waits.of(server),
    )


def _estimate(
    known: tuple[SurvivalCurve, float] | None, seen: float | None, p: float, *, is_cut: bool
) -> Estimate | None:
    if known is None or seen is None:
        return None
    if not is_cut:
        return Estimate(seen)  # every request was seen to its end: no estimate is needed
    curve, known_to = known
    secs = curve.quantile(p)
    return Estimate(known_to, is_least=True) if secs > known_to else Estimate(secs)


def _curve(known: tuple[SurvivalCurve, float] | None) -> tuple[CurvePoint, ...]:
    if known is None:
        return ()
    curve, known_to = known
    left = np.geomspace(1.0, 1e-4, CURVE_POINTS)
    at = np.unique(np.minimum(curve.quantiles(left), known_to))
    shares = 1.0 - curve.share_after(at)
    return tuple(CurvePoint(float(s), float(p)) for s, p in zip(at, shares, strict=True))
