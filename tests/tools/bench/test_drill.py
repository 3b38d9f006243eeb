"""The drills as values, and the figures and checks of runs whose answers are known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipecat_hedge.tools.bench.drill.command import (
    Figures,
    failed_checks,
    failed_goal,
    figures,
    table,
    worst_requests_per_turn,
)
from pipecat_hedge.tools.bench.drill.running import (
    FALLBACK,
    Began,
    Counts,
    Outcome,
    Record,
    Sent,
    Turn,
    need,
    outcome_of,
    read_lines,
)
from pipecat_hedge.tools.bench.drill.scenarios import (
    ANSWER,
    DRILLS,
    PROVIDERS,
    VARIANTS,
    Drill,
    Event,
    Variant,
)
from pipecat_hedge.tools.simulator import parse_model, read_conditions
from tests.tools.analysis.made_up import attempt

BARE, _, HEDGED = VARIANTS
CALM = Drill("calm", "")
DOWN = Drill(
    "down",
    "the first provider refuses connections",
    (Event(20.0, "kill", ("first",)), Event(60.0, "start", ("first",))),
    ends=True,
    broken=("first",),
)
BOTH = replace(DOWN, broken=("first", "second"))


def counts(*parts: tuple[int, int]) -> Counts:
    """So many seconds of so many requests each."""
    return np.concatenate([np.full(secs, each, np.int64) for secs, each in parts])


def steadily(secs: int, each: int) -> list[float]:
    """The times of so many turns in each second."""
    return [second + part / each for second in range(secs) for part in range(each)]


def turn(
    at: float,
    ttft_secs: float = 0.5,
    outcome: Outcome = "answered",
    *,
    premium: bool = False,
    reasons: Sequence[str] = ("primary",),
    queued_secs: float = 0.0,
) -> Turn:
    """A turn whose requests were all sent when it began, or after some time in a queue."""
    return Turn(
        at=at,
        outcome=outcome,
        why="silence" if outcome == "lost" else None,
        ttft_secs=None if outcome == "lost" else ttft_secs,
        premium=premium,
        requests=tuple(
            attempt("first", None, launched=queued_secs, reason=reason, outcome="superseded")
            for reason in reasons
        ),
    )


def found(drill: Drill, turns: Iterable[Turn], **sent: Counts) -> Figures:
    """The figures of a run of which every turn has ended, and every request has arrived."""
    kept = list(turns)
    secs = len(next(iter(sent.values())))
    began = np.bincount([int(each.at) for each in kept], minlength=secs)
    return figures(drill, HEDGED, Record(kept, began, sent, sent))


def of_first(series: Counts) -> Figures:
    """The figures of a run with fifty turns a second and these requests to the first provider."""
    return found(DOWN, map(turn, steadily(len(series), 50)), first=series)


# ---- the drills


@pytest.mark.parametrize("name", DRILLS)
def test_drill_is_consistent(name: str):
    """Events happen while it is measured, to known providers, with valid conditions."""
    drill = DRILLS[name]
    assert drill.name == name
    assert set(drill.broken) <= set(drill.models) == set(PROVIDERS)
    times = [event.at_secs for event in drill.events]
    assert times == sorted(times)
    for variant in drill.variants:
        assert all(0 < at < drill.secs(variant) for at in times)
    for model in drill.models.values():
        parse_model(model)
    for event in drill.events:
        read_conditions({k: v for k, v in event.conditions.items() if k != "of_need"})
        assert set(event.providers) <= set(PROVIDERS)
    if drill.broken:  # callers give up after 30 s, and a share comes back within 90
        assert drill.return_secs is not None
        assert drill.plain_secs >= drill.return_secs + 30
        assert drill.hedged_secs >= drill.return_secs + 100


def test_pace_multiplies_all_times():
    drill = DRILLS["down"].paced(0.1)
    assert (drill.failure_secs, drill.return_secs) == pytest.approx((1.5, 5.5))
    assert (drill.secs(HEDGED), drill.secs(BARE)) == (16, 10)
    assert DRILLS["calm"].paced(0.5).failure_secs is None


def test_need_follows_littles_law():
    # 50 ms to the first of five tokens, 100 tokens a second: 0.09 s of each 1 s
    assert need("fixed", sessions=100, think_secs=0.91) == pytest.approx(9)
    assert need("fixed?tps=5", sessions=100, think_secs=0.15) == pytest.approx(85)


# ---- what workers write


@pytest.mark.parametrize(
    ("text", "is_over", "outcome"),
    [
        (ANSWER, True, ("answered", None)),
        (FALLBACK, True, ("degraded", None)),
        (f"We are... {FALLBACK}", True, ("degraded", None)),
        (f"We are... {FALLBACK[:8]}", True, ("lost", "broken off")),
        ("", True, ("lost", "silence")),
        (ANSWER, False, ("lost", "no end within 30 s")),
    ],
)
def test_outcome_is_what_the_caller_got(text: str, is_over: bool, outcome: tuple[str, str | None]):
    assert outcome_of(text, is_over=is_over) == outcome


def test_lines_become_a_record():
    """Times count from the measurement's beginning; what is outside of it is left out."""
    lines = [
        turn(1002.5, outcome="lost"),
        turn(1000.25, reasons=("primary", "hedge")),
        *(Began(at=at) for at in (999.9, 1000.0, 1000.9, 1002.0, 1003.0)),
        *(Sent(at=at, provider="second") for at in (999.0, 1001.1, 1001.2)),
    ]
    read = read_lines([x.model_dump_json() for x in lines], 1000.0, 3, ["first", "second"])
    assert read.turns == [turn(0.25, reasons=("primary", "hedge")), turn(2.5, outcome="lost")]
    assert read.began.tolist() == [2, 0, 1]
    assert {name: sent.tolist() for name, sent in read.sent.items()} == {
        "first": [0, 0, 0],
        "second": [0, 2, 0],
    }


