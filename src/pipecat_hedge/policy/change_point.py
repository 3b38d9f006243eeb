"""When what was learned of a provider is no longer true. Pure: observations go in, a verdict out.

A provider's latencies may triple at noon and recover at one. A model of hundreds of turns knows the
tail and notices late; a model of a dozen turns notices at once and does not know the tail. So the
long model is kept, and three tests watch for its end.

- Of the last ``WATCHED`` observations, each is slow if it lies beyond the known curve's p80, and
  fast if below its p20. ``ENOUGH`` of one kind are a change: by chance that happens once in 100,000
  turns (66 · 0.2¹⁰ a turn, and successive turns share their windows). All but these observations
  are forgotten, and the old curve, scaled to their median, becomes the prior.
- Where latencies are spread widely, a provider that is three times as slow still answers many turns
  in its usual time. For those, Page's cumulative sum (1954) adds up how much likelier each
  observation is at twice, or at half, the known latencies, by which tenths of the two curves it
  falls into. No observation counts for more than ``MOST_NATS``, so that ten slow turns are needed
  here, too, and not three long stalls.
- A way back needs less evidence, because the old curve is known: two answers that would be unlikely
  now and were usual then are enough. So a provider that is asked rarely is believed soon.

Where slow turns come in clusters, the level wanders without end, and a model that restarts each
time never knows the tail. So changes are rate-limited: ``CREDIT`` of them in a row, then one for
each ``EARNED_BY`` observations.

Slow drifts are left to the model's decay.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipecat_hedge.policy.survival import Floats, SurvivalCurve

__all__ = ["Change", "ChangePoint"]

WATCHED = 12
ENOUGH = 10
SLOW, FAST = 7, 1
"""The tenths of a curve that its p80 and its p20 end."""
SUSPECTED, CONVINCED = 1.0, math.log(100)
"""How much likelier the old level must be than the present one to be looked at, and to be back."""
DOUBT = 0.04
"""Either curve may be wrong about one in so many observations, so it takes two to be convinced."""
SETTLED = 100
"""After so many observations at a level, that is the one to come back to."""
DRIFTS = np.array([[0.5], [2.0]])
"""Changes of level that are watched for in widely spread latencies; shape (n, 1)."""
ITSELF = np.array([[1.0]])
MOST_NATS, SURE = 1.0, 10.0
"""The most evidence of one observation, and how much is enough: e¹⁰ turns between false alarms."""
CREDIT, EARNED_BY = 3.0, 600
"""How many changes are believed at once, and how many observations earn one more."""
KEPT = 64
TENTHS = 1.0 - np.arange(1, 10) / 10
"""The shares that have not answered where each tenth of a curve ends."""
LEAST = 1.1
"""A level that differs by less is the same one, be its spread as narrow as the clock allows."""
RATIO = (0.05, 20.0)
"""The largest change of level that one change point is taken for."""


@dataclass(frozen=True, slots=True)
class Change:
    """What was known is no longer true.

    Parameters:
        prior: What to assume now.
        keep: How many of the latest observations belong to the present.
        factor: The present median in units of the one before.
        kind: Whether a settled level was left, or an unsettled one, or the settled one is back, so
            that what was known of it is true again.
    """

    prior: SurvivalCurve
    keep: int
    factor: float
    kind: Literal["left", "moved", "returned"] = "left"


class _Evidence:
    """Page's cumulative sum of the evidence for another curve than the known one.

    Attributes:
        total: The evidence, in nats; not negative.
        since: The observations since it was last 0.
        edges: The times at which cells end, in seconds.
        nats: How much likelier each cell is under the other curve: for answers, and for waits.
    """

    def __init__(self) -> None:
        self.edges: list[float] = []
        self.nats: list[list[float]] = [[], []]
        self.begin_again()

    def begin_again(self) -> None:
        self.total, self.since = 0.0, 0

    def observe(self, secs: float, *, censored: bool) -> None:
        """Take an observation; counts by which tenths of both curves it falls into."""
        self.total = max(self.total + self.nats[censored][bisect_left(self.edges, secs)], 0.0)
        self.since = self.since + 1 if self.total else 0


class _Known:
    """A curve, and where its tenths end."""

    def __init__(self, curve: SurvivalCurve):
        self.curve = curve
        self.edges = curve.quantiles(TENTHS)
        self.low, self.high = float(self.edges[FAST]), float(self.edges[SLOW])


def _compare(
    evidences: Sequence[_Evidence],
    known: _Known,
    other: _Known,
    factors: Floats,
    most_nats: float = math.inf,
) -> None:
    """Set how much likelier each cell is under other curves.

    Args:
        evidences: One for each other curve; all at once, since a call of numpy costs most.
        known: What is known.
        other: The curve that the others are multiples of.
        factors: The multiples; shape (n, 1).
        most_nats: The most evidence of one observation, in nats.
    """
    shape = factors.size, TENTHS.size
    edges = np.zeros((shape[0], 1 + 2 * shape[1]))
    edges[:, 1 : 1 + shape[1]] = known.edges
    edges[:, 1 + shape[1] :] = other.edges * factors
    edges.sort(axis=1)
    beyond = np.zeros((2, shape[0], edges.shape[1] + 1))
    beyond[0, :, :-1] = known.curve.share_after(edges)
    beyond[1, :, :-1] = other.curve.share_after(edges / factors)
    share = np.stack((beyond[..., :-1] - beyond[..., 1:], beyond[..., :-1]))
    in_doubt = (1 - DOUBT) * share + DOUBT * share.mean(axis=1, keepdims=True) + 1e-12
    nats = np.log(in_doubt[:, 1] / in_doubt[:, 0]).clip(-most_nats, most_nats)
    for number, evidence in enumerate(evidences):
        evidence.edges = edges[number, 1:].tolist()
        evidence.nats = nats[:, number].tolist()


class ChangePoint:
    """Watches one provider.

    Example::

        watch = ChangePoint()
        change = watch.observe(1.5, censored=False, known=model.curve)   # None, as a rule
        if change is not None:
            model.restart(change.prior, change.keep)
    """

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._recent: deque[float] = deque(maxlen=KEPT)
        self._then_known: deque[SurvivalCurve] = deque(maxlen=KEPT)
        self._drifts = [_Evidence() for _ in DRIFTS]
        self._back = _Evidence()
        self._slow: deque[bool] = deque(maxlen=WATCHED)
        self._fast: deque[bool] = deque(maxlen=WATCHED)
        self._known: _Known | None = None
        self._before: _Known | None = None
        self._held = 0
        self._credit = CREDIT

    @property
    def suspects_return(self) -> bool:
        """Whether the latest observations favour the old level, but not yet clearly enough."""
        return self._back.total > SUSPECTED

    def begin_again(self) -> None:
        """Forget the latest observations: they have been compared with what is no longer known."""
        self._recent.clear()
        self._then_known.clear()
        self._slow.clear()
        self._fast.clear()
        for evidence in (*self._drifts, self._back):
            evidence.begin_again()
        self._held = 0

    def observe(self, secs: float, *, censored: bool, known: SurvivalCurve) -> Change | None:
        """Take an observation.

        Args:
            secs: How long the provider took, in seconds; if censored, how long it was waited for.
            censored: Whether the wait ended without an answer.
            known: What was known of it before this observation.

        Returns:
            The change, if this observation completes the evidence.
        """
        if self._known is None or self._known.curve is not known:
            self._known = _Known(known)
            _compare(self._drifts, self._known, self._known, DRIFTS, MOST_NATS)
            if self._before is not None:
                _compare([self._back], self._known, self._before, ITSELF)
        self._held += 1
        self._credit = min(self._credit + 1 / EARNED_BY, CREDIT)
        self._recent.append(secs)
        self._then_known.append(known)
        self._slow.append(secs > self._known.high)
        self._fast.append(secs < self._known.low and not censored)
        if self._before is not None:
            self._back.observe(secs, censored=censored)
            if self._back.total >= CONVINCED:
                return self._returned(self._before.curve, known)
        for signs in (self._slow, self._fast):
            if sum(signs) >= ENOUGH:
                return self._changed(len(signs) - signs.index(True))
        for drift in self._drifts:
            drift.observe(secs, censored=censored)
            if drift.total >= SURE:
                return self._changed(min(drift.since, len(self._recent)))
        return None

    def _changed(self, turns: int) -> Change | None:
        present, known = list(self._recent)[-turns:], self._then_known[-turns]
        # A censored wait is a lower bound, which is good enough for a median.
        level = sorted(present)[len(present) // 2]
        factor = min(max(level / max(known.quantile(0.5), 1e-3), RATIO[0]), RATIO[1])
        if 1 / LEAST < factor < LEAST or self._credit < 1:
            self.begin_again()
            return None
        self._credit -= 1
        leaves = self._before is None or self._held >= SETTLED
        if leaves:
            self._before, self._known = _Known(known), None
        change = Change(
            known.scaled(factor), len(present), factor, kind="left" if leaves else "moved"
        )
        self.begin_again()
        return change

    def _returned(self, before: SurvivalCurve, known: SurvivalCurve) -> Change:
        factor = before.quantile(0.5) / max(known.quantile(0.5), 1e-3)
        change = Change(before, min(self._back.since, len(self._recent)), factor, "returned")
        self._before = None
        self.begin_again()
        return change
