"""What to send and when: policies, planner, hedge budget, SLOs and learned latencies.

Names are imported on first use, so that a tool loads only what it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipecat_hedge.policy.backends import Backend
    from pipecat_hedge.policy.hedge_policy import (
        Adaptive,
        AfterSilence,
        HedgePolicy,
        LearnedRule,
        Order,
        PolicyOptions,
    )
    from pipecat_hedge.policy.latency_registry import LatencyRegistry
    from pipecat_hedge.policy.planner import learn, plan_turn
    from pipecat_hedge.policy.priced_delay import LatencyEstimate
    from pipecat_hedge.policy.profiles import PROFILES, LatencyProfile
    from pipecat_hedge.policy.settings import policy_of
    from pipecat_hedge.policy.slo import Slo
    from pipecat_hedge.policy.slo_outcome import classify_llm, classify_wait, has_left, is_degraded
    from pipecat_hedge.policy.stats_store import FileStore, StatsStore
    from pipecat_hedge.policy.survival import SurvivalCurve

__all__ = [
    "PROFILES",
    "Adaptive",
    "AfterSilence",
    "Backend",
    "FileStore",
    "HedgePolicy",
    "LatencyEstimate",
    "LatencyProfile",
    "LatencyRegistry",
    "LearnedRule",
    "Order",
    "PolicyOptions",
    "Slo",
    "StatsStore",
    "SurvivalCurve",
    "classify_llm",
    "classify_wait",
    "has_left",
    "is_degraded",
    "learn",
    "plan_turn",
    "policy_of",
]

_MODULES = {
    "backends": ("Backend",),
    "hedge_policy": (
        "Adaptive",
        "AfterSilence",
        "HedgePolicy",
        "LearnedRule",
        "Order",
        "PolicyOptions",
    ),
    "latency_registry": ("LatencyRegistry",),
    "priced_delay": ("LatencyEstimate",),
    "planner": ("learn", "plan_turn"),
    "profiles": ("PROFILES", "LatencyProfile"),
    "settings": ("policy_of",),
    "slo": ("Slo",),
    "slo_outcome": ("has_left", "is_degraded", "classify_llm", "classify_wait"),
    "stats_store": ("FileStore", "StatsStore"),
    "survival": ("SurvivalCurve",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
