"""Whether callers got what was promised."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecat_hedge.policy.slo_outcome import Slo
from pipecat_hedge.telemetry.slo_tracker import judge_voice
from pipecat_hedge.tools.analysis.report import read_logs
from pipecat_hedge.tools.analysis.report.periods import Calendar
from pipecat_hedge.tools.analysis.report.promises import promises_of, was_heard_in_time, was_kept
from pipecat_hedge.tools.analysis.report.turns import HeardTurn, LoggedTurn
from pipecat_hedge.voice.turn_timeline import TurnLatency
from tests.tools.analysis.report.made_up import BEGIN_AT, attempt, heard, line, turn

FAILED = attempt(ttft=None, ended=0.3, outcome="failed", error_category="server")
CUT_OFF = attempt(ttft=None, ended=0.3, outcome="interrupted")
NO_ROOM = turn(FAILED, ttft=None, outcome="failed", degraded_reason="no room")


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"ttft": 0.8}, True),
        ({"ttft": 0.81}, False),
        ({"ttft": None, "outcome": "failed"}, False),
        ({"ttft": 0.2, "degraded_reason": "no room"}, False),
        ({"ttft": None, "outcome": "interrupted", "duration_secs": 0.5}, None),
        ({"ttft": None, "outcome": "interrupted", "duration_secs": 0.9}, False),
        ({"ttft": 0.5, "outcome": "interrupted"}, True),
        ({"ttft": 0.9, "outcome": "interrupted"}, False),
    ],
)
def test_a_promise_for_the_first_token(fields: dict[str, Any], kept: bool | None) -> None:
    """Failed and degraded turns broke it; who was interrupted in time says nothing."""
    made = FAILED if fields.get("outcome") == "failed" else CUT_OFF
    attempts = () if fields["ttft"] is not None else (made,)
    assert was_kept(turn(*attempts, **fields), "ttft", 0.8) is kept


def test_a_sentence_that_the_log_does_not_tell_says_nothing() -> None:
    """Neither an answer by tools alone nor a line without the field."""
    tools = turn(ttfs_secs=None, outcome="answered_with_tools")
    assert was_kept(tools, "ttfs", 1.2) is None
    assert was_kept(turn(ttfs_secs=None), "ttfs", 1.2) is False


@pytest.mark.parametrize(
    ("lived", "kept"),
    [
        (heard(1.5), True),
        (heard(1.6), False),
        (heard(None, ended_secs=9.0), False),
        (heard(None, ended_secs=9.0, reports=()), None),
        (heard(0.7, reports=(NO_ROOM.report,)), False),
        (heard(None, interrupted=True, ended_secs=1.0), None),
        (heard(None, interrupted=True, ended_secs=2.0), False),
        (heard(None, interrupted=True), None),
    ],
)
def test_a_promise_for_what_is_heard(lived: HeardTurn, kept: bool | None) -> None:
    """Voice to voice, by the same law: a fallback text is no answer, however soon it is heard."""
    assert was_heard_in_time(lived, 1.5) is kept


SECS = st.none() | st.floats(0, 9)
RACES = st.sampled_from(
    [turn(), NO_ROOM, turn(CUT_OFF, ttft=None, outcome="interrupted"), turn(FAILED, ttft=None)]
)


@given(st.lists(st.tuples(SECS, SECS, st.booleans(), st.booleans(), st.lists(RACES, max_size=2))))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_heard_is_judged_as_the_metrics_judge_it(
    tmp_path: Path, made: list[tuple[float | None, float | None, bool, bool, list[LoggedTurn]]]
) -> None:
    """Turn by turn, from the lines that the observer writes."""
    lived = [
        TurnLatency(
            n,
            BEGIN_AT + n,
            "user_silence",
            first_answer_secs=answer,
            interrupted=interrupted,
            reports=tuple(race.report for race in races),
            ended_secs=ended,
            may_wait=may_wait,
        )
        for n, (answer, ended, interrupted, may_wait, races) in enumerate(made)
    ]
    path = tmp_path / "latency.jsonl"
    lines = [line(), *map(dataclasses.asdict, lived)]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    read = read_logs([path]).heard
    told = [was_heard_in_time(each, 1.5) for each in read]
    assert told == [judge_voice(1.5, each) for each in lived]
    promises = promises_of([], read, {None: Slo()}, None)
    assert sum(p.overall.told for p in promises) == sum(kept is not None for kept in told)


def test_what_is_heard_is_promised_by_tier() -> None:
    """To each its own; a turn without a race is an ordinary caller's, as in the metrics."""
    lived = [heard(1.2, tier="premium"), heard(1.2, tier="economy"), heard(1.2)]
    slos = {None: Slo(), "premium": Slo(voice_to_voice_secs=1.0)}
    found = promises_of([], lived, slos, None)
    assert [(p.tier, p.objective, p.limit_secs, p.is_kept) for p in found] == [
        ("premium", "voice_to_voice", 1.0, False),
        ("standard", "voice_to_voice", 1.5, True),
        ("economy", "voice_to_voice", 1.5, True),
    ]
    assert promises_of([], [heard(1.2)], slos, None)[0].tier is None