def test_replacements_are_told_from_hedges():
    """A ``stall`` request replaces one that stays silent, not one that is slow."""
    for outcome, has_token, reason, is_replaced in (
        ("superseded", False, "stall", True),
        ("won", True, "stall", False),
        ("superseded", True, "stall", False),
        ("failed", True, "stall", True),
        ("superseded", False, "hedge", False),
        ("superseded", False, "failure", True),
    ):
        made = turn(0.0)
        made.requests = (
            attempt(ttft=0.5 if has_token else None, outcome=outcome),
            attempt(reason=reason),
        )
        assert made.replacements == [*made.requests[1:]] * is_replaced


# ---- the figures


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([(20, 50), (3, 50), (37, 0), (30, 50)], {"broken_share": 0.0}),
        (
            [(20, 50), (3, 50), (17, 0), (1, 1), (19, 0), (30, 50)],
            {"broken_share": 1 / 30 / 50},
        ),
        ([(20, 50), (40, 1), (30, 50)], {"broken_share": 0.02}),
        ([(20, 50), (38, 50), (2, 0), (30, 50)], {"broken_share": 28 / 30}),
        # it was not used before
        ([(20, 0), (40, 1), (30, 0)], {"broken_share": None}),
        # 90 % of the usual 500 over ten seconds: 2 x 25 + 8 x 50, from the 18th second
        ([(20, 50), (40, 0), (10, 1), (10, 25), (40, 50)], {"recover_secs": 18}),
        ([(20, 50), (40, 0), (40, 44)], {"recover_secs": None}),
        ([(20, 50), (40, 0), (40, 45)], {"recover_secs": 0}),
        # too short to say
        ([(20, 50), (40, 0), (9, 50)], {"recover_secs": None}),
        # over as many seconds as 150 turns take; a storm during the failure does not count
        ([(20, 50), (40, 500), (5, 50), (1, 200), (20, 50)], {"load_after": 300 / 150}),
    ],
)
def test_requests_to_a_broken_provider(
    parts: list[tuple[int, int]], expected: dict[str, float | None]
):
    """It breaks at 20 s and returns at 60 s: whether it is avoided, and when used again."""
    run = of_first(counts(*parts))
    for name, value in expected.items():
        assert getattr(run, name) == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize(
    ("first", "second", "load"),
    [((5, 10), (5, 0), 2), ((10, 20), (1, 4), 24 / 11)],
    ids=["to the first alone", "the second is seldom used"],
)
def test_load_of_each_provider_that_callers_rely_on(
    first: tuple[int, int], second: tuple[int, int], load: float
):
    """The first gets everything when both return: twice its usual load."""
    before_and_after = [counts((20, a), (40, 0), (40, b)) for a, b in (first, second)]
    sent = dict(zip(("first", "second"), before_and_after, strict=True))
    assert found(BOTH, map(turn, steadily(100, 10)), **sent).load_after == pytest.approx(load)


