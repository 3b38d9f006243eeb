"""Detects that a provider has turned slow, compared with its typical latency. Pure.

While a provider is slow, another one gets the first request, and hedges try the slow one again.
Its latency models are put aside until it has recovered (``latency.py``).

An attempt is *late* once it has taken longer than the typical p80, and clearly longer than the
median; a silent attempt counts as soon as it is late. A late attempt is one step up, an attempt in
time one step down, but not below 0. ``SLOW`` steps begin a slow period. In it, ``RECOVERED``
attempts in time in a row end it. In calm times a fifth of the attempts are late, and chance alone
reaches ``SLOW`` about once in two thousand turns. A model that thinks in a quarter of its turns
moves its p80, not the steps.

Before ``ENOUGH`` observations no latency is typical: only an attempt that ended without a token,
and was late by the prior, is one step up.

The typical curve is frozen while a slow period is suspected. An answer that was read while the
event loop lagged came within an interval; it counts if all of it is late, or all of it in time.

Source: Page's cumulative sum (1954) for a late share of 0.2 against 0.8; both outcomes weigh log 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from statistics import median

from pipecat_hedge.providers.survival import SurvivalCurve
from pipecat_hedge.race.attempt import Attempt

SLOW = 5
"""Steps that begin a slow period."""
RECOVERED = 2
"""Attempts in time in a row that end it."""
ENOUGH = 20
"""Observations before which no latency counts as typical."""
LATE_SHARE = 0.2
"""The share of attempts that are late in calm times."""
TIMES = 1.4
"""A late attempt exceeds the median by this factor, however narrow the spread is."""
BY_SECS = 0.1
"""A late attempt exceeds the median by this time."""
TRIALS = 0.75
"""The share of the budget that trials of a slow provider may use."""
LEAST_TRIALS = 0.01
"""The share of turns with a trial, however small the budget is."""


def late_secs(typical: SurvivalCurve) -> float:
    """Return the time to first token, in seconds, above which an attempt is late."""
    p50 = typical.quantile(0.5)
    return max(typical.quantile(1 - LATE_SHARE), TIMES * p50, p50 + BY_SECS)


@dataclass(slots=True)
class SlowPeriod:
    """One provider's attempts, and whether too many of them are late.

    Parameters:
        is_on: Whether the provider has turned slow.
    """

    is_on: bool = False
    _steps: int = 0
    _late: deque[tuple[Attempt | None, float]] = field(  # None: the attempt is over
        default_factory=lambda: deque[tuple[Attempt | None, float]](maxlen=SLOW)
    )
    _in_flight: dict[Attempt, float | None] = field(default_factory=dict[Attempt, float | None])
    _since_trial: int = 0
    _level_before: float = 0.0

    @property
    def is_suspected(self) -> bool:
        """Whether the typical curve is frozen."""
        return self.is_on or self._steps > 0

    def sent(self, attempt: Attempt, late_after_secs: float) -> None:
        """Watch an attempt, until ``ended``.

        Args:
            attempt: The attempt.
            late_after_secs: Seconds from its launch after which it is late.
        """
        self._in_flight[attempt] = late_after_secs

    def look(self, now: float) -> None:
        """Count the attempts that have answered, or are late, since the last look.

        Args:
            now: The time on the race's clock, less what the event loop is behind.
        """
        for attempt, late_after in list(self._in_flight.items()):
            first = attempt.first_token_at
            if late_after is None or (first is None and attempt.outcome is not None):
                continue
            until = now if first is None else first - attempt.lag_secs
            secs = until - attempt.launched_at
            if first is not None or secs > late_after:
                self._in_flight[attempt] = None
            if secs > late_after or (first is not None and secs + attempt.lag_secs <= late_after):
                self._count(attempt, secs, late_after)

    def ended(
        self, attempt: Attempt, secs: float, late_after_secs: float, *, has_answered: bool
    ) -> None:
        """Count a finished attempt, unless it has been counted.

        Args:
            attempt: The attempt.
            secs: Its time to first token less the event loop's lag; without one, the elapsed time.
            late_after_secs: The time after which it was late.
            has_answered: Whether its first token arrived.
        """
        late_after = self._in_flight.pop(attempt, late_after_secs)  # None: it has been counted
        self._let_go(attempt)
        if late_after is None:
            return
        if secs > late_after or (has_answered and secs + attempt.lag_secs <= late_after):
            self._count(attempt, secs, late_after)

    def count(self, secs: float, late_after_secs: float, *, has_answered: bool) -> None:
        """Count a time to first token that was measured outside of a race, as in ``ended``."""
        if secs > late_after_secs or has_answered:
            self._count(None, secs, late_after_secs)

    def forget(self, attempt: Attempt) -> None:
        """Stop watching an attempt that says nothing about the provider's speed."""
        self._in_flight.pop(attempt, None)
        self._let_go(attempt)

    def level_secs(self, now: float) -> float:
        """Return the median time of the late attempts; of silent ones, the time so far.

        Args:
            now: The time on the race's clock.
        """
        if not self._late:
            return self._level_before
        return median(
            secs
            if attempt is None or attempt.outcome is not None or attempt.first_token_at is not None
            else now - attempt.launched_at
            for attempt, secs in self._late
        )

    @property
    def counted_secs(self) -> float:
        """The median time of the late attempts, when they were counted."""
        return median([secs for _, secs in self._late] or [self._level_before])

    def saved(self) -> list[float]:
        """Return whether it is on, the steps, the turns since a trial and the level, for a file."""
        return [int(self.is_on), self._steps, self._since_trial, round(self.counted_secs, 3)]

    def restore(self, saved: Sequence[float]) -> None:
        """Continue from what ``saved`` returned.

        Raises:
            TypeError, ValueError: If it is something else.
        """
        is_on, steps, since_trial, level = saved
        if not (0 <= steps <= SLOW and 0 <= since_trial < inf and 0 <= level < inf):
            raise ValueError("a slow period's values must not be negative")
        self.is_on, self._level_before = bool(is_on), float(level)
        self._steps, self._since_trial = int(steps), int(since_trial)

    def is_trial_turn(self, budget: float) -> bool:
        """Return whether this turn tries a slow provider.

        Args:
            budget: Extra requests per turn.
        """
        self._since_trial += 1
        every = ceil(1 / max(TRIALS * budget, LEAST_TRIALS))
        if self._steps == 0 and self._since_trial < every:
            return False  # an answer in time is followed up at once
        self._since_trial = 0
        return True

    def _let_go(self, attempt: Attempt) -> None:
        """Keep no attempt that is over: it would keep its session alive."""
        for index, (each, secs) in enumerate(self._late):
            if each is attempt:
                self._late[index] = None, secs

    def _count(self, attempt: Attempt | None, secs: float, late_after: float) -> None:
        is_late = secs > late_after
        if is_late:
            is_over = attempt is None or (
                attempt.outcome is not None or attempt.first_token_at is not None
            )
            self._late.append((None if is_over else attempt, secs))
        self._steps = max(self._steps + (1 if is_late is not self.is_on else -1), 0)
        if self._steps >= (RECOVERED if self.is_on else SLOW):
            self.is_on, self._steps, self._since_trial = not self.is_on, 0, 0
