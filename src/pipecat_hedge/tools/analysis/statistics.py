"""Percentiles, their intervals, and whether slow turns cluster. Pure; seeds are fixed.

Waits that were cut short are right-censored (Kaplan and Meier, 1958). Intervals are percentile
bootstraps (Efron, 1979) over blocks of consecutive turns, because slow turns cluster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pipecat_hedge.providers import SurvivalCurve

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
FEW = 100
"""Of fewer values the p99 is the greatest one."""
RESAMPLES = 200
BLOCK = 10
"""The least length of a block."""
MIN_TURNS = 20
"""The fewest turns in which clusters are looked for."""
SLOW_SHARE = 0.1
"""The share of turns that counts as slow in the search for clusters."""
MIN_AT_RISK = 10
"""A curve is known up to the time at which this many requests were still waiting."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Quantile:
    """A percentile of waits, some of which were cut short.

    Parameters:
        secs: The time, in seconds.
        at_least: Whether it is only a lower bound, because too many were cut short.
    """

    secs: float
    at_least: bool = False


def percentile(ascending: Floats, p: float) -> float:
    """Return the nearest-rank percentile.

    Args:
        ascending: The times, ascending; shape (n,), n > 0.
        p: The share, above 0 and at most 1.
    """
    return float(ascending[max(math.ceil(p * len(ascending)) - 1, 0)])


def kaplan_meier(secs: Floats, censored: Bools) -> tuple[SurvivalCurve, float]:
    """Return the survival curve of waits, and the time up to which it is known.

    Beyond the last wait the curve decays exponentially, with the mean of the slowest tenth.

    Args:
        secs: The waits, in seconds; shape (n,), n > 0.
        censored: Whether each was cut short; shape (n,), not all.
    """
    order = np.lexsort((censored, secs))
    at, came = secs[order], ~censored[order]
    left = np.cumprod(1.0 - came / np.arange(len(at), 0, -1))
    start = at[min(int(0.9 * len(at)), int(np.flatnonzero(came)[-1]))]
    tail_secs = float(np.maximum(at - start, 0.0).sum()) / max(int(came[at >= start].sum()), 1)
    known_to = float(at[-1]) if came.all() else float(at[-min(MIN_AT_RISK, len(at))])
    return SurvivalCurve.of(at[came], left[came], max(tail_secs, 1e-3)), known_to


@dataclass(frozen=True, slots=True)
class Waits:
    """Percentiles of waits, including those cut short; None without a wait.

    Parameters:
        count: Completed waits.
        cut_short: Waits that were cut short.
        p50: The median.
        p95: The 95th percentile.
        p99: The 99th percentile.
        longest: The longest wait.
    """

    count: int = 0
    cut_short: int = 0
    p50: Quantile | None = None
    p95: Quantile | None = None
    p99: Quantile | None = None
    longest: Quantile | None = None

    @classmethod
    def of(cls, ended: Iterable[float], cut_short: Iterable[float] = ()) -> Waits:
        """Summarise waits.

        Args:
            ended: Completed waits, in seconds.
            cut_short: Elapsed times of waits that were cut short, in seconds.
        """
        whole, cut = list(ended), list(cut_short)
        if not whole and not cut:
            return cls()
        is_cut = max(cut, default=-1.0) > max(whole, default=-1.0)
        longest = Quantile(max(*whole, *cut, 0.0), is_cut)
        if not whole:
            least = Quantile(float(np.median(cut)), at_least=True)
            return cls(0, len(cut), least, least, least, longest)
        secs = np.array([*whole, *cut])
        curve, _ = kaplan_meier(secs, np.arange(len(secs)) >= len(whole))

        def quantile(p: float) -> Quantile:
            found = curve.quantile(p)
            return longest if found > max(whole) else Quantile(found)

        p50, p95, p99 = (quantile(p) for p in (0.5, 0.95, 0.99))
        return cls(len(whole), len(cut), p50, p95, p99, longest)


