"""Policies as a user writes them, and the remedies that errors name."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pipecat_hedge import HedgePolicy, Slo
from pipecat_hedge.policy.settings import as_settings, policy_of
from tests.policy.test_first_place import At

race, after, adaptive = HedgePolicy.race, HedgePolicy.after, HedgePolicy.adaptive


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        (race(3), "race(3)"),
        (after(0.25), "after(0.25 s)"),
        (after(None), "after(never)"),
        (after(float("inf")), "after(never)"),
        (HedgePolicy.fallback(), "fallback"),
        (adaptive(0.05), "adaptive(5 %)"),
    ],
)
def test_policy_has_a_name(policy: HedgePolicy, name: str) -> None:
    assert policy.name == name


@pytest.mark.parametrize(("budget", "attempts"), [(1.0, 2), (1, 1), (2.0, 3)])
def test_budget_may_be_one_request_for_each_further_attempt(budget: float, attempts: int) -> None:
    assert adaptive(budget, attempts).max_attempts == attempts


POLICIES = [
    HedgePolicy.adaptive(0.05, 3, slo=Slo(0.6, share=0.9)),
    HedgePolicy.adaptive(0.1, order="learned", target_ttft_secs=0.8, min_saving_secs=0.3),
    HedgePolicy.race(3, commit="first_sentence", losers="drain"),
    HedgePolicy.after(0.6, stall_secs=None, deadline_secs=5.0),
    HedgePolicy.fallback(4),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_policy_is_read_back_without_its_text(policy: HedgePolicy) -> None:
    spoken = dataclasses.replace(policy, fallback_text="One moment.")
    line = json.dumps(as_settings(spoken), allow_nan=False)
    assert "moment" not in line
    assert policy_of(json.loads(line)) == policy


@pytest.mark.parametrize(
    ("settings", "policy"),
    [
        (
            {"rule": {"kind": "adaptive", "budget": 0.1, "worth_secs": 0.2}, "attempts": 2},
            HedgePolicy.adaptive(0.1, 2, min_saving_secs=0.2),
        ),
        (as_settings(HedgePolicy(At(None), "custom")), None),
        (None, None),
        ({"rule": {"kind": "later", "p": 1}, "max_attempts": 2}, None),
        ({"rule": {"kind": "adaptive", "budget": -1}, "max_attempts": 2}, None),
        ({"rule": {"kind": "adaptive", "of_a_later_release": 1}, "max_attempts": 2}, None),
        ({"rule": {"kind": "after"}, "max_attempts": 2}, None),
        ({"rule": {"kind": "race"}}, None),
    ],
)
def test_settings_of_other_releases(settings: object, policy: HedgePolicy | None) -> None:
    """Old names are read; a custom rule or one of a later release gives no policy."""
    assert policy_of(settings) == policy
