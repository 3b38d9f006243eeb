"""Hedging costs a fraction of what Pipecat itself costs a token."""

from __future__ import annotations

import argparse

import pytest

from pipecat_hedge import overhead
from pipecat_hedge.stage_overhead import measure_stages
from pipecat_hedge.trace_overhead import measure_spans


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


async def test_metrics_and_traces_cost_at_most_100_µs_where_a_bare_turn_takes_600() -> None:
    """What is added to a turn of two requests that Pipecat traces, with all counters and a promise.

    Of the race and its requests all spans may be ours, where Pipecat makes none: that is more.
    """
    metrics, spans = overhead.measure_metrics(), await measure_spans()
    assert spans is not None
    bare = (await overhead.measure(rounds=25)).quickest_bare_turn_secs
    added, own = metrics + spans.added_secs, metrics + spans.own_secs
    print(
        f"metrics {metrics * 1e6:.0f} µs; with what is added to Pipecat's spans {added * 1e6:.0f}"
    )
    print(f"with spans of one's own {own * 1e6:.0f}, and a bare turn takes {bare * 1e6:.0f}")
    assert 0 < added < bare / 6
    assert added < own < bare / 4


async def test_most_of_what_spans_cost_is_the_sdks() -> None:
    """To gather what they say costs little beside having OpenTelemetry's SDK store it."""
    spans = await measure_spans()
    assert spans is not None
    print(f"own {spans.own_secs * 1e6:.0f} µs, the SDK's {spans.own_sdk_secs * 1e6:.0f}")
    print(f"added {spans.added_secs * 1e6:.0f} µs, the SDK's {spans.added_sdk_secs * 1e6:.0f}")
    assert spans.own_secs < 1.5 * spans.own_sdk_secs
    assert spans.added_secs < 2.0 * spans.added_sdk_secs


async def test_stages_cost_a_fraction_of_a_turn() -> None:
    """Of two requests over new connections; a token pays next to nothing."""
    stages, cost = await measure_stages(), await overhead.measure(rounds=25)
    print(f"stages {stages.turn_secs * 1e6:.0f} µs and {stages.token_secs * 1e6:.2f} µs a token")
    assert 0 < stages.turn_secs < 0.1 * cost.quickest_bare_turn_secs
    assert stages.token_secs < 0.02 * cost.bare_token_secs


def test_the_command_prints_both_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """Per token and per turn, with the bare service's own for comparison."""
    assert overhead.run(argparse.Namespace(rounds=1)) == 0
    printed = capsys.readouterr().out
    assert "per token" in printed
    assert "per turn" in printed
    assert "breakers, limits and permits" in printed
    assert "Prometheus metrics" in printed
    assert "stages, cold connections" in printed
    assert "spans of one's own" in printed
    assert "spans with Pipecat's" in printed
    assert "of the quickest bare turn" in printed


def test_nothing_to_measure_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and the argument's name."""
    assert overhead.run(argparse.Namespace(rounds=0)) == 2
    assert "--rounds" in capsys.readouterr().out
