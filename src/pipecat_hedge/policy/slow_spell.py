"""Whether a provider has turned slow, compared with what was usual for it. Pure.

A provider that fails opens its breaker. One that turns slow keeps callers waiting, and hedging each
turn pays twice. Then another provider should be asked first, after a handful of turns of whatever
session, and the slow one tried by hedges until it has recovered.

An attempt is *late* once it has taken longer than four in five did (the p80 of the curve from
before the spell, and clearly more than the median). It counts while it is still silent. A late
attempt is one step up, one in time one step down, but not below 0; ``SLOW`` steps are a spell. In
calm a fifth are late, and chance alone climbs so far once in some two thousand turns. A model that
thinks in a quarter of its turns moves its p80, not the steps. In a spell, ``RECOVERED`` steps of
answers in time end it.

A time that was read while the event loop lagged badly is a lower bound: such an attempt may count
as late, but not as in time.

The curve of usual times stands still while a spell is suspected, so that the spell does not become
usual. Without ``SETTLED`` observations nothing is usual yet.

Source: the steps are Page's cumulative sum (1954) for a late share of 0.2 against 0.8, where both
outcomes weigh log 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from statistics import median

from pipecat_hedge.policy.survival import SurvivalCurve
from pipecat_hedge.race.attempt import Attempt

__all__ = ["SlowSpell", "late_secs"]

SLOW, RECOVERED = 5, 2
SETTLED = 20
LATE_SHARE = 0.2
TIMES, BY_SECS = 1.4, 0.1
"""However narrow the spread, what differs from the median by less is not late."""
PROBES = 0.75
"""The share of the budget that goes to trying a slow provider again."""
LEAST_PROBES = 0.01
"""However small the budget, it is tried in so many of the turns."""


def late_secs(usual: SurvivalCurve) -> float:
    """After how long an attempt is late.

    Args:
        usual: The usual times to first token.
    """
    p50 = usual.quantile(0.5)
    return max(usual.quantile(1 - LATE_SHARE), TIMES * p50, p50 + BY_SECS)


@dataclass(slots=True)
class SlowSpell:
    """One provider's attempts, and whether too many of them are late.

    Parameters:
        is_on: Whether the provider has turned slow.
    """

    is_on: bool = False
    _steps: int = 0
    _late: deque[tuple[Attempt, float]] = field(
        default_factory=lambda: deque[tuple[Attempt, float]](maxlen=SLOW)
    )
    _in_flight: dict[Attempt, float | None] = field(default_factory=dict[Attempt, float | None])
    _since_probe: int = 0

    @property
    def is_suspected(self) -> bool:
        """Whether the usual curve is to stand still."""
        return self.is_on or self._steps > 0

    def sent(self, attempt: Attempt, late_after_secs: float | None) -> None:
        """Watch an attempt, until ``ended``.

        Args:
            attempt: The race's record of it.
            late_after_secs: When it is late, in seconds from its launch; None if nothing is usual.
        """
        self._in_flight[attempt] = late_after_secs

    def look(self, now: float) -> None:
        """Count the attempts that have answered, or are late, since the last look.

        Args:
            now: The time on the race's clock, less what the event loop is behind.
        """
        for attempt, late_after in self._watched():
            first = attempt.first_token_at
            if first is not None:
                self._in_flight[attempt] = None
                secs = first - attempt.launched_at - attempt.lag_secs
                if secs > late_after or not attempt.is_unsure:
                    self._count(attempt, secs, late_after)
            elif attempt.outcome is None and now - attempt.launched_at > late_after:
                self._in_flight[attempt] = None
                self._count(attempt, now - attempt.launched_at, late_after)

    def ended(
        self, attempt: Attempt, secs: float, late_after_secs: float | None, *, has_answered: bool
    ) -> None:
        """Count an attempt that is over, unless it has been counted.

        Args:
            attempt: The race's record of it.
            secs: Its time to first token less the event loop's lag, or how long it was waited for.
            late_after_secs: When it was late; None if nothing is usual.
            has_answered: Whether its first token came.
        """
        late_after = self._in_flight.pop(attempt, late_after_secs)
        is_in_time = has_answered and not attempt.is_unsure
        if late_after is not None and (secs > late_after or is_in_time):
            self._count(attempt, secs, late_after)

    def forget(self, attempt: Attempt) -> None:
        """Stop watching an attempt that says nothing of the provider's speed."""
        self._in_flight.pop(attempt, None)

    def level_secs(self, now: float) -> float:
        """How long the late attempts take, at the median; of those still silent, so far.

        Args:
            now: The time on the race's clock.
        """
        return median(
            secs
            if attempt.outcome is not None or attempt.first_token_at is not None
            else now - attempt.launched_at
            for attempt, secs in self._late
        )

    def is_probes_turn(self, budget: float) -> bool:
        """Whether this turn is one of those that try a slow provider again.

        Args:
            budget: Extra requests per turn.
        """
        self._since_probe += 1
        every = ceil(1 / max(PROBES * budget, LEAST_PROBES))
        if self._steps == 0 and self._since_probe < every:
            return False  # an answer in time is followed up at once
        self._since_probe = 0
        return True

    def _watched(self) -> Iterator[tuple[Attempt, float]]:
        return iter([(a, late) for a, late in self._in_flight.items() if late is not None])

    def _count(self, attempt: Attempt, secs: float, late_after: float) -> None:
        is_late = secs > late_after
        if is_late:
            self._late.append((attempt, secs))
        self._steps = max(self._steps + (1 if is_late is not self.is_on else -1), 0)
        if self._steps >= (RECOVERED if self.is_on else SLOW):
            self.is_on, self._steps, self._since_probe = not self.is_on, 0, 0
