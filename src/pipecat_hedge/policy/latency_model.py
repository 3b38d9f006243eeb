"""How long a provider takes, learned from counts in buckets. Pure.

A slow answer is often not seen to its end, because a faster one won and it was cancelled. Ignoring
it, or recording it as answered, makes the provider look faster than it is. So a cancelled answer is
*right-censored*, and the curve is the estimate of Kaplan and Meier (1958).

Observations are counts in buckets 2 % apart. Counts decay as further ones come, and counts of
several processes add up. The prior and what other processes have seen are counts, too: after n
observations a source of weight w adds w² / (2w + n) of its own, so its share of the curve is
(w / (w + n))², a quarter after n = w. That of a conjugate prior, w / (w + n), falls too slowly for
the tail. A censored observation is worth as much as the prior expected to see of it.

One more observation is assumed to be slower than the slowest, since that is what the next one is
with probability 1 / (n + 1). It is exponential, with the mean of the slowest twentieth.

Sudden changes are found by ``change_point.py``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from pipecat_hedge.policy.survival import Floats, SurvivalCurve
from pipecat_hedge.race.errors import ConfigurationError

__all__ = ["BUCKETS", "LEAST_SECS", "LatencyModel", "bucket_of", "kaplan_meier"]

LEAST_SECS, MOST_SECS = 0.01, 120.0
"""Shorter and longer times count as these."""
RATIO = 1.02
BUCKETS = math.ceil(math.log(MOST_SECS / LEAST_SECS) / math.log(RATIO)) + 1
_ENDS: Floats = LEAST_SECS * np.power(RATIO, np.arange(float(BUCKETS)))
_VALUES: Floats = _ENDS / math.sqrt(RATIO)
"""The time that stands for each bucket, in seconds."""

TAIL_SHARE, TAIL_AT_LEAST = 0.05, 8
"""The tail's mean is taken from the slowest twentieth, and from no fewer answers than so many."""
HEAVIER = 2.0
"""The slowest few are believed instead if they say more than so many times as much: early hedges
cut off most of a tail, and what is left of the twentieth is the edge of the body."""
WORTH, MOST_WORTH = 16.0, 256.0
"""How many observations of other processes weigh as much as one of the prior's weight, and the most
that all of them weigh."""
TRIED, CHANGED_TRIED, SAME = 32, 8, 1.1
"""Observations that are enough to see whether other processes see the same, also just after a
change; and by which factor the same level may differ, however narrow the spread."""
FRESHNESS, FEW = 32, 4
"""The curve is made anew when one in so many observations is new, and at least so many."""
KEPT = 64
"""How many of the latest observations are kept as they were, for when the provider has changed."""
MOST_WEIGHT = 1e9


def bucket_of(secs: float) -> int:
    """The bucket that a time falls into, in seconds."""
    if secs <= LEAST_SECS:
        return 0
    at = math.ceil(math.log(secs / LEAST_SECS) / math.log(RATIO) - 1e-9)
    return min(at, BUCKETS - 1)


def kaplan_meier(counts: Floats, tail_secs: float) -> SurvivalCurve:
    """The survival curve of counts.

    Args:
        counts: Answers and censored waits by bucket; shape (2, BUCKETS), not all 0.
        tail_secs: The mean of the exponential tail beyond the last count, in seconds.
    """
    used = np.flatnonzero(counts[0] + counts[1])
    came = counts[0, used]
    at_risk = np.cumsum((came + counts[1, used])[::-1])[::-1]
    shares = np.cumprod(1.0 - came / at_risk)
    return SurvivalCurve.of(_VALUES[used], np.maximum(shares, 0.0), tail_secs)


