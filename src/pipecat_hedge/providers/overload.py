"""Decides from samples whether an event loop is too far behind to send hedges.

A late loop reads every answer late, which a hedge cannot help. While it lags, hedges and warm-up
prompts are left out. The median of the last ``SAMPLES`` decides, so that one long step (garbage
collection, loading a model) changes nothing. Hedges resume at half of ``LAG_SECS``.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

SAMPLES = 5
"""Half a second of samples: the median ignores two long steps."""
LAG_SECS = 0.1
"""Two thirds of what a hedge must save (``min_saving_secs``, 0.15 s)."""
CALM = 0.5
"""Hedges resume at this share of ``LAG_SECS``, because fewer hedges already reduce the lag."""
FRESH_SECS = 2.0
"""A sample is valid for this time plus twice its lag: a late loop is sampled less often."""


class Overload:
    """The lag of one event loop."""

    def __init__(self) -> None:
        """Create the state of a loop without lag."""
        self._fresh_until = -math.inf
        self._lags: deque[float] = deque([0.0] * SAMPLES, maxlen=SAMPLES)
        self._is_behind = False
        self._due_at = math.inf

    def expect(self, due_at: float | None) -> None:
        """Set when the next sample is due; None if there is none."""
        self._due_at = math.inf if due_at is None else due_at

    def lag_now(self, now: float) -> float:
        """How late the loop is now, in seconds.

        It is the lag of the last sample, or how late the next one is already.
        """
        before = self._lags[-1] if now <= self._fresh_until else 0.0
        return max(before, now - self._due_at, 0.0)

    def sample(self, lag_secs: float, now: float) -> None:
        """Add a sample.

        Args:
            lag_secs: How late a timer of the loop was.
            now: The time, in seconds; never earlier than at the call before.
        """
        if now - lag_secs > self._fresh_until:
            self._lags.extend([0.0] * SAMPLES)
            self._is_behind = False
        self._fresh_until = now + FRESH_SECS + 2 * lag_secs
        self._lags.append(lag_secs)
        self._is_behind = median(self._lags) >= LAG_SECS * (CALM if self._is_behind else 1.0)

    def lag_secs(self, now: float) -> float | None:
        """The mean of the last lags; None without a recent sample."""
        return None if now > self._fresh_until else sum(self._lags) / SAMPLES

    def why_behind(self, now: float) -> str | None:
        """Why no hedge may be sent now; None if one may."""
        if not self._is_behind or now > self._fresh_until:
            return None
        return f"the event loop is {median(self._lags):.2f} s behind"
