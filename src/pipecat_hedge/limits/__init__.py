"""Circuit breakers, concurrency limits and permits: what a provider can take now."""

from pipecat_hedge.limits.admission_controller import LATENCY_PROBE_INTERVAL, AdmissionController
from pipecat_hedge.limits.circuit_breaker import CircuitBreakerSettings
from pipecat_hedge.limits.permit_queue import MAX_WAIT_SECS
from pipecat_hedge.limits.rate_limit_headers import used_up_secs

__all__ = [
    "LATENCY_PROBE_INTERVAL",
    "MAX_WAIT_SECS",
    "AdmissionController",
    "CircuitBreakerSettings",
    "used_up_secs",
]
