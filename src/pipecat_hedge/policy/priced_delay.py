"""Decides when a further request is worth its price. Pure: survival curves in, a time out.

In a turn that still waits at t, a request to Y saves V(t) seconds on average (see
``hedge_benefit.py``). It is sent at the first t at which V(t) reaches the price: the largest V up
to the time by which all but the affordable share of turns (``hedge_budget.py``) have answered, at
least ``min_saving_secs``. Where a sentence wins, an attempt with a token is judged by its time from
there to the sentence.

The race handles silence (``Slot.silent_secs``). Providers are assumed to be independent.
``docs/design/when-to-hedge.md`` has the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipecat_hedge.policy.hedge_benefit import BenefitCache, HedgeBenefit, joint
from pipecat_hedge.providers.latency import LatencyEstimate
from pipecat_hedge.providers.survival import SurvivalCurve
from pipecat_hedge.race.events import InFlight, LaunchDecision, Waiting

EARLY = 1.6
"""No hedge before all but this many times the share have answered: V is only an estimate."""
LATE = 0.8
"""None later than all but this part of the share: V is flat beyond the knee."""
LEAST_GAIN = 0.1
"""A launch waits if that brings at least this part of ``min_saving_secs`` more per request."""
HANG_SHARE = 0.002
"""The share of answers that exceeds the longest typical time."""
HANG_TIMES = 2.0
"""A wait of this many times the longest typical time is a hang, which no curve contains."""
HANG_LEAST_SECS = 1.0
"""A shorter wait is no hang."""
LEAST_SHARE = 1e-6
"""Lower bound of a share, so that its quantile stays on the curve."""


@dataclass(frozen=True, slots=True)
class PricedDelay:
    """Sends a further request when its expected saving reaches the price; a ``LaunchRule``.

    Parameters:
        estimates: The latency estimate of each provider.
        shares: By provider of the further request, the share of turns that may be hedged with it
            now, from 0 to 1.
        min_saving_secs: Least expected saving of a request, in seconds; not negative.
        deadline_secs: Target for the answer, in seconds from the turn's start. Only waiting beyond
            it counts; None counts all.
        benefits: Results for pairs of curves, shared between turns.
    """

    estimates: Mapping[str, LatencyEstimate]
    shares: Mapping[str, float]
    min_saving_secs: float = 0.15
    deadline_secs: float | None = None
    benefits: BenefitCache = field(default_factory=BenefitCache)

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Launch when the expected saving reaches the price; see ``LaunchRule``."""
        further = self.estimates[waiting.next_provider]
        share = self.shares[waiting.next_provider]
        if share <= 0:
            return LaunchDecision(None, "the budget is 0")
        first, last = waiting.in_flight[0], waiting.in_flight[-1]
        typical = self.estimates[first.provider].first_token
        base = self.benefits.of(typical, further.first_token, self.deadline_secs)
        price = max(self.min_saving_secs, base.at_time(_all_but(share, typical), base.best))
        curve, since = self._wait_for(last, waiting.started_at)
        is_first = len(waiting.in_flight) == 1
        benefit = base if is_first and curve is typical and not since else self._benefit(waiting)
        earliest = since + (_all_but(EARLY * share, curve) if is_first else 0.0)
        latest = since + _all_but(LATE * share, curve)
        secs = benefit.first_above(price, earliest)
        if secs is None or secs > latest:  # few turns still wait, so any saving is worth it
            secs = benefit.first_above(self.min_saving_secs, latest)
        if secs is not None and self.deadline_secs is None and share < 1:
            secs = benefit.best_time_from(secs, LEAST_GAIN * self.min_saving_secs)
        hangs = since + max(HANG_TIMES * _all_but(HANG_SHARE, curve), HANG_LEAST_SECS)
        if secs is None or secs > hangs:
            at_last = benefit.at_time(latest, benefit.saved)
            light = f"tail too light: saves {at_last:.2f} s, price {self.min_saving_secs:.2f} s"
            return LaunchDecision(waiting.started_at + hangs, f"{light}, unless it hangs")
        saves = benefit.at_time(secs, benefit.saved)
        reason = f"saves {saves:.2f} s at {secs:.2f} s, price {min(price, saves):.2f} s"
        if self.deadline_secs is not None:
            reason = f"deadline {self.deadline_secs:g} s: hedge at {secs:.2f} s"
        return LaunchDecision(waiting.started_at + secs, reason)

    def _benefit(self, waiting: Waiting) -> HedgeBenefit:
        """Return the benefit of a further request beside all attempts in flight."""
        sent = [self._wait_for(attempt, waiting.started_at) for attempt in waiting.in_flight]
        further = self.estimates[waiting.next_provider]
        curve = further.first_token
        if further.sentence is not None and any(a.first_token_at for a in waiting.in_flight):
            # Attempts in flight wait for a sentence, so the new one must reach its sentence too.
            curve = curve.delayed(further.sentence.quantile(0.5))
        return HedgeBenefit.of(
            joint(sent), curve, self.deadline_secs, max(since for _, since in sent)
        )

    def _wait_for(self, attempt: InFlight, started_at: float) -> tuple[SurvivalCurve, float]:
        """Return an attempt's curve, and its start in seconds from the turn's start."""
        estimate = self.estimates[attempt.provider]
        if attempt.first_token_at is not None and estimate.sentence is not None:
            return estimate.sentence, attempt.first_token_at - started_at
        return estimate.first_token, attempt.launched_at - started_at


def _all_but(share: float, curve: SurvivalCurve) -> float:
    """Return the time by which all but a share of the answers have come, in seconds."""
    return curve.quantile(1.0 - max(share, LEAST_SHARE)) if share < 1 else 0.0