class LatencyModel:
    """What one provider's latencies look like.

    Example::

        model = LatencyModel(prior)
        model.record(0.48)
        model.record(0.61, censored=True)   # cancelled after 0.61 s
        model.curve.quantile(0.95)
    """

    def __init__(
        self, prior: SurvivalCurve, *, prior_weight: float = 20.0, half_life: float = 1024.0
    ):
        """Begin with nothing but the prior.

        Args:
            prior: What is assumed before anything has been seen.
            prior_weight: After how many observations the prior's share is a quarter; not negative.
            half_life: After how many further observations one weighs half; infinite is never.

        Raises:
            ConfigurationError: If an argument cannot work.
        """
        if prior_weight < 0:
            raise ConfigurationError(f"prior_weight must not be negative, got {prior_weight}")
        if not half_life > 0:
            raise ConfigurationError(f"half_life must be positive, got {half_life}")
        self._prior_mass = prior_weight
        self._growth = 2.0 ** (1.0 / half_life)
        self._aside: tuple[SurvivalCurve, Floats] | None = None
        self._has_changed, self._new = False, 0
        self._begin(prior, np.zeros((2, BUCKETS)))

    def _begin(
        self,
        prior: SurvivalCurve,
        counts: Floats,
        observations: Sequence[tuple[float, bool]] = (),
    ) -> None:
        self._prior, self._counts = prior, counts
        self._weight, self._total = 1.0, float(counts.sum())  # later observations weigh more
        self._recent: deque[tuple[float, bool]] = deque(maxlen=KEPT)
        self._others: Floats | None = None
        self._others_seen = 0.0
        for secs, censored in observations:
            self.record(secs, censored=censored)
        self.refresh()

    def __len__(self) -> int:
        """How many observations are known, each with its weight."""
        return round(self._total / self._weight)

    @property
    def seen(self) -> float:
        """How many observations are known, those of other processes that are used included."""
        return self._total / self._weight + self._others_seen

    @property
    def prior_weight(self) -> float:
        """How much of the curve is still assumed, from 1 to nearly 0."""
        if self.curve is self._prior:
            return 1.0
        return self._prior_share

    @property
    def curve(self) -> SurvivalCurve:
        """The survival curve: the same object until about 3 % more has been seen."""
        kept = self._total / self._weight
        if self._new * FRESHNESS >= kept and (self._new >= FEW or 0 < kept < 2 * FEW):
            self.refresh()
        return self._curve

    def record(self, secs: float, *, censored: bool = False) -> None:
        """Take an observation.

        Args:
            secs: How long the provider took, in seconds; if censored, how long it was waited for.
            censored: Whether the wait ended without an answer, through no fault of the provider.

        Raises:
            ConfigurationError: If ``secs`` is negative or not finite.
        """
        if not 0 <= secs < math.inf:
            raise ConfigurationError(f"secs must not be negative, got {secs}: it must be finite")
        self._recent.append((secs, censored))
        self._counts[int(censored), bucket_of(secs)] += self._weight
        self._total += self._weight
        self._weight *= self._growth
        self._new += 1
        if self._weight > MOST_WEIGHT:
            self._counts /= self._weight
            self._total, self._weight = self._total / self._weight, 1.0

    def rebase(self, prior: SurvivalCurve) -> None:
        """Take another prior, from the next curve on."""
        self._prior = prior
        if not self._total and self._others is None:
            self._curve = prior

    def inform(self, others: Floats | None) -> None:
        """Take what other processes have seen, in place of what they said before.

        If they see another level than this process, as from another region, they are ignored.

        Args:
            others: Their counts, shape (2, BUCKETS); None if there are none.
        """
        had = self._others is not None
        self._others = others if others is not None and self._agrees_with(others) else None
        self._others_seen = 0.0 if self._others is None else float(self._others.sum())
        if had or self._others is not None:
            self.refresh()

    def _agrees_with(self, others: Floats) -> bool:
        if not others[0].any():
            return False
        if len(self) < (CHANGED_TRIED if self._has_changed else TRIED):
            return not self._has_changed
        own, theirs = (kaplan_meier(c, self._prior.tail_secs) for c in (self._counts, others))
        low, high = own.quantile(0.2) / SAME, own.quantile(0.8) * SAME
        return low <= theirs.quantile(0.5) <= high

    def restart(
        self, prior: SurvivalCurve, keep: int = 0, *, put_aside_but: int | None = None
    ) -> None:
        """Forget all but the latest observations: the provider has changed.

        Args:
            prior: What is assumed now.
            keep: How many observations to keep, at most ``KEPT``.
            put_aside_but: All but so many of the latest may be wanted again; they replace those put
                aside before. None puts nothing aside.
        """
        if put_aside_but is not None:
            before, weight = self._counts, self._weight
            for secs, censored in reversed(self._latest(put_aside_but)):
                weight /= self._growth
                before[int(censored), bucket_of(secs)] -= weight
            self._aside = self._prior, np.maximum(before, 0.0) / weight
        self._has_changed = True
        self._begin(prior, np.zeros((2, BUCKETS)), self._latest(keep))

    def resume(self, keep: int = 0) -> None:
        """Take up what was put aside: the provider is back at its level from before.

        Args:
            keep: How many of the latest observations are to follow it, at most ``KEPT``.

        Raises:
            ConfigurationError: If nothing was put aside.
        """
        if self._aside is None:
            raise ConfigurationError("nothing was put aside: restart(..., put_aside_but=0)")
        aside, self._aside = self._aside, None
        self._begin(*aside, self._latest(keep))

    def _latest(self, count: int) -> list[tuple[float, bool]]:
        return list(self._recent)[len(self._recent) - min(count, len(self._recent)) :]

    @property
    def counts(self) -> Floats:
        """Answers and censored waits by bucket, the latest with a weight of 1; (2, BUCKETS)."""
        return self._counts / self._weight

    def restore(self, counts: Floats) -> None:
        """Take up counts from an earlier run.

        Args:
            counts: What ``counts`` was.
        """
        self._begin(self._prior, counts)

    def refresh(self) -> None:
        """Make the curve anew from all that is known."""
        self._new = 0
        known = self.counts
        seen, told = float(known.sum()), self._told(known)
        if self._others is not None:
            weight = min(max(self._others_seen / WORTH, self._prior_mass), MOST_WORTH)
            known += self._others * (weight**2 / (2 * weight + told) / self._others_seen)
            seen, told = seen + self._others_seen, told + self._told(self._others)
        total = float(known.sum())
        if not told > 0.0 or not total > 0.0:
            self._curve, self._prior_share = self._prior, 1.0
            return
        tail_secs = _tail_secs(known, self._prior.tail_secs)
        if known[0].any():
            last = np.flatnonzero(known[0] + known[1])[-1]
            beyond = np.exp(np.minimum((_VALUES[last] - _ENDS) / tail_secs, 0.0))
            known += total / seen * _spread(beyond)
        if self._prior_mass:
            assumed = self._prior_mass**2 / (2 * self._prior_mass + told) / told
            known += total * assumed * _spread(self._prior.share_after(_ENDS))
        self._prior_share = (self._prior_mass / (self._prior_mass + told)) ** 2
        self._curve = kaplan_meier(known, tail_secs)

    def _told(self, counts: Floats) -> float:
        """How many answers' worth counts are, as far as the prior was right."""
        if not counts[1].any():
            return float(counts[0].sum())
        expected = 1.0 - self._prior.share_after(_VALUES)
        return float(counts[0].sum() + (counts[1] * expected).sum())


