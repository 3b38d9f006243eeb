"""Textbook hedging rules, for comparison with ``HedgePolicy.adaptive``.

``at_quantile`` and ``single_r`` are their policies. Both learn latencies like the service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Unpack

import numpy as np

from pipecat_hedge.policy import HedgePolicy, PolicyOptions, TurnFacts
from pipecat_hedge.providers import LatencyEstimate, SurvivalCurve
from pipecat_hedge.race import ConfigurationError, LaunchDecision, Waiting


def at_quantile(
    p: float = 0.95, max_attempts: int = 2, **options: Unpack[PolicyOptions]
) -> HedgePolicy:
    """A policy that hedges when an attempt is slower than the quantile p of its provider.

    Args:
        p: The quantile, above 0 and below 1.
        max_attempts: The most requests per turn.
        **options: The keywords of all policies, see ``HedgePolicy``.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    rule = AtQuantile(_share("p", p))
    return HedgePolicy(rule, f"at p{100 * p:g}", max_attempts, **options)


def single_r(
    percentile: float = 0.99, budget: float = 0.05, **options: Unpack[PolicyOptions]
) -> HedgePolicy:
    """SingleR (Kaler, He and Elnikety, SPAA 2017): one more request, after one delay, at random.

    Args:
        percentile: The percentile to minimise, above 0 and below 1.
        budget: Extra requests per turn, above 0 and below 1.
        **options: The keywords of all policies, see ``HedgePolicy``.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    rule = SingleR(_share("percentile", percentile), _share("budget", budget))
    return HedgePolicy(rule, f"SingleR(p{100 * percentile:g}, {100 * budget:g} %)", **options)


@dataclass(frozen=True, slots=True)
class AtQuantile:
    """Another request when the previous attempt is slower than the quantile p of its provider."""

    p: float

    def rule_for(self, facts: TurnFacts) -> QuantileDelay:
        """Return the rule of one turn; see ``TurnRule``."""
        return QuantileDelay(facts.known, self.p)


@dataclass(frozen=True, slots=True)
class QuantileDelay:
    """Launches at the quantile p of the previous attempt; a ``LaunchRule``."""

    known: Mapping[str, LatencyEstimate]
    p: float

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Launch at the quantile; see ``LaunchRule``."""
        last = waiting.in_flight[-1]
        secs = self.known[last.provider].first_token.quantile(self.p)
        return LaunchDecision(last.launched_at + secs, f"p{100 * self.p:g} is {secs:.2f} s")


@dataclass(frozen=True, slots=True)
class SingleR:
    """One more request, with the delay and probability that minimise one percentile."""

    percentile: float
    budget: float

    def rule_for(self, facts: TurnFacts) -> SingleReissue:
        """Return the rule of one turn; see ``TurnRule``."""
        order, known = facts.order, facts.known
        first, further = known[order[0]].first_token, known[order[1 % len(order)]].first_token
        best = best_reissue(first, further, self.percentile, self.budget)
        return SingleReissue(*best, facts.draw)


@dataclass(frozen=True, slots=True)
class SingleReissue:
    """One more request after ``secs``, with probability q; a ``LaunchRule``.

    Parameters:
        secs: The delay, in seconds.
        q: The probability of a request.
        drawn: The turn's random number, from 0 to below 1.
    """

    secs: float
    q: float
    drawn: float

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Launch after the delay if the draw is below q; see ``LaunchRule``."""
        if len(waiting.in_flight) > 1 or self.drawn >= self.q:
            return LaunchDecision(None, f"reissued in {self.q:.0%} of turns, not in this one")
        return LaunchDecision(waiting.started_at + self.secs, f"reissue after {self.secs:.2f} s")


@lru_cache(maxsize=32)
def best_reissue(
    first: SurvivalCurve, further: SurvivalCurve, percentile: float, budget: float
) -> tuple[float, float]:
    """Return the delay d and the probability q that minimise one percentile within a budget.

    P(T ≤ t) = F(t) + q·(1 − F(t))·G(t − d), with extra requests q·(1 − F(d)) ≤ budget (Kaler, He
    and Elnikety, 2017).

    Args:
        first: The survival curve 1 − F of the first request.
        further: The survival curve 1 − G of the further one.
        percentile: The percentile to minimise, below 1.
        budget: Extra requests per turn.

    Returns:
        ``(d, q)``, in seconds and as a share.
    """
    delays = np.array([first.quantile(p) for p in np.linspace(0.0, percentile, 49)])
    q = np.minimum(1.0, budget / np.maximum(first.share_after(delays), 1e-9))
    t = np.geomspace(max(first.quantile(percentile) / 50, 1e-3), first.quantile(percentile), 160)
    left = first.share_after(t)[None, :]
    reached = np.where(
        t[None, :] >= delays[:, None], 1.0 - further.share_after(t[None, :] - delays[:, None]), 0.0
    )
    answered = 1.0 - left + q[:, None] * left * reached
    first_time = np.where(answered >= percentile, t[None, :], np.inf).min(axis=1)
    best = int(np.argmin(first_time))
    return float(delays[best]), float(q[best])


def _share(field: str, value: float) -> float:
    if not 0 < value < 1:
        raise ConfigurationError(
            f"{field} must be above 0 and below 1, got {value}: 0.95 is 95 of 100 turns"
        )
    return float(value)
