"""The rule of a policy that needs nothing learned."""

from __future__ import annotations

from pipecat_hedge import HedgePolicy
from pipecat_hedge.facts import LaunchRule
from pipecat_hedge.policies.hedge_policy import LearnedRule


def rule_of(policy: HedgePolicy) -> LaunchRule:
    assert not isinstance(policy.rule, LearnedRule)
    return policy.rule
