"""What is known of how long a provider takes. Pure: observations go in, a survival curve comes out.

The problem: when to ask a second provider depends on how long the first one may still take, and
that has to be learned from turns in which the slow answers, the ones that matter, were never seen
to their end, because a faster answer won and they were cancelled.

The naive answers both lie. Recording only winners makes the provider look faster than it is, so
hedges come earlier, so still more slow answers go unseen: hedging at a p95 learned that way creeps
from 5 % of turns to 7.4 %. Recording a cancelled answer as if it had come at its cancellation is
the same error, smaller.

Ours treats a cancelled answer as what it is, *censored*: longer than so much, nothing else known.
The estimate that uses just that is Kaplan and Meier's (1958): at each time at which an answer came,
the curve falls by the share of those still waiting whose answer came then; a censored one counts
among the waiting until it was cancelled.

- Beyond the last of n observations the curve falls off exponentially, from a mass of at least
  1/(n + 1): the expected share of answers slower than the slowest of n is exactly that, where the
  bare estimate would call them impossible. The mean of the tail is the exponential's
  maximum-likelihood estimate from the slowest twentieth that came: all waiting beyond the beginning
  of it, that for cancelled answers included, divided by the answers. If the slowest eight alone say
  more than twice as much, which chance hardly does, they are believed: early hedges cut most of a
  tail off, and what is left of the twentieth is the body's edge.
- Recent observations weigh more: the weight of one halves with every ``half_life`` that follow it.
- Until there is enough data the curve is mixed with a prior whose share of the curve is
  (w / (w + n))² after n observations: a quarter after as many as its weight w. (One that was cut
  short counts for as much as the prior would have expected to see of it.) The share of a
  conjugate prior, w / (w + n), falls too slowly for the tail: 5 % of a slower prior after 400
  observations is still as much as all that is known beyond the p95.

What other processes have seen of the same provider (``inform``) takes the place of the prior, by
the same law: w/(w + n) squared of the prior is left after n of their observations. And it is worth
more than a guess, so it gives way more slowly: its weight is a ``WORTH``-th of their observations,
up to ``MOST_WORTH``. That holds for as long as both agree: where the others' median lies outside
the middle three fifths of what has been seen here, they ask from elsewhere, or have not heard of a
change, and weigh no more than any prior.

Left out: trends and times of day, which a window of some hundred turns follows by itself, and
sudden changes, which ``change_point.py`` detects.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from pipecat_hedge.policy.survival import Floats, SurvivalCurve
from pipecat_hedge.race.errors import ConfigurationError

__all__ = ["LatencyModel"]

TAIL_SHARE = 0.05
TAIL_AT_LEAST = 8
"""The tail's mean is taken from the slowest twentieth, and from no fewer answers than so many."""
HEAVIER = 2.0
"""By how much the slowest few must wait longer than the twentieth to be believed instead."""

WORTH, MOST_WORTH = 16.0, 256.0
"""How many observations of others weigh as much as one of the prior's weight, and the most that all
of them weigh: after as many observations of one's own, a quarter of the curve is theirs."""
TRIED, SAME = 32, 1.1
"""Observations of one's own that are enough to see whether others agree; and the same level is one
that differs by no more than such a factor, be the spread as narrow as it will."""


