"""Hedging costs a fraction of what Pipecat itself costs a token."""

from __future__ import annotations

import argparse

import pytest

from pipecat_hedge import overhead


async def test_a_token_costs_a_fraction_of_what_pipecat_costs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ratios within one run; the figures in milliseconds are printed by the command."""
    cost = await overhead.measure(rounds=25)
    assert cost.token_secs < 0.8 * cost.bare_token_secs
    assert cost.turn_secs < 1.0 * cost.bare_turn_secs


async def test_permits_cost_the_same_whoever_else_there_is() -> None:
    """However many providers the registry knows of, and however many answers are on their way.

    And a fraction of a turn. Asserted of the quickest batches, measured turn and turn about: those
    a busy machine has not slowed down.
    """
    alone, known, among = (3, 1), (300, 1), (3, 300)
    quickest = dict.fromkeys((alone, known, among), float("inf"))
    for _ in range(5):
        for case in quickest:
            cost = await overhead.measure_permits(*case, rounds=20)
            quickest[case] = min(quickest[case], cost.quickest_secs)
            print(f"{case}: {cost.quickest_secs * 1e6:.0f}, median {cost.median_secs * 1e6:.0f} µs")
    assert quickest[known] < 1.5 * quickest[alone]
    assert quickest[among] < 1.5 * quickest[alone]
    turn = await overhead.measure(rounds=7)
    assert max(quickest.values()) < 0.5 * turn.bare_turn_secs


def test_the_command_prints_both_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """Per token and per turn, with the bare service's own for comparison."""
    assert overhead.run(argparse.Namespace(rounds=1)) == 0
    printed = capsys.readouterr().out
    assert "per token" in printed
    assert "per turn" in printed
    assert "breakers, limits and permits" in printed


def test_nothing_to_measure_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and the argument's name."""
    assert overhead.run(argparse.Namespace(rounds=0)) == 2
    assert "--rounds" in capsys.readouterr().out
