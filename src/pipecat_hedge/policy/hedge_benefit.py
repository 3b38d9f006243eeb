"""What a further request saves, by the time at which it is sent.

For a turn still waiting at time t, sending Y now saves on average

    V(t) = ∫ₜ^∞ S(u)/S(t) · P(Y ≤ u − t) · w(u) du        seconds,

where S(u) is the probability that none of the requests in flight has answered by u, and w is 0
before the deadline, if there is one, and 1 after it. Computed with Y as ``QUANTILES`` equally
likely latencies y: then V(t) is the mean over y of the area under S beyond t + y (or beyond the
deadline), divided by S(t), which a curve has at hand.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipecat_hedge.policy.survival import Floats, SurvivalCurve

__all__ = ["HORIZON_SECS", "BenefitCache", "HedgeBenefit", "expected_saving", "joint"]

QUANTILES = 24
CANDIDATES = 64
LEAST_LEFT = 1e-4
HORIZON_SECS = 120.0
"""Beyond it nobody waits for an answer."""
MARGIN_SECS = 1e-6
REMEMBERED = 64
_EQUALLY_LIKELY = 1.0 - (np.arange(QUANTILES) + 0.5) / QUANTILES
_SHARES = np.geomspace(0.98, LEAST_LEFT, CANDIDATES)
_BEYOND = np.concatenate(([0.0], np.geomspace(0.02, HORIZON_SECS, CANDIDATES // 2)))


@dataclass(frozen=True, slots=True)
class HedgeBenefit:
    """What a further request saves, by the time at which it is sent.

    Parameters:
        at: Times from the turn's start, ascending, in seconds.
        saved: V(t) at each, in seconds.
        best: The most that V reaches up to each, in seconds.
        left: The share of turns that are still waiting at each.
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
        """What a request saves from a time on.

        Args:
            in_flight: How long the requests in flight take, as one.
            further: How long the further request takes.
            deadline_secs: Only waiting beyond this time counts; None counts all.
            since: The earliest time, in seconds from the turn's start.
        """
        at = _candidates(in_flight, since)
        saved = expected_saving(in_flight, further, at, deadline_secs)
        left = in_flight.share_after(at)
        return cls(
            at.tolist(), saved.tolist(), np.maximum.accumulate(saved).tolist(), left.tolist()
        )

    def at_time(self, secs: float, values: Sequence[float]) -> float:
        """``saved`` or ``best`` at a time; between two times it is taken to change evenly.

        Args:
            secs: The time, in seconds.
            values: Which of them.
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
        """The first time from ``since`` at which V is at least the price, or None.

        Args:
            price_secs: The price, in seconds.
            since: The earliest time, in seconds.
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
        """The time from ``secs`` on at which a request brings the most for what it costs.

        That is where left · (V − price) is largest: a little later, fewer turns are still waiting,
        and each request that is not sent saves its price.

        Args:
            secs: The earliest time, in seconds.
            price_secs: What a request must save, in seconds.
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
        """From each time on, the most that a request brings, and the first time at which."""
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
    """Remembers what has been computed for a pair of curves; a curve is a value."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._known: dict[
            tuple[int, int, float | None], tuple[SurvivalCurve, SurvivalCurve, HedgeBenefit]
        ] = {}

    def of(
        self, in_flight: SurvivalCurve, further: SurvivalCurve, deadline_secs: float | None
    ) -> HedgeBenefit:
        """What a further request saves while one that was sent at 0 is in flight.

        Args:
            in_flight: How long the one in flight takes.
            further: How long the further one takes.
            deadline_secs: Only waiting beyond this time counts; None counts all.
        """
        key = (id(in_flight), id(further), deadline_secs)
        found = self._known.get(key)
        if found is not None:  # the entry holds the curves, so their ids are still theirs
            return found[2]
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        benefit = HedgeBenefit.of(in_flight, further, deadline_secs)
        self._known[key] = (in_flight, further, benefit)
        return benefit


def expected_saving(
    in_flight: SurvivalCurve, further: SurvivalCurve, at: Floats, deadline_secs: float | None = None
) -> Floats:
    """V(t): the seconds that a further request saves on average if it is sent at t.

    Args:
        in_flight: How long the requests in flight take, as one.
        further: How long the further request takes.
        at: The times t, from the turn's start, in seconds; shape (n,).
        deadline_secs: Only waiting beyond this time counts; None counts all.

    Returns:
        The expected_saving in seconds, shape (n,).
    """
    latencies = further.quantiles(_EQUALLY_LIKELY)
    begins = at[:, None] + latencies[None, :]
    if deadline_secs is not None:
        begins = np.maximum(begins, deadline_secs)
    shares = in_flight.share_after(at)
    saved = in_flight.area_after(begins).mean(axis=1)
    # Impossible by the curve, and yet it has happened: then only the tail is known.
    return np.where(shares > 0, saved / np.where(shares > 0, shares, 1.0), in_flight.tail_secs)


def joint(in_flight: Sequence[tuple[SurvivalCurve, float]]) -> SurvivalCurve:
    """How long several requests take until the first of them answers.

    Args:
        in_flight: Each with the time at which it was sent, in seconds from the turn's start.
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
    """Times at which a launch is considered.

    Where the answers are, however narrow their spread: V jumps where a body ends, and a grid of
    times alone would blur the jump. And beyond them.
    """
    body = in_flight.quantiles(_SHARES)
    return np.unique(np.concatenate((body[body > since], since + _BEYOND)))
