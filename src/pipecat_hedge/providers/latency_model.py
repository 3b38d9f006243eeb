"""Learns a provider's latency distribution from counts in buckets. Pure.

A slow answer is often cancelled, because a faster one won. Ignoring it, or recording it as
answered, makes the provider look faster than it is. So a cancelled answer is *right-censored*, and
the curve is the estimate of Kaplan and Meier (1958).

Observations are counts in buckets 2 % apart. Counts decay with each new observation, and counts of
several processes add up. A model with few observations is mixed with those of other processes, and
these with a prior. A source of weight w has a share of (w / (w + n))² after n
observations: a quarter after n = w. Not w / (w + n): after 400 observations it would still leave
5 % to the prior, as much as the whole tail beyond the p95. A censored observation counts as
its probability to have ended by then.

Beyond the slowest observation at least 1 / (n + 1) is left, since the next one is slower with that
probability. The tail is exponential, with the mean of the slowest twentieth.

Sudden changes are found by ``slow_period.py`` and ``change_point.py``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipecat_hedge.providers.change_point import WATCHED
from pipecat_hedge.providers.survival import Floats, SurvivalCurve
from pipecat_hedge.race.errors import ConfigurationError

LEAST_SECS = 0.01
"""Shorter times count as this one: no caller notices the difference."""
MOST_SECS = 120.0
"""Longer times count as this one: no caller waits that long."""
RATIO = 1.02
"""Buckets are exact to 1 %, a tenth of the least change of level (``change_point.py``)."""
BUCKETS = math.ceil(math.log(MOST_SECS / LEAST_SECS) / math.log(RATIO)) + 1
_LOG_RATIO = math.log(RATIO)
_ENDS: Floats = LEAST_SECS * np.power(RATIO, np.arange(float(BUCKETS)))
_VALUES: Floats = _ENDS / math.sqrt(RATIO)
"""The time that stands for each bucket, in seconds."""
_SECS: list[float] = _VALUES.tolist()
_ALL: Floats = np.ones(1)
_AT: Floats = np.concatenate((np.zeros(1), _VALUES))

TAIL_SHARE = 0.05
"""The tail's mean is that of the slowest twentieth."""
TAIL_AT_LEAST = 8
"""The fewest answers from which the tail's mean is computed."""
LEAST_LEFT = 1e-9
"""The curve ends at this share: plans ask for no smaller ones."""
WORTH = 16.0
"""Observations of other processes that equal one of the prior's weight."""
MOST_WORTH = 256.0
"""Highest weight of all other processes: after as many own observations a quarter of the curve."""
TRIED = 32
"""Own observations needed before others' medians are compared."""
CHANGED_TRIED = 8
"""Own observations needed for that after a change."""
SAME = 1.1
"""Medians within this factor agree, however narrow the spread."""
FRESHNESS = 32
"""The curve is computed again once one in this many observations is new. Computed at each
observation, a turn costs twice as much; at one in 64, the p99 on the hosted trace at a budget of
2 % is 1.54 s instead of 1.50 s."""
FEW = 4
"""Fewer new observations than this leave the curve as it is, after the first eight."""
MANY = 32
"""After this many new observations the curve is always computed again."""
KNOWN = 20
"""From this many answers on, their p95 is used without the prior's."""
MOST_WEIGHT = 1e9
_IN_DOUBT = ((2.0, 0.2), (4.0, 0.1))
"""Factors by which latencies may exceed the prior's, with their probabilities."""


def bucket_of(secs: float) -> int:
    """The bucket that a time falls into.

    Args:
        secs: The time in seconds.

    Raises:
        ConfigurationError: If it is negative or not finite.
    """
    if not 0 <= secs < math.inf:
        raise ConfigurationError(f"secs must not be negative, got {secs}: it must be finite")
    if secs <= LEAST_SECS:
        return 0
    at = math.ceil(math.log(secs / LEAST_SECS) / _LOG_RATIO - 1e-9)
    return at if at < BUCKETS else BUCKETS - 1


def end_of(bucket: int) -> float:
    """The longest time of a bucket, in seconds."""
    return float(_ENDS[bucket])


def value_of(bucket: int) -> float:
    """The time that stands for a bucket, in seconds."""
    return _SECS[bucket]


