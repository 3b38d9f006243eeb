"""Computes the expected saving of a further request, by the time at which it is sent.

In a turn that still waits at time t, a request to Y saves on average

    V(t) = ∫ₜ^∞ S(u)/S(t) · P(Y ≤ u − t) · w(u) du        seconds,

where S(u) is the probability that no request in flight has answered by u. The weight w is 0 before
the deadline, if there is one, and 1 after it. Y is approximated by ``QUANTILES`` equally likely
latencies y. Then V(t) is the mean over y of the area under S beyond max(t + y, deadline), divided
by S(t). See ``docs/design/when-to-hedge.md``.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipecat_hedge.providers.survival import Floats, SurvivalCurve

QUANTILES = 24
"""Latencies that stand for Y. A test bounds the error that the grids cause."""
CANDIDATES = 64
"""Launch times that are tried within the body of the curve; half as many more beyond it."""
LEAST_LEFT = 1e-4
"""The smallest share of waiting turns at which a launch time is tried."""
HORIZON_SECS = 120.0
"""The longest wait that is considered; callers have hung up long before."""
MARGIN_SECS = 1e-6
"""Differences in the gain below this are rounding errors."""
REMEMBERED = 64
"""Pairs of curves in a cache; it is emptied beyond that."""
_EQUALLY_LIKELY = 1.0 - (np.arange(QUANTILES) + 0.5) / QUANTILES
_SHARES = np.geomspace(0.98, LEAST_LEFT, CANDIDATES)
_BEYOND = np.concatenate(([0.0], np.geomspace(0.02, HORIZON_SECS, CANDIDATES // 2)))


@dataclass(frozen=True, slots=True)
class HedgeBenefit:
    """The expected saving of a further request, by the time at which it is sent.

    Parameters:
        at: Times from the turn's start, ascending, in seconds.
        saved: V(t) at each time, in seconds.
        best: The largest V up to each time, in seconds.
        left: The share of turns that still wait at each time.
    """

    at: Sequence[float]
    saved: Sequence[float]
    best: Sequence[float]
    left: Sequence[float]
    _later: dict[float, list[tuple[float, float]]] = field(
        default_factory=dict[float, list[tuple[float, float]]], compare=False, repr=False
    )

    @classmethod
    def of(
        cls,
        in_flight: SurvivalCurve,
        further: SurvivalCurve,
        deadline_secs: float | None = None,
        since: float = 0.0,
    ) -> HedgeBenefit:
        """Return the benefit of a further request from a time on.

        Args:
            in_flight: The joint curve of the requests in flight.
            further: The curve of the further request.
            deadline_secs: Only waiting beyond this time counts, in seconds; None counts all.
            since: The earliest time, in seconds from the turn's start.
        """
        at = _candidates(in_flight, since)
        saved = expected_saving(in_flight, further, at, deadline_secs)
        left = in_flight.share_after(at)
        return cls(
            at.tolist(), saved.tolist(), np.maximum.accumulate(saved).tolist(), left.tolist()
        )

    def at_time(self, secs: float, values: Sequence[float]) -> float:
        """Interpolate ``saved``, ``best`` or ``left`` linearly at a time.

        Args:
            secs: Time in seconds from the turn's start.
            values: The attribute to interpolate.
        """
        index = bisect_left(self.at, secs)
        if index == 0:
            return values[0]
        if index == len(self.at):
            return values[-1]
        before, after = self.at[index - 1], self.at[index]
        share = (secs - before) / (after - before)
        return values[index - 1] + share * (values[index] - values[index - 1])

    def first_above(self, price_secs: float, since: float) -> float | None:
        """Return the first time from ``since`` at which V reaches the price; None if it never does.

        Args:
            price_secs: The price in seconds of saving.
            since: The earliest time, in seconds from the turn's start.
        """
        before, below = since, self.at_time(since, self.saved)
        if below >= price_secs - 1e-9:
            return since
        for index in range(bisect_right(self.at, since), len(self.at)):
            at, saved = self.at[index], self.saved[index]
            if saved >= price_secs:
                return before + (price_secs - below) / (saved - below) * (at - before)
            before, below = at, saved
        return None

    def best_time_from(self, secs: float, price_secs: float) -> float:
        """Return the time from ``secs`` on at which left · (V − price) is largest.

        Later, fewer turns still wait, and each request that is not sent saves its price.

        Args:
            secs: The earliest time, in seconds from the turn's start.
            price_secs: Least saving of a request, in seconds.
        """
        later = self._later.get(price_secs)
        if later is None:
            later = self._later[price_secs] = self._best_from(price_secs)
        first = bisect_right(self.at, secs)
        if first == len(self.at):
            return secs
        most = self.at_time(secs, self.left) * (self.at_time(secs, self.saved) - price_secs)
        brings, at = later[first]
        return at if brings > most + MARGIN_SECS else secs

    def _best_from(self, price_secs: float) -> list[tuple[float, float]]:
        """Return for each time the largest gain from it on, and the first time with that gain."""
        found: list[tuple[float, float]] = []
        best = (-math.inf, 0.0)
        for at, saved, left in zip(
            reversed(self.at), reversed(self.saved), reversed(self.left), strict=True
        ):
            brings = left * (saved - price_secs)
            best = (brings, at) if brings >= best[0] - MARGIN_SECS else best
            found.append(best)
        return found[::-1]


class BenefitCache:
    """Caches the benefit for pairs of curves; a curve is immutable."""

    def __init__(self) -> None:
        self._known: dict[
            tuple[int, int, float | None], tuple[SurvivalCurve, SurvivalCurve, HedgeBenefit]
        ] = {}

    def of(
        self, in_flight: SurvivalCurve, further: SurvivalCurve, deadline_secs: float | None
    ) -> HedgeBenefit:
        """Return the benefit of a further request beside one that was sent at 0.

        Args:
            in_flight: The curve of the request in flight.
            further: The curve of the further request.
            deadline_secs: Only waiting beyond this time counts, in seconds; None counts all.
        """
        key = (id(in_flight), id(further), deadline_secs)
        found = self._known.get(key)
        if found is not None:  # the entry keeps the curves alive, so ids are unique
            return found[2]
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        benefit = HedgeBenefit.of(in_flight, further, deadline_secs)
        self._known[key] = (in_flight, further, benefit)
        return benefit


def expected_saving(
    in_flight: SurvivalCurve, further: SurvivalCurve, at: Floats, deadline_secs: float | None = None
) -> Floats:
    """Return V(t), the mean saving in seconds of a further request that is sent at t; shape (n,).

    Args:
        in_flight: The joint curve of the requests in flight.
        further: The curve of the further request.
        at: The times t, in seconds from the turn's start; shape (n,).
        deadline_secs: Only waiting beyond this time counts, in seconds; None counts all.
    """
    latencies = further.quantiles(_EQUALLY_LIKELY)
    begins = at[:, None] + latencies[None, :]
    if deadline_secs is not None:
        begins = np.maximum(begins, deadline_secs)
    shares = in_flight.share_after(at)
    saved = in_flight.area_after(begins).mean(axis=1)
    # Past the end of the curve only the mean of the tail is known.
    return np.where(shares > 0, saved / np.where(shares > 0, shares, 1.0), in_flight.tail_secs)


def joint(in_flight: Sequence[tuple[SurvivalCurve, float]]) -> SurvivalCurve:
    """Return the curve of the first answer of several requests.

    Args:
        in_flight: Pairs of a request's curve and its launch, in seconds from the turn's start.
    """
    if len(in_flight) == 1 and in_flight[0][1] == 0:
        return in_flight[0][0]
    secs = np.unique(np.concatenate([curve.secs + sent for curve, sent in in_flight]))
    shares = np.ones_like(secs)
    for curve, sent in in_flight:
        shares *= curve.share_after(secs - sent)
    tail_secs = 1.0 / sum(1.0 / curve.tail_secs for curve, _ in in_flight)
    return SurvivalCurve.of(secs, shares, tail_secs)


def _candidates(in_flight: SurvivalCurve, since: float) -> Floats:
    """Return the launch times to try.

    They follow the quantiles of the answers, because V jumps at the end of a narrow body, which an
    even grid would blur. A second grid covers the times beyond.
    """
    body = in_flight.quantiles(_SHARES)
    return np.unique(np.concatenate((body[body > since], since + _BEYOND)))