def _spread(shares: Floats) -> Floats:
    """One observation of which it is only known how likely it lies beyond the end of each bucket.

    Args:
        shares: P(T > t) at the end of each bucket; shape (BUCKETS,).
    """
    return np.stack((-np.diff(shares, prepend=1.0), np.append(np.zeros(BUCKETS - 1), shares[-1])))


def _tail_secs(counts: Floats, otherwise: float) -> float:
    """The mean wait beyond the beginning of the slowest twentieth, by maximum likelihood."""
    used = np.flatnonzero(counts[0] + counts[1])
    secs, came, every = _VALUES[used], counts[0, used], counts[:, used].sum(axis=0)
    beyond = np.cumsum(came[::-1])[::-1]

    def mean_wait(answers: float) -> float | None:
        begins = int(np.count_nonzero(beyond >= answers)) - 1  # the last with so many from it on
        if begins < 1:
            return None
        waited = float(((secs[begins:] - secs[begins - 1]) * every[begins:]).sum())
        return max(waited / float(beyond[begins]), 1e-3)

    usual = mean_wait(max(TAIL_SHARE * float(came.sum()), TAIL_AT_LEAST))
    far_out = mean_wait(TAIL_AT_LEAST)
    if usual is None or far_out is None:
        return otherwise
    return far_out if far_out > HEAVIER * usual else usual
