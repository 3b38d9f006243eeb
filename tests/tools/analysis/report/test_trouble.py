"""Providers' bad spells, and their cost."""

from __future__ import annotations

import random

import pytest

from pipecat_hedge.policy.slo_outcome import Slo
from pipecat_hedge.tools.analysis.report.providers import provider_figures
from pipecat_hedge.tools.analysis.report.trouble import Spell, spells_of
from pipecat_hedge.tools.analysis.report.turns import LoggedTurn
from tests.tools.analysis.report.made_up import BEGIN_AT, attempt, turn

SLO = Slo(ttft_secs=0.8)


def found(turns: list[LoggedTurn]) -> tuple[Spell, ...]:
    return spells_of(turns, provider_figures(turns), SLO)


def hour(slow: range, *, with_times: bool = True) -> list[LoggedTurn]:
    """A turn every ten seconds; each costs a cent, and in slow ones a hedge loses for another."""
    rng = random.Random(3)
    turns = list[LoggedTurn]()
    for n in range(360):
        ttft = rng.uniform(0.4, 0.6) * (5 if n in slow else 1)
        hedge = attempt(
            "two", None, launched=1.0, ended=ttft, reason="hedge", outcome="superseded", usd=0.01
        )
        first = attempt(ttft=ttft, usd=0.01)
        at = BEGIN_AT + 10 * n if with_times else None
        turns.append(turn(first, *([hedge] if n in slow else []), ttft=ttft, at=at))
    return turns


def test_a_slow_provider_is_named_with_the_time_and_the_cost() -> None:
    """Five minutes of an hour: who, from when to when, and what it cost."""
    turns = hour(range(120, 150))
    (spell,) = found(turns)
    assert (spell.provider, spell.kind) == ("one", "slow")
    assert spell.begin_at == pytest.approx(BEGIN_AT + 1200)
    assert spell.end_at == pytest.approx(BEGIN_AT + 1490 + turns[149].report.duration_secs)
    assert (spell.requests, spell.bad, spell.turns) == (30, 30, 30)
    calm = [t.report.ttft_secs or 0 for n, t in enumerate(turns) if not 120 <= n < 150]
    slow = [t.report.ttft_secs or 0 for t in turns[120:150]]
    usual = sum(calm) / len(calm)
    assert spell.extra_wait_secs == pytest.approx(sum(slow) - 30 * usual)
    assert spell.extra_requests == pytest.approx(30)
    assert spell.extra_usd == pytest.approx(0.30)
    assert (spell.kept.share, spell.usual_kept.share) == (0, 1)
    assert spell.usual_p50 is not None
    assert spell.p50 is not None
    assert spell.p50.secs > 4 * spell.usual_p50.secs


def test_hedges_do_not_hide_it() -> None:
    """Every slow answer was cancelled when the hedge won: longer than so much is enough."""
    turns = hour(range(0))
    for n in range(100, 140):
        lost = attempt(ttft=None, ended=0.95, outcome="superseded")
        won = attempt("two", 0.35, launched=0.6, reason="hedge")
        turns[n] = turn(lost, won, ttft=0.95, at=BEGIN_AT + 10 * n)
    (spell,) = found(turns)
    assert (spell.provider, spell.first_turn, spell.last_turn) == ("one", 101, 140)
    assert spell.p50 is not None
    assert spell.p50.is_least


def test_a_failing_provider_is_told_from_a_slow_one() -> None:
    """With why it failed, and how many callers had no answer."""
    turns = hour(range(0))
    for n in range(200, 220):
        failed = attempt(ttft=None, ended=0.1, outcome="failed", error_category="rate_limit")
        turns[n] = turn(failed, ttft=None, outcome="failed", at=BEGIN_AT + 10 * n)
    (spell,) = found(turns)
    assert (spell.kind, spell.failures, spell.unanswered) == ("failing", {"rate_limit": 20}, 20)
    assert spell.extra_wait_secs is None


def test_without_times_it_is_told_by_turns() -> None:
    """And nothing is said of hours."""
    (spell,) = found(hour(range(120, 150), with_times=False))
    assert (spell.begin_at, spell.first_turn, spell.last_turn) == (None, 121, 150)


def test_a_calm_hour_has_none() -> None:
    """Nor does a provider that was hardly asked."""
    assert found(hour(range(0))) == ()
    assert found(hour(range(120, 150))[115:130]) == ()


def test_room_that_was_not_there_is_not_the_providers_doing() -> None:
    """A request that gave its place to another says nothing of how the provider did."""
    turns = hour(range(0))
    for n in range(200, 220):
        gone = attempt(ttft=None, ended=2.0, outcome="failed", error_category="shed")
        turns[n] = turn(gone, ttft=None, outcome="failed", at=BEGIN_AT + 10 * n)
    assert found(turns) == ()
