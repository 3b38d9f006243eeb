"""When another request is benefit its price. Pure: survival curves in, a time and a reason out.

The problem: a turn is still waiting. Another request, sent now, may answer sooner than those that
are out; it also costs money and the provider's goodwill. When does it pay?

The textbook answers fix a time. "Hedge at the p95" does little for the p95 itself and nothing for a
tail that is light. SingleR (Kaler, He and Elnikety, SPAA 2017) is the best single time and
probability for one percentile, and gives up on the turns beyond it, which are the ones that lose
callers.

Ours asks what the request is benefit. For a turn still waiting at time t, asking Y now saves

    V(t) = ∫ₜ^∞ S(u)/S(t) · P(Y ≤ u − t) · w(u) du        seconds, on average,

where S(u) is the probability that none of the requests in flight has answered by u, and w is 0
before the deadline, if there is one, and 1 after it. The request is sent at the first t at which
V(t) reaches the *price*, in seconds saved per extra request.

One rule covers the special cases. A light tail never reaches the price. When everybody is slow, Y
saves nothing. A fast second provider is asked late, just in time. A turn that has waited long is
benefit any price, so a high price delays a request and does not forbid it. The third attempt is the
same question asked again, with two requests in flight.

The price comes from the share of turns that may be hedged now (``hedge_budget.py``): it is the most
that V reaches up to the time by which all but that share have answered, and never less than what a
request must save to be benefit sending at all. Why not simply hedge at that time? Because it is known
only roughly, from the few slow answers in the window, whereas V rises steeply where the body of the
latencies ends and the tail begins, wherever in its spread the estimate lies. But V is an estimate
too, and flat beyond the knee. So the time stays between those by which all but ``EARLY`` and
``LATE`` times the share have answered: a turn that has waited longer is benefit any price. So is one
that has waited ``ANY_PRICE_SECS``, whatever the account says, if the request would spare the caller
``SPARED_SHARE`` of what is left: that is a provider that hangs beside one that does not. Where everybody is
slow at once a request spares about half, and the load stays what the account allows. As no curve
knows of what has never happened before, a wait of twice the longest usual one is taken for a hang.

A budget that is larger than what pays is not used up: where the requests of the next moments would
nearly all be in vain, because their turns are about to be answered, the launch waits for the end of
the body. It waits only for that, and not where a deadline counts or the request is free.

Where a sentence is what wins, an attempt that has produced a token is judged by what is known of
the time from there to the sentence: one that dribbles is overtaken.

Left out: that two providers are slow together. Independence is assumed; ``whatif`` measures how far
it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipecat_hedge.policy.hedge_benefit import HORIZON_SECS, BenefitCache, HedgeBenefit, joint
from pipecat_hedge.policy.survival import SurvivalCurve
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.events import InFlight, LaunchDecision, Waiting

__all__ = ["LatencyEstimate", "PricedDelay"]

EARLY, LATE = 1.6, 0.8
ANY_PRICE_SECS, SPARED_SHARE = 5.0, 0.8
"""Who has waited so long is benefit any price, if that much of the rest is spared."""
LEAST_GAIN = 0.1
"""A request that brings less than that share of the least benefit over a later one is in vain."""
HANG_SHARE, HANG_TIMES, HANG_LEAST_SECS = 0.002, 2.0, 1.0
"""A wait of twice the time by which all but so few have answered is on no curve: it hangs."""
LEAST_SHARE = 1e-6
RARE = 0.2
"""A launch that so small a part of the share will live to see is called what it is."""


@dataclass(frozen=True, slots=True)
class LatencyEstimate:
    """What is known of a provider.

    Parameters:
        first_token: From the launch of an attempt to its first usable token.
        sentence: From there to its first whole sentence; None where a token is what wins.
    """

    first_token: SurvivalCurve
    sentence: SurvivalCurve | None = None


@dataclass(frozen=True, slots=True)
class PricedDelay:
    """Sends another request when it is benefit the price; a ``LaunchRule``.

    Parameters:
        known: What is known of each provider.
        shares: By the provider of the further request, the share of turns that may be hedged with
            it now, from 0 to 1.
        min_saving_secs: What a request must save to be benefit sending, in seconds; not negative.
        deadline_secs: When the answer should be there, from the turn's start; None is as soon as
            possible.
        benefits: What has been computed for these curves before.
    """

    known: Mapping[str, LatencyEstimate]
    shares: Mapping[str, float]
    min_saving_secs: float = 0.15
    deadline_secs: float | None = None
    benefits: BenefitCache = field(default_factory=BenefitCache)

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigurationError: If a share is none, or the least benefit is negative.
        """
        if not self.min_saving_secs >= 0:
            raise ConfigurationError(
                f"min_saving_secs must not be negative, got {self.min_saving_secs}"
            )
        for provider, share in self.shares.items():
            if not 0 <= share <= 1:
                raise ConfigurationError(f"shares: {provider} must be from 0 to 1, got {share}")

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Launch when the saving reaches the price; see ``LaunchRule``."""
        further = self.known[waiting.next_provider]
        share = self.shares[waiting.next_provider]
        if share <= 0:
            return LaunchDecision(None, "the budget is 0")
        first, last = waiting.in_flight[0], waiting.in_flight[-1]
        usual = self.known[first.provider].first_token
        base = self.benefits.of(usual, further.first_token, self.deadline_secs)
        knee = _all_but(share, usual)
        price = max(self.min_saving_secs, base.at_time(knee, base.best))
        curve, since = self._wait_for(last, waiting.started_at)
        is_first = len(waiting.in_flight) == 1
        is_base = is_first and curve is usual and not since
        benefit = base if is_base else self._benefit(waiting)
        latest = since + _all_but(LATE * share, curve)
        if latest > since + ANY_PRICE_SECS:
            spared = benefit.at_time(since + ANY_PRICE_SECS, benefit.saved)
            if spared >= SPARED_SHARE * curve.expected_remaining(ANY_PRICE_SECS):
                latest = since + ANY_PRICE_SECS
        early = _all_but(EARLY * share, curve) if is_first else 0.0
        earliest = min(since + early, latest)
        secs = benefit.first_above(price, earliest)
        if secs is None or secs > latest:
            # Who has waited so long is benefit any price, if anything is to be saved at all.
            secs, price = benefit.first_above(self.min_saving_secs, latest), self.min_saving_secs
        is_rare = secs is not None and secs > latest
        if secs is not None and self.deadline_secs is None and share < 1:
            secs = benefit.best_time_from(secs, LEAST_GAIN * self.min_saving_secs)
        hangs = HORIZON_SECS
        if secs is None or secs > since + HANG_LEAST_SECS:
            hangs = since + max(HANG_TIMES * _all_but(HANG_SHARE, curve), HANG_LEAST_SECS)
        if secs is None or secs > hangs:
            at_last = benefit.at_time(latest, benefit.saved)
            light = f"tail too light: saves {at_last:.2f} s, price {self.min_saving_secs:.2f} s"
            return LaunchDecision(waiting.started_at + hangs, f"{light}, unless it hangs")
        saves = benefit.at_time(secs, benefit.saved)
        if is_rare and secs > since + _all_but(RARE * share, curve):
            at_last = benefit.at_time(latest, benefit.saved)
            reason = f"tail too light: saves {at_last:.2f} s until {secs:.2f} s"
        elif self.deadline_secs is not None:
            reason = f"deadline {self.deadline_secs:g} s: hedge at {secs:.2f} s"
        else:
            reason = f"saves {saves:.2f} s at {secs:.2f} s, price {min(price, saves):.2f} s"
        return LaunchDecision(waiting.started_at + secs, reason)

    def _benefit(self, waiting: Waiting) -> HedgeBenefit:
        """What a further request saves with all of this in flight."""
        sent = [self._wait_for(attempt, waiting.started_at) for attempt in waiting.in_flight]
        further = self.known[waiting.next_provider]
        curve = further.first_token
        if further.sentence is not None and any(a.first_token_at for a in waiting.in_flight):
            # Those in flight are nearer to their sentence than to a token; so it has further to go.
            curve = curve.delayed(further.sentence.quantile(0.5))
        return HedgeBenefit.of(
            joint(sent), curve, self.deadline_secs, max(since for _, since in sent)
        )

    def _wait_for(self, attempt: InFlight, started_at: float) -> tuple[SurvivalCurve, float]:
        """What an attempt is waited for by, and since when, from the turn's start."""
        known = self.known[attempt.provider]
        if attempt.first_token_at is not None and known.sentence is not None:
            return known.sentence, attempt.first_token_at - started_at
        return known.first_token, attempt.launched_at - started_at


def _all_but(share: float, curve: SurvivalCurve) -> float:
    """The time by which all but a share have answered."""
    return curve.quantile(1.0 - max(share, LEAST_SHARE)) if share < 1 else 0.0
