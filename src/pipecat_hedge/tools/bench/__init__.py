"""Benchmarks (`bench`) and failure drills (`drill`).

Names are imported on first use: Pipecat takes a second to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipecat_hedge.tools.bench.percentiles import percentile
    from pipecat_hedge.tools.bench.timed_pipeline import TimedPipeline, run_worker

__all__ = [
    "TimedPipeline",
    "percentile",
    "run_worker",
]

_MODULES = {
    "percentiles": ("percentile",),
    "timed_pipeline": ("TimedPipeline", "run_worker"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
