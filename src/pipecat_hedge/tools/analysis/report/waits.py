"""How long things took: percentiles, and the curve they are points of. Pure.

The problem: a caller who waits 8 s in silence and hangs up has no time to the first token. The
naive answer takes the percentiles of the turns that have one, and the more callers give up the
better they look. Ours are Kaplan and Meier's (1958): who gave up after 8 s would have waited longer
than that, and counts as waiting until then. Where too many gave up to tell, it is told as "longer
than". Both are shown: the first is what histograms of `/metrics` hold.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipecat_hedge.policy.percentiles import percentile

__all__ = ["NO_WAITS", "CurvePoint", "Estimate", "Estimates", "Waits", "curve_of", "estimates_of"]

POINTS = 160
"""A curve is drawn through so many points at most, as many in each further nine of the turns."""
ROUNDED = 1e-9
"""A share that is less than this too small is not: it is a product of a thousand others."""


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
class Estimate:
    """A percentile that counts in those that were not waited for to their end.

    Parameters:
        secs: The time, in seconds.
        is_least: Whether nobody waited long enough to tell: then it is longer.
    """

    secs: float
    is_least: bool = False


@dataclass(frozen=True, slots=True)
class Estimates:
    """Percentiles that count in those who gave up.

    Parameters:
        p50: The time that half of them stayed within; None if there are none. So on for the others.
        p95: The 95th percentile.
        p99: The 99th percentile.
        longest: The longest that anybody waited.
    """

    p50: Estimate | None = None
    p95: Estimate | None = None
    p99: Estimate | None = None
    longest: Estimate | None = None


def estimates_of(values: Sequence[float], given_up: Sequence[float]) -> Estimates:
    """Percentiles of waits of which some were given up.

    Args:
        values: The waits that came to their end, in seconds and any order.
        given_up: How long those lasted that did not.
    """
    if not values and not given_up:
        return Estimates()
    longest = max((*values, *given_up))
    if not given_up:
        found = [Estimate(percentile(sorted(values), p) or 0.0) for p in (0.5, 0.95, 0.99)]
        return Estimates(found[0], found[1], found[2], Estimate(longest))
    steps = _steps(values, given_up)
    shares = [step.share for step in steps]
    found = list[Estimate]()
    for p in (0.5, 0.95, 0.99):
        at = bisect_left(shares, p - ROUNDED)
        found.append(Estimate(steps[at].secs) if at < len(steps) else Estimate(longest, True))
    is_least = longest > max(values, default=-1.0)
    return Estimates(found[0], found[1], found[2], Estimate(longest, is_least))


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A point of the curve of waits.

    Parameters:
        secs: A time, in seconds.
        share: The share of the waits that were over by then.
    """

    secs: float
    share: float


def curve_of(values: Sequence[float], given_up: Sequence[float] = ()) -> tuple[CurvePoint, ...]:
    """The share of waits that were over by each time.

    Args:
        values: The waits that came to their end, in seconds and any order.
        given_up: How long those lasted that did not: then the curve does not rise to all of them.

    Returns:
        Points in rising order, the tail as densely as the body; none if there are no waits.
    """
    steps = _steps(values, given_up)
    if not steps:
        return ()
    shares = [step.share for step in steps]
    deepest = math.log10(len(values))  # of the slowest but one, so many nines are over
    ranks = {0, len(steps) - 1}
    for step in range(POINTS + 1):
        at = bisect_left(shares, 1 - 10 ** (-deepest * step / POINTS) - ROUNDED)
        ranks.add(min(at, len(steps) - 1))
    return tuple(steps[rank] for rank in sorted(ranks))


def _steps(values: Sequence[float], given_up: Sequence[float]) -> list[CurvePoint]:
    """Kaplan and Meier's curve, a step at each wait that came to its end."""
    count, left = len(values) + len(given_up), 1.0
    if not given_up:
        return [CurvePoint(secs, n / count) for n, secs in enumerate(sorted(values), 1)]
    steps = list[CurvePoint]()
    known = sorted([*((secs, False) for secs in values), *((secs, True) for secs in given_up)])
    for number, (secs, is_given_up) in enumerate(known):
        if not is_given_up:
            left *= 1 - 1 / (count - number)
            steps.append(CurvePoint(secs, 1 - left))
    return steps
