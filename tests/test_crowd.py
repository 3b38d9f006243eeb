"""What hedging sends in a bad moment of a provider, with all callers of a fleet at once."""

from __future__ import annotations

import math

import pytest

from pipecat_hedge import HedgePolicy
from tests.crowd import PROVIDERS, Crowd

BUDGET = 0.1
MOST = 1 + BUDGET + 3 * math.sqrt(BUDGET * (1 - BUDGET) / 150)
"""Requests per turn, over 150 turns: the budget, and three standard deviations."""
EVENT, UNTIL = 60.0, 80.0


def crowd(seed: int) -> Crowd:
    return Crowd(HedgePolicy.adaptive(BUDGET, attempts=3), seed=seed)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "slow",
    [{"first": 5.0}, {"first": math.inf}, dict.fromkeys(PROVIDERS, 5.0), {}],
    ids=["slow", "hang", "all slow", "calm"],
)
def test_no_second_of_trouble_has_more_requests_than_the_budget(
    slow: dict[str, float], seed: int
) -> None:
    """But for what replaces the silent. Without a bound it is 1.6 a turn where one turns slow."""
    callers = crowd(seed)
    callers.run(EVENT)
    callers.slow |= slow
    callers.run(UNTIL)
    assert 1.0 < callers.worst(EVENT - 20, UNTIL) <= MOST


def test_in_calm_the_bound_costs_little() -> None:
    """The p95 not at all; without it, the p99 would be 2.1 s."""
    callers = crowd(3)
    callers.run(140.0)
    assert callers.p(0.95, 20, 130) < 1.75
    assert callers.p(0.99, 20, 130) < 2.5


def test_who_is_put_off_is_helped_when_the_provider_is_found_silent() -> None:
    """4.5 s, and then what the second provider takes, for nearly all who wait for the first."""
    callers = crowd(4)
    callers.run(EVENT)
    callers.slow["first"] = math.inf
    callers.run(UNTIL)
    assert callers.p(0.9, EVENT, EVENT + 4) < 4.5 + 1.7
    replaced = [at for at, reason in callers.sent if reason == "stall" and at >= EVENT]
    assert min(replaced) >= EVENT + 3.0
