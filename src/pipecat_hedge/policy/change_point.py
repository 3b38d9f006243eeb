"""When what was learned of a provider is no longer true. Pure: observations go in, a verdict out.

A provider's latencies may triple at noon and recover at one. A model of hundreds of turns knows the
tail and notices late; a model of a dozen turns notices at once and does not know the tail. So the
long model is kept, and its end is watched for.

Of the last ``WATCHED`` observations, each is slow if it lies beyond the known curve's p80, and fast
if below its p20. ``ENOUGH`` of one kind are a change: by chance that happens once in 100,000 turns
(66 · 0.2¹⁰ a turn, and successive turns share their windows). All but these observations are
forgotten, and the old curve, scaled to their median, becomes the prior.

A way back needs less evidence, because the old curve is known: two answers that would be unlikely
now and were usual then are enough. So a provider that is asked rarely is believed soon, and its
tail is known again at once.

Where slow turns come in clusters, the level wanders without end, and a model that restarts each
time never knows the tail. So changes are rate-limited: ``CREDIT`` of them in a row, then one for
each ``EARNED_BY`` observations. Slow drifts are left to the model's decay.

So are changes within a wide spread. To add up how much likelier each observation is at twice the
known level would find them, but the new level would then count as usual, and the provider would
stay first: with a first provider like "jagged" that is three times as slow, the mean wait would be
1.1 s instead of 0.7 s.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipecat_hedge.policy.survival import SurvivalCurve

__all__ = ["WATCHED", "Change", "ChangePoint"]

WATCHED = 12
ENOUGH = 10
SLOW_SHARE, FAST_SHARE = 0.8, 0.2
CONVINCED = math.log(100)
"""How much likelier the old level must be than the present one to be back."""
DOUBT = 0.04
"""Either curve may be wrong about one in so many observations, so it takes two to be convinced."""
SETTLED = 100
"""After so many observations at a level, that is the one to come back to."""
_TENTHS = 1.0 - np.arange(1, 10) / 10
"""The shares that have not answered where each tenth of a curve ends."""
CREDIT, EARNED_BY = 3.0, 600
"""How many changes are believed at once, and how many observations earn one more."""
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
        self._recent: deque[tuple[float, SurvivalCurve, int]] = deque(maxlen=WATCHED)
        self._known: SurvivalCurve | None = None
        self._low = self._high = 0.0
        self._before: SurvivalCurve | None = None
        self._back = 0.0
        self._back_since = self._held = 0
        self._credit = CREDIT

    def begin_again(self) -> None:
        """Forget the latest observations: they have been compared with what is no longer known."""
        self._recent.clear()
        self._back, self._back_since, self._held = 0.0, 0, 0

    def observe(self, secs: float, *, censored: bool, known: SurvivalCurve) -> Change | None:
        """Take an observation.

        Args:
            secs: How long the provider took, in seconds; if censored, how long it was waited for.
            censored: Whether the wait ended without an answer.
            known: What was known of it before this observation.

        Returns:
            The change, if this observation completes the evidence.
        """
        if self._known is not known:
            self._known = known
            self._low, self._high = known.quantile(FAST_SHARE), known.quantile(SLOW_SHARE)
        is_slow, is_fast = secs > self._high, secs < self._low and not censored
        self._recent.append((secs, known, is_slow - is_fast))
        self._held += 1
        self._credit = min(self._credit + 1 / EARNED_BY, CREDIT)
        if self._before is not None:
            more = _likelier(self._before, known, secs, censored)
            self._back = max(self._back + more, 0.0)
            self._back_since = self._back_since + 1 if self._back else 0
            if self._back >= CONVINCED:
                return self._returned(self._before, known)
        signs = [sign for _, _, sign in self._recent]
        for sign in (1, -1):
            if signs.count(sign) >= ENOUGH:
                return self._changed(signs.index(sign))
        return None

    def _changed(self, since: int) -> Change | None:
        present, is_settled = list(self._recent)[since:], self._held >= SETTLED
        known = present[0][1]
        self.begin_again()
        # A censored wait is a lower bound, which is good enough for a median.
        level = sorted(secs for secs, _, _ in present)[len(present) // 2]
        factor = min(max(level / max(known.quantile(0.5), 1e-3), RATIO[0]), RATIO[1])
        if 1 / LEAST < factor < LEAST or self._credit < 1:
            return None
        self._credit -= 1
        kind = "moved"
        if self._before is None or is_settled:
            self._before, kind = known, "left"
        return Change(known.scaled(factor), len(present), factor, kind)

    def _returned(self, before: SurvivalCurve, known: SurvivalCurve) -> Change:
        factor = before.quantile(0.5) / max(known.quantile(0.5), 1e-3)
        change = Change(before, min(self._back_since, WATCHED), factor, "returned")
        self._before = None
        self.begin_again()
        return change


def _likelier(other: SurvivalCurve, known: SurvivalCurve, secs: float, censored: bool) -> float:
    """Return how much likelier an observation is by another curve, in nats.

    It counts by the tenth of either curve that it falls into.
    """
    edges = np.sort(np.concatenate((other.quantiles(_TENTHS), known.quantiles(_TENTHS))))
    at = int(edges.searchsorted(secs))
    begins = edges[at - 1] if at else 0.0
    shares: list[float] = []
    for curve in (other, known):
        ends = 0.0 if censored or at == edges.size else float(curve.share_after(edges[at]))
        shares.append(float(curve.share_after(begins)) - ends)
    doubt = DOUBT * sum(shares) / 2 + 1e-12
    by_other, by_known = ((1 - DOUBT) * share + doubt for share in shares)
    return math.log(by_other / by_known)
