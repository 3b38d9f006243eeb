"""The drills as values, and the figures and checks of runs whose answers are known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipecat_hedge import cli
from pipecat_hedge.tools.bench.drill.command import table
from pipecat_hedge.tools.bench.drill.figures import (
    Figures,
    failed_checks,
    failed_goal,
    figures,
    worst_requests_per_turn,
)
from pipecat_hedge.tools.bench.drill.running import Counts, Record, need, read_lines
from pipecat_hedge.tools.bench.drill.scenarios import (
    ANSWER,
    DRILLS,
    PROVIDERS,
    VARIANTS,
    Drill,
    Event,
    Variant,
)
from pipecat_hedge.tools.bench.drill.worker import (
    FALLBACK,
    Began,
    Outcome,
    Request,
    Sent,
    Turn,
    outcome_of,
)
from pipecat_hedge.tools.simulator import parse_model, read_conditions

BARE, _, HEDGED = VARIANTS
CALM = Drill("calm", "")
DOWN = Drill(
    "down",
    "the first provider refuses connections",
    (Event(20.0, "kill", ("first",)), Event(60.0, "start", ("first",))),
    ends=True,
    broken=("first",),
)
SLOW = replace(DOWN, broken=(), ends=False)


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
        requests=[
            Request(provider="first", at=at + queued_secs, reason=reason, outcome="superseded")
            for reason in reasons
        ],
    )


def record(turns: Iterable[Turn], sent: dict[str, Counts]) -> Record:
    """A run of which every turn has ended, and every request has arrived."""
    kept = list(turns)
    secs = len(next(iter(sent.values())))
    began = np.bincount([int(each.at) for each in kept], minlength=secs)
    return Record(kept, began, sent, sent)


def of_first(series: Counts, drill: Drill = DOWN) -> Figures:
    """The figures of a run with fifty turns a second and these requests to the first provider."""
    turns = [turn(at) for at in steadily(len(series), 50)]
    return figures(drill, HEDGED, record(turns, {"first": series}))


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
    late, early = turn(1002.5, outcome="lost"), turn(1000.25, reasons=("primary", "hedge"))
    lines = [
        late,
        early,
        *(Began(at=at) for at in (999.9, 1000.0, 1000.9, 1002.0, 1003.0)),
        *(Sent(at=at, provider="second") for at in (999.0, 1001.1, 1001.2)),
    ]
    read = read_lines([x.model_dump_json() for x in lines], 1000.0, 3, ["first", "second"])
    assert read.turns == [turn(0.25, reasons=("primary", "hedge")), turn(2.5, outcome="lost")]
    assert read.began.tolist() == [2, 0, 1]
    assert read.sent["second"].tolist() == [0, 2, 0]
    assert read.sent["first"].tolist() == [0, 0, 0]


def test_replacements_are_told_from_hedges():
    """A ``stall`` request replaces one that stays silent, not one that is slow."""

    def request(reason: str, outcome: str, has_token: bool = False) -> Request:
        return Request(provider=reason, at=0.0, reason=reason, outcome=outcome, has_token=has_token)

    def replaced(*requests: Request) -> list[str]:
        made = Turn(at=0.0, outcome="answered", ttft_secs=0.5, requests=list(requests))
        return [each.reason for each in made.replacements]

    silent, stall = request("primary", "superseded"), request("stall", "won", True)
    assert replaced(silent, stall) == ["stall"]
    assert replaced(request("primary", "won", True), stall) == []
    assert replaced(request("primary", "superseded", True), stall) == []
    assert replaced(request("primary", "failed", True), stall) == ["stall"]
    assert replaced(silent, request("hedge", "superseded")) == []
    assert replaced(silent, request("failure", "won", True)) == ["failure"]


# ---- the figures


@pytest.mark.parametrize(
    ("series", "notice_secs", "share"),
    [
        (counts((20, 50), (3, 50), (37, 0), (30, 50)), 3, 0.0),
        (counts((20, 50), (3, 50), (17, 0), (1, 1), (19, 0), (30, 50)), 3, 1 / 30 / 50),
        (counts((20, 50), (40, 1), (30, 50)), None, 0.02),  # 2 % is not avoided
        (counts((20, 50), (38, 50), (2, 0), (30, 50)), 38, 28 / 30),
        (counts((20, 0), (40, 1), (30, 0)), None, None),  # it was not used before
    ],
)
def test_broken_provider_is_noticed(series: Counts, notice_secs: float | None, share: float | None):
    found = of_first(series)
    assert found.notice_secs == notice_secs
    assert found.broken_share == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    ("after", "recover_secs"),
    [
        # 90 % of the usual 500 over ten seconds: 2 x 25 + 8 x 50, from the 18th second
        (counts((10, 1), (10, 25), (40, 50)), 18),
        (counts((40, 44)), None),
        (counts((40, 45)), 0),
        (counts((9, 50)), None),  # too short to say
    ],
)
def test_recovered_when_the_share_is_back(after: Counts, recover_secs: float | None):
    series = np.concatenate([counts((20, 50), (40, 0)), after])
    assert of_first(series).recover_secs == recover_secs


def test_load_is_that_after_the_return():
    """Over as many seconds as 150 turns take; a storm during the failure does not count."""
    series = counts((20, 50), (40, 500), (5, 50), (1, 200), (20, 50))
    assert of_first(series).load_after == pytest.approx(300 / 150)


def test_load_of_each_provider_that_callers_rely_on():
    """The first gets everything when both return: twice its usual load."""
    both = replace(DOWN, broken=("first", "second"))
    first, second = counts((20, 5), (40, 0), (40, 10)), counts((20, 5), (40, 0), (40, 0))
    turns = [turn(at) for at in steadily(100, 10)]
    found = figures(both, HEDGED, record(turns, {"first": first, "second": second}))
    assert found.load_after == 2
    seldom = {"first": first * 2, "second": counts((20, 1), (40, 0), (40, 4))}
    assert figures(both, HEDGED, record(turns, seldom)).load_after == pytest.approx(24 / 11)


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
    found = figures(CALM, HEDGED, record(turns, {"first": sent}))
    assert found.worst_requests_per_turn == pytest.approx(worst)


def test_without_a_broken_provider_the_p95_is_looked_at():
    """Slow from 20 to 32 s: the p95 of ten seconds is back from 32 s on; lost turns are slow."""
    turns = [turn(at, 5.0 if 20 <= at < 32 else 0.7) for at in steadily(60, 10)]
    sent = {"first": counts((60, 10))}
    assert figures(SLOW, HEDGED, record(turns, sent)).notice_secs == 12
    lost = [turn(at, outcome="lost" if at >= 20 else "answered") for at in steadily(60, 10)]
    assert figures(SLOW, HEDGED, record(lost, sent)).notice_secs is None


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
    found = figures(DOWN, HEDGED, record(turns, {"first": counts((100, 11))}))
    assert (found.turns, found.unended, found.degraded, found.lost) == (1000, 0, 10, 0)
    assert (found.calm_p95_secs, found.p50_secs, found.p99_secs) == (0.5, 2.0, 2.0)
    assert found.premium_p95_secs == 2.0
    assert found.requests_per_turn == pytest.approx(1.1)
    assert found.replacements_per_turn == pytest.approx(0.02)


def test_premium_callers_without_an_answer_are_a_wait_without_end():
    """From ten seconds after the failure's beginning, when overload can be known."""
    sent = {"first": counts((60, 10))}
    for end, p95_secs in ((30, 0.5), (60, math.inf)):
        turns = [
            turn(at, outcome="degraded" if 20 <= at < end else "answered", premium=True)
            for at in steadily(60, 10)
        ]
        assert figures(DOWN, HEDGED, record(turns, sent)).premium_p95_secs == p95_secs


