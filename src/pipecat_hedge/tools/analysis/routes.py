"""Compares thresholds of a ``ComplexityRouter`` by the turns of a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipecat_hedge.tools.analysis.latency_files import Recorded
from pipecat_hedge.tools.analysis.replay_policies import draws_of
from pipecat_hedge.tools.analysis.statistics import PERCENTILES, Floats

THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, np.inf)


@dataclass(frozen=True, slots=True)
class Route:
    """What a threshold gives: turns with a lower score go to the simple provider.

    Parameters:
        simple: The provider of simple turns.
        complex: The provider of complex turns.
        threshold: The threshold; 0 makes every turn complex, infinity every turn simple.
        complex_share: The share of the turns that are complex.
        percentiles: ``p50``, ``p95``, ``p99``, ``p99.9`` of the wait without hedging, in seconds.
        usd: The US dollars of 1,000 first requests; None if prices are unknown.
    """

    simple: str
    complex: str
    threshold: float
    complex_share: float
    percentiles: Mapping[str, float]
    usd: float | None


def compare_routes(recorded: Recorded, seed: int = 1) -> tuple[Route, ...]:
    """Return what each threshold gives; nothing if the log has no scores, or one provider.

    Each provider keeps its own latencies, whatever the turns' complexity, and turns count one by
    one: a router moves a call to the complex provider for good, so its share is at least this.

    Args:
        recorded: The turns' latencies and scores.
        seed: The same seed gives the same answer.
    """
    scores: dict[str, list[float]] = {}
    for name, score in recorded.routed:
        scores.setdefault(name, []).append(score)
    means = {name: float(np.mean(found)) for name, found in scores.items()}
    order = [n for n in sorted(means, key=means.__getitem__) if recorded.providers[n].answers]
    if len(order) < 2:
        return ()
    simple, complex = order[0], order[-1]
    waits = {name: _waits(recorded, name, seed) for name in (simple, complex)}
    every = np.asarray([score for _, score in recorded.routed])
    usd = recorded.usd_per_answer
    is_priced = simple in usd and complex in usd
    found: list[Route] = []
    for threshold in THRESHOLDS:
        share = float((every >= threshold).mean())
        found.append(
            Route(
                simple,
                complex,
                threshold,
                share,
                _mixed(waits[simple], waits[complex], share),
                1000 * (usd[simple] * (1 - share) + usd[complex] * share) if is_priced else None,
            )
        )
    return tuple(found)


def _waits(recorded: Recorded, name: str, seed: int) -> Floats:
    """A provider's waits, those that were cut short drawn."""
    measured = recorded.providers[name]
    filled = draws_of(measured, measured, 2, 1, len(measured.secs), seed).filled
    return filled[~measured.failed]


def _mixed(simple: Floats, complex: Floats, share: float) -> dict[str, float]:
    """The percentiles of waits of which a share is the complex provider's."""
    waits = np.concatenate([simple, complex])
    weights = np.repeat(
        [(1 - share) / len(simple), share / len(complex)], [len(simple), len(complex)]
    )
    order = np.argsort(waits)
    below = np.cumsum(weights[order])
    last = len(waits) - 1
    return {
        name: float(waits[order][min(int(np.searchsorted(below, p - 1e-9)), last)])
        for name, p in PERCENTILES.items()
    }
