"""Race several LLM providers in a Pipecat pipeline and stream the first usable answer."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipecat_hedge.policy.hedge_policy import HedgePolicy
    from pipecat_hedge.policy.slo import Slo
    from pipecat_hedge.race.errors import AllProvidersFailed, HedgeError
    from pipecat_hedge.race.reports import AttemptReport, TurnReport
    from pipecat_hedge.service.hedged_service import HedgedLLMService
    from pipecat_hedge.service.metrics import HedgeMetricsData
    from pipecat_hedge.service.provider import Provider
    from pipecat_hedge.service.provider_stats import ProviderStats
    from pipecat_hedge.vllm.service import VLLMService
    from pipecat_hedge.voice.filler import FillerProcessor

__all__ = [
    "AllProvidersFailed",
    "AttemptReport",
    "FillerProcessor",
    "HedgeError",
    "HedgeMetricsData",
    "HedgePolicy",
    "HedgedLLMService",
    "Provider",
    "ProviderStats",
    "Slo",
    "TurnReport",
    "VLLMService",
]

# Resolved on first use: the simulator and other tools start without loading Pipecat.
_HOMES = {
    "AllProvidersFailed": "race.errors",
    "AttemptReport": "race.reports",
    "FillerProcessor": "voice.filler",
    "HedgeError": "race.errors",
    "HedgeMetricsData": "service.metrics",
    "HedgePolicy": "policy.hedge_policy",
    "HedgedLLMService": "service.hedged_service",
    "Provider": "service.provider",
    "ProviderStats": "service.provider_stats",
    "Slo": "policy.slo",
    "TurnReport": "race.reports",
    "VLLMService": "vllm.service",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
