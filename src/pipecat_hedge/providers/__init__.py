"""One registry of providers: latencies, breakers, limits and permits."""

from pipecat_hedge.providers.backends import SIMULATED_HEADER, Backend
from pipecat_hedge.providers.circuit_breaker import CircuitBreakerSettings
from pipecat_hedge.providers.latency import LatencyEstimate
from pipecat_hedge.providers.permits import Terms
from pipecat_hedge.providers.profiles import PROFILES, LatencyProfile
from pipecat_hedge.providers.registry import OBSERVED_LOSER_INTERVAL, ProviderRegistry
from pipecat_hedge.providers.stats_store import FileStore, StatsStore
from pipecat_hedge.providers.survival import SurvivalCurve

__all__ = [
    "OBSERVED_LOSER_INTERVAL",
    "PROFILES",
    "SIMULATED_HEADER",
    "Backend",
    "CircuitBreakerSettings",
    "FileStore",
    "LatencyEstimate",
    "LatencyProfile",
    "ProviderRegistry",
    "StatsStore",
    "SurvivalCurve",
    "Terms",
]
