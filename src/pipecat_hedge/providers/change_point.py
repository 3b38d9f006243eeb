"""Detects that a provider has become faster for good. Pure: observations go in, a factor out.

The model keeps hundreds of observations, to know the tail. This module detects when they no longer
apply. ``slow_period.py`` detects the other direction.

Of the last ``WATCHED`` observations, each is fast if it lies below the model's p20.
``ENOUGH`` fast ones are a change: by chance that happens once in 200,000 turns (66 · 0.2¹⁰ a turn,
and successive turns share their windows). The model then keeps only these, and assumes the old
curve, scaled to their median.

A level that wanders would restart the model again and again. So changes are rate-limited:
``CREDIT`` of them in a row, then one for each ``EARNED_BY`` observations.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

from pipecat_hedge.providers.survival import SurvivalCurve

WATCHED = 12
"""Observations in the window."""
ENOUGH = 10
"""Fast ones among them that are a change."""
FAST_SHARE = 0.2
"""An observation below this quantile of the model's curve is fast."""
CREDIT = 3.0
"""Changes that are accepted in a row."""
EARNED_BY = 600
"""Observations after which one more change is accepted."""
LEAST_FACTOR = 1.1
"""Levels within this factor are the same, however narrow the spread."""
MOST_FACTOR = 20.0
"""The largest change of level that is accepted, as a factor."""


@dataclass(frozen=True, slots=True)
class Change:
    """The provider's level has changed.

    Parameters:
        before: The curve before the change.
        keep: How many of the latest observations are at the new level.
        factor: The new median in units of the one before.
    """

    before: SurvivalCurve
    keep: int
    factor: float


class ChangePoint:
    """Watches one provider and prompt size; its window and its credit change."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._recent: deque[tuple[float, SurvivalCurve, bool]] = deque(maxlen=WATCHED)
        self._credit = CREDIT

    def begin_again(self) -> None:
        """Forget the latest observations: they were compared with an outdated curve."""
        self._recent.clear()

    def observe(self, secs: float, *, censored: bool, curve: SurvivalCurve) -> Change | None:
        """Add an observation.

        Args:
            secs: How long the provider took, in seconds; if censored, the elapsed wait.
            censored: Whether the wait ended without an answer.
            curve: The model's curve before this observation.

        Returns:
            The change, if this observation completes the evidence.
        """
        self._recent.append((secs, curve, not censored and secs < curve.quantile(FAST_SHARE)))
        self._credit = min(self._credit + 1 / EARNED_BY, CREDIT)
        are_fast = [is_fast for _, _, is_fast in self._recent]
        if sum(are_fast) < ENOUGH:
            return None
        present = list(self._recent)[are_fast.index(True) :]
        self.begin_again()
        before = present[0][1]
        level_secs = median(secs for secs, _, _ in present)
        factor = max(level_secs / max(before.quantile(0.5), 1e-3), 1 / MOST_FACTOR)
        if factor > 1 / LEAST_FACTOR or self._credit < 1:
            return None
        self._credit -= 1
        return Change(before, len(present), factor)
