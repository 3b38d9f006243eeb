"""Replays recorded latencies under a policy, with the service's own race and planner.

Turns run in virtual time, one after another, so bursts of hedges are not bounded. A turn takes its
first latency from the file, in order. A further request's latency is drawn from its provider's, or
comes from the same turn if both providers were measured side by side; where turns have times, it is
drawn from those nearest in time. A request that was cut short is drawn from its provider's
Kaplan-Meier curve beyond its elapsed time.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipecat_hedge.policy import (
    Adaptive,
    BudgetAccounts,
    HedgePolicy,
    TurnRule,
    plan_turn,
    silent_secs,
)
from pipecat_hedge.providers import OBSERVED_LOSER_INTERVAL, Backend, ProviderRegistry
from pipecat_hedge.race import Latency, Launch, Race, Slot, run_virtual
from pipecat_hedge.tools.analysis.latency_files import Measured
from pipecat_hedge.tools.analysis.statistics import Floats, Ints, kaplan_meier

BLOCK = 1000
"""Larger files are sampled in blocks of this many consecutive turns."""
SIDE_BY_SIDE = 0.9
"""The share of turns with both providers from which both latencies come from the same turn."""

NEAR = 10
"""Nearest in time are so many requests before, and as many after: a few minutes of a busy bot."""


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

    def only(self, turns: slice) -> Draws:
        """Return a part of the replayed turns."""
        return replace(
            self,
            secs=self.secs[turns],
            fails=None if self.fails is None else self.fails[turns],
            cut=None if self.cut is None else self.cut[turns],
        )


def draws_of(
    first: Measured,
    second: Measured,
    attempts: int,
    least: int,
    most: int,
    seed: int,
    *,
    is_timed: bool = False,
) -> Draws:
    """Draw the requests' latencies.

    Args:
        first: The first provider.
        second: The hedged-to provider; may be the first.
        attempts: The most requests per turn.
        least: Files with fewer turns are repeated.
        most: Files with more turns are sampled in blocks.
        seed: The same seed draws the same.
        is_timed: Whether the observations are in the order of known times.
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
    drawn = [
        _near(first, second, rows, rng) if is_timed else rng.integers(0, len(others), len(rows))
        for _ in range(attempts - 1)
    ]
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


def replay(
    policy: HedgePolicy, draws: Draws, usd_per_mtok: Mapping[str, tuple[float, float]]
) -> tuple[Floats, Floats, Ints, float]:
    """Replay a policy.

    Args:
        policy: The policy.
        draws: The requests' latencies.
        usd_per_mtok: Providers' prices, used by the hedging budget.

    Returns:
        When each turn is answered, its lower bound if unknown, its hedges, and the replacements
        per turn.
    """
    stats, accounts, rng = ProviderRegistry(), BudgetAccounts(), random.Random(1)
    first, second = draws.first.name, draws.second.name
    backends = [Backend(n, n, usd_per_mtok.get(n)) for n in dict.fromkeys((first, second))]
    learns = isinstance(policy.rule, (Adaptive, TurnRule))
    count = len(draws.secs)
    answered, least = np.full(count, np.inf), np.full(count, np.nan)
    hedges, replaced = np.zeros(count, np.int64), 0
    plan, unlistened = None, OBSERVED_LOSER_INTERVAL
    candidates: list[Slot] = []
    for turn, latencies in enumerate(draws.secs):
        if plan is None or learns:
            plan = plan_turn(
                policy,
                backends,
                stats,
                accounts,
                prompt_tokens=None,
                commit_on="first_token",
                rng=rng,
            )
            names = [*plan.order[:2], *[second] * policy.max_attempts][: policy.max_attempts]
            names = names if len(plan.order) > 1 else [first] * policy.max_attempts
            candidates = [Slot(name, silent_secs(policy, plan.estimates[name])) for name in names]
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
        hedges[turn] = len(race.attempts) - 1 - failures
        if learns:
            unlistened += len(race.attempts)
            lost = [
                attempt
                for attempt in race.attempts
                if attempt.provider == plan.trial
                and attempt.outcome == "superseded"
                and (plan.is_free or unlistened >= OBSERVED_LOSER_INTERVAL)
            ]
            for loser in lost:  # the service drains it to its first token
                unlistened = 0
                seen_at = loser.launched_at + latencies[columns[loser.number]]
                backend = next(b for b in backends if b.provider == plan.trial)
                stats.learn_observed(backend, loser, seen_at, 0.0, None)
            numbers = [attempt.number for attempt in lost]
            stats.learn(backends, race.attempts, None, observed=numbers, with_sentences=False)
    return answered, least, hedges, replaced / count


def _near(first: Measured, second: Measured, rows: Ints, rng: np.random.Generator) -> Ints:
    """Draw for each turn one of the second's observations nearest in time, but not its own."""
    count, is_same = len(second.row), first is second
    at = rows if is_same else np.searchsorted(second.row, first.row[rows])
    width = min(2 * NEAR + is_same, count)
    begin = np.clip(at - NEAR, 0, count - width)
    if not is_same or width == 1:
        return begin + rng.integers(0, width, len(rows))
    drawn = begin + rng.integers(0, width - 1, len(rows))
    return drawn + (drawn >= at)


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