def test_worst_stretch_holds_enough_turns():
    """Two requests a turn for 2 s: 2 over 20 turns, less over more, 1.1 over all."""
    began, sent = counts((20, 10)), counts((9, 10), (2, 20), (9, 10))
    assert worst_requests_per_turn(sent, began, 20) == (2, 2)
    assert worst_requests_per_turn(sent, began, 31) == (1.5, 4)
    assert worst_requests_per_turn(sent, began, 999) == (pytest.approx(1.1), 20)
    assert worst_requests_per_turn(counts((5, 3)), counts((5, 0)), 2) == (None, 5)


@pytest.mark.parametrize(("hedged_from", "worst"), [(99, 1.0), (13, 1.5)])
def test_queued_turns_count_when_they_send(hedged_from: int, worst: float):
    """The requests of 3 s leave in the fourth: one a turn, and the hedges of that second."""
    turns: list[Turn] = []
    for at in steadily(40, 50):
        second = int(at)
        queued = 13 - second if 10 <= second < 13 else 0
        is_hedged = second + queued == hedged_from and int(at * 50) % 2
        reasons = ("primary", "hedge") if is_hedged else ("primary",)
        turns.append(turn(at, reasons=reasons, queued_secs=queued))
    sent = counts((10, 50), (3, 0), (1, 300 if hedged_from == 13 else 200), (26, 50))
    assert found(CALM, turns, first=sent).worst_requests_per_turn == pytest.approx(worst)


def test_waits_are_those_during_the_failure():
    turns = [
        turn(
            at,
            2.0 if 20 <= at < 60 else 0.5,
            "degraded" if 20 <= at < 21 else "answered",
            premium=int(at * 10) % 10 == 0,
            reasons=("primary", "failure") if 21 <= at < 23 else ("primary",),
        )
        for at in steadily(100, 10)
    ]
    run = found(DOWN, turns, first=counts((100, 11)))
    assert (run.turns, run.unended, run.degraded, run.lost) == (1000, 0, 10, 0)
    assert (run.calm_p95_secs, run.p50_secs, run.p99_secs) == (0.5, 2.0, 2.0)
    assert run.premium_p95_secs == 2.0
    assert run.requests_per_turn == pytest.approx(1.1)
    assert run.replacements_per_turn == pytest.approx(0.02)


@pytest.mark.parametrize(("end", "p95_secs"), [(30, 0.5), (60, math.inf)])
def test_premium_callers_without_an_answer_are_a_wait_without_end(end: int, p95_secs: float):
    """From ten seconds after the failure's beginning, when overload can be known."""
    turns = [
        turn(at, outcome="degraded" if 20 <= at < end else "answered", premium=True)
        for at in steadily(60, 10)
    ]
    assert found(DOWN, turns, first=counts((60, 10))).premium_p95_secs == p95_secs