@dataclass(frozen=True, slots=True)
class _Estimate:
    """P(T > t) at the end of each bucket, shape (BUCKETS,), and the tail's mean in seconds."""

    shares: Floats
    tail_secs: float

    @classmethod
    def assumed(cls, curve: SurvivalCurve) -> _Estimate:
        """A curve, by buckets."""
        return cls(curve.share_after(_ENDS), curve.tail_secs)

    @classmethod
    def of(cls, counts: Floats, tail_secs: float) -> _Estimate:
        """Kaplan and Meier's estimate.

        Args:
            counts: Answers and censored waits by bucket; shape (2, BUCKETS), not all 0.
            tail_secs: The mean of the tail to use where there are too few answers.
        """
        used = np.flatnonzero(counts[0] + counts[1])
        came, secs = counts[0, used], _VALUES[used]
        every = came + counts[1, used]
        at_risk = every[::-1].cumsum()[::-1]
        steps = np.maximum((1.0 - came / at_risk).cumprod(), 1.0 / (at_risk[0] + 1.0))
        tail_secs = _tail_secs(secs, came, every, tail_secs)
        beyond = int(used[-1]) + 1
        lengths = np.empty(used.size + 1, np.intp)
        lengths[0], lengths[1:-1], lengths[-1] = used[0], used[1:] - used[:-1], BUCKETS - beyond + 1
        shares = np.concatenate((_ALL, steps)).repeat(lengths)
        shares[beyond:] *= np.exp((secs[-1] - _ENDS[beyond:]) / tail_secs)
        return cls(shares, tail_secs)

    def mixed_with(self, other: _Estimate, share: float) -> _Estimate:
        """T is the other's with probability ``share``, else this one's."""
        if share <= 0:
            return self
        own, others = (1 - share) * self.shares, share * other.shares
        shares = own + others
        # At 120 s only the slower of the two tails is left.
        weights = own[-1] + 1e-300, others[-1] + 1e-300
        tail_secs = weights[0] * self.tail_secs + weights[1] * other.tail_secs
        return _Estimate(shares, float(tail_secs / sum(weights)))

    def quantile(self, p: float) -> float:
        at = int(np.searchsorted(-self.shares, p - 1.0 - 1e-12))
        return _SECS[min(at, BUCKETS - 1)]

    def curve(self) -> SurvivalCurve:
        end = BUCKETS - int(self.shares[::-1].searchsorted(LEAST_LEFT, side="right")) + 1
        shares = np.concatenate((_ALL, self.shares[:end]))
        is_step = np.empty(shares.size, np.bool_)
        np.less(shares[1:], shares[:-1], out=is_step[1:])
        is_step[0] = is_step[-1] = True
        return SurvivalCurve.made(_AT[: shares.size][is_step], shares[is_step], self.tail_secs)


def _tail_secs(secs: Floats, came: Floats, every: Floats, otherwise: float) -> float:
    """The mean wait beyond the beginning of the slowest twentieth, by maximum likelihood."""
    beyond = came[::-1].cumsum()[::-1]
    answers = max(TAIL_SHARE * float(beyond[0]), TAIL_AT_LEAST)
    begins = int(np.count_nonzero(beyond > answers + 1e-6)) - 1
    if begins < 0:
        return otherwise
    waited = float((secs[begins:] - secs[begins]) @ every[begins:])
    return max(waited / answers, 1e-3)


class AnswerTimes(NamedTuple):
    """Quantiles of the answers that came, in seconds; waits that were cut short do not count.

    So a silence that was cut short never lengthens them. ``seen`` is the number of answers, without
    which all are 0; only ``p95`` is at least the prior's until ``KNOWN`` answers.
    """

    seen: float
    p90: float
    p95: float
    p98: float


