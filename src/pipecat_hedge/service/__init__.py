"""The hedged LLM service: one processor in the pipeline, several providers behind it."""

from pipecat_hedge.service.admission import AdmissionMode
from pipecat_hedge.service.hedged_service import HedgedLLMService
from pipecat_hedge.service.metrics import HedgeMetricsData
from pipecat_hedge.service.provider import Provider
from pipecat_hedge.service.provider_stats import ProviderStats

__all__ = [
    "AdmissionMode",
    "HedgeMetricsData",
    "HedgedLLMService",
    "Provider",
    "ProviderStats",
]
