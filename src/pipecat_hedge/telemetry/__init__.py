"""Observability: Prometheus metrics, OpenTelemetry traces, SLO tracking and the live feed.

Names are imported on first use, so that each needs its own extra alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipecat_hedge.telemetry.live import LIVE_PATH, LiveFeed, LiveServer
    from pipecat_hedge.telemetry.origins import AllowedOrigins, is_loopback
    from pipecat_hedge.telemetry.prometheus import PrometheusRecorder
    from pipecat_hedge.telemetry.slo_tracker import SloBoard, SloStatus, WindowCount
    from pipecat_hedge.telemetry.tracing import WithoutText, export_traces

__all__ = [
    "LIVE_PATH",
    "AllowedOrigins",
    "LiveFeed",
    "LiveServer",
    "PrometheusRecorder",
    "SloBoard",
    "SloStatus",
    "WindowCount",
    "WithoutText",
    "export_traces",
    "is_loopback",
]

_MODULES = {
    **dict.fromkeys(("LIVE_PATH", "LiveFeed", "LiveServer"), "live"),
    **dict.fromkeys(("AllowedOrigins", "is_loopback"), "origins"),
    **dict.fromkeys(("SloBoard", "SloStatus", "WindowCount"), "slo_tracker"),
    **dict.fromkeys(("WithoutText", "export_traces"), "tracing"),
    "PrometheusRecorder": "prometheus",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
