"""Whether callers got what was promised."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policies.slo import Slo
from pipecat_hedge.report.periods import Calendar
from pipecat_hedge.report.promises import promises_of, was_heard_in_time, was_kept
from pipecat_hedge.report.turns import HeardTurn
from tests.report.made_up import BEGIN_AT, attempt, turn

FAILED = attempt(ttft=None, ended=0.3, outcome="failed", error_category="server")
CUT_OFF = attempt(ttft=None, ended=0.3, outcome="interrupted")


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
    ("heard", "kept"),
    [
        (HeardTurn(None, 1.5), True),
        (HeardTurn(None, 1.6), False),
        (HeardTurn(None, None), False),
        (HeardTurn(None, None, interrupted=True, waited_secs=1.0), None),
        (HeardTurn(None, None, interrupted=True, waited_secs=2.0), False),
    ],
)
def test_a_promise_for_what_is_heard(heard: HeardTurn, kept: bool | None) -> None:
    """Voice to voice, by the same law."""
    assert was_heard_in_time(heard, 1.5) is kept


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
    assert promises_of([turn()], [HeardTurn(None, 9.0)], {None: slo}, None) == ()


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
