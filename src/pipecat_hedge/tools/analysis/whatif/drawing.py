"""What each request of each replayed turn does, taken or drawn from what was measured.

A turn takes its first latency from the file, in the file's order, so that a provider's slow hours
are replayed as they were and the adaptive policy has to follow them. A further request's latency is
drawn from those of its provider, or, where two providers were measured side by side, from the same
turn. A short file is gone through several times.

What was cut short, because a hedge answered first, is filled in: drawn from the Kaplan-Meier curve
of that provider, beyond the time to which it was seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipecat_hedge.policy.latency_model import LatencyModel
from pipecat_hedge.policy.survival import SurvivalCurve
from pipecat_hedge.tools.analysis.whatif.question import BLOCK, Question
from pipecat_hedge.tools.analysis.whatif.reading import Measured

__all__ = ["Draws", "Material", "known_to"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MEASURED_TOGETHER = 0.9
"""The share of the turns in which both were measured that makes them measured side by side."""
WAITED_FOR = 10
"""Beyond a time that fewer requests than this were waited for, a curve is not known."""
NEARBY = 10
"""How far away a request is drawn from that is as slow as the turns around it."""


@dataclass(frozen=True, slots=True)
class Draws:
    """What each request of each turn does: rows are turns, columns are attempts.

    Parameters:
        secs: When it answers or fails, in seconds from its launch.
        fails: Whether it fails; None where none does.
        cut: Where it was cut short, and filled in beyond what is known, how long it took at the
            least, in seconds from its launch; else infinite. None where nothing was cut short.
        rows: The observation that each turn's first latency is; shape (m,).
        other_rows: The observation that its second latency is; shape (m,).
        other_count: How many observations those are of; None if they are the first's.
        turns: The turn of the file in which each first latency was measured; shape (m,).
        other_turns: The same of the second; shape (m,).
    """

    secs: list[list[float]]
    fails: list[list[bool]] | None
    cut: list[list[float]] | None
    rows: Ints
    other_rows: Ints
    other_count: int | None
    turns: Ints
    other_turns: Ints


class Material:
    """What was measured of two providers, made ready to be replayed.

    Attributes:
        first: Who is asked first.
        second: Who is hedged to.
        secs: The first one's latencies, filled in; shape (n,).
        pairs: Both providers' latencies turn by turn, if they were measured side by side.
    """

    def __init__(self, first: Measured, second: Measured, question: Question):
        """Fill in what was cut short, and find what was measured together.

        Args:
            first: Who is asked first.
            second: Who is hedged to.
            question: What to find out.
        """
        self.first, self.second = _side_by_side(first, second)
        self._question = question
        self._rng = np.random.default_rng(question.seed)
        self.secs = _filled_in(self.first, self._rng)
        self._others = _filled_in(self.second, self._rng)
        self.pairs = _paired(self.first, self.second)
        self._rows = _rows(len(self.secs), question.least_turns, question.most_turns)

    @property
    def with_failures(self) -> bool:
        """Whether any request failed."""
        return bool(self.first.failed.any() or self.second.failed.any())

    def draws(self) -> Draws:
        """The turns as they were, their further requests drawn independently."""
        drawn = [
            self._rng.integers(0, len(self._others), len(self._rows))
            for _ in range(self._question.attempts - 1)
        ]
        if self.pairs is not None:
            drawn[0] = self._rows
        is_own = self.pairs is None and self.first is not self.second
        return self._drawn(drawn, len(self._others) if is_own else None)

    def slow_together(self) -> Draws:
        """The same turns, their further requests as slow as the turns around them."""
        drawn: list[Ints] = []
        for _ in range(self._question.attempts - 1):
            steps = self._rng.integers(1, NEARBY + 1, len(self._rows))
            signs = self._rng.choice(np.array([-1, 1]), len(self._rows))
            drawn.append((self._rows + steps * signs) % len(self.secs))
        return self._drawn(drawn, None)

    def _drawn(self, drawn: list[Ints], other_count: int | None) -> Draws:
        further = [self._others[index] for index in drawn]
        secs = np.stack([self.secs[self._rows], *further], axis=1)
        fails = None
        if self.with_failures:
            failed = [self.second.failed[index] for index in drawn]
            fails = np.stack([self.first.failed[self._rows], *failed], axis=1).tolist()
        cut = None
        if self.first.censored.any() or self.second.censored.any():
            mine, others = _unknown(self.first, self.secs), _unknown(self.second, self._others)
            cut = np.stack([mine[self._rows], *(others[index] for index in drawn)], axis=1).tolist()
        return Draws(
            secs.tolist(),
            fails,
            cut,
            self._rows,
            drawn[0],
            other_count,
            self.first.row[self._rows],
            self.second.row[drawn[0]],
        )


def known_to(measured: Measured) -> float:
    """Up to which time a provider's latencies are known, in seconds.

    Known is what so many requests were waited for, be it that they were cut short later.

    Args:
        measured: What was measured of it; one answer at least.
    """
    waited = np.sort(measured.secs[~measured.failed])
    return float(waited[-min(WAITED_FOR, len(waited))])


def _unknown(measured: Measured, filled: Floats) -> Floats:
    """For what was filled in beyond what is known of it, how long it took at the least."""
    known = known_to(measured)
    is_guess = measured.censored & (filled > known)
    return np.where(is_guess, np.maximum(measured.secs, known), np.inf)


def _filled_in(measured: Measured, rng: np.random.Generator) -> Floats:
    """The latencies, those that were cut short drawn from beyond what was seen of them."""
    secs = measured.secs.copy()
    cut = np.flatnonzero(measured.censored)
    if not cut.size:
        return secs
    model = LatencyModel(
        SurvivalCurve.of([0.0], [1.0], float(np.mean(secs)) or 1.0),
        prior_weight=0,
        half_life=math.inf,
    )
    for value, censored, failed in zip(secs, measured.censored, measured.failed, strict=True):
        if not failed:
            model.record(float(value), censored=bool(censored))
    curve = model.curve
    for index in cut:
        left = max(float(curve.share_after(secs[index])), 1e-9)
        secs[index] = max(curve.quantile(1.0 - left * float(rng.uniform(1e-6, 1.0))), secs[index])
    return secs


def _side_by_side(first: Measured, second: Measured) -> tuple[Measured, Measured]:
    """Both, without the few turns in which only one was measured."""
    if first is second or first.censored.any() or second.censored.any():
        return first, second
    if any(len(np.unique(measured.row)) < len(measured.row) for measured in (first, second)):
        return first, second
    common, mine, others = np.intersect1d(
        first.row, second.row, assume_unique=True, return_indices=True
    )
    if len(common) < MEASURED_TOGETHER * max(len(first.row), len(second.row)):
        return first, second
    return _only(first, mine), _only(second, others)


def _only(measured: Measured, index: Ints) -> Measured:
    return Measured(
        measured.name,
        measured.secs[index],
        measured.censored[index],
        measured.failed[index],
        measured.row[index],
    )


def _paired(first: Measured, second: Measured) -> tuple[Floats, Floats] | None:
    """Both latencies of each turn, if both were measured, uncut, in every turn that is left."""
    if first is second or first.censored.any() or second.censored.any():
        return None
    if len(first.secs) != len(second.secs) or not np.array_equal(first.row, second.row):
        return None
    return first.secs, second.secs


def _rows(count: int, least: int, most: int) -> Ints:
    """Which turns of the file are replayed, in their order."""
    if count <= most:
        return np.tile(np.arange(count), max(-(-least // count), 1))
    blocks = max(most // BLOCK, 1)
    size = min(BLOCK, most)
    begins = np.linspace(0, count - size, blocks).astype(np.int64)
    return (begins[:, None] + np.arange(size)).ravel()
