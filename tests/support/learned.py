"""What has been learned of a provider."""

from __future__ import annotations

from pipecat_hedge.policy import Backend
from pipecat_hedge.policy.latency_registry import LatencyRegistry


def prior_weight(stats: LatencyRegistry, backend: Backend, tokens: int | None = None) -> float:
    """How much of it is still assumed."""
    known = stats.known([backend], tokens, by_sentence=False)
    return known[backend.provider].prior_weight
