"""Latencies as counts that can be added up: what several processes have seen, in a few kilobytes.

Law: the sketch of all observations is the sum of the sketches of their parts, in any order.

The problem: a fleet is to know what each of its processes has seen, and observations themselves are
too many to hand around. The naive answers do not add up: the p95 of two processes is no function of
their two p95s, and samples of different sizes have to be weighed by what nobody remembers.

Ours is DDSketch (Masson, Rim and Lee, VLDB 2019): a latency falls into the bucket ⌈log(t)/log(γ)⌉
with γ = (1 + α)/(1 − α), and the value that stands for a bucket is within α of everything in it, so
a quantile is within α of the true one whatever the distribution. Sums of counts are sketches again.

A cancelled request was not answered in so long; it is *censored*, and to leave it out would make a
provider look faster than it is. So each bucket has two counts, of answers and of waits that ended
without one. Kaplan and Meier's estimate (see ``policies/latency_model.py``) needs just these: at
each bucket the curve falls by the share of those still waiting who were answered there. Within one
bucket answers are taken to come first, as among equal times; that is the only inexactness beyond α.

Constants: α is 1 %, a hundredth of what moves a decision. From a millisecond to an hour that makes
756 buckets, of which a provider fills one or two hundred.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pipecat_hedge.policy.survival import Floats, SurvivalCurve

__all__ = ["ACCURACY", "LatencyCounts", "LatencySketch", "kaplan_meier"]

ACCURACY = 0.01
LEAST_SECS, MOST_SECS = 1e-3, 3600.0
"""Shorter and longer times count as these."""
TAIL_SHARE, TAIL_AT_LEAST = 0.05, 8
"""The tail's mean is taken from the slowest twentieth, and from no fewer answers than so many."""
HEAVIER = 2.0
"""By how much the slowest few must wait longer than the twentieth to be believed instead."""
_GAMMA = (1 + ACCURACY) / (1 - ACCURACY)
_LOG_GAMMA = math.log(_GAMMA)
LAST_BUCKET = math.ceil(math.log(MOST_SECS / LEAST_SECS) / _LOG_GAMMA)
_VALUES: Floats = LEAST_SECS * 2 * np.power(_GAMMA, np.arange(LAST_BUCKET + 1.0)) / (_GAMMA + 1)
"""The time that stands for each bucket, in seconds."""
MOST_COUNTED = 2**53
"""A count that no fleet reaches; more is a sign of something else under the name of a count."""


class LatencySketch:
    """Counts of answers and of waits without an answer, by bucket.

    Example::

        sketch = LatencySketch()
        sketch.add(0.48)
        sketch.add(0.61, censored=True)
        sketch.merge(another)

    Attributes:
        answered: Answers by bucket.
        censored: Waits that ended without one, by bucket.
    """

    __slots__ = ("answered", "censored")

    def __init__(self) -> None:
        """Begin with nothing."""
        self.answered: dict[int, int] = {}
        self.censored: dict[int, int] = {}

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, LatencySketch)
            and self.answered == other.answered
            and self.censored == other.censored
        )

    @property
    def count(self) -> int:
        """How many observations there are."""
        return sum(self.answered.values()) + sum(self.censored.values())

    def add(self, secs: float, *, censored: bool = False) -> None:
        """Count an observation.

        Args:
            secs: The time in seconds, not negative.
            censored: Whether the wait ended without an answer.
        """
        within = min(max(secs, LEAST_SECS), MOST_SECS)
        bucket = max(math.ceil(math.log(within / LEAST_SECS) / _LOG_GAMMA - 1e-9), 0)
        counts = self.censored if censored else self.answered
        counts[bucket] = counts.get(bucket, 0) + 1

    def merge(self, other: LatencySketch) -> None:
        """Add another's counts.

        Args:
            other: It stays what it is.
        """
        for mine, theirs in ((self.answered, other.answered), (self.censored, other.censored)):
            for bucket, count in theirs.items():
                mine[bucket] = mine.get(bucket, 0) + count

    def minus(self, other: LatencySketch) -> LatencySketch:
        """What is left without another's counts, nowhere less than none.

        Args:
            other: What is to be taken away.
        """
        left = LatencySketch()
        left.answered = _less(self.answered, other.answered)
        left.censored = _less(self.censored, other.censored)
        return left

    def told(self, prior: SurvivalCurve) -> float:
        """How many observations' worth they tell.

        A wait that was cut short tells as much as was expected to be seen of it.

        Args:
            prior: What is expected.
        """
        told = float(sum(self.answered.values()))
        if self.censored:
            at, counts = _arrays(self.censored)
            told += float(((1.0 - prior.share_after(_VALUES[at])) * counts).sum())
        return told


