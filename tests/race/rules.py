"""A launch rule without statistics."""

from __future__ import annotations

from pipecat_hedge import HedgePolicy
from pipecat_hedge.policy import Adaptive, TurnRule
from pipecat_hedge.race.events import LaunchRule


def rule_of(policy: HedgePolicy) -> LaunchRule:
    assert not isinstance(policy.rule, (Adaptive, TurnRule))
    return policy.rule
