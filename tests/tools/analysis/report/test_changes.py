"""What would have helped, and what hedging bought: replayed, and told from chance."""

from __future__ import annotations

import dataclasses
from statistics import NormalDist

import numpy as np
import pytest

from pipecat_hedge.policy.hedge_policy import Adaptive, HedgePolicy
from pipecat_hedge.policy.profiles import PROFILES
from pipecat_hedge.policy.settings import with_rule
from pipecat_hedge.tools.analysis.report.candidates import lineup_of
from pipecat_hedge.tools.analysis.report.changes import SURE, Replays, critical_value, replays_of
from pipecat_hedge.tools.analysis.report.trials import LEARNED, trials_of
from pipecat_hedge.tools.analysis.report.turns import LoggedTurn
from pipecat_hedge.tools.analysis.whatif.reading import recorded_from
from tests.tools.analysis.report.made_up import attempt, cold, turn

GEMMA, HAIKU = PROFILES["gemma-4-31b-baseten"], PROFILES["claude-haiku-4-5"]
FAST, GPT = PROFILES["gpt-oss-120b-groq"], PROFILES["gpt-4.1"]


def replayed(turns: list[LoggedTurn]) -> Replays:
    found = replays_of(turns, lineup_of(turns), 0.8)
    assert found is not None
    return found


def side_by_side(first: list[float], second: list[float], policy: str) -> list[LoggedTurn]:
    """Turns in which both answer, so that all is known of both."""
    return [
        turn(
            attempt("slow", one, outcome="won" if one <= other else "superseded", usd=0.002),
            attempt("quick", other, outcome="superseded", reason="hedge", usd=0.001),
            ttft=min(one, other),
            policy=policy,
        )
        for one, other in zip(first, second, strict=True)
    ]


def test_the_other_order_is_found_where_it_helps() -> None:
    """With what it would have done to callers, and to the purse."""
    first, second = HAIKU.samples(500, 1).tolist(), FAST.samples(500, 2).tolist()
    found = replayed(side_by_side(first, second, "fallback"))
    best = next(c for c in found.changes if c.kind == "order")
    assert best.title == "Ask quick first, and slow next"
    assert best.after.p50_secs < 0.5 * best.before.p50_secs
    assert best.after.kept_share is not None
    assert best.before.kept_share is not None
    assert best.after.kept_share > best.before.kept_share
    assert best.saved_secs == pytest.approx(best.before.mean_secs - best.after.mean_secs)
    assert len({c.kind for c in found.changes}) == len(found.changes) <= 3
    worths = [c.min_saving_secs for c in found.changes]
    assert worths == sorted(worths, reverse=True)


def test_hedges_are_advised_for_a_tail() -> None:
    """And what they would cost."""
    waits = GEMMA.samples(1500, 3).tolist()
    turns = [turn(attempt("gemma", w, usd=0.001), ttft=w, policy="fallback") for w in waits]
    found = replayed(turns)
    best = next(c for c in found.changes if c.kind == "policy")
    assert best.title.startswith("Hedge by adaptive(")
    assert best.how.startswith("policy=HedgePolicy.adaptive(0.")
    assert best.how.endswith('; with Provider("gemma", [service, another_instance])')
    assert best.after.requests > best.before.requests == 1
    assert best.after.p99_secs < 0.8 * best.before.p99_secs
    assert best.saved_secs > 0.05
    assert best.before.usd_per_1000 == pytest.approx(1.0)
    assert best.after.usd_per_1000 == pytest.approx(best.after.requests)


@pytest.mark.parametrize("policy", [HedgePolicy.fallback(2), HedgePolicy.race(2)])
def test_a_race_is_advised_where_it_pays(policy: HedgePolicy) -> None:
    """Of two alike with a long tail each, both in every turn save what they cost; once."""
    first, second = GPT.samples(500, 1).tolist(), GPT.samples(500, 2).tolist()
    turns = side_by_side(first, second, policy.name)
    found = replays_of(turns, dataclasses.replace(lineup_of(turns), policy=policy), 0.8)
    assert found is not None
    races = [change for change in found.changes if change.kind == "race"]
    if policy.name == "race(2)":
        assert races == []
        return
    (race,) = races
    assert race.title == "Ask slow and quick in every turn"
    assert race.how == "policy=HedgePolicy.race(), in place of fallback"
    assert race.after.requests == 2
    assert race.after.p95_secs < 0.7 * race.before.p95_secs


def test_how_sure_one_must_be_of_several() -> None:
    """Of one, a normal's quantile; of the same one again no surer; of others surer."""
    draws = np.random.default_rng(1).normal(size=(20, 4001))
    one = critical_value(draws[:1])
    assert one == pytest.approx(1.96, abs=0.15)
    assert critical_value(np.concatenate([draws[:1]] * 20)) == one
    assert critical_value(7.0 * draws[:1] + 3.0) == pytest.approx(one)
    independent = NormalDist().inv_cdf(SURE ** (1 / 20))
    assert critical_value(draws) == pytest.approx(independent, abs=0.15)
    assert critical_value(np.ones((3, 201))) == 0.0


def test_hedges_that_save_nothing_are_advised_against() -> None:
    """They cost, and a steady provider has no tail to hedge."""
    turns = [
        turn(attempt("steady", w), ttft=w, policy="race(2)")
        for w in PROFILES["gemini-3.6-flash"].samples(400, 4).tolist()
    ]
    best = replayed(turns).changes[0]
    assert best.kind == "policy"
    assert best.after.requests < best.before.requests == 2


