"""What is demanded of the hedged service, and said when it does not hold."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pipecat_hedge.tools.bench.drill.checks import failed_checks, failed_goal
from pipecat_hedge.tools.bench.drill.figures import Figures, figures
from pipecat_hedge.tools.bench.drill.plans import DRILLS
from pipecat_hedge.tools.bench.drill.variants import VARIANTS

from .made_up import counts, record, steadily, turn

HEDGED = VARIANTS["hedged"]
DOWN = DRILLS["down"]


@pytest.fixture(scope="module")
def good() -> Figures:
    """A run in which everything holds."""
    turns = [turn(at, premium=True) for at in steadily(155, 10)]
    asked = {
        "first": counts((15, 10), (2, 10), (38, 0), (60, 0), (40, 10)),
        "second": counts((15, 1), (2, 0), (98, 10), (40, 1)),
    }
    return figures(DOWN, record(DOWN, turns, asked))


def test_all_holds(good: Figures):
    """Nothing is said."""
    assert failed_checks(DOWN, HEDGED, good) == []


def test_who_has_not_ended_has_lost_nothing_only_where_it_was_killed(good: Figures):
    """Thirty seconds after the end of a drill everybody has heard something."""
    (line,) = failed_checks(DOWN, HEDGED, replace(good, unended=2))
    assert "2 turns had not ended 30 s after the drill, of 1550" in line
    killed = replace(DOWN, name="process")
    assert failed_checks(killed, HEDGED, replace(good, unended=2)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"lost": 3, "lost_why": {"silence": 1, "broken off": 2}},
            "down, hedged: 3 turns lost (1 silence, 2 broken off), of 1550",
        ),
        ({"requests_per_turn": 1.2, "replacements_per_turn": 0.04}, "1.16 requests a turn on av"),
        ({"worst_requests_per_turn": 1.37}, "1.37 requests a turn in the worst 15 s; at most 1.36"),
        ({"broken_share": 0.02}, "2.0% of its usual requests from 10 s on"),
        ({"recover_secs": 91.0}, "the full share took 91 s; at most 90"),
        ({"recover_secs": None}, "the full share was not back"),
        ({"load_after": 1.51}, "1.51 times the usual load; at most 1.5"),
        ({"cpu_share": (0.9, 1.0)}, "this machine was 90% busy"),
        ({"requests_per_turn": None}, "no turn began"),
    ],
)
def test_what_does_not_hold(good: Figures, change: dict[str, Any], words: str):
    """One line, with the figure and what it was to be."""
    (line,) = failed_checks(DOWN, HEDGED, replace(good, **change))
    assert words in line


@pytest.mark.parametrize(
    "change",
    [
        {"requests_per_turn": 1.3, "replacements_per_turn": 0.2},  # failures are replaced
        {"worst_requests_per_turn": 1.35},  # what may be sent at once, of 150 turns
        {"requests_per_turn": 1.14},  # credit from before, and chance, of 1550
        {"broken_share": 0.0199, "recover_secs": 90.0, "load_after": 1.5},
    ],
)
def test_what_just_holds(good: Figures, change: dict[str, Any]):
    """The bounds themselves are allowed."""
    assert failed_checks(DOWN, HEDGED, replace(good, **change)) == []


def test_providers_that_are_all_broken_are_asked_on(good: Figures):
    """Nobody is left to be asked in their place."""
    assert failed_checks(DRILLS["return"], HEDGED, replace(good, broken_share=2.8)) == []


def test_nothing_is_demanded_of_the_others(good: Figures):
    """They are there to be compared with."""
    assert failed_checks(DOWN, VARIANTS["bare"], replace(good, lost=500)) == []


def test_a_crowd(good: Figures):
    """Premium callers wait as in calm, while others are shed; else it was no crowd."""
    crowded = DRILLS["crowded"]
    (shed,) = (variant for variant in crowded.variants if variant.admission == "shed")
    fine = replace(good, calm_p95_secs=1.0, premium_p95_secs=3.5, degraded=9)
    assert failed_checks(crowded, shed, fine) == []
    (line,) = failed_checks(crowded, shed, replace(fine, premium_p95_secs=3.6))
    assert "premium p95 is 3.60 times that of calm" in line
    (line,) = failed_checks(crowded, shed, replace(fine, premium_p95_secs=math.inf))
    assert "premium p95 is inf times" in line
    (line,) = failed_checks(crowded, shed, replace(fine, degraded=0))
    assert "nobody was shed" in line


def test_the_goal_of_the_jagged_edges(good: Figures):
    """One budget that reaches all of it is enough."""
    reached = replace(good, p95_secs=0.8, p99_secs=1.5, degraded=1, turns=1000)
    assert failed_goal([replace(good, p95_secs=2.3), reached]) == []
    for missed in (
        replace(reached, p95_secs=0.81),
        replace(reached, p99_secs=1.51),
        replace(reached, p99_secs=None),
        replace(reached, lost=1),
    ):
        assert len(failed_goal([missed])) == 1
