"""A policy as data, and made again of it."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from pipecat_hedge import HedgePolicy, Slo
from pipecat_hedge.policy.settings import as_settings, policy_of
from pipecat_hedge.race import LaunchDecision, Waiting

POLICIES = [
    HedgePolicy.adaptive(),
    HedgePolicy.adaptive(0.05, 3, slo=Slo(0.6, share=0.9)),
    HedgePolicy.adaptive(0.1, order="learned", target_ttft_secs=0.8, min_saving_secs=0.3),
    HedgePolicy.race(3, commit="first_sentence", losers="drain"),
    HedgePolicy.after(0.6, stall_secs=None, deadline_secs=5.0),
    HedgePolicy.fallback(4),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_a_policy_is_made_again(policy: HedgePolicy) -> None:
    """Of what a line of JSON holds, the words of its user left out."""
    spoken = dataclasses.replace(policy, fallback_text="One moment.")
    line = json.dumps(as_settings(spoken), allow_nan=False)
    assert "moment" not in line
    assert policy_of(json.loads(line)) == policy


def test_never_is_written_as_json_has_it() -> None:
    """It has nothing infinite."""
    settings = as_settings(HedgePolicy.adaptive(stall_secs=math.inf))
    assert json.loads(json.dumps(settings, allow_nan=False))["stall_secs"] is None


class Mine:
    """A rule of somebody's own."""

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Never."""
        return LaunchDecision(None, "never")


@pytest.mark.parametrize(
    "settings",
    [
        as_settings(HedgePolicy(Mine(), "race(2)")),
        None,
        "adaptive",
        {},
        {"rule": {"kind": "later", "p": 1}, "max_attempts": 2},
        {"rule": {"kind": "adaptive", "budget": -1}, "max_attempts": 2},
        {"rule": {"kind": "adaptive", "of_a_later_release": 1}, "max_attempts": 2},
        {"rule": {"kind": "after"}, "max_attempts": 2},
        {"rule": {"kind": "race"}, "max_attempts": "two"},
        {"rule": {"kind": "race"}},
    ],
)
def test_what_tells_no_policy_makes_none(settings: object) -> None:
    """Neither somebody's own rule, nor one of a later release."""
    assert policy_of(settings) is None
