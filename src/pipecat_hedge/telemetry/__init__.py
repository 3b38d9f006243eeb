"""Observability: metrics, traces, SLO tracking, turn logs and the live feed.

Names are imported on first use: each one needs only its own extra, and some need no Pipecat.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipecat_hedge.telemetry.live import LIVE_PATH, LIVE_VERSION, LiveFeed, LiveServer, routes
    from pipecat_hedge.telemetry.origins import AllowedOrigins, is_loopback
    from pipecat_hedge.telemetry.prometheus import PrometheusRecorder
    from pipecat_hedge.telemetry.slo_tracker import SloStatus
    from pipecat_hedge.telemetry.tracing import WithoutText, export_traces
    from pipecat_hedge.telemetry.turn_log import TurnLines

__all__ = [
    "LIVE_PATH",
    "LIVE_VERSION",
    "AllowedOrigins",
    "LiveFeed",
    "LiveServer",
    "PrometheusRecorder",
    "SloStatus",
    "TurnLines",
    "WithoutText",
    "export_traces",
    "is_loopback",
    "routes",
]

_MODULES = {
    "live": ("LIVE_PATH", "LIVE_VERSION", "LiveFeed", "LiveServer", "routes"),
    "origins": ("AllowedOrigins", "is_loopback"),
    "prometheus": ("PrometheusRecorder",),
    "slo_tracker": ("SloStatus",),
    "tracing": ("WithoutText", "export_traces"),
    "turn_log": ("TurnLines",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