class LatencyCounts:
    """The sketches of one provider, apart by what was timed.

    Attributes:
        parts: The sketches by the letter or digit of what was timed.
    """

    __slots__ = ("parts",)

    def __init__(self) -> None:
        """Begin with nothing."""
        self.parts: dict[str, LatencySketch] = {}

    def __bool__(self) -> bool:
        return bool(self.parts)

    def add(self, part: str, secs: float, *, censored: bool) -> None:
        """Count an observation.

        Args:
            part: What was timed, one character.
            secs: The time in seconds, not negative.
            censored: Whether the wait ended without an answer.
        """
        self.of(part).add(secs, censored=censored)

    def of(self, part: str) -> LatencySketch:
        """The sketch of a part, made when it is first asked for."""
        sketch = self.parts.get(part)
        if sketch is None:
            sketch = self.parts[part] = LatencySketch()
        return sketch

    def merge(self, other: LatencyCounts) -> None:
        """Add another's counts."""
        for part, sketch in other.parts.items():
            self.of(part).merge(sketch)

    def minus(self, other: LatencyCounts) -> LatencyCounts:
        """What is left without another's counts, nowhere less than none."""
        left, none = LatencyCounts(), LatencySketch()
        for part, sketch in self.parts.items():
            left.parts[part] = sketch.minus(other.parts.get(part, none))
        return left

    def fields(self) -> dict[str, int]:
        """The counts as a plain mapping: ``0a345`` is part 0, answered, bucket 345."""
        return {
            f"{part}{kind}{bucket}": count
            for part, sketch in self.parts.items()
            for kind, counts in (("a", sketch.answered), ("c", sketch.censored))
            for bucket, count in counts.items()
        }

    @classmethod
    def of_fields(cls, fields: Mapping[str, str | int]) -> tuple[LatencyCounts, int]:
        """Read a plain mapping.

        Args:
            fields: As ``fields`` makes them; counts may be written out.

        Returns:
            The counts, and how many fields could not be used.
        """
        counts, unusable = cls(), 0
        for name, value in fields.items():
            try:
                kind, bucket, count = name[1], int(name[2:]), int(value)
            except (ValueError, IndexError):
                unusable += 1
                continue
            if kind not in "ac" or not 0 <= bucket <= LAST_BUCKET or not 0 < count < MOST_COUNTED:
                unusable += 1
                continue
            sketch = counts.of(name[0])
            (sketch.answered if kind == "a" else sketch.censored)[bucket] = count
        return counts, unusable


def kaplan_meier(
    sketches: Sequence[tuple[LatencySketch, float]], tail_secs: float
) -> SurvivalCurve | None:
    """The curve of what several sketches have counted together.

    Args:
        sketches: Each with the weight of one of its observations, from 0 to 1.
        tail_secs: The mean of the tail where too few answers are there to tell, in seconds.

    Returns:
        The curve; None where nothing was answered.
    """
    came = np.zeros(LAST_BUCKET + 1)
    waited = np.zeros(LAST_BUCKET + 1)
    for sketch, weight in sketches:
        for total, counts in ((came, sketch.answered), (waited, sketch.censored)):
            if counts and weight > 0:
                at, count = _arrays(counts)
                total[at] += weight * count
    if not came.any():
        return None
    used = np.flatnonzero(came + waited)
    secs, came, waited = _VALUES[used], came[used], waited[used]
    at_risk = np.cumsum((came + waited)[::-1])[::-1]
    shares = np.cumprod(1.0 - came / at_risk)
    np.maximum(shares, 1.0 / (float(at_risk[0]) + 1.0), out=shares)
    return SurvivalCurve.of(secs, shares, _tail(secs, came, waited, tail_secs))


def _tail(secs: Floats, came: Floats, waited: Floats, otherwise: float) -> float:
    """The mean wait beyond the beginning of the slowest twentieth, by maximum likelihood."""
    beyond = np.cumsum(came[::-1])[::-1]

    def mean_wait(count: float) -> float | None:
        begins = int(np.count_nonzero(beyond >= count)) - 1  # the last with so many from it on
        if begins < 1:
            return None
        rest = slice(begins, None)
        lasted = float(((secs[rest] - secs[begins - 1]) * (came + waited)[rest]).sum())
        return max(lasted / float(beyond[begins]), 1e-3)

    usual = mean_wait(max(TAIL_SHARE * float(came.sum()), TAIL_AT_LEAST))
    far_out = mean_wait(TAIL_AT_LEAST)
    if usual is None or far_out is None:
        return otherwise
    return far_out if far_out > HEAVIER * usual else usual


def _less(counts: Mapping[int, int], fewer: Mapping[int, int]) -> dict[int, int]:
    return {b: left for b, n in counts.items() if (left := n - fewer.get(b, 0)) > 0}


def _arrays(counts: Mapping[int, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.fromiter(counts, np.intp, len(counts)), np.fromiter(counts.values(), float)
