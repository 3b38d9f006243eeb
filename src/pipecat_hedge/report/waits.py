"""How long things took: percentiles, and the curve they are points of. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipecat_hedge.percentiles import percentile

__all__ = ["NO_WAITS", "CurvePoint", "Waits", "curve_of"]

POINTS = 160
"""A curve is drawn through so many points at most, as many in each further nine of the turns."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Percentiles by nearest rank, as everywhere in this package; None where there are no waits.

    Parameters:
        count: How many waits there were.
        p50_secs: The time that half of them stayed within, in seconds; so on for the others.
        p95_secs: The 95th percentile.
        p99_secs: The 99th percentile.
        max_secs: The longest.
        mean_secs: The mean.
    """

    count: int
    p50_secs: float | None
    p95_secs: float | None
    p99_secs: float | None
    max_secs: float | None
    mean_secs: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Waits:
        """Sum waits up.

        Args:
            values: The waits, in seconds and any order.
        """
        known = sorted(values)
        if not known:
            return NO_WAITS
        p50, p95, p99 = (percentile(known, p) for p in (0.5, 0.95, 0.99))
        return cls(len(known), p50, p95, p99, known[-1], math.fsum(known) / len(known))


NO_WAITS = Waits(0, None, None, None, None, None)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A point of the curve of waits.

    Parameters:
        secs: A time, in seconds.
        share: The share of the waits that were over by then.
    """

    secs: float
    share: float


def curve_of(values: Sequence[float]) -> tuple[CurvePoint, ...]:
    """The share of waits that were over by each time.

    Args:
        values: The waits, in seconds and any order.

    Returns:
        Points in rising order, the tail as densely as the body; none if there are no waits.
    """
    known, count = sorted(values), len(values)
    if not known:
        return ()
    deepest = math.log10(count)  # of the slowest but one, so many nines are over
    ranks = {1, count}
    for step in range(POINTS + 1):
        left = 10 ** (-deepest * step / POINTS)
        ranks.add(min(max(math.ceil((1 - left) * count), 1), count))
    return tuple(CurvePoint(known[rank - 1], rank / count) for rank in sorted(ranks))
