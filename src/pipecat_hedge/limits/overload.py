"""Whether an event loop is too far behind to send hedges. Pure; time is an argument.

A loop that is late reads every provider's answer late. A hedge cannot help against that; it is one
more thing to do. So while the loop lags, hedges and prompts sent ahead are left out. Nothing else
is: a late answer is better than none.

The lag is by how much a short sleep is overslept. The median of the last ``SAMPLES`` decides, so a
single long step (garbage collection, a model that is loaded) changes nothing. Hedges end at
``LAG_SECS`` and begin again at half of it, so that the relief does not end itself at once.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

__all__ = ["FRESH_SECS", "SAMPLES", "Overload"]

SAMPLES = 5
LAG_SECS = 0.1
"""Most of what a hedge is to save (``min_saving_secs``, 0.15 s)."""
CALM = 0.5
FRESH_SECS = 2.0
"""So long, and twice the lag that it found, a sample counts: a loop that is behind is sampled less
often."""


class Overload:
    """How far behind one event loop is."""

    def __init__(self) -> None:
        """Begin with a loop that keeps up."""
        self._fresh_until = -math.inf
        self._lags: deque[float] = deque([0.0] * SAMPLES, maxlen=SAMPLES)
        self._is_behind = False
        self._due_at = math.inf

    def expect(self, due_at: float | None) -> None:
        """Take note of when the next sample is due.

        Args:
            due_at: The time, in seconds; None if no other follows.
        """
        self._due_at = math.inf if due_at is None else due_at

    def lag_now(self, now: float) -> float:
        """How late the loop has come to what is done now, in seconds.

        It is the lag of the sample before, or how much the next one is late already.
        """
        before = self._lags[-1] if now <= self._fresh_until else 0.0
        return max(before, now - self._due_at, 0.0)

    def sample(self, lag_secs: float, now: float) -> None:
        """Take a sample.

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
        """The mean of the last lags; None if nobody has watched lately."""
        return None if now > self._fresh_until else sum(self._lags) / SAMPLES

    def refusal(self, now: float) -> str | None:
        """Why no hedge is to be sent now, for a person to read; None if one may be."""
        if not self._is_behind or now > self._fresh_until:
            return None
        return f"the event loop is {median(self._lags):.2f} s behind"
