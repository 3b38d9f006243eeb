"""Compares a fixed delay that was learned the day before with the adaptive policy. Pure.

A day is 24 hours from the first turn; a shorter trace has two halves instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipecat_hedge.policy import HedgePolicy
from pipecat_hedge.tools.analysis.latency_files import Recorded
from pipecat_hedge.tools.analysis.replay_policies import Draws, replay
from pipecat_hedge.tools.analysis.statistics import FEW, Floats, Ints, percentile

DAY_SECS = 86_400
BUDGET = 0.05
"""The budget of the comparison, unless others were given."""
HELD = 1.25
"""A delay fails if it sends so many times the requests that it was learned for, or its p99 is so
many times the adaptive policy's. The adaptive policy itself sends no more than that."""


@dataclass(frozen=True, slots=True)
class OfDay:
    """A policy's turns of one day: percentiles in seconds, and hedges per turn."""

    policy: str
    p50: float
    p95: float
    p99: float
    max_secs: float
    extra_requests: float


@dataclass(frozen=True, slots=True)
class Day:
    """A day, under the delay that was learned the day before.

    Parameters:
        name: Its name, such as ``day 2``.
        learned_on: The name of the day before.
        begins_at: When its first turn was asked.
        turns: Its turns.
        budget: The share of turns that the delay was to hedge, and the adaptive policy's budget.
        none: Without hedging.
        fixed: With the delay.
        adaptive: With the adaptive policy, which has seen all turns before.
    """

    name: str
    learned_on: str
    begins_at: float
    turns: int
    budget: float
    none: OfDay
    fixed: OfDay
    adaptive: OfDay

    @property
    def excess(self) -> float:
        """How many times more it sent, or waited, than it should; the larger one."""
        more = self.fixed.extra_requests / max(self.budget, 0.001)
        return max(more, self.fixed.p99 / self.adaptive.p99)


def compare_days(
    recorded: Recorded,
    draws: Draws,
    turns: Mapping[str, tuple[Floats, Ints]],
    budgets: Sequence[float],
    attempts: int,
) -> tuple[Day, ...]:
    """Return each day but the first; none without times, or with too few turns.

    Args:
        recorded: The files' contents.
        draws: The replayed turns.
        turns: The waits and the hedges of each policy's turns, by its name.
        budgets: The adaptive policy's budgets.
        attempts: The most requests per turn.
    """
    if recorded.asked_at is None or not budgets:
        return ()
    budget = BUDGET if BUDGET in budgets else budgets[0]
    rows = draws.rows[0][: draws.sizes[0]]  # a smaller file is replayed again and again
    days = list(_days(recorded.asked_at[draws.first.row[rows]]))
    adaptive = HedgePolicy.adaptive(budget, attempts).name
    none = next(iter(turns))
    found = list[Day]()
    for (learned_on, _, before), (name, begins_at, of_day) in itertools.pairwise(days):
        answered = rows[before][~draws.first.failed[rows[before]]]
        if not answered.size:
            continue
        delay_secs = round(float(np.quantile(draws.filled[answered], 1 - budget)), 3)
        policy = HedgePolicy.after(delay_secs, attempts, stall_secs=None)
        secs, _, hedges, _ = replay(policy, draws.only(of_day), recorded.usd_per_mtok)
        found.append(
            Day(
                name,
                learned_on,
                begins_at,
                len(secs),
                budget,
                _of_day(none, *turns[none], of_day),
                _of_day(policy.name, secs, hedges),
                _of_day(adaptive, *turns[adaptive], of_day),
            )
        )
    return tuple(found)


def _days(asked_at: Floats) -> Iterator[tuple[str, float, slice]]:
    """Yield each day's name, beginning and turns, leaving out those with too few."""
    number = (asked_at - asked_at[0]) // DAY_SECS
    days = list[tuple[str, int, int]]()
    for day in np.unique(number):
        start, stop = np.searchsorted(number, (day, day + 1)).tolist()
        if stop - start >= FEW:
            days.append((f"day {day + 1:.0f}", start, stop))
    if len(days) < 2 and (half := len(asked_at) // 2) >= FEW:
        days = [("the first half", 0, half), ("the second half", half, len(asked_at))]
    for name, start, stop in days:
        yield name, float(asked_at[start]), slice(start, stop)


def _of_day(policy: str, secs: Floats, hedges: Ints, turns: slice = slice(None)) -> OfDay:
    waits = np.sort(secs[turns])
    p50, p95, p99 = (percentile(waits, p) for p in (0.5, 0.95, 0.99))
    return OfDay(policy, p50, p95, p99, float(waits[-1]), float(hedges[turns].mean()))