def test_turns_of_a_killed_worker_are_unended():
    began = counts((60, 10))
    left = [turn(at) for at in steadily(60, 10) if not 20 <= at < 21]
    run = figures(CALM, HEDGED, Record(left, began, {"first": began}, {"first": began}))
    assert (run.turns, run.unended, run.lost, run.requests_per_turn) == (590, 10, 0, 1)
    assert (run.recover_secs, run.broken_share) == (None, None)


# ---- the checks

GOOD = of_first(counts((20, 50), (2, 50), (38, 0), (60, 0), (40, 50)))
"""A run in which everything holds."""
CROWDED, SHED = DRILLS["crowded"], Variant("hedged shed", "hedged", admission="shed")
PROTECTED: dict[str, Any] = {"calm_p95_secs": 1.0, "premium_p95_secs": 3.5, "degraded": 9}


@pytest.mark.parametrize(
    ("drill", "variant", "change"),
    [
        (DOWN, HEDGED, {}),
        (DOWN, BARE, {"lost": 500}),  # it is there to compare
        # failures are replaced; bursts, over 150 turns; credit from before, and chance
        (DOWN, HEDGED, {"requests_per_turn": 1.3, "replacements_per_turn": 0.2}),
        (DOWN, HEDGED, {"worst_requests_per_turn": 1.35}),
        (DOWN, HEDGED, {"requests_per_turn": 1.13}),
        (DOWN, HEDGED, {"broken_share": 0.0199, "recover_secs": 90.0, "load_after": 1.5}),
        (DRILLS["return"], HEDGED, {"broken_share": 2.8}),  # all broken: each is still asked
        (replace(DOWN, name="process"), HEDGED, {"unended": 2}),  # a killed worker's
        (CROWDED, SHED, PROTECTED),
    ],
)
def test_a_good_run_passes(drill: Drill, variant: Variant, change: dict[str, Any]):
    """Bounds are inclusive."""
    assert failed_checks(drill, variant, replace(GOOD, **change)) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"lost": 3, "lost_why": {"silence": 1, "broken off": 2}},
            "down, hedged: 3 turns lost (1 silence, 2 broken off), of",
        ),
        ({"unended": 2}, "2 turns had not ended"),
        ({"requests_per_turn": 1.2, "replacements_per_turn": 0.04}, "1.16 requests per turn on av"),
        ({"worst_requests_per_turn": 1.37}, "1.37 requests per turn in the worst"),
        ({"broken_share": 0.02}, "got 2.0% of its usual requests"),
        ({"recover_secs": 91.0}, "back after 91 s; at most 90"),
        ({"recover_secs": None}, "back after inf s; at most 90"),
        ({"load_after": 1.51}, "1.51 times the usual load after the return; at most 1.5"),
        ({"busy_share": 0.9}, "this machine was 90% busy"),
        ({"requests_per_turn": None}, "no turn began"),
        (PROTECTED | {"premium_p95_secs": 3.6}, "premium p95 is 3.60 times the usual"),
        (PROTECTED | {"degraded": 0}, "no turn was rejected"),
    ],
)
def test_a_failed_check_names_figure_and_bound(change: dict[str, Any], message: str):
    drill, variant = (CROWDED, SHED) if "premium_p95_secs" in change else (DOWN, HEDGED)
    (line,) = failed_checks(drill, variant, replace(GOOD, **change))
    assert message in line


def test_one_budget_has_to_reach_the_goal():
    reached = replace(GOOD, p95_secs=0.8, p99_secs=1.5, degraded=1, turns=1000)
    assert failed_goal([replace(GOOD, p95_secs=2.3), reached]) == []
    for change in ({"p95_secs": 0.81}, {"p99_secs": 1.51}, {"p99_secs": None}, {"lost": 1}):
        assert len(failed_goal([replace(reached, **change)])) == 1


def test_four_variants_fit_into_80_columns():
    shown = replace(GOOD, variant="hedged given", p99_secs=1.25)
    lines = table(DRILLS["slow"], [shown] * 4).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("hedged given" in line for line in lines)
    assert any(line.count("1.25 s") == 4 for line in lines)
