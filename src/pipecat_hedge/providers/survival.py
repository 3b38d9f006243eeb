"""How long an answer may still take: a survival curve, P(T > t), as steps and an exponential tail.

A curve is an immutable value. Its steps come from measurements, and make the two questions that
hedging asks exact and cheap: how likely an answer takes longer than t, and how much longer on
average. Beyond the last step the curve falls off exponentially: a curve that ended there would call
a rare wait impossible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pipecat_hedge.race.errors import ConfigurationError

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class SurvivalCurve:
    """A survival curve.

    Make one with ``SurvivalCurve.of``; the fields are consistent only then.

    Parameters:
        secs: Where the curve steps, ascending, beginning with 0; shape (n,), in seconds.
        shares: P(T > t) from each step to the next, not increasing; shape (n,), dimensionless.
        tail_secs: Mean of the exponential tail that begins at the last step, in seconds.
        areas: The area under the curve from each step to infinity; shape (n,), in seconds.
    """

    secs: Floats
    shares: Floats
    tail_secs: float
    areas: Floats

    @classmethod
    def of(cls, secs: npt.ArrayLike, shares: npt.ArrayLike, tail_secs: float) -> SurvivalCurve:
        """Make a curve.

        Args:
            secs: Where it steps, ascending and not negative; shape (n,), in seconds.
            shares: P(T > t) from each step to the next, within 0 to 1; shape (n,).
            tail_secs: Mean of the exponential tail beyond the last step, in seconds.
        """
        at, above = np.asarray(secs, dtype=np.float64), np.asarray(shares, dtype=np.float64)
        if at[0] > 0:
            at, above = np.concatenate(([0.0], at)), np.concatenate(([1.0], above))
        return cls.made(at, above, float(tail_secs))

    @classmethod
    def made(cls, at: Floats, above: Floats, tail_secs: float) -> SurvivalCurve:
        """``of`` for arrays of steps that begin with 0."""
        areas = np.empty_like(at)
        areas[-1] = above[-1] * tail_secs
        areas[-2::-1] = areas[-1] + ((at[1:] - at[:-1]) * above[:-1])[::-1].cumsum()
        return cls(at, above, tail_secs, areas)

    def share_after(self, secs: npt.ArrayLike) -> Floats:
        """P(T > t).

        Args:
            secs: The times t, in seconds, of any shape; before 0 the share is 1.

        Returns:
            The shares, of the same shape.
        """
        t = np.asarray(secs, dtype=np.float64)
        index = np.searchsorted(self.secs, t, side="right") - 1
        shares = np.where(index < 0, 1.0, self.shares[np.maximum(index, 0)])
        return shares * self._decay(t)

    def area_after(self, secs: npt.ArrayLike) -> Floats:
        """The area under the curve beyond t: P(T > t) times the mean wait that is left.

        Args:
            secs: The times t, in seconds, of any shape, not negative.

        Returns:
            The areas, in seconds, of the same shape.
        """
        t = np.asarray(secs, dtype=np.float64)
        return np.interp(t, self.secs, self.areas) * self._decay(t)

    def quantile(self, p: float) -> float:
        """The time by which a share p has answered.

        Args:
            p: The share, from 0 to below 1.

        Returns:
            The smallest t with P(T > t) ≤ 1 − p, in seconds.

        Raises:
            ConfigurationError: If ``p`` is no such share.
        """
        if not 0 <= p < 1:
            raise ConfigurationError(f"p must be from 0 to below 1, got {p}: the p95 is 0.95")
        left = 1.0 - p
        index = self.secs.size - int(self.shares[::-1].searchsorted(left + 1e-12, side="right"))
        if index < self.secs.size:
            return float(self.secs[index])
        return float(self.secs[-1]) + self.tail_secs * math.log(float(self.shares[-1]) / left)

    def median_between(self, after_secs: float, by_secs: float) -> float:
        """The median of the times within an interval.

        Args:
            after_secs: Where it begins, in seconds.
            by_secs: Where it ends, in seconds.

        Returns:
            The median, in seconds; the middle of the interval where no time is.
        """
        begin, end = self.share_after((after_secs, by_secs)).tolist()
        if begin - end <= 1e-9:
            return (after_secs + by_secs) / 2
        return min(max(self.quantile(1.0 - (begin + end) / 2), after_secs), by_secs)

    def quantiles(self, left: Floats) -> Floats:
        """The times by which all but given shares have answered.

        Args:
            left: The shares that have not, above 0; shape (n,).

        Returns:
            For each the smallest t with P(T > t) ≤ left, in seconds; shape (n,).
        """
        index = self.secs.size - self.shares[::-1].searchsorted(left + 1e-12, side="right")
        beyond = self.tail_secs * np.log(np.maximum(self.shares[-1], 1e-12) / left)
        steps = self.secs[np.minimum(index, self.secs.size - 1)]
        return np.where(index < self.secs.size, steps, self.secs[-1] + beyond)

    def expected_remaining(self, elapsed_secs: float) -> float:
        """How much longer on average, given that so long has passed without an answer.

        Args:
            elapsed_secs: How long has passed, in seconds.

        Returns:
            The mean of T − elapsed over those T that are longer, in seconds.
        """
        share = float(self.share_after(elapsed_secs))
        if share <= 0:  # impossible by this curve, but observed
            return self.tail_secs
        return float(self.area_after(elapsed_secs)) / share

    def scaled(self, factor: float) -> SurvivalCurve:
        """The curve of latencies that are all ``factor`` times as long.

        Args:
            factor: Positive.
        """
        return SurvivalCurve(
            self.secs * factor, self.shares, self.tail_secs * factor, self.areas * factor
        )

    def delayed(self, secs: float) -> SurvivalCurve:
        """The curve of latencies that are all ``secs`` longer.

        Args:
            secs: Not negative.
        """
        return SurvivalCurve.of(self.secs + secs, self.shares, self.tail_secs) if secs > 0 else self

    def _decay(self, t: Floats) -> Any:
        beyond = t - self.secs[-1]
        return np.exp(np.minimum(-beyond / self.tail_secs, 0.0))
