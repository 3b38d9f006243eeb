"""Race several LLM providers in a Pipecat pipeline and stream the first usable answer."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipecat_hedge.answers import ExactAnswers, FaqAnswers
    from pipecat_hedge.policy import ComplexityRouter, HedgePolicy, Slo
    from pipecat_hedge.providers import CircuitBreakerSettings
    from pipecat_hedge.race import (
        AllProvidersFailed,
        AttemptReport,
        HedgeError,
        SpeechReport,
        TranscriptReport,
        TurnReport,
    )
    from pipecat_hedge.retrieval import RetrievalProcessor
    from pipecat_hedge.service import (
        HedgedLLMService,
        HedgeMetricsData,
        Provider,
        ProviderStats,
        TokenBudget,
    )
    from pipecat_hedge.vllm import VLLMService
    from pipecat_hedge.voice import (
        FillerProcessor,
        HedgedSTTService,
        HedgedTTSService,
        TranscriptTiming,
        Voice,
    )

__all__ = [
    "AllProvidersFailed",
    "AttemptReport",
    "CircuitBreakerSettings",
    "ComplexityRouter",
    "ExactAnswers",
    "FaqAnswers",
    "FillerProcessor",
    "HedgeError",
    "HedgeMetricsData",
    "HedgePolicy",
    "HedgedLLMService",
    "HedgedSTTService",
    "HedgedTTSService",
    "Provider",
    "ProviderStats",
    "RetrievalProcessor",
    "Slo",
    "SpeechReport",
    "TokenBudget",
    "TranscriptReport",
    "TranscriptTiming",
    "TurnReport",
    "VLLMService",
    "Voice",
]

# Resolved on first use: the simulator and other tools start without loading Pipecat.
_PACKAGES = {
    "answers": ("ExactAnswers", "FaqAnswers"),
    "policy": ("ComplexityRouter", "HedgePolicy", "Slo"),
    "providers": ("CircuitBreakerSettings",),
    "race": (
        *("AllProvidersFailed", "AttemptReport", "HedgeError"),
        *("SpeechReport", "TranscriptReport", "TurnReport"),
    ),
    "retrieval": ("RetrievalProcessor",),
    "service": ("HedgeMetricsData", "HedgedLLMService", "Provider", "ProviderStats", "TokenBudget"),
    "vllm": ("VLLMService",),
    "voice": (
        *("FillerProcessor", "HedgedSTTService", "HedgedTTSService"),
        *("TranscriptTiming", "Voice"),
    ),
}


def __getattr__(name: str) -> Any:
    for package, names in _PACKAGES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{package}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