def test_turns_of_a_killed_worker_are_unended():
    whole = record([turn(at) for at in steadily(60, 10)], {"first": counts((60, 10))})
    left = [t for t in whole.turns if not 20 <= t.at < 21]
    found = figures(CALM, HEDGED, replace(whole, turns=left))
    assert (found.turns, found.unended, found.lost, found.requests_per_turn) == (590, 10, 0, 1)
    assert (found.notice_secs, found.recover_secs, found.broken_share) == (None, None, None)


# ---- the checks


@pytest.fixture(scope="module")
def good() -> Figures:
    """A run in which everything holds."""
    return of_first(counts((20, 50), (2, 50), (38, 0), (60, 0), (40, 50)))


def test_a_good_run_passes(good: Figures):
    assert failed_checks(DOWN, HEDGED, good) == []
    assert failed_checks(DOWN, BARE, replace(good, lost=500)) == []  # it is there to compare


@pytest.mark.parametrize(
    ("change", "words"),
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
    ],
)
def test_a_failed_check_names_figure_and_bound(good: Figures, change: dict[str, Any], words: str):
    (line,) = failed_checks(DOWN, HEDGED, replace(good, **change))
    assert words in line


@pytest.mark.parametrize(
    "change",
    [
        {"requests_per_turn": 1.3, "replacements_per_turn": 0.2},  # failures are replaced
        {"worst_requests_per_turn": 1.35},  # bursts, over 150 turns
        {"requests_per_turn": 1.13},  # credit from before, and chance
        {"broken_share": 0.0199, "recover_secs": 90.0, "load_after": 1.5},
    ],
)
def test_bounds_are_inclusive(good: Figures, change: dict[str, Any]):
    assert failed_checks(DOWN, HEDGED, replace(good, **change)) == []


