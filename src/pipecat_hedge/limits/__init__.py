"""Circuit breakers, concurrency limits and permits: what a provider can take now."""

from pipecat_hedge.limits.admission_controller import OBSERVED_LOSER_INTERVAL, AdmissionController
from pipecat_hedge.limits.circuit_breaker import CircuitBreakerSettings
from pipecat_hedge.limits.permits import Terms
from pipecat_hedge.limits.rate_limit_headers import used_up_secs

__all__ = [
    "OBSERVED_LOSER_INTERVAL",
    "AdmissionController",
    "CircuitBreakerSettings",
    "Terms",
    "used_up_secs",
]
