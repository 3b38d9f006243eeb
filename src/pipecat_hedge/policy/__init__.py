"""What to send and when: policies, planner, hedge budget and SLOs."""

from pipecat_hedge.policy.budget_accounts import BudgetAccounts, BudgetState
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
from pipecat_hedge.policy.planner import plan_turn, silent_secs
from pipecat_hedge.policy.settings import policy_of
from pipecat_hedge.policy.slo import Slo
from pipecat_hedge.policy.slo_outcome import classify_llm, classify_wait, has_left, is_degraded
from pipecat_hedge.policy.turn_route import (
    ComplexityRouter,
    RouteChoice,
    RoutedTurn,
    TurnRoute,
    chosen,
)

__all__ = [
    "Adaptive",
    "AfterSilence",
    "BudgetAccounts",
    "BudgetState",
    "ComplexityRouter",
    "HedgePolicy",
    "OnlyOnFailure",
    "Order",
    "PolicyOptions",
    "RouteChoice",
    "RoutedTurn",
    "Rule",
    "Slo",
    "TurnFacts",
    "TurnRoute",
    "TurnRule",
    "chosen",
    "classify_llm",
    "classify_wait",
    "has_left",
    "is_degraded",
    "plan_turn",
    "policy_of",
    "silent_secs",
]
