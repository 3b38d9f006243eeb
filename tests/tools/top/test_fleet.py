"""Several bots made one: what adds up, and what is the worst."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.tools.top.fleet import KEPT_TURNS, Fleet, NotAFeed


def provider(name: str = "a", **fields: Any) -> dict[str, Any]:
    return {
        "provider": name,
        "model": "m",
        "p50_secs": 0.4,
        "p95_secs": 1.1,
        "prior_weight": 0.1,
        "is_excluded": False,
        "retry_after_secs": 0.0,
        "server": None,
        "breaker": "closed",
        "breaker_reason": "",
        "in_flight": 1,
        "limit": 20,
        "requests": 10,
        "won": 9,
        "superseded": 1,
        "failed": 0,
        "interrupted": 0,
        **fields,
    }


def attempt(name: str = "a", **fields: Any) -> dict[str, Any]:
    return {
        "provider": name,
        "launch_reason": "primary",
        "launched_secs": 0.0,
        "ttft_secs": 0.4,
        "outcome": "won",
        "error_category": None,
        **fields,
    }


def turn(number: int = 1, session: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "number": number,
        "at": 1000.0 + number,
        "session": session,
        "turn": number,
        "tier": "standard",
        "policy": "adaptive(10 %)",
        "outcome": "answered",
        "is_degraded": False,
        "winner": "a",
        "ttft_secs": 0.4,
        "ttfs_secs": 0.6,
        "voice_to_voice_secs": 1.2,
        "queued_secs": 0.0,
        "filler_secs": None,
        "attempts": [attempt()],
        **fields,
    }


def promise(turns: int, bad: int, tier: str = "standard", **fields: Any) -> dict[str, Any]:
    windows = [
        {"window_secs": secs, "turns": turns, "bad": bad}
        for secs in (300.0, 3600.0, 21_600.0, 259_200.0)
    ]
    return {
        "tier": tier,
        "objective": "ttft",
        "within_secs": 0.8,
        "share": 0.95,
        "windows": windows,
        **fields,
    }


def answer(process: str = "p", **fields: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "process": process,
        "name": "here",
        "at": 1000.0,
        "next": 1,
        "sessions": 1,
        "turns": [turn()],
        "providers": [provider()],
        "budgets": [{"budget": 0.1, "balance": 1.0, "most_credit": 4.0, "share": 0.1}],
        "slos": [promise(100, 2)],
        **fields,
    }


def fleet_of(*answers: dict[str, Any]) -> Fleet:
    fleet = Fleet([f"http://bot{n}" for n in range(1, len(answers) + 1)])
    for bot, told in zip(fleet.bots, answers, strict=True):
        bot.answered(told)
    return fleet


def test_what_adds_up() -> None:
    """Calls, requests, budgets and promises of two processes."""
    fleet = fleet_of(answer("p"), answer("q", slos=[promise(300, 30), promise(5, 0, "premium")]))
    assert fleet.sessions == 2
    assert [(p["requests"], p["in_flight"], p["limit"]) for p in fleet.providers()] == [(20, 2, 40)]
    assert fleet.budgets()[0]["balance"] == 2.0
    standard, premium = fleet.promises()
    assert (standard.windows[0].turns, standard.windows[0].bad) == (400, 32)
    assert (premium.tier, premium.windows[-1].turns) == ("premium", 5)
    assert len(fleet.turns()) == 2


def test_of_states_the_worst() -> None:
    """One process that leaves a provider alone is to be seen among many that do not."""
    broken = provider(breaker="open", breaker_reason="5 of 5 failed", p95_secs=8.0)
    for told in ((answer(), answer("q", providers=[broken])),) * 2:
        (state,) = fleet_of(*told).providers()
        assert (state["breaker"], state["breaker_reason"]) == ("open", "5 of 5 failed")
        assert state["p95_secs"] == 8.0


def test_a_bot_that_was_started_anew_counts_from_one() -> None:
    """What its predecessor did is forgotten, and it is asked for all that it has."""
    fleet = fleet_of(answer(next=7, turns=[turn(6), turn(7)]))
    (bot,) = fleet.bots
    assert bot.after == 7
    bot.answered(answer("another", next=9, turns=[]))
    assert bot.after == 0
    bot.answered(answer("another", next=9, turns=[turn(8), turn(9)]))
    assert ([t["turn"] for _, t in fleet.turns()], bot.after) == ([9, 8], 9)


def test_a_bot_that_is_away_is_not_counted() -> None:
    """Its turns stay to be seen; how things stand with it is not known."""
    fleet = fleet_of(answer("p"), answer("q"))
    assert fleet.bots[1].is_away("connection refused", 1000.0)
    assert not fleet.bots[1].is_away("connection refused", 1001.0)
    assert fleet.bots[1].is_away("no answer in 5 s", 1002.0)
    assert (fleet.sessions, len(fleet.turns()), fleet.bots[1].away_since) == (1, 2, 1000.0)
    fleet.bots[1].answered(answer("q"))
    assert fleet.sessions == 2


def test_a_turn_that_has_changed_is_told_again() -> None:
    """And is one turn."""
    fleet = fleet_of(answer(turns=[turn(1, voice_to_voice_secs=None)]))
    fleet.bots[0].answered(answer(turns=[{**turn(1), "number": 2}]))
    assert [t["voice_to_voice_secs"] for _, t in fleet.turns()] == [1.2]


@pytest.mark.parametrize("told", [None, [], "no", {}, {"process": "p"}, answer(version=2)])
def test_what_is_no_feed_is_refused(told: Any) -> None:
    """Another program, or another release."""
    with pytest.raises(NotAFeed):
        Fleet(["http://bot"]).bots[0].answered(told)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"next": "7"}, "next"),
        ({"sessions": True}, "sessions"),
        ({"turns": {}}, "turns"),
        ({"turns": [turn(), turn(2, at=float("nan"))]}, "turns.1.at"),
        ({"turns": [turn(outcome=None)]}, "turns.0.outcome"),
        ({"turns": [turn(attempts=[attempt(), None])]}, "turns.0.attempts.1"),
        ({"providers": [provider(p95_secs=None)]}, "providers.0.p95_secs"),
        ({"providers": [provider(breaker="ajar")]}, "providers.0.breaker"),
        ({"providers": [provider(server={"is_up": True})]}, "providers.0.server.waiting"),
        ({"slos": [promise(1, 0, share=1)]}, "slos.0.share"),
        ({"slos": [promise(1, 0, windows=[])]}, "slos.0.windows"),
    ],
)
def test_what_is_odd_in_a_feed_is_named(fields: dict[str, Any], where: str) -> None:
    """And nothing of that answer is taken."""
    (bot,) = fleet_of(answer()).bots
    with pytest.raises(NotAFeed, match=rf"its {where} is not as in a feed of turns"):
        bot.answered(answer(**{"next": 9, **fields}))
    assert (bot.after, len(bot.turns)) == (1, 1)


def test_how_far_back_all_turns_are_known() -> None:
    """Not further than the latest that was let go, by the one who tells or the one who looks."""
    fleet = fleet_of(answer(turns=[turn(n) for n in range(1, KEPT_TURNS + 1)]))
    (bot,) = fleet.bots
    assert fleet.knows_all_since(0.0)
    bot.answered(answer(turns=[turn(KEPT_TURNS + 1), turn(KEPT_TURNS + 2)]))
    assert not fleet.knows_all_since(1002.0)
    assert fleet.knows_all_since(1002.5)
    latest = 1000.0 + KEPT_TURNS + 2
    bot.answered(answer(turns=[], turns_since=latest))  # seen before it was let go there
    assert fleet.knows_all_since(1002.5)
    bot.answered(answer(turns=[turn(2000)], turns_since=latest + 5))
    assert not fleet.knows_all_since(latest + 5)
    assert fleet.knows_all_since(latest + 5.5)
    bot.answered(answer("another", turns=[turn(1)]))
    assert fleet.knows_all_since(0.0)


@given(st.text())
def test_nothing_that_is_told_gives_the_terminal_orders(name: str) -> None:
    """A provider's name may be anything."""
    fleet = fleet_of(answer(providers=[provider(name)]))
    assert fleet.providers()[0]["provider"].isprintable()
