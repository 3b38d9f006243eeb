"""When a request meets a promise, and not only saves time. Pure: curves in, a time and probability out.

The problem: "19 turns in 20 within D" is promised, and hedges are few. Which ones keep it most
often?

The naive answer is a deadline: to count waiting beyond D only. It was built and measured: it hardly
meets one promise more, and where tails are light it meets fewer than no deadline at all, because
what is waited beyond D is short and so no request is worth it. A promise is not met by degrees.

A request to Y sent at t, in a turn that is waiting then, meets it with probability

    A(t) = S(D)/S(t) · P(Y ≤ D − t),

and as it is sent in the share S(t) of turns at most, a share b of requests meets b · A(t) of the
promises that would be broken. That is most at some t *before* the time by which all but b have
answered, and often well before: beyond D − y it is too late for an answer. So not every turn can
have one: a drawn share of them gets its request at the t where A is largest. Those who were not
drawn wait as usual (``hedge_delay.py``), for what is left of the budget.

Which part of the budget is drawn? Tails matter even to those who have promised nothing of them: so
only as much as brings the share of late turns, as the curves tell it, down to what is promised,
and never more than ``MOST_DRAWN``. A promise that is met anyway changes nothing, and one that
cannot be met leaves the tail at least what the rest of the budget does for it.

Left out: that a turn which was not drawn may still be in time by its usual hedge once that is sent
later than the time aimed at; it is counted only as far as the usual time itself allows. The
simulation that goes with it is ``scripts/slo_attainment.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipecat_hedge.policy.survival import Floats, SurvivalCurve
from pipecat_hedge.race.events import LaunchDecision, LaunchRule, Waiting

__all__ = ["Aim", "AimedDelay", "aim_at"]

MOST_DRAWN = 0.5
"""Of the budget: the other half is the tail's, whatever is promised."""
PARTS = 5
"""In so many steps up to that."""
BETTER = 1.05
"""So many times as many promises a drawn request must keep as a usual one, or none is drawn."""
CANDIDATES = 48
LEAST_LEFT = 1e-6
_PARTS = np.linspace(0.0, MOST_DRAWN, PARTS + 1)
_WAITING = np.linspace(1.0, 0.02, CANDIDATES)


@dataclass(frozen=True, slots=True)
class Aim:
    """How a promise is met in a share of turns.

    Parameters:
        at_secs: When a turn that is drawn sends its request, from its start.
        probability: The share of turns to draw.
        spends: The part of the budget that goes there, from 0 to ``MOST_DRAWN``.
    """

    at_secs: float
    probability: float
    spends: float


def aim_at(
    first: SurvivalCurve,
    further: SurvivalCurve,
    within_secs: float,
    promised: float,
    affordable: float,
) -> Aim | None:
    """How to keep a promise with a part of what hedges may cost.

    Args:
        first: How long the first provider takes.
        further: How long the one takes that would be asked further.
        within_secs: Within how many seconds an answer is promised.
        promised: The share of turns for which it is.
        affordable: The share of turns that may be hedged now.

    Returns:
        When, and in how many turns; None if it is met anyway, or nothing is gained.
    """
    late = _left(first, within_secs)
    if affordable <= 0 or late <= 1.0 - promised:
        return None
    usual_at = first.quantiles(np.maximum((1.0 - _PARTS) * min(affordable, 1.0), LEAST_LEFT))
    usual = late * _in_time(further, within_secs - usual_at)
    if late - usual[0] <= 1.0 - promised:
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
    enough = np.flatnonzero(late - met <= 1.0 - promised)
    part = int(enough[0]) if len(enough) else int(np.argmax(met))
    if part == 0:
        return None
    return Aim(float(at[best]), float(probabilities[part]), float(_PARTS[part]))


@dataclass(frozen=True, slots=True)
class AimedDelay:
    """A drawn turn sends its first further request when that meets a promise; a ``LaunchRule``.

    Parameters:
        usual: When it is sent otherwise; the earlier of the two counts.
        aim: When it meets the promise.
        within_secs: What is promised.
    """

    usual: LaunchRule
    aim: Aim
    within_secs: float

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Launch at the time aimed at; see ``LaunchRule``."""
        usual = self.usual.next_launch(waiting)
        last = waiting.in_flight[-1]
        if len(waiting.in_flight) > 1 or last.first_token_at is not None:
            return usual
        at = waiting.started_at + self.aim.at_secs
        if usual.at is not None and usual.at <= at:
            return usual
        objective = f"{self.within_secs:g} s are promised: hedge at {self.aim.at_secs:.2f} s"
        return LaunchDecision(at, f"{objective}, in {self.aim.probability:.0%} of turns")


def _left(curve: SurvivalCurve, secs: float) -> float:
    return float(curve.share_after(np.array([secs]))[0])


def _in_time(curve: SurvivalCurve, secs: Floats) -> Floats:
    """The share of answers that come within each of these times; none once it is over."""
    return np.where(secs > 0, 1.0 - curve.share_after(np.maximum(secs, 0.0)), 0.0)