class LatencyModel:
    """What one provider's latencies look like.

    Example::

        model = LatencyModel(prior)
        model.record(0.48)
        model.record(0.61, censored=True)   # cancelled after 0.61 s
        model.quantile(0.95)
    """

    def __init__(
        self,
        prior: SurvivalCurve,
        *,
        prior_weight: float = 20.0,
        window: int = 2048,
        half_life: float = 1024.0,
    ):
        """Begin with nothing but the prior.

        Args:
            prior: What is assumed before anything has been seen.
            prior_weight: After how many observations the prior's share is a quarter; not negative.
            window: How many observations are kept, at least 1.
            half_life: After how many further observations one weighs half; positive.

        Raises:
            ConfigurationError: If an argument cannot work.
        """
        if prior_weight < 0:
            raise ConfigurationError(f"prior_weight must not be negative, got {prior_weight}")
        if window < 1:
            raise ConfigurationError(f"window must be at least 1, got {window}")
        if not half_life > 0:
            raise ConfigurationError(f"half_life must be positive, got {half_life}")
        self._prior = self._assumed = prior
        self._weight = self._prior_weight = prior_weight
        self._others: SurvivalCurve | None = None
        self._others_told = 0.0
        self._half_life = half_life
        self._window = window
        self._aside: tuple[SurvivalCurve, list[tuple[float, bool]]] | None = None
        self._empty()
        self._weights = np.exp2(-np.arange(window)[::-1] / half_life)
        self._curve: SurvivalCurve | None = prior

    def __len__(self) -> int:
        """How many observations are kept."""
        return len(self._secs)

    @property
    def prior_weight(self) -> float:
        """How much of the curve is still assumed, from 1 to nearly 0."""
        return self._given_share * self._assumed_share

    @property
    def _given_share(self) -> float:
        """How much of the curve is not from this model's own observations."""
        total = self._told_in_all + self._weight
        return min((self._weight / total) ** 2, 1.0) if total > 0 else 0.0

    @property
    def _assumed_share(self) -> float:
        """How much of what is not from its own observations is not from others' either."""
        total = self._others_told + self._prior_weight
        return (self._prior_weight / total) ** 2 if self._others_told and total > 0 else 1.0

    def rebase(self, prior: SurvivalCurve) -> None:
        """Take another prior from the next observation on.

        Args:
            prior: The prior.
        """
        if prior is self._assumed:
            return
        self._assumed = prior
        self._combine()

    def inform(self, others: SurvivalCurve | None, told: float = 0.0) -> bool:
        """Take what others have seen in place of the prior, from now on.

        Args:
            others: Their curve; None if there is none.
            told: How many observations' worth it is.

        Returns:
            Whether that changes the curve by more than a hundredth.
        """
        if others is None and self._others is None:
            return False
        self._others, self._others_told = others, told if others is not None else 0.0
        self._weight = self._prior_weight
        if others is not None and self._agrees_with(others):
            self._weight = min(max(told / WORTH, self._prior_weight), MOST_WORTH)
        self._combine()
        self._curve = None if self._secs else self._prior
        return self._given_share > 0.01

    def _agrees_with(self, others: SurvivalCurve) -> bool:
        if len(self._secs) < TRIED:
            return True
        own = self._kaplan_meier()
        low, high = own.quantile(0.2) / SAME, own.quantile(0.8) * SAME
        return low <= others.quantile(0.5) <= high

    def _combine(self) -> None:
        """The prior is what is assumed, in so far as others have not seen it."""
        self._prior = self._assumed
        if self._others is not None:
            self._prior = self._others.mixed_with(self._assumed, self._assumed_share)
        if not self._secs:
            self._curve = self._prior

    def _empty(self) -> None:
        self._secs: deque[float] = deque(maxlen=self._window)
        self._came: deque[bool] = deque(maxlen=self._window)
        self._told: deque[float] = deque(maxlen=self._window)
        self._told_in_all = 0.0

    def restart(
        self, prior: SurvivalCurve, keep: int = 0, *, put_aside_but: int | None = None
    ) -> None:
        """Forget all but the latest observations: what came before is no longer true.

        Args:
            prior: What is assumed now; kept thinned, as the next one may be made of it.
            keep: How many observations to keep.
            put_aside_but: All but so many of the latest may be wanted again; they replace those put
                aside before. None puts nothing aside.
        """
        seen = self.observations
        kept = len(seen) - min(keep, len(seen))
        if put_aside_but is not None:
            self._aside = self._assumed, seen[: max(len(seen) - put_aside_but, 0)]
        self._begin(prior.thinned(), seen[kept:])

    def resume(self, keep: int = 0) -> None:
        """Take up again what was put aside: it is true again.

        Args:
            keep: How many of the latest observations are to follow it.

        Raises:
            ConfigurationError: If nothing was put aside.
        """
        if self._aside is None:
            raise ConfigurationError("nothing was put aside: restart(..., put_aside_but=0)")
        (prior, before), self._aside = self._aside, None
        seen = self.observations
        self._begin(prior, [*before, *seen[len(seen) - min(keep, len(seen)) :]])

    def _begin(self, prior: SurvivalCurve, observations: list[tuple[float, bool]]) -> None:
        self._empty()
        self._prior = self._assumed = self._curve = prior
        self._weight = self._prior_weight
        self._others, self._others_told = None, 0.0  # what they have seen is no longer true, either
        for secs, censored in observations:
            self.record(secs, censored=censored)

    @property
    def observations(self) -> list[tuple[float, bool]]:
        """What is kept, oldest first: seconds, and whether the wait was censored."""
        return [(secs, not came) for secs, came in zip(self._secs, self._came, strict=True)]

    def record(self, secs: float, *, censored: bool = False) -> None:
        """Take an observation.

        Args:
            secs: How long the provider took, in seconds; if censored, how long it was waited for.
            censored: Whether the wait ended without an answer, through no fault of the provider.

        Raises:
            ConfigurationError: If ``secs`` is negative or no number.
        """
        if not 0 <= secs < math.inf:
            raise ConfigurationError(f"secs must not be negative, got {secs}: it must be finite")
        told = 1.0 - float(self._prior.share_after(secs)) if censored else 1.0
        if len(self._told) == self._told.maxlen:
            self._told_in_all -= self._told[0]
        self._told.append(told)
        self._told_in_all += told
        self._secs.append(secs)
        self._came.append(not censored)
        self._curve = None

    @property
    def curve(self) -> SurvivalCurve:
        """What is known now; the same object until the next observation."""
        if self._curve is None:
            measured = self._kaplan_meier()
            self._curve = measured.mixed_with(self._prior, self._given_share)
        return self._curve

    def survival(self, secs: float) -> float:
        """P(T > t): the share of answers that take longer than so many seconds."""
        return float(self.curve.share_after(secs))

    def quantile(self, p: float) -> float:
        """The time in seconds by which a share p has answered; see ``SurvivalCurve.quantile``."""
        return self.curve.quantile(p)

    def expected_remaining(self, elapsed_secs: float) -> float:
        """The mean wait that is left after so many seconds without an answer, in seconds."""
        return self.curve.expected_remaining(elapsed_secs)

    def _kaplan_meier(self) -> SurvivalCurve:
        count = len(self._secs)
        secs = np.fromiter(self._secs, np.float64, count)
        came = np.fromiter(self._came, np.bool_, count)
        weights = self._weights[-count:]
        order = np.lexsort((~came, secs))  # of equal times, those that came were still waiting
        secs, came, weights = secs[order], came[order], weights[order]
        at_risk = np.cumsum(weights[::-1])[::-1]
        shares = np.cumprod(1.0 - np.where(came, weights / at_risk, 0.0))
        np.maximum(shares, 1.0 / (count + 1), out=shares)
        return SurvivalCurve.of(secs, shares, self._tail_secs(secs, came, weights))

    def _tail_secs(self, secs: Floats, came: np.ndarray, weights: Floats) -> float:
        answered = np.flatnonzero(came)
        slowest = max(TAIL_AT_LEAST, round(TAIL_SHARE * secs.size))
        if answered.size <= slowest:
            return self._prior.tail_secs

        def mean_wait(count: int) -> float:
            begins = int(answered[-count - 1]) + 1
            waited = float(((secs[begins:] - secs[begins - 1]) * weights[begins:]).sum())
            return max(waited / float(weights[begins:][came[begins:]].sum()), 1e-3)

        usual, far_out = mean_wait(slowest), mean_wait(TAIL_AT_LEAST)
        return far_out if far_out > HEAVIER * usual else usual
