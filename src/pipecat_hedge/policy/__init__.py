"""What to send and when: policies, planner, hedge budget, SLOs and learned latencies."""

from pipecat_hedge.policy.backends import SIMULATED_HEADER, Backend
from pipecat_hedge.policy.budget_accounts import BudgetState
from pipecat_hedge.policy.hedge_policy import (
    Adaptive,
    AfterSilence,
    HedgePolicy,
    OnlyOnFailure,
    Order,
    PolicyOptions,
    Rule,
    TurnFacts,
    TurnRule,
)
from pipecat_hedge.policy.latency_registry import LatencyRegistry
from pipecat_hedge.policy.planner import learn, plan_turn, silent_secs
from pipecat_hedge.policy.priced_delay import LatencyEstimate
from pipecat_hedge.policy.profiles import PROFILES, LatencyProfile
from pipecat_hedge.policy.settings import policy_of
from pipecat_hedge.policy.slo import Slo
from pipecat_hedge.policy.slo_outcome import classify_llm, classify_wait, has_left, is_degraded
from pipecat_hedge.policy.stats_store import FileStore, StatsStore
from pipecat_hedge.policy.survival import SurvivalCurve
from pipecat_hedge.policy.turn_route import (
    ComplexityRouter,
    RouteChoice,
    RoutedTurn,
    TurnRoute,
    chosen,
)

__all__ = [
    "PROFILES",
    "SIMULATED_HEADER",
    "Adaptive",
    "AfterSilence",
    "Backend",
    "BudgetState",
    "ComplexityRouter",
    "FileStore",
    "HedgePolicy",
    "LatencyEstimate",
    "LatencyProfile",
    "LatencyRegistry",
    "OnlyOnFailure",
    "Order",
    "PolicyOptions",
    "RouteChoice",
    "RoutedTurn",
    "Rule",
    "Slo",
    "StatsStore",
    "SurvivalCurve",
    "TurnFacts",
    "TurnRoute",
    "TurnRule",
    "chosen",
    "classify_llm",
    "classify_wait",
    "has_left",
    "is_degraded",
    "learn",
    "plan_turn",
    "policy_of",
    "silent_secs",
]