def test_some_bounds_depend_on_the_drill(good: Figures):
    """All providers broken: each is still asked. A killed worker: its turns do not end."""
    assert failed_checks(DRILLS["return"], HEDGED, replace(good, broken_share=2.8)) == []
    assert failed_checks(replace(DOWN, name="process"), HEDGED, replace(good, unended=2)) == []


def test_premium_callers_are_protected_from_overload(good: Figures):
    crowded, shed = DRILLS["crowded"], Variant("hedged shed", "hedged", admission="shed")
    fine = replace(good, calm_p95_secs=1.0, premium_p95_secs=3.5, degraded=9)
    assert failed_checks(crowded, shed, fine) == []
    (line,) = failed_checks(crowded, shed, replace(fine, premium_p95_secs=3.6))
    assert "premium p95 is 3.60 times the usual" in line
    (line,) = failed_checks(crowded, shed, replace(fine, degraded=0))
    assert "no turn was rejected" in line


def test_one_budget_has_to_reach_the_goal(good: Figures):
    reached = replace(good, p95_secs=0.8, p99_secs=1.5, degraded=1, turns=1000)
    assert failed_goal([replace(good, p95_secs=2.3), reached]) == []
    for change in ({"p95_secs": 0.81}, {"p99_secs": 1.51}, {"p99_secs": None}, {"lost": 1}):
        assert len(failed_goal([replace(reached, **change)])) == 1


# ---- the command


def test_four_variants_fit_into_80_columns(good: Figures):
    shown = replace(good, variant="hedged given", p99_secs=1.25, notice_secs=0.4)
    lines = table(DRILLS["slow"], [shown] * 4).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("hedged given" in line for line in lines)
    assert any(line.count("1.25 s") == 4 for line in lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fly"], "unknown drill 'fly'; known drills: calm, down, hang"),
        (["--variants", "bare,best"], "unknown variant 'best'; known variants: bare, retry"),
        (["--processes", "0"], "--processes must be more than 0, got 0"),
    ],
)
def test_a_wrong_argument_is_named(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["drill", *arguments]) == 2
    assert words in capsys.readouterr().err