def test_each_tier_has_its_own() -> None:
    """By name, or what is promised to all; the best tier first, the unknown one last."""
    turns = [turn(ttft=0.7, tier=tier) for tier in ("economy", "premium", "standard")]
    slos = {None: Slo(ttfs_secs=None), "premium": Slo(ttft_secs=0.6, ttfs_secs=None)}
    found = promises_of(turns, [], slos, None)
    assert [(p.tier, p.limit_secs, p.is_kept) for p in found] == [
        ("premium", 0.6, False),
        ("standard", 0.8, True),
        ("economy", 0.8, True),
    ]


def test_nothing_promised_is_nothing_broken() -> None:
    """None promises nothing of that kind."""
    slo = Slo(ttft_secs=None, ttfs_secs=None, voice_to_voice_secs=None)
    assert promises_of([turn()], [heard(9.0)], {None: slo}, None) == ()


@given(
    st.lists(st.tuples(st.floats(0, 3600), st.floats(0, 3)), min_size=1, max_size=60),
    st.floats(0.1, 2.9),
)
def test_stretches_add_up_to_the_whole(told: list[tuple[float, float]], limit: float) -> None:
    """Turn by turn, whatever the stretches; the worst one has more misses than may be."""
    turns = [turn(ttft=ttft, at=BEGIN_AT + at) for at, ttft in told]
    calendar = Calendar.of([t.began_at for t in turns], UTC)
    slo = Slo(ttft_secs=limit, ttfs_secs=None)
    promise = promises_of(turns, [], {None: slo}, calendar)[0]
    assert promise.overall.told == len(told) == sum(a.told for _, a in promise.by_period)
    assert promise.overall.kept == sum(t <= limit for _, t in told)
    assert promise.overall.kept == sum(a.kept for _, a in promise.by_period)
    if promise.worst is not None:
        assert promise.worst[1].share is not None
        assert promise.worst[1].share < slo.share


def test_the_error_budget_and_its_worst_hour() -> None:
    """Of 240 turns in four hours 24 are late, 18 of them in one hour: 12 may be."""
    late = {*range(70, 106, 2), 5, 15, 25, 150, 200, 230}
    turns = [turn(ttft=2.0 if n in late else 0.5, at=BEGIN_AT + 60.0 * n) for n in range(240)]
    calendar = Calendar.of([t.began_at for t in turns], UTC)
    (promise,) = promises_of(turns, [], {None: Slo(ttfs_secs=None)}, calendar)
    assert promise.budget_left == pytest.approx(1 - 24 / 12)
    burn = promise.worst_burn
    assert burn is not None
    inside = [n for n in range(240) if burn.begin_at - 1 <= BEGIN_AT + 60 * n <= burn.end_at + 1]
    assert burn.end_at - burn.begin_at < 3600
    assert burn.times == pytest.approx(len(late & set(inside)) / len(inside) / 0.05)
    assert burn.times >= 0.999 * 18 / 60 / 0.05
    assert {*range(70, 106, 2)} <= set(inside)


def test_a_handful_of_turns_burns_nothing() -> None:
    """One late turn of three is no bad hour; and without times there is none."""
    few = [turn(ttft=2.0, at=BEGIN_AT + 10 * n) for n in range(19)]
    many = [turn(ttft=2.0, at=None)] * 40
    for turns in (few, many):
        (promise,) = promises_of(turns, [], {None: Slo(ttfs_secs=None)}, None)
        assert promise.worst_burn is None
        assert promise.budget_left == pytest.approx(-19)
    (nothing,) = promises_of([], [heard(None, reports=())], {None: Slo(ttfs_secs=None)}, None)
    assert nothing.budget_left is None