@dataclass(frozen=True, slots=True)
class Independence:
    """Whether slow turns cluster, so that a second request is slow when the first one is.

    Parameters:
        clustering: The probability of a slow turn after a slow one, over that of any slow turn;
            None for fewer than 20 turns.
        slow_together: The share of the first provider's slowest turns that are among the second's
            slowest; None unless both were measured in the same turns.
        is_clustered: Whether slow turns follow each other more often than by chance.
    """

    clustering: float | None
    slow_together: float | None
    is_clustered: bool


def independence_of(first: Floats, pairs: tuple[Floats, Floats] | None) -> Independence:
    """Test consecutive turns, and both providers if each turn measured both.

    Args:
        first: The first provider's latencies in the order of time; shape (n,).
        pairs: Both providers' latencies by turn, if measured side by side.
    """
    if len(first) < MIN_TURNS:
        return Independence(None, None, is_clustered=False)
    slow = _slowest(first)
    after_slow = slow[1:][slow[:-1]]
    clustering = float(after_slow.mean() / slow.mean()) if after_slow.size else 1.0
    together = None
    if pairs is not None:
        together = float(_slowest(pairs[1])[_slowest(pairs[0])].mean())
    chance = 6 / math.sqrt(SLOW_SHARE * (len(first) - 1))
    return Independence(clustering, together, is_clustered=clustering > 1 + max(chance, 0.5))


class Bootstrap:
    """Resamples a log by blocks of consecutive turns: returns how often each turn is drawn.

    Args:
        turns: The number of turns.
        rng: The random generator.
    """

    def __init__(self, turns: int, rng: np.random.Generator):
        self._turns, self._rng = turns, rng
        self._block = max(round(min(max(math.sqrt(turns), BLOCK), turns / 10)), 1)

    def draw(self) -> Ints:
        """Return how often each turn is drawn; shape (turns,)."""
        begins = self._rng.integers(0, self._turns, -(-self._turns // self._block))
        drawn = (begins[:, None] + np.arange(self._block)) % self._turns
        return np.bincount(drawn.ravel()[: self._turns], minlength=self._turns)


def replay_intervals(
    secs: Floats, rows: tuple[Ints, Ints], sizes: tuple[int, int | None], requests: float, seed: int
) -> dict[str, Interval]:
    """Return each percentile's 95 % interval for files of this size.

    Args:
        secs: The replayed turns, in seconds; shape (m,).
        rows: The observations of each turn's first and second latency; shape (m,) each.
        sizes: The numbers of observations; None if the second's are the first's.
        requests: Requests per turn: a file of n latencies makes n / requests turns.
        seed: The same seed gives the same intervals.
    """
    rng = np.random.default_rng(seed)
    firsts = Bootstrap(sizes[0], rng)
    others = None if sizes[1] is None else Bootstrap(sizes[1], rng)
    order = np.argsort(secs, kind="stable")
    ascending, first, second = secs[order], rows[0][order], rows[1][order]
    shown = max(round(sizes[0] / requests), 1)
    found: dict[str, list[float]] = {name: [] for name in PERCENTILES}
    for _ in range(RESAMPLES):
        mine = firsts.draw()
        weight = np.cumsum(mine[first] * (mine if others is None else others.draw())[second])
        if not weight[-1]:
            continue
        for name, p in PERCENTILES.items():
            rank = max(math.ceil(p * shown), 1)
            drawn = rng.beta(rank, shown - rank + 1) * weight[-1]
            index = int(np.searchsorted(weight, drawn, side="right"))
            found[name].append(float(ascending[min(index, len(ascending) - 1)]))
    bounds = {name: np.sort(np.asarray(values)) for name, values in found.items()}
    return {n: Interval(percentile(v, 0.025), percentile(v, 0.975)) for n, v in bounds.items()}


def _slowest(values: Floats) -> Bools:
    """Select the slowest tenth; with ties at the maximum, all of them."""
    bound = np.quantile(values, 1 - SLOW_SHARE)
    return values > bound if (values > bound).any() else values >= bound
