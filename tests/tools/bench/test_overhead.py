"""Hedging costs a fraction of what Pipecat itself costs a token."""

from __future__ import annotations

import argparse
import inspect
import re
from pathlib import Path

import pytest

from pipecat_hedge import HedgePolicy
from pipecat_hedge.service import provider_stats
from pipecat_hedge.tools.bench import overhead
from pipecat_hedge.tools.bench.stage_overhead import measure_stages


async def test_a_token_costs_a_fraction_of_what_pipecat_costs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ratios within one run; the figures in milliseconds are printed by the command."""
    cost = await overhead.measure(rounds=25)
    assert cost.token_secs < 0.8 * cost.bare_token_secs
    assert cost.turn_secs < 1.0 * cost.bare_turn_secs


async def test_permits_cost_the_same_whoever_else_there_is() -> None:
    """However many providers the registry knows of, and however many answers are on their way.

    And a twelfth of a turn: 50 µs where a bare one takes 0.6 ms. Asserted of the quickest batches,
    measured turn and turn about: those a busy machine has not slowed down.
    """
    alone, known, among, hedged = (3, 1, 1), (300, 1, 1), (3, 300, 1), (300, 1, 2)
    quickest = dict.fromkeys((alone, known, among, hedged), float("inf"))
    for _ in range(5):
        for case in quickest:
            cost = await overhead.measure_permits(*case, rounds=20)
            quickest[case] = min(quickest[case], cost.quickest_secs)
            print(f"{case}: {cost.quickest_secs * 1e6:.0f}, median {cost.median_secs * 1e6:.0f} µs")
    assert quickest[known] < 1.5 * quickest[alone]
    assert quickest[among] < 1.5 * quickest[alone]
    assert quickest[hedged] < 2.0 * quickest[known]
    turn = await overhead.measure(rounds=7)
    assert max(quickest[alone], quickest[known], quickest[among]) < turn.bare_turn_secs / 12


@pytest.mark.parametrize(("requests", "added_share", "own_share"), [(1, 0.2, 0.3), (2, 0.27, 0.4)])
async def test_metrics_and_traces_cost_little_beside_the_sdk_and_a_turn(
    requests: int, added_share: float, own_share: float
) -> None:
    """What is added to a turn that Pipecat traces, with all counters and a promise.

    Where Pipecat makes no spans and all are ours, it is more. Most of either is what the SDK of
    OpenTelemetry takes to store it; to gather it costs less.
    """
    cost = await overhead.measure_seen(requests)
    spans, bare = cost.spans, cost.bare_turn_secs
    assert spans is not None
    added, own = cost.metrics_secs + spans.added_secs, cost.metrics_secs + spans.own_secs
    print(f"metrics {cost.metrics_secs * 1e6:.0f} µs, a bare turn takes {bare * 1e6:.0f}")
    print(f"added {spans.added_secs * 1e6:.0f} µs, the SDK's {spans.added_sdk_secs * 1e6:.0f}")
    print(f"own {spans.own_secs * 1e6:.0f} µs, the SDK's {spans.own_sdk_secs * 1e6:.0f}")
    assert spans.own_secs < 2.0 * spans.own_sdk_secs
    assert spans.added_secs < 2.5 * spans.added_sdk_secs
    assert 0 < added < added_share * bare
    assert added < own < own_share * bare


async def test_stages_cost_a_fraction_of_a_turn() -> None:
    """Of two requests over new connections; a token pays next to nothing."""
    stages, cost = await measure_stages(), await overhead.measure(rounds=7)
    print(f"stages {stages.turn_secs * 1e6:.0f} µs and {stages.token_secs * 1e6:.2f} µs a token")
    assert 0 < stages.turn_secs < 0.1 * cost.bare_turn_secs
    assert stages.token_secs < 0.02 * cost.bare_token_secs


def test_the_command_prints_both_figures(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Per token and per turn, with the bare service's own for comparison.

    What it learns of its scripted services is not kept with what was learned of real ones.
    """
    kept = tmp_path / "stats.json"
    monkeypatch.setenv("PIPECAT_HEDGE_STATS", str(kept))
    monkeypatch.setattr(provider_stats, "_shared", None)
    assert overhead.run(argparse.Namespace(rounds=1)) == 0
    assert not kept.exists()
    printed = capsys.readouterr().out
    assert "per token" in printed
    assert "per turn" in printed
    assert "breakers, limits and permits" in printed
    assert "a turn of one request" in printed
    assert "Prometheus metrics" in printed
    assert "stages of two requests" in printed
    assert "a turn of two requests pays" in printed
    assert "added to Pipecat's" in printed
    assert "spans of one's own" in printed
    assert "of a bare turn" in printed
    figures = [float(told) for told in re.findall(r"with metrics (\d+)", printed)]
    alone, _, hedged, _ = figures
    assert (usual := re.search(r"10% of turns hedged: (\d+) µs a turn", printed)) is not None
    assert float(usual[1]) == pytest.approx(0.9 * alone + 0.1 * hedged, abs=1.5)


def test_how_often_a_turn_is_hedged_is_the_policys_own_share() -> None:
    """The average that is printed is that of the policy that one gets by default."""
    default = inspect.signature(HedgePolicy.adaptive).parameters["budget"].default
    assert default == overhead.USUALLY_HEDGED


def test_nothing_to_measure_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and the argument's name."""
    assert overhead.run(argparse.Namespace(rounds=0)) == 2
    assert "--rounds" in capsys.readouterr().out
