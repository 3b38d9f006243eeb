"""Race several LLM providers in a Pipecat pipeline and stream the first usable answer."""

from pipecat_hedge.errors import AllProvidersFailed, HedgeError
from pipecat_hedge.metrics import HedgeMetricsData
from pipecat_hedge.policies.hedge_policy import HedgePolicy
from pipecat_hedge.provider import Provider
from pipecat_hedge.reports import AttemptReport, TurnReport
from pipecat_hedge.service import HedgedLLMService

__all__ = [
    "AllProvidersFailed",
    "AttemptReport",
    "HedgeError",
    "HedgeMetricsData",
    "HedgePolicy",
    "HedgedLLMService",
    "Provider",
    "TurnReport",
]