def test_open_connections_are_advised_where_cold_ones_cost() -> None:
    """By as much as opening them took, in the turns in which it did."""
    turns = [
        turn(
            attempt(
                "one", w + (0.6 if n % 3 == 0 else 0), stages=cold(0.6, new_connection=n % 3 == 0)
            ),
            ttft=w + (0.6 if n % 3 == 0 else 0),
            policy="fallback",
        )
        for n, w in enumerate(FAST.samples(600, 5).tolist())
    ]
    best = next(c for c in replayed(turns).changes if c.kind == "connections")
    assert best.saved_secs == pytest.approx(0.2, abs=0.02)
    assert best.how.startswith("33% of the requests opened one, in 0.60 s")


def test_what_hedging_bought_is_told_beside_what_it_would_have_been() -> None:
    """Where hedges cut the tail off, what is known of it is a least."""
    turns = list[LoggedTurn]()
    for one, other in zip(GEMMA.samples(1500, 6), HAIKU.samples(1500, 7), strict=True):
        first, hedge = float(one), 1.0 + float(other)
        if first < 1.0:
            turns.append(turn(attempt("gemma", first), ttft=first, policy="after(1 s)"))
            continue
        won = min(first, hedge)
        turns.append(
            turn(
                attempt(
                    "gemma",
                    first if first <= hedge else None,
                    ended=won,
                    outcome="won" if first <= hedge else "superseded",
                ),
                attempt(
                    "haiku",
                    None if first <= hedge else float(other),
                    launched=1.0,
                    ended=won,
                    reason="hedge",
                    outcome="superseded" if first <= hedge else "won",
                ),
                ttft=won,
                policy="after(1 s)",
            )
        )
    found = replayed(turns)
    assert found.policy_is_told
    assert found.as_it_was.policy == "after(1 s)"
    measured = sorted(t.report.ttft_secs or 0 for t in turns)[int(0.95 * 1500)]
    assert found.as_it_was.p95_secs == pytest.approx(measured, rel=0.1)
    assert found.without.mean_secs > found.as_it_was.mean_secs
    assert "p99" in found.without.at_least


def hedged_to_its_like(seed: int, turns: int = 1400) -> list[LoggedTurn]:
    """A hedge at 1.1 s to a provider that is no other than the first, the loser cut short."""
    made = list[LoggedTurn]()
    waits = zip(HAIKU.samples(turns, seed), HAIKU.samples(turns, 5000 + seed), strict=True)
    for one, other in waits:
        first, hedge = float(one), 1.1 + float(other)
        won, is_first = min(first, hedge), first <= hedge
        asked = [attempt("one", first if is_first else None, ended=won, outcome="won")]
        if first > 1.1:
            asked = [
                attempt(
                    "one",
                    first if is_first else None,
                    ended=won,
                    outcome="won" if is_first else "superseded",
                ),
                attempt(
                    "two",
                    None if is_first else float(other),
                    launched=1.1,
                    ended=won,
                    reason="hedge",
                    outcome="superseded" if is_first else "won",
                ),
            ]
        made.append(turn(*asked, ttft=won, policy="after(1.1 s)"))
    return made


@pytest.mark.parametrize("seed", [1, 2])
def test_nobody_is_advised_to_put_another_first_that_is_its_like(seed: int) -> None:
    """What hedges show of it ends before it is slow; that is said instead."""
    found = replayed(hedged_to_its_like(seed))
    assert not {c.kind for c in found.changes} & {"order", "only one"}
    ((name, known),) = found.unseen
    assert name == "two"
    assert known < found.as_it_was.p95_secs


def test_an_order_that_is_learned_is_not_advised_again() -> None:
    """And other budgets are tried with all else as it is."""
    policy = HedgePolicy.adaptive(0.1, order="learned", target_ttft_secs=0.7, stall_secs=None)
    first, second = HAIKU.samples(300, 1).tolist(), FAST.samples(300, 2).tolist()
    turns = side_by_side(first, second, policy.name)
    candidates = dataclasses.replace(lineup_of(turns), policy=policy)
    tried = trials_of(candidates, recorded_from(t.report for t in turns), [t.report for t in turns])
    policies = dict(next(tried).policies)
    assert LEARNED not in policies
    others = [p for p in policies.values() if isinstance(p.rule, Adaptive)]
    assert others == [with_rule(policy, budget=budget) for budget in (0.05, 0.25, 0.5)]


@pytest.mark.parametrize("count", [1, 12])
def test_a_handful_of_turns_promises_nothing(count: int) -> None:
    """What so few show is chance."""
    turns = [
        turn(attempt("one", w), ttft=w, policy="fallback") for w in GEMMA.samples(count, 8).tolist()
    ]
    assert replayed(turns).changes == ()


def test_where_nobody_ever_answered_nothing_is_replayed() -> None:
    """Neither where nobody was asked."""
    dead = attempt(ttft=None, ended=0.2, outcome="failed", error_category="server")
    turns = [turn(dead, ttft=None, outcome="failed")] * 30
    assert replays_of(turns, lineup_of(turns), 0.8) is None


def test_a_policy_that_the_log_does_not_tell_is_said_to_be_a_guess() -> None:
    """By how many hedges there were."""
    waits = GEMMA.samples(200, 9).tolist()
    found = replayed([turn(attempt("one", w), ttft=w, policy="my own") for w in waits])
    assert not found.policy_is_told
    assert found.as_it_was.policy == "fallback"
