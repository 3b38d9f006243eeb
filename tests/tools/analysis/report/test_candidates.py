"""How turns were raced, as far as a log tells."""

from __future__ import annotations

import json

import pytest

from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.policy.settings import as_settings, told
from pipecat_hedge.policy.slo import Slo
from pipecat_hedge.tools.analysis.report.candidates import lineup_of, policy_named
from tests.tools.analysis.report.made_up import attempt, hedged, turn


@pytest.mark.parametrize(
    "policy",
    [
        HedgePolicy.adaptive(0.05, 3, stall_secs=None),
        HedgePolicy.adaptive(0.125, 3, stall_secs=None),
        HedgePolicy.race(3, stall_secs=None),
        HedgePolicy.after(0.6, 3, stall_secs=None),
        HedgePolicy.at_quantile(0.95, 3, stall_secs=None),
        HedgePolicy.fallback(3, stall_secs=None),
    ],
    ids=lambda policy: policy.name,
)
def test_a_policy_is_made_again_from_its_name(policy: HedgePolicy) -> None:
    """As it calls itself in a log."""
    assert policy_named(policy.name, 3) == policy


@pytest.mark.parametrize("name", ["", "adaptive", "after(soon)", "race(0)", "mine", "at p100"])
def test_a_name_that_does_not_tell_is_not_guessed_at(name: str) -> None:
    """Somebody's own rule, or one that cannot be."""
    assert policy_named(name, 2) is None


@pytest.mark.parametrize(
    "policy",
    [
        HedgePolicy.adaptive(0.1, slo=Slo(0.6)),
        HedgePolicy.adaptive(0.1, order="learned"),
        HedgePolicy.adaptive(0.1, target_ttft_secs=0.8, min_saving_secs=0.3),
    ],
    ids=told,
)
def test_what_a_name_does_not_tell_the_line_tells(policy: HedgePolicy) -> None:
    """The promise, the order and the deadline; the older lines of a log say no more of it."""
    settings = json.loads(json.dumps(as_settings(policy)))
    mine = [turn(policy=policy.name, policy_settings=settings)] * 2
    candidates = lineup_of([turn(policy=policy.name), *mine])
    assert candidates.policy == policy
    other = HedgePolicy.adaptive(0.1, min_saving_secs=0.4)
    others = [turn(policy=policy.name, policy_settings=as_settings(other))] * 3
    assert lineup_of([*mine, *others]).policy == other


def test_a_rule_of_ones_own_is_not_taken_for_another_by_its_name() -> None:
    """Its line says that it is none of ours."""
    own = {"rule": None, "attempts": 2}
    assert lineup_of([turn(policy="race(2)", policy_settings=own)]).policy is None


def test_who_is_asked_first_and_who_next() -> None:
    """By how often; whoever else was asked is named too."""
    third = attempt("three", 0.2, launched=0.9, reason="hedge")
    turns = [hedged(1.0), hedged(1.2), turn(), turn(attempt(outcome="superseded"), third)]
    candidates = lineup_of(turns)
    assert (candidates.first, candidates.second, candidates.others) == ("one", "two", ("three",))
    assert candidates.policies == (("adaptive(10 %)", 4),)
    assert candidates.policy == HedgePolicy.adaptive(0.1, 2, stall_secs=None)


def test_one_provider_is_its_own_second() -> None:
    """And nobody at all is nobody."""
    assert (lineup_of([turn()]).first, lineup_of([turn()]).second) == ("one", "one")
    gone = attempt(ttft=None, ended=0.0, outcome="failed", error_category="shed", sent_secs=None)
    assert lineup_of([turn(gone, ttft=None, outcome="failed")]).first is None
