"""How well a promise is kept: attainment, error budget and burn, over sliding windows. Pure.

The problem: "19 turns in 20 within 0.8 s" is kept or broken over time. One number for all time
notices nothing; the last hundred turns are a minute at noon and a day at night; and what happened
is too much to keep, turn by turn, for days.

Ours is Google's (The Site Reliability Workbook, ch. 5): of the turns in a window, ``1 − share`` may
be bad, which is the window's error budget. *Attainment* is the share that was good, the *budget
left* is what of the budget has not been spent, negative when it is overspent, and the *burn* is how
many times as fast as allowed it is being spent: 1 uses it up exactly. A short window beside a long
one tells "it has just begun" and "it is over" from "it goes on", so there are four: 5 minutes and
an hour, of which both burn when something has broken; 6 hours for what is slow; 3 days for the
budget itself.

Each window is a ring of ``SLOTS`` counts. A turn falls into the slot of its time, ⌊now / width⌋,
and a slot is taken over by the newer time that falls to it; what comes too late for its slot is
left out. So memory is constant; a count is that of the last 59 to 60 slots, so it is never of more
than its window, and of at least 59/60 of it; and counts depend neither on the order in which turns
are told nor on who was told of them, so the windows of several processes add up (``merge``), if
they have one clock.

Left out: who was how late. That is in the histograms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipecat_hedge.limits.priority import Tier
from pipecat_hedge.policy.slo import Objective
from pipecat_hedge.race.errors import ConfigurationError

__all__ = ["SLOTS", "WINDOWS_SECS", "Attainment", "SloStatus", "WindowCount"]

WINDOWS_SECS = (300.0, 3600.0, 21_600.0, 259_200.0)
"""5 minutes, an hour, 6 hours, 3 days."""
SLOTS = 60


@dataclass(frozen=True, slots=True)
class WindowCount:
    """The turns of the latest so many seconds that said anything of a promise.

    Parameters:
        window_secs: The window.
        turns: How many turns.
        bad: For how many of them it was broken.
    """

    window_secs: float
    turns: int
    bad: int

    @property
    def attainment(self) -> float | None:
        """The share for which it was kept; None if there were none."""
        return 1.0 - self.bad / self.turns if self.turns else None

    def burn(self, share: float) -> float | None:
        """How many times as fast as allowed the error budget is spent; None without turns.

        Args:
            share: The share of turns that is promised.
        """
        return self.bad / self.turns / (1.0 - share) if self.turns else None

    def budget_left(self, share: float) -> float:
        """What is left of the window's error budget: 1 is all of it, below 0 it is overspent.

        Args:
            share: The share of turns that is promised.
        """
        burn = self.burn(share)
        return 1.0 if burn is None else 1.0 - burn

    def plus(self, other: WindowCount) -> WindowCount:
        """Both together: as two processes have seen the same window.

        Args:
            other: The other's.
        """
        return WindowCount(self.window_secs, self.turns + other.turns, self.bad + other.bad)


@dataclass(frozen=True, slots=True)
class SloStatus:
    """How well one promise is kept.

    Parameters:
        tier: To whose callers it was made.
        objective: What is promised: ``ttft``, ``ttfs`` or ``voice_to_voice``.
        within_secs: Within how many seconds.
        share: For which share of the turns.
        windows: What was seen, the shortest window first; the last one is the error budget's.
    """

    tier: Tier
    objective: Objective
    within_secs: float
    share: float
    windows: tuple[WindowCount, ...]

    @property
    def attainment(self) -> float | None:
        """The share of turns for which it was kept, over the longest window; None without any."""
        return self.windows[-1].attainment

    @property
    def budget_left(self) -> float:
        """What is left of the longest window's error budget; see ``WindowCount.budget_left``."""
        return self.windows[-1].budget_left(self.share)

    @property
    def burns(self) -> tuple[float | None, ...]:
        """How fast the error budget is spent, by window; see ``WindowCount.burn``."""
        return tuple(window.burn(self.share) for window in self.windows)


class Attainment:
    """Counts the turns for which one promise was kept, and those for which it was not.

    Example::

        attainment = Attainment()
        attainment.record(True, now)
        five_minutes, *_ = attainment.counts(now)
        five_minutes.burn(share=0.95)
    """

    def __init__(self, windows_secs: Sequence[float] = WINDOWS_SECS):
        """Begin with no turn.

        Args:
            windows_secs: The windows, the shortest first.

        Raises:
            ConfigurationError: If there is none, or one is not positive or not finite.
        """
        if not windows_secs or not all(0 < secs < math.inf for secs in windows_secs):
            raise ConfigurationError(
                f"windows_secs must be positive numbers of seconds, got {windows_secs!r}: "
                "write (300, 3600) for 5 minutes and an hour"
            )
        self._rings = tuple(_Ring(secs) for secs in windows_secs)

    def record(self, kept: bool, now: float) -> None:
        """Count a turn.

        Args:
            kept: Whether the promise was kept.
            now: The time, not negative. One clock for all who are to be merged.
        """
        for ring in self._rings:
            ring.count(now, 1, 0 if kept else 1)

    def counts(self, now: float) -> tuple[WindowCount, ...]:
        """What the windows hold.

        Args:
            now: The time at which they end.
        """
        return tuple(ring.sum(now) for ring in self._rings)

    def merge(self, other: Attainment) -> None:
        """Count what another has counted, too.

        Args:
            other: One with the same windows and the same clock.

        Raises:
            ConfigurationError: If it has other windows.
        """
        mine, theirs = ([ring.window_secs for ring in a._rings] for a in (self, other))
        if mine != theirs:
            raise ConfigurationError(f"windows_secs differ: {theirs} cannot be merged into {mine}")
        for ring, more in zip(self._rings, other._rings, strict=True):
            ring.merge(more)


class _Ring:
    """One window's counts, by slots of time."""

    __slots__ = ("_bad", "_turns", "_when", "_width", "window_secs")

    def __init__(self, window_secs: float):
        self.window_secs = window_secs
        self._width = window_secs / SLOTS
        self._when = [-1] * SLOTS
        self._turns = [0] * SLOTS
        self._bad = [0] * SLOTS

    def count(self, now: float, turns: int, bad: int) -> None:
        self._add(int(now // self._width), turns, bad)

    def sum(self, now: float) -> WindowCount:
        latest = int(now // self._width)
        turns = bad = 0
        for slot, when in enumerate(self._when):
            if latest - SLOTS < when <= latest:
                turns += self._turns[slot]
                bad += self._bad[slot]
        return WindowCount(self.window_secs, turns, bad)

    def merge(self, other: _Ring) -> None:
        for when, turns, bad in zip(other._when, other._turns, other._bad, strict=True):
            if when >= 0:
                self._add(when, turns, bad)

    def _add(self, when: int, turns: int, bad: int) -> None:
        slot = when % SLOTS
        if when < self._when[slot]:
            return  # too late for its slot
        if when > self._when[slot]:
            self._when[slot], self._turns[slot], self._bad[slot] = when, 0, 0
        self._turns[slot] += turns
        self._bad[slot] += bad