class LatencyModel:
    """The latency distribution of one provider.

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
            prior: The curve before any observation.
            prior_weight: After how many observations the prior's share is a quarter; not negative.
            half_life: After how many further observations one weighs half; infinite is never.
        """
        self._prior_weight = prior_weight
        self._growth = 2.0 ** (1.0 / half_life)
        self._aside: tuple[SurvivalCurve, Floats, int] | None = None
        self._has_changed = False
        self._begin(prior)

    def _begin(
        self,
        prior: SurvivalCurve,
        counts: Floats | None = None,
        seen: int = 0,
        latest: Iterable[tuple[int, bool]] = (),
    ) -> None:
        self._prior, self._curve, self._new = prior, prior, 0
        self._counts = np.zeros((2, BUCKETS)) if counts is None else counts
        self._weight = 1.0  # of the next observation: it grows, so those before decay
        self._recent: deque[tuple[int, bool]] = deque(maxlen=WATCHED)
        self._assumed: _Estimate | None = None
        self._answers: AnswerTimes | None = None
        self._others: Floats | None = None
        self._others_worth = 0.0
        total = float(self._counts.sum())
        self._seen = seen if total else 0
        self._worth = seen * self._worth_of(self._counts) / total if total else 0.0
        for bucket, censored in latest:
            self.count(bucket, censored)
        self.refresh()

    # ---- estimates

    def __len__(self) -> int:
        """The number of observations since the provider's last change."""
        return self._seen

    @property
    def seen(self) -> float:
        """The number of observations, including those used of other processes."""
        return self._seen + self._others_worth

    @property
    def prior_weight(self) -> float:
        """The prior's share in the curve, from 1 to nearly 0."""
        return self._given_share * self._assumed_share

    @property
    def _given_share(self) -> float:
        """The share in the curve of other processes and the prior."""
        weight = self._prior_weight
        if self._others is not None:
            weight = min(max(self._others_worth / WORTH, weight), MOST_WORTH)
        return _share(weight, self._worth)

    @property
    def _assumed_share(self) -> float:
        """The prior's share in that."""
        return 1.0 if self._others is None else _share(self._prior_weight, self._others_worth)

    @property
    def latest_curve(self) -> SurvivalCurve:
        """The curve as last computed, whatever was observed since."""
        return self._curve

    @property
    def curve(self) -> SurvivalCurve:
        """The survival curve: the same object until about 3 % of the observations are new."""
        new, seen = self._new, self._seen
        if new and (new >= MANY or (new * FRESHNESS >= seen and (new >= FEW or seen < 2 * FEW))):
            self.refresh()
        return self._curve

    @property
    def answers(self) -> AnswerTimes:
        """The quantiles of the answers alone, as old as the curve."""
        if self._answers is None:
            came = self._counts[0].cumsum()
            shares = came[-1] * np.array((0.9, 0.95, 0.98))
            buckets: list[int] = came.searchsorted(shares).tolist() if came[-1] else []
            p90, p95, p98 = [_SECS[bucket] for bucket in buckets] or (0.0, 0.0, 0.0)
            if came[-1] < KNOWN * self._weight:
                p95 = max(p95, self._given().quantile(0.95))
            self._answers = AnswerTimes(float(came[-1] / self._weight), p90, p95, p98)
        return self._answers

    def refresh(self) -> None:
        """Compute the curve again."""
        self._new, self._answers = 0, None
        if self._worth > 0 or (self._seen and not self._prior_weight):
            own = _Estimate.of(self._counts / self._weight, self._prior.tail_secs)
            self._curve = own.mixed_with(self._given(), self._given_share).curve()
        elif self._others is not None:
            self._curve = self._given().curve()
        else:
            self._curve = self._prior

    def _given(self) -> _Estimate:
        """What the curve is mixed with: other processes' observations, and the prior."""
        if self._assumed is None:
            self._assumed = _Estimate.assumed(self._prior)
            if self._others is not None:
                others = _Estimate.of(self._others, self._prior.tail_secs)
                self._assumed = others.mixed_with(self._assumed, self._assumed_share)
        return self._assumed

    def _worth_of(self, counts: Floats) -> float:
        """The effective number of observations: a censored one counts as P(T ≤ its wait)."""
        worth = float(counts[0].sum())
        if counts[1].any():
            worth += float((counts[1] * (1.0 - self._given().shares)).sum())
        return worth

    # ---- observations

    def record(self, secs: float, *, censored: bool = False) -> None:
        """Add an observation.

        Args:
            secs: How long the provider took, in seconds; if censored, the elapsed wait.
            censored: Whether the wait ended without an answer, through no fault of the provider.

        Raises:
            ConfigurationError: If ``secs`` is negative or not finite.
        """
        self.count(bucket_of(secs), censored)

    def count(self, bucket: int, censored: bool) -> None:
        """Add an observation by its bucket."""
        self._recent.append((bucket, censored))
        self._counts[int(censored), bucket] += self._weight
        self._worth += 1.0 - float(self._given().shares[bucket]) if censored else 1.0
        self._seen += 1
        self._new += 1
        self._weight *= self._growth
        if self._weight > MOST_WEIGHT:
            self._counts /= self._weight
            self._weight = 1.0

    def rebase(self, prior: SurvivalCurve) -> None:
        """Replace the prior, from the next curve on."""
        if prior is not self._prior:
            self._prior, self._assumed = prior, None
            if not self._seen:
                self.refresh()

    def inform(self, others: Floats | None) -> None:
        """Replace the observations of other processes.

        They are ignored if their level differs from this process's, as from another region.

        Args:
            others: Their counts, shape (2, BUCKETS); None if there are none.
        """
        had, self._others, self._assumed = self._others, None, None
        if others is not None and self._agrees_with(others):
            self._others_worth = self._worth_of(others)
            self._others, self._assumed = others, None
        else:
            self._others_worth = 0.0
        if had is not None or self._others is not None:
            self.refresh()

    def _agrees_with(self, others: Floats) -> bool:
        if not others[0].any():
            return False
        if self._seen < (CHANGED_TRIED if self._has_changed else TRIED):
            return not self._has_changed
        own, theirs = (_Estimate.of(each, 1.0) for each in (self._counts / self._weight, others))
        return own.quantile(0.2) / SAME <= theirs.quantile(0.5) <= own.quantile(0.8) * SAME

    # ---- changes

    def restart(
        self, prior: SurvivalCurve, keep: int = 0, *, put_aside_but: int | None = None
    ) -> None:
        """Forget all but the latest observations: the provider has changed.

        Args:
            prior: The new prior.
            keep: How many observations to keep, at most ``WATCHED``.
            put_aside_but: Keep all but this many of the latest for ``resume``, in place of those
                kept before. None keeps nothing.
        """
        if put_aside_but is not None:
            before, weight = self._counts, self._weight
            latest = self._latest(put_aside_but)
            for bucket, censored in reversed(latest):
                weight /= self._growth
                before[int(censored), bucket] -= weight
            before = np.maximum(before, 0.0) / weight
            self._aside = self._prior, before, self._seen - len(latest)
        self._has_changed = True
        self._begin(prior, latest=self._latest(keep))

    def resume(self, keep: int = 0) -> None:
        """Restore what ``restart`` put aside, if anything: the level from before is back.

        Args:
            keep: How many of the latest observations to add to it, at most ``WATCHED``.
        """
        if self._aside is None:
            return
        aside, self._aside = self._aside, None
        self._begin(*aside, latest=self._latest(keep))

    def _latest(self, count: int) -> list[tuple[int, bool]]:
        return list(self._recent)[len(self._recent) - min(count, len(self._recent)) :]

    # ---- kept between runs

    @property
    def counts(self) -> Floats:
        """Answers and censored waits by bucket, the latest with a weight of 1; (2, BUCKETS)."""
        return self._counts / self._weight

    @property
    def known(self) -> Floats:
        """The counts, with those of other processes; shape (2, BUCKETS)."""
        return self.counts if self._others is None else self.counts + self._others

    def restore(self, counts: Floats, seen: int) -> None:
        """Restore counts from an earlier run.

        Args:
            counts: What ``counts`` was.
            seen: What ``len`` was.
        """
        self._begin(self._prior, counts, seen)


def in_doubt(curve: SurvivalCurve) -> SurvivalCurve:
    """Widen a prior: with 20 % probability latencies are twice as long, with 10 % four times."""
    for times, share in _IN_DOUBT:
        other = _Estimate.assumed(curve.scaled(times))
        curve = _Estimate.assumed(curve).mixed_with(other, share).curve()
    return curve


def _share(weight: float, count: float) -> float:
    """The share of a source with this weight after ``count`` observations of a better source."""
    return (weight / (weight + count)) ** 2 if weight else 0.0
