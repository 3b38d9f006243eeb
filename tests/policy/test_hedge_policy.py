"""Policies as a user writes them, and what is refused with a remedy."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from pipecat_hedge import HedgeError, HedgePolicy, Slo
from pipecat_hedge.policy.settings import as_settings, policy_of
from tests.policy.test_routing import At

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


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (after, {"seconds": -0.5}, "seconds must not be negative, got -0.5"),
        (after, {"seconds": float("nan")}, "seconds must be a number"),
        (after, {"seconds": "1"}, "seconds must be a number"),
        (after, {"seconds": True}, "seconds must be a number"),
        (after, {"seconds": 800}, "seconds is in seconds, .* if milliseconds .*, write 0.8"),
        (
            after,
            {"seconds": 1, "max_attempts": -2},
            "max_attempts must be .* of at least 1, got -2",
        ),
        (race, {"max_attempts": 0}, "max_attempts must be .* of at least 1, got 0"),
        (race, {"max_attempts": 1.5}, "max_attempts must be a whole number"),
        (race, {"max_attempts": True}, "max_attempts must be a whole number"),
        (race, {"commit": "late"}, "commit is not known, got 'late': write 'auto',"),
        (race, {"losers": "pay"}, "losers is not known, got 'pay': write 'cancel'"),
        (race, {"stall_secs": -1}, "stall_secs must not be negative, got -1"),
        (race, {"deadline_secs": -1}, "deadline_secs must not be negative"),
        (race, {"fallback_text": " "}, "fallback_text is empty: give the sentence"),
        (adaptive, {"budget": -0.1}, "budget must be a share of turns, not negative"),
        (adaptive, {"budget": True}, "budget must be a share of turns"),
        (adaptive, {"budget": "5 %"}, "budget must be a share of turns"),
        (adaptive, {"budget": 10}, "budget is 10 .*, write 0.1$"),
        (adaptive, {"budget": 1.5}, "budget is 1.5 .*, write 0.015$"),
        (adaptive, {"order": "fast"}, "order is not known, got 'fast': write"),
        (adaptive, {"min_saving_secs": -1}, "min_saving_secs must not be negative, got -1"),
        (adaptive, {"target_ttft_secs": 800}, "target_ttft_secs is in .*, write 0.8"),
        (adaptive, {"deadline_secs": 1.2}, "target_ttft_secs"),
        (adaptive, {"slo": 0.8}, "slo must be a Slo, got 0.8: write Slo"),
    ],
)
def test_invalid_arguments_name_the_field_and_the_remedy(
    make: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make(**arguments)
    assert isinstance(caught.value, HedgeError)
    assert ":" in str(caught.value) or "write" in str(caught.value)


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


def test_infinite_stall_is_written_as_none() -> None:
    assert as_settings(HedgePolicy.adaptive(stall_secs=math.inf))["stall_secs"] is None


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
