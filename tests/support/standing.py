"""How a provider stands."""

from __future__ import annotations

from pipecat_hedge.providers import ProviderRegistry, Terms
from pipecat_hedge.providers.standing import Standing


def standing(registry: ProviderRegistry, key: str, now: float) -> Standing:
    """How a provider stands for a caller's request."""
    (found,) = registry.standing([key], "primary", Terms(), now)
    return found
