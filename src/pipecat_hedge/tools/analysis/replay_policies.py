"""Replays recorded latencies under a policy, with the service's own race and planner.

Turns run in virtual time, one after another, so bursts of hedges are not bounded. A turn takes its
first latency from the file, in order. A further request's latency is drawn from its provider's, or
comes from the same turn if both providers were measured side by side. A request that was cut short
is drawn from its provider's Kaplan-Meier curve beyond its elapsed time.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pipecat_hedge.limits import LATENCY_PROBE_INTERVAL
from pipecat_hedge.policy import (
    Adaptive,
    Backend,
    HedgePolicy,
    LatencyRegistry,
    TurnRule,
    learn,
    plan_turn,
)
from pipecat_hedge.race import Latency, Launch, Race, Slot, run_virtual
from pipecat_hedge.tools.analysis.latency_files import Measured
from pipecat_hedge.tools.analysis.statistics import (
    PERCENTILES,
    Floats,
    Interval,
    Ints,
    kaplan_meier,
    percentile,
    replay_intervals,
)

__all__ = ["BLOCK", "Draws", "Outcome", "draws_of", "outcome_of"]

BLOCK = 1000
"""Larger files are sampled in blocks of this many consecutive turns."""
SIDE_BY_SIDE = 0.9
"""The share of turns with both providers from which both latencies come from the same turn."""
SAME = 1.02
"""A figure up to this factor above its lower bound counts as known."""
NO_ANSWER_SECS = 60.0
"""The wait of a turn without an answer, in means."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one policy.

    Parameters:
        policy: The policy's name.
        percentiles: ``p50``, ``p95``, ``p99``, ``p99.9`` in seconds; infinite is no answer.
        intervals: Their 95 % intervals for files of this size.
        max_secs: The slowest turn.
        at_least: Lower bounds in seconds of those percentiles, and of ``max``, that depend on
            requests which were cut short.
        mean_secs: The mean wait; a turn without an answer counts a minute.
        under_deadline: The share of turns answered by the deadline; None without a deadline.
        unanswered: The share of turns without an answer.
        extra_requests: Requests per turn beyond the first, without replacements.
        replacements: Requests per turn that replaced a failed one.
        extra_tokens: The tokens per turn that they add; None if prompt sizes are unknown.
        extra_usd: The US dollars per 1,000 turns that they add; None if prices are unknown.
        secs: Every turn, in seconds; shape (n,).
        is_choice: Whether the policy can be recommended, or is only a comparison.
    """

    policy: str
    percentiles: Mapping[str, float]
    intervals: Mapping[str, Interval]
    max_secs: float
    at_least: Mapping[str, float]
    mean_secs: float
    under_deadline: float | None
    unanswered: float
    extra_requests: float
    replacements: float
    extra_tokens: float | None
    extra_usd: float | None
    secs: Floats = field(repr=False)
    is_choice: bool = True

    def waited_secs(self, deadline_secs: float | None = None) -> float:
        """Return the mean wait, or the mean wait beyond a deadline; no answer counts a minute."""
        secs = np.minimum(self.secs, NO_ANSWER_SECS)
        return float(np.maximum(secs - (deadline_secs or 0.0), 0.0).mean())


@dataclass(frozen=True, slots=True)
class Draws:
    """The latency of each request of each replayed turn: rows are turns, columns are attempts.

    Parameters:
        first: The first provider's observations.
        second: The hedged-to provider's observations.
        filled: The first one's latencies, those that were cut short drawn; shape (n,).
        pairs: Both providers' latencies by turn, if measured side by side.
        secs: When each request answers or fails, in seconds from its launch.
        fails: Whether it fails; None if none does.
        cut: The lower bound of an unknown latency; infinite for a known one. None if all are known.
        rows: The observations of each turn's first and second latency; shape (m,) each.
        sizes: The numbers of observations; None if the second's are the first's.
    """

    first: Measured
    second: Measured
    filled: Floats
    pairs: tuple[Floats, Floats] | None
    secs: list[list[float]]
    fails: list[list[bool]] | None
    cut: list[list[float]] | None
    rows: tuple[Ints, Ints]
    sizes: tuple[int, int | None]


def draws_of(
    first: Measured, second: Measured, attempts: int, least: int, most: int, seed: int
) -> Draws:
    """Draw the requests' latencies.

    Args:
        first: The first provider.
        second: The hedged-to provider; may be the first.
        attempts: The most requests per turn.
        least: Files with fewer turns are repeated.
        most: Files with more turns are sampled in blocks.
        seed: The same seed draws the same.
    """
    rng = np.random.default_rng(seed)
    first, second, is_paired = _side_by_side(first, second)
    filled = _filled(first, rng)
    others = filled if first is second else _filled(second, rng)
    count = len(filled)
    if count <= most:
        rows = np.tile(np.arange(count), max(-(-least // count), 1))
    else:
        begins = np.linspace(0, count - min(BLOCK, most), max(most // BLOCK, 1)).astype(np.int64)
        rows = (begins[:, None] + np.arange(min(BLOCK, most))).ravel()
    drawn = [rng.integers(0, len(others), len(rows)) for _ in range(attempts - 1)]
    if is_paired:
        drawn[0] = rows

    def each(mine: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> list[list[Any]]:
        return np.stack([mine[rows], *(theirs[index] for index in drawn)], axis=1).tolist()

    has_failed = first.failed.any() or second.failed.any()
    has_cut = first.censored.any() or second.censored.any()
    return Draws(
        first,
        second,
        filled,
        (first.secs, second.secs) if is_paired else None,
        each(filled, others),
        each(first.failed, second.failed) if has_failed else None,
        each(_bounds(first, filled), _bounds(second, others)) if has_cut else None,
        (rows, drawn[0]),
        (count, None if is_paired or first is second else len(others)),
    )


def outcome_of(
    name: str,
    policy: HedgePolicy,
    draws: Draws,
    *,
    deadline_secs: float | None,
    cost: tuple[float | None, float | None],
    usd_per_mtok: Mapping[str, tuple[float, float]],
    correlation: float,
    seed: int,
    is_choice: bool,
    progress: Callable[[float], None],
) -> Outcome:
    """Replay a policy.

    Args:
        name: The policy's name.
        policy: The policy.
        draws: The requests' latencies.
        deadline_secs: The deadline, or None.
        cost: Tokens and US dollars of an extra request, if known.
        usd_per_mtok: Providers' prices, used by the hedging budget.
        correlation: Of consecutive turns, for the intervals.
        seed: The same seed gives the same intervals.
        is_choice: Whether the policy can be recommended.
        progress: Called with the completed share.
    """
    secs, least, extra, replaced = _replay(policy, draws, usd_per_mtok, progress)
    ascending, more = np.sort(secs), extra + replaced
    answered = float(np.isfinite(secs).mean())
    tokens, usd = cost
    return Outcome(
        name,
        {key: percentile(ascending, p) for key, p in PERCENTILES.items()},
        replay_intervals(secs, draws.rows, draws.sizes, 1.0 + more, correlation, seed),
        float(ascending[-1]),
        _at_least(secs, least),
        float(np.minimum(secs, NO_ANSWER_SECS).mean()),
        None if deadline_secs is None else float((secs <= deadline_secs).mean()),
        1.0 - answered,
        extra,
        replaced,
        None if tokens is None else more * tokens,
        None if usd is None else 1000 * more * usd,
        secs,
        is_choice,
    )


def _replay(
    policy: HedgePolicy,
    draws: Draws,
    usd_per_mtok: Mapping[str, tuple[float, float]],
    progress: Callable[[float], None],
) -> tuple[Floats, Floats, float, float]:
    """Return when each turn is answered, its lower bound if unknown, and requests per turn."""
    stats, rng = LatencyRegistry(), random.Random(1)
    first, second = draws.first.name, draws.second.name
    backends = [Backend(n, n, usd_per_mtok.get(n)) for n in dict.fromkeys((first, second))]
    learns = isinstance(policy.rule, (Adaptive, TurnRule))
    count = len(draws.secs)
    answered, least = np.full(count, np.inf), np.full(count, np.nan)
    extra = replaced = 0
    plan, unlistened = None, LATENCY_PROBE_INTERVAL
    candidates = [Slot(first), *(Slot(second) for _ in range(policy.max_attempts - 1))]
    for turn, latencies in enumerate(draws.secs):
        if plan is None or learns:
            plan = plan_turn(
                policy, backends, stats, prompt_tokens=None, commit_on="first_token", rng=rng
            )
            if len(plan.order) > 1:
                candidates[:2] = [Slot(name) for name in plan.order][: policy.max_attempts]
        columns = _columns(candidates, first)
        fails = None if draws.fails is None else draws.fails[turn]

        def draw(
            launch: Launch,
            latencies: list[float] = latencies,
            fails: list[bool] | None = fails,
            columns: Sequence[int] = columns,
        ) -> Latency:
            column = columns[launch.attempt]
            return Latency(latencies[column], fails is not None and fails[column])

        race = Race(candidates, plan.rule, max_attempts=policy.max_attempts)
        secs = run_virtual(race, draw, plan.launched)
        if secs is not None:
            answered[turn] = secs
            if draws.cut is not None and (winner := race.winner) is not None:
                bound = draws.cut[turn][columns[winner.number]]
                if bound < math.inf:
                    least[turn] = winner.launched_at + bound
        failures = sum(attempt.reason == "failure" for attempt in race.attempts)
        replaced += failures
        extra += len(race.attempts) - 1 - failures
        if learns:
            unlistened += len(race.attempts)
            lost = [
                attempt
                for attempt in race.attempts
                if attempt.provider == plan.probe
                and attempt.outcome == "superseded"
                and unlistened >= LATENCY_PROBE_INTERVAL
            ]
            for probe in lost:  # the service drains it to its first token
                unlistened = 0
                seen_at = probe.launched_at + latencies[columns[probe.number]]
                backend = next(b for b in backends if b.provider == plan.probe)
                stats.record_listened(backend, probe, seen_at, 0.0, None)
            numbers = [attempt.number for attempt in lost]
            learn(stats, backends, race.attempts, None, listened_to=numbers, with_sentences=False)
        if turn % 500 == 0:
            progress(turn / count)
    return answered, least, extra / count, replaced / count


def _columns(candidates: Sequence[Slot], first: str) -> list[int]:
    """Return the column of each attempt's latency, for either first provider."""
    if all(slot.provider == first for slot in candidates):
        return list(range(len(candidates)))
    further = itertools.count(1)
    return [0 if slot.provider == first else next(further) for slot in candidates]


