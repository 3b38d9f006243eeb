"""Circuit breakers, concurrency limits and permits: what a provider can take now."""

from pipecat_hedge.limits.admission_controller import LATENCY_PROBE_INTERVAL, AdmissionController
from pipecat_hedge.limits.circuit_breaker import CircuitBreakerSettings

__all__ = [
    "LATENCY_PROBE_INTERVAL",
    "AdmissionController",
    "CircuitBreakerSettings",
]
