"""Hedging costs a fraction of what Pipecat itself costs a token."""

from __future__ import annotations

import argparse

import pytest

from pipecat_hedge import overhead
from pipecat_hedge.trace_overhead import measure_spans, measure_stages


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


async def test_metrics_cost_a_fraction_of_a_turn() -> None:
    """All of a turn's counters, with a hedge and a promise; the command prints the figure."""
    secs, cost = overhead.measure_metrics(rounds=10), await overhead.measure(rounds=7)
    print(f"metrics: {secs * 1e6:.0f} µs of a turn of {cost.bare_turn_secs * 1e6:.0f}")
    assert secs < 0.25 * cost.bare_turn_secs


async def test_knowing_where_the_time_went_costs_a_fraction_of_a_turn() -> None:
    """Stages and spans, both for two requests; a token pays next to nothing."""
    cost = await overhead.measure(rounds=7)
    stages, spans = await measure_stages(rounds=10), await measure_spans(rounds=10)
    assert spans is not None
    print(f"stages {stages.turn_secs * 1e6:.0f} µs and {stages.token_secs * 1e6:.2f} µs a token")
    print(f"spans {spans * 1e6:.0f} µs, a bare turn {cost.bare_turn_secs * 1e6:.0f} µs")
    assert 0 < stages.turn_secs + spans < 0.5 * cost.bare_turn_secs
    assert stages.token_secs < 0.05 * cost.bare_token_secs


def test_the_command_prints_both_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """Per token and per turn, with the bare service's own for comparison."""
    assert overhead.run(argparse.Namespace(rounds=1)) == 0
    printed = capsys.readouterr().out
    assert "per token" in printed
    assert "per turn" in printed
    assert "breakers, limits and permits" in printed
    assert "Prometheus metrics" in printed
    assert "stages of two requests" in printed
    assert "spans of a race" in printed


def test_nothing_to_measure_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and the argument's name."""
    assert overhead.run(argparse.Namespace(rounds=0)) == 2
    assert "--rounds" in capsys.readouterr().out
