"""What has been learned of a provider."""

from __future__ import annotations

from pipecat_hedge.providers import Backend
from pipecat_hedge.providers.registry import ProviderRegistry


def prior_weight(stats: ProviderRegistry, backend: Backend, tokens: int | None = None) -> float:
    """How much of it is still assumed."""
    known = stats.estimates([backend], tokens, by_sentence=False)
    return known[backend.provider].prior_weight
