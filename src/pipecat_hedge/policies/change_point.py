"""When what was learned of a provider is no longer true. Pure: observations go in, a verdict out.

The problem: a provider's latencies triple at noon and recover at one. A window long enough to know
the tail is hundreds of turns, and takes as many to notice; a window short enough to notice does not
know the tail. The naive compromise, one middling window, does both badly.

Ours keeps the long window and watches for its end. Of the last ``WATCHED`` observations, each is
slow if it lies beyond the known curve's p80, and fast if below its p20. ``ENOUGH`` of one kind is
a change: by chance that happens once in 100,000 turns or so (66 · 0.2¹⁰ a turn, and successive
turns share their windows). What was known is then forgotten but for those observations, and the old
curve, scaled to their median, is what is assumed: the level is new, the shape probably the old one.

A way back needs less evidence, because it is known what to expect: Page's cumulative sum (1954) of
the log likelihood ratio between the level before and the level now, each observation counted as
above or below the geometric mean of the two medians. A provider that is asked rarely, because it
has been slow, is believed after two answers at its old speed.

Left out: slow drifts, which the window follows, and changes of the tail alone, which the window
learns as fast as its rare observations come.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pipecat_hedge.survival import Survival

__all__ = ["Change", "ChangePoint"]

WATCHED = 12
ENOUGH = 10
SLOW, FAST = 0.8, 0.2
CONVINCED = math.log(100)
"""How much likelier the old level must be than the present one to be taken for back."""
DOUBT = 0.02
"""No observation is taken to be less likely than this under either level, so it takes two."""
SETTLED = 100
"""After so many observations at a level, that is the one to come back to."""
RATIO = (0.05, 20.0)
"""The largest change of level that one change point is taken for."""


@dataclass(frozen=True, slots=True)
class Change:
    """What was known is no longer true.

    Parameters:
        prior: What to assume now.
        keep: How many of the latest observations belong to the present.
        factor: The present median in units of the one before.
    """

    prior: Survival
    keep: int
    factor: float


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
        self._recent: deque[float] = deque(maxlen=WATCHED)
        self._then_known: deque[Survival] = deque(maxlen=WATCHED)
        self._slow: deque[bool] = deque(maxlen=WATCHED)
        self._fast: deque[bool] = deque(maxlen=WATCHED)
        self._known: Survival | None = None
        self._low = self._high = self._median = 0.0
        self._before: Survival | None = None
        self._evidence = 0.0
        self._supporting = 0
        self._held = 0

    @property
    def suspects_return(self) -> bool:
        """Whether the latest observations speak for the old level, but not yet loudly enough."""
        return self._evidence > 0

    def begin_again(self) -> None:
        """Forget the latest observations: they have been compared with what is no longer known."""
        self._recent.clear()
        self._then_known.clear()
        self._slow.clear()
        self._fast.clear()
        self._evidence, self._supporting, self._held = 0.0, 0, 0

    def observe(self, secs: float, *, censored: bool, known: Survival) -> Change | None:
        """Take an observation.

        Args:
            secs: How long the provider took, in seconds; if censored, how long it was waited for.
            censored: Whether the wait ended without an answer.
            known: What was known of it before this observation.

        Returns:
            The change, if this observation has given it away.
        """
        if known is not self._known:
            self._known = known
            self._low, self._high = known.quantile(FAST), known.quantile(SLOW)
            self._median = known.quantile(0.5)
        self._held += 1
        self._recent.append(secs)
        self._then_known.append(known)
        self._slow.append(secs > self._high)
        self._fast.append(secs < self._low and not censored)
        if (back := self._is_back(secs, censored, known)) is not None:
            return back
        if max(sum(self._slow), sum(self._fast)) < ENOUGH:
            return None
        return self._changed(self._slow if sum(self._slow) >= ENOUGH else self._fast)

    def _changed(self, signs: Sequence[bool]) -> Change:
        began = signs.index(True)
        present, known = list(self._recent)[began:], self._then_known[began]
        # Of censored waits only the lower end is known, which is enough to tell the level's.
        level = sorted(present)[len(present) // 2]
        factor = min(max(level / max(known.quantile(0.5), 1e-3), RATIO[0]), RATIO[1])
        if self._before is None or self._held >= SETTLED:
            self._before = known
        change = Change(known.scaled(factor), len(present), factor)
        self.begin_again()
        return change

    def _is_back(self, secs: float, censored: bool, known: Survival) -> Change | None:
        before = self._before
        if before is None:
            return None
        old = before.quantile(0.5)
        middle = math.sqrt(max(old, 1e-3) * max(self._median, 1e-3))
        if censored and secs < middle:
            return None  # it says nothing about either
        below_then = _within_doubt(1.0 - float(before.share_after(middle)))
        below_now = _within_doubt(1.0 - float(known.share_after(middle)))
        is_below = secs < middle
        then, now = (below_then, below_now) if is_below else (1 - below_then, 1 - below_now)
        self._evidence = max(self._evidence + math.log(then / now), 0.0)
        self._supporting = self._supporting + 1 if self._evidence else 0
        if self._evidence < CONVINCED:
            return None
        factor = old / max(self._median, 1e-3)
        change = Change(before, self._supporting, factor)
        self._before = None
        self.begin_again()
        return change


def _within_doubt(share: float) -> float:
    return min(max(share, DOUBT), 1.0 - DOUBT)
