"""Analyses turn logs: ``report`` shows callers' waits, ``whatif`` replays other policies.

Names are imported on first use: ``whatif`` needs nothing of the report.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipecat_hedge.tools.analysis.comparison_rules import at_quantile, single_r
    from pipecat_hedge.tools.analysis.report import Report, report_of
    from pipecat_hedge.tools.analysis.turn_log import read_logs

__all__ = [
    "Report",
    "at_quantile",
    "read_logs",
    "report_of",
    "single_r",
]

_MODULES = {
    "comparison_rules": ("at_quantile", "single_r"),
    "report": ("Report", "report_of"),
    "turn_log": ("read_logs",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
