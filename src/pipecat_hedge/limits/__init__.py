"""What a provider can take: circuit breakers, concurrency limits and permits."""

from pipecat_hedge.limits.admission_controller import LISTENS_TO_ONE_IN, AdmissionController

__all__ = [
    "LISTENS_TO_ONE_IN",
    "AdmissionController",
]
