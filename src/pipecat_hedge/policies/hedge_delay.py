"""When another request is worth its price. Pure: survival curves in, a time and a reason out.

The problem: a turn is still waiting. Another request, sent now, may answer sooner than those that
are out; it also costs money and the provider's goodwill. When does it pay?

The textbook answers fix a time. "Hedge at the p95" does little for the p95 itself and nothing for a
tail that is light. SingleR (Kaler, He and Elnikety, SPAA 2017) is the best single time and
probability for one percentile, and gives up on the turns beyond it, which are the ones that lose
callers.

Ours asks what the request is worth. For a turn still waiting at time t, asking Y now saves

    V(t) = ∫ₜ^∞ S(u)/S(t) · P(Y ≤ u − t) · w(u) du        seconds, on average,

where S(u) is the probability that none of the requests in flight has answered by u, and w is 0
before the deadline, if there is one, and 1 after it. The request is sent at the first t at which
V(t) reaches the *price*, in seconds saved per extra request; ``hedge_budget.py`` sets the price.

One rule covers the special cases. A light tail never reaches the price. When everybody is slow, Y
saves nothing. A fast second provider is asked late, just in time. A turn that has waited long is
worth any price, so a high price delays a request and does not forbid it. The third attempt is the
same question asked again, with two requests in flight.

Computed with Y as ``QUANTILES`` equally likely latencies y: then V(t) is the mean over y of the
area under S beyond t + y (or beyond the deadline), divided by S(t), which a curve has at hand.

Left out: that two providers are slow together. Independence is assumed; ``whatif`` measures how far
it holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipecat_hedge.errors import ConfigurationError
from pipecat_hedge.facts import LaunchDecision, Waiting
from pipecat_hedge.survival import Floats, Survival

__all__ = ["PricedDelay", "joint", "savings"]

QUANTILES = 24
CANDIDATES = 64
HORIZON_SECS = 120.0
"""Beyond it nobody waits for an answer."""


def savings(
    in_flight: Survival, further: Survival, at: Floats, deadline_secs: float | None = None
) -> Floats:
    """V(t): the seconds that a further request saves on average if it is sent at t.

    Args:
        in_flight: How long the requests in flight take, as one.
        further: How long the further request takes.
        at: The times t, from the turn's start, in seconds; shape (n,).
        deadline_secs: Only waiting beyond this time counts; None counts all.

    Returns:
        The savings in seconds, shape (n,).
    """
    latencies = _quantiles(further)
    begins = at[:, None] + latencies[None, :]
    if deadline_secs is not None:
        begins = np.maximum(begins, deadline_secs)
    shares = in_flight.share_after(at)
    saved = in_flight.area_after(begins).mean(axis=1)
    # Impossible by the curve, and yet it has happened: then only the tail is known.
    return np.where(shares > 0, saved / np.where(shares > 0, shares, 1.0), in_flight.tail_secs)


def joint(in_flight: Sequence[tuple[Survival, float]]) -> Survival:
    """How long several requests take until the first of them answers.

    Args:
        in_flight: Each with the time at which it was sent, in seconds from the turn's start.
    """
    if len(in_flight) == 1 and in_flight[0][1] == 0:
        return in_flight[0][0]
    secs = np.unique(np.concatenate([curve.secs + sent for curve, sent in in_flight]))
    shares = np.ones_like(secs)
    for curve, sent in in_flight:
        shares *= curve.share_after(secs - sent)
    tail_secs = 1.0 / sum(1.0 / curve.tail_secs for curve, _ in in_flight)
    return Survival.of(secs, shares, tail_secs)


@dataclass(frozen=True, slots=True)
class PricedDelay:
    """Sends another request when it is worth the price; a ``LaunchRule``.

    Parameters:
        curves: What is known of each provider's latency.
        price_secs: What an extra request must save, in seconds; not negative.
        deadline_secs: When the answer should be there, from the turn's start; None is as soon as
            possible.
    """

    curves: Mapping[str, Survival]
    price_secs: float
    deadline_secs: float | None = None

    def __post_init__(self) -> None:
        """Refuse a price that is none.

        Raises:
            ConfigurationError: If the price is negative.
        """
        if not self.price_secs >= 0:
            raise ConfigurationError(f"price_secs must not be negative, got {self.price_secs}")

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Launch when the saving reaches the price; see ``LaunchRule``."""
        sent = [
            (self.curves[a.provider], a.launched_at - waiting.started_at) for a in waiting.in_flight
        ]
        at = _candidates(max(secs for _, secs in sent))
        worth = savings(joint(sent), self.curves[waiting.next_provider], at, self.deadline_secs)
        enough = np.flatnonzero(worth >= self.price_secs)
        if not enough.size:
            return LaunchDecision(
                None,
                f"tail too light: saves {float(worth.max()):.2f} s, price {self.price_secs:.2f} s",
            )
        first = int(enough[0])
        secs = float(at[first])
        if first:  # between two candidates the saving is taken to change evenly
            below, above = float(worth[first - 1]), float(worth[first])
            share = (self.price_secs - below) / (above - below)
            secs = float(at[first - 1]) + share * (secs - float(at[first - 1]))
        if self.deadline_secs is not None:
            reason = f"deadline {self.deadline_secs:g} s: hedge at {secs:.2f} s"
        else:
            reason = (
                f"saves {float(worth[first]):.2f} s at {secs:.2f} s, price {self.price_secs:.2f} s"
            )
        return LaunchDecision(waiting.started_at + secs, reason)


def _candidates(since: float) -> Floats:
    """Times at which a launch is considered: dense at first, as the body of a curve is."""
    return since + np.concatenate(([0.0], np.geomspace(0.02, HORIZON_SECS, CANDIDATES - 1)))


def _quantiles(curve: Survival) -> Floats:
    """Equally likely latencies that stand for a curve; shape (QUANTILES,), in seconds."""
    left = 1.0 - (np.arange(QUANTILES) + 0.5) / QUANTILES
    index = np.searchsorted(-curve.shares, -left - 1e-12, side="left")
    beyond = curve.tail_secs * np.log(np.maximum(curve.shares[-1], 1e-12) / left)
    steps = curve.secs[np.minimum(index, curve.secs.size - 1)]
    return np.where(index < curve.secs.size, steps, curve.secs[-1] + np.maximum(beyond, 0.0))