def _side_by_side(first: Measured, second: Measured) -> tuple[Measured, Measured, bool]:
    """Return both, and whether they were measured in the same turns; if so, only those turns."""
    unique = all(len(np.unique(m.row)) == len(m.row) for m in (first, second))
    if first is second or not unique or first.censored.any() or second.censored.any():
        return first, second, False
    common, mine, theirs = np.intersect1d(
        first.row, second.row, assume_unique=True, return_indices=True
    )
    if len(common) < SIDE_BY_SIDE * max(len(first.row), len(second.row)):
        return first, second, False
    return first.only(mine), second.only(theirs), True


def _filled(measured: Measured, rng: np.random.Generator) -> Floats:
    """Return the latencies; those cut short are drawn beyond their elapsed time."""
    secs = measured.secs.copy()
    cut = np.flatnonzero(measured.censored)
    if not cut.size:
        return secs
    kept = ~measured.failed
    curve, _ = kaplan_meier(secs[kept], measured.censored[kept])
    for index in cut:
        left = max(float(curve.share_after(secs[index])), 1e-9)
        secs[index] = max(curve.quantile(1.0 - left * float(rng.uniform(1e-6, 1.0))), secs[index])
    return secs


def _bounds(measured: Measured, filled: Floats) -> Floats:
    """Return the lower bounds of latencies drawn beyond the known part of the curve."""
    if not measured.censored.any():
        return np.full(len(filled), np.inf)
    kept = ~measured.failed
    _, known_to = kaplan_meier(measured.secs[kept], measured.censored[kept])
    is_guess = measured.censored & (filled > known_to)
    return np.where(is_guess, np.maximum(measured.secs, known_to), np.inf)


def _at_least(secs: Floats, least: Floats) -> dict[str, float]:
    """Return the percentiles that depend on unknown latencies, with their lower bounds."""
    unknown = ~np.isnan(least)
    if not unknown.any():
        return {}
    low = np.sort(np.where(unknown, least, secs))
    high = np.sort(np.where(unknown, np.inf, secs))
    bounds = {key: (percentile(low, p), percentile(high, p)) for key, p in PERCENTILES.items()}
    bounds["max"] = float(low[-1]), float(high[-1])
    return {key: least for key, (least, most) in bounds.items() if most > SAME * least}
