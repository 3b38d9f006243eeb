"""Why a turn was slow, in a sentence."""

from __future__ import annotations

import dataclasses

import pytest

from pipecat_hedge.race.reports import AttemptReport
from pipecat_hedge.tools.analysis.report.causes import slowest_turns
from pipecat_hedge.tools.analysis.report.timelines import key_to, timeline
from pipecat_hedge.tools.analysis.report.turns import LoggedTurn
from tests.tools.analysis.report.made_up import BEGIN_AT, attempt, cold, turn

USUAL = {"one": 0.5, "two": 0.3}


def lost(secs: float, **fields: object) -> AttemptReport:
    return attempt(ttft=None, ended=secs, outcome="superseded", **fields)  # type: ignore[arg-type]


def hedge(at: float, ttft: float, **fields: object) -> AttemptReport:
    return attempt("two", ttft, launched=at, reason="hedge", **fields)  # type: ignore[arg-type]


FAILED = attempt(ttft=None, ended=4.1, outcome="failed", error_category="rate_limit")


@pytest.mark.parametrize(
    ("made", "cause", "provider", "told"),
    [
        (
            turn(attempt(ttft=4.0), ttft=4.0),
            "slow",
            "one",
            "one took 4.00 s to its first token, 8.0 times its usual 0.50 s",
        ),
        (
            turn(lost(1.02), hedge(0.74, 0.28), ttft=1.02),
            "silence",
            "one",
            "one was silent for 1.02 s; hedge to two launched at 0.74 s won at 1.02 s",
        ),
        (
            turn(
                lost(4.4, stages=cold(0, new_connection=False, headers=0.3)),
                hedge(4.2, 0.2),
                ttft=4.4,
            ),
            "silence",
            "one",
            "one stalled 4.10 s after headers; hedge to two launched at 4.20 s won at 4.40 s",
        ),
        (
            turn(FAILED, attempt("two", 0.3, launched=4.1, reason="failure"), ttft=4.4),
            "failure",
            "one",
            "one failed at 4.10 s (rate limit); replacement two launched at 4.10 s won at 4.40 s",
        ),
        (
            turn(attempt(ttft=1.5, stages=cold(0.9)), ttft=1.5),
            "cold connection",
            "one",
            "one took 1.50 s to its first token, 3.0 times its usual 0.50 s, "
            "0.90 s of it to open a connection",
        ),
        (
            turn(attempt(ttft=0.5, launched=2.1), ttft=2.6, queued_secs=2.1),
            "no room",
            None,
            "waited 2.10 s until there was room; one took 0.50 s to its first token",
        ),
        (
            turn(lost(5.0), hedge(1.0, 4.0), ttft=5.0),
            "all slow",
            None,
            "one was silent for 5.00 s; hedge to two launched at 1.00 s won at 5.00 s",
        ),
        (
            turn(attempt(ttft=3.0), lost(3.0, launched=1.0, reason="hedge"), ttft=3.0),
            "slow",
            "one",
            "one took 3.00 s to its first token, 6.0 times its usual 0.50 s; "
            "hedge to one launched at 1.00 s was silent for 2.00 s",
        ),
        (
            turn(FAILED, ttft=None, outcome="failed", duration_secs=4.1),
            "failure",
            "one",
            "one failed at 4.10 s (rate limit); the caller had no answer",
        ),
        (
            turn(
                attempt(
                    ttft=None, ended=3, outcome="failed", error_category="shed", sent_secs=None
                ),
                ttft=None,
                outcome="failed",
                duration_secs=3.0,
                degraded_reason="no room",
            ),
            "no room",
            None,
            "one: there was no room for the request; the caller heard the fallback text",
        ),
    ],
)
def test_the_cause_is_named(made: LoggedTurn, cause: str, provider: str | None, told: str) -> None:
    """Whatever took most of the wait, with who and when."""
    (slow,) = slowest_turns([made], USUAL)
    assert (slow.cause, slow.provider, slow.told) == (cause, provider, told)


def test_nobody_was_asked() -> None:
    """Every provider was left alone."""
    told = {"outcome": "failed", "degraded_reason": "all left alone", "duration_secs": 0.1}
    made = turn(attempt(), ttft=None, **told)
    alone = LoggedTurn(dataclasses.replace(made.report, attempts=()), made.at)
    (slow,) = slowest_turns([alone], USUAL)
    assert slow.cause == "nobody asked"
    assert slow.outcome == "degraded"


def test_the_slowest_come_first_and_who_hung_up_is_one_of_them() -> None:
    """A turn without an answer by how long it was waited for; who gave up waited longer."""
    cut = attempt(ttft=None, ended=9.0, outcome="interrupted")
    turns = [
        turn(ttft=1.0),
        turn(FAILED, ttft=None, outcome="failed", duration_secs=4.1),
        turn(cut, ttft=None, outcome="interrupted"),
        turn(ttft=3.0, at=BEGIN_AT + 60),
        gone(2.5),
    ]
    found = slowest_turns(turns, {}, most=4)
    assert [s.place for s in found] == [3, 2, 4, 5]
    assert found[2].at == pytest.approx(BEGIN_AT + 60)
    assert [s.given_up for s in found] == [True, False, False, True]
    assert (found[0].waited_secs, found[0].cause, found[0].provider) == (9.0, "silence", "one")
    assert found[0].told == "one was silent for 9.00 s; the caller gave up"
    assert (found[3].cause, found[3].told) == (
        "no room",
        "waited 2.50 s for room; the caller gave up",
    )
    assert "&gt; 9.00 s" in timeline(found[0], None)


def gone(secs: float) -> LoggedTurn:
    """The caller went while waiting for room: nobody was asked."""
    made = turn(attempt(), ttft=None, outcome="failed", duration_secs=secs, queued_secs=secs)
    return LoggedTurn(dataclasses.replace(made.report, attempts=(), winner=None), made.at)


def test_a_colour_that_is_in_no_timeline_is_not_explained() -> None:
    """A connection that was opened has one of its own."""
    warm, opened = (
        slowest_turns([turn(attempt(ttft=1.5, stages=stages), ttft=1.5)], USUAL)
        for stages in (cold(0, new_connection=False), cold(0.9))
    )
    assert "opening a connection" not in key_to(warm)
    assert "opening a connection" in key_to([*warm, *opened])
    assert "waiting for the first token" in key_to(warm)
