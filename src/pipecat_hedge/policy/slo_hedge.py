"""Computes when a hedge helps a turn to meet an SLO. Pure: curves in, a time and probability out.

"19 turns in 20 within D" counts a late turn once, however late it is. A request to Y, sent at t in
a turn that still waits, meets the SLO with probability A(t) = S(D)/S(t) · P(Y ≤ D − t).
At most the share S(t) of turns still wait at t, so a budget of b requests per turn rescues b · A(t)
of all turns. A(t) is largest well before the usual hedge time; beyond D − y an answer comes too
late. So a drawn share of turns is hedged at that time, and the others at the usual time.

Only as much of the budget is used as the SLO needs, at most ``MOST_DRAWN``.
An aim changes nothing where the SLO is met anyway. ``scripts/slo_attainment.py`` simulates it, and
``docs/design/when-to-hedge.md`` explains it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipecat_hedge.policy.survival import Floats, SurvivalCurve
from pipecat_hedge.race.events import LaunchDecision, LaunchRule, Waiting

__all__ = ["Aim", "AimedDelay", "aim_at"]

MOST_DRAWN = 0.5
"""Upper bound of the budget's part for the SLO; the rest shortens the tail, SLO or not."""
PARTS = 5
"""Parts of the budget that are tried, from 0 to ``MOST_DRAWN``."""
BETTER = 1.05
"""No turn is drawn unless a drawn request meets the SLO this many times as often as a usual one."""
CANDIDATES = 48
"""Times that are tried, at equal steps of the share still waiting."""
LEAST_LEFT = 1e-6
"""Lower bound of a share of waiting turns, against division by 0."""
_PARTS = np.linspace(0.0, MOST_DRAWN, PARTS + 1)
_WAITING = np.linspace(1.0, 0.02, CANDIDATES)


@dataclass(frozen=True, slots=True)
class Aim:
    """How a share of turns is hedged to meet an SLO.

    Parameters:
        at_secs: Hedge time of a drawn turn, in seconds from its start.
        probability: The share of turns to draw.
        spends: The part of the budget that drawn turns use, from 0 to ``MOST_DRAWN``.
    """

    at_secs: float
    probability: float
    spends: float


def aim_at(
    first: SurvivalCurve,
    further: SurvivalCurve,
    within_secs: float,
    target_share: float,
    affordable: float,
) -> Aim | None:
    """Return how to meet an SLO with a part of the budget.

    Args:
        first: The first provider's times.
        further: The hedge provider's times.
        within_secs: The SLO's limit in seconds.
        target_share: The share of turns that must meet the limit.
        affordable: The share of turns that may be hedged now.

    Returns:
        The hedge time and the share of turns; None if the SLO is met anyway or nothing is gained.
    """
    late = float(first.share_after(within_secs))
    if affordable <= 0 or late <= 1.0 - target_share:
        return None
    usual_at = first.quantiles(np.maximum((1.0 - _PARTS) * min(affordable, 1.0), LEAST_LEFT))
    usual = late * _in_time(further, within_secs - usual_at)
    if late - usual[0] <= 1.0 - target_share:
        return None
    last = min(float(usual_at[0]), within_secs)
    at = np.concatenate(([0.0], first.quantiles(_WAITING)))
    at = at[at < last]
    if not len(at):
        return None
    waiting = first.share_after(at)
    meets = late * _in_time(further, within_secs - at) / np.maximum(waiting, LEAST_LEFT)
    best = int(np.argmax(meets))
    if meets[best] * affordable <= BETTER * usual[0]:
        return None
    probabilities = np.minimum(_PARTS * affordable / max(float(waiting[best]), LEAST_LEFT), 1.0)
    met = probabilities * waiting[best] * meets[best] + (1.0 - probabilities) * usual
    enough = np.flatnonzero(late - met <= 1.0 - target_share)
    part = int(enough[0]) if len(enough) else int(np.argmax(met))
    if part == 0:
        return None
    return Aim(float(at[best]), float(probabilities[part]), float(_PARTS[part]))


@dataclass(frozen=True, slots=True)
class AimedDelay:
    """Hedges a drawn turn at the time that best meets the SLO; a ``LaunchRule``.

    Parameters:
        usual: The rule of the other turns. The earlier of the two times counts.
        aim: The hedge time.
        within_secs: The SLO's limit in seconds.
    """

    usual: LaunchRule
    aim: Aim
    within_secs: float

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Launch at the aimed time or earlier; see ``LaunchRule``."""
        usual = self.usual.next_launch(waiting)
        last = waiting.in_flight[-1]
        if len(waiting.in_flight) > 1 or last.first_token_at is not None:
            return usual
        at = waiting.started_at + self.aim.at_secs
        if usual.at is not None and usual.at <= at:
            return usual
        reason = f"{self.within_secs:g} s are promised: hedge at {self.aim.at_secs:.2f} s"
        return LaunchDecision(at, f"{reason}, in {self.aim.probability:.0%} of turns")


def _in_time(curve: SurvivalCurve, secs: Floats) -> Floats:
    """Return the share of answers within each of the times; 0 for a negative time."""
    return np.where(secs > 0, 1.0 - curve.share_after(np.maximum(secs, 0.0)), 0.0)
