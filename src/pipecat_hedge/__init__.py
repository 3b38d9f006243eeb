"""Race several LLM providers in a Pipecat pipeline and stream the first usable answer."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipecat_hedge.errors import AllProvidersFailed, HedgeError
    from pipecat_hedge.filler import FillerProcessor
    from pipecat_hedge.metrics import HedgeMetricsData
    from pipecat_hedge.policies.hedge_policy import HedgePolicy
    from pipecat_hedge.provider import Provider
    from pipecat_hedge.provider_stats import ProviderStats
    from pipecat_hedge.reports import AttemptReport, TurnReport
    from pipecat_hedge.service import HedgedLLMService
    from pipecat_hedge.slo import Slo
    from pipecat_hedge.vllm import VLLMService

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
    "AllProvidersFailed": "errors",
    "AttemptReport": "reports",
    "FillerProcessor": "filler",
    "HedgeError": "errors",
    "HedgeMetricsData": "metrics",
    "HedgePolicy": "policies.hedge_policy",
    "HedgedLLMService": "service",
    "Provider": "provider",
    "ProviderStats": "provider_stats",
    "Slo": "slo",
    "TurnReport": "reports",
    "VLLMService": "vllm",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
