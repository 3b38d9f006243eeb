"""A turn's report and its latency become one line, whichever comes first."""

import pytest
from examples.voice_bot.turn_log import LoggedTurn, TurnLog

from pipecat_hedge import AttemptReport, TurnReport
from pipecat_hedge.facts import TurnOutcome


def a_report(turn: int = 1, outcome: TurnOutcome = "answered", **changes: object) -> TurnReport:
    answered = outcome.startswith("answered")
    values: dict[str, object] = {
        "turn": turn,
        "winner": "fast" if answered else None,
        "outcome": outcome,
        "ttft_secs": 0.2134 if answered else None,
        "ttfs_secs": None,
        "duration_secs": 0.9,
        "attempts": (),
        **changes,
    }
    return TurnReport(**values)  # type: ignore[arg-type]


def test_a_short_answer_is_complete_before_it_is_heard() -> None:
    """The report waits for the latency."""
    log, report = TurnLog(), a_report()
    assert log.reported(report) == []
    assert log.heard(0.6) == [LoggedTurn(report, 0.6)]
    assert log.close() == []


def test_a_long_answer_is_heard_before_it_is_complete() -> None:
    """The latency waits for the report."""
    log, report = TurnLog(), a_report()
    assert log.heard(0.6) == []
    assert log.reported(report) == [LoggedTurn(report, 0.6)]


def test_a_latency_belongs_to_one_turn() -> None:
    """It is not told again for the next one."""
    log = TurnLog()
    log.heard(0.6)
    log.reported(a_report(1))
    assert log.reported(a_report(2)) == []
    assert log.close() == [LoggedTurn(a_report(2), None)]


@pytest.mark.parametrize("outcome", ["interrupted", "failed", "answered_with_tools"])
def test_a_turn_that_cannot_be_heard_is_logged_at_once(outcome: TurnOutcome) -> None:
    """An interrupted turn, a failed one and a tool call without words wait for nothing."""
    log, report = TurnLog(), a_report(outcome=outcome)
    assert log.reported(report) == [LoggedTurn(report, None)]


def test_the_latency_of_a_tool_call_is_that_of_the_words_after_it() -> None:
    """The caller waits through both turns; the second is the one that is heard."""
    log = TurnLog()
    log.reported(a_report(1, "answered_with_tools"))
    assert log.reported(a_report(2)) == []
    assert log.heard(0.9) == [LoggedTurn(a_report(2), 0.9)]


def test_words_before_a_tool_call_are_heard() -> None:
    """A turn that speaks and calls a tool has a latency of its own."""
    log, report = TurnLog(), a_report(outcome="answered_with_tools", ttfs_secs=0.3)
    assert log.reported(report) == []
    assert log.heard(0.7) == [LoggedTurn(report, 0.7)]


def test_an_answer_that_is_never_heard_is_logged_by_the_next_turn() -> None:
    """A caller who speaks into the pause before the answer leaves one."""
    log = TurnLog()
    log.reported(a_report(1))
    assert log.reported(a_report(2)) == [LoggedTurn(a_report(1), None)]
    assert log.close() == [LoggedTurn(a_report(2), None)]


def test_a_greeting_is_heard_without_a_latency() -> None:
    """Nobody has spoken before it."""
    log, report = TurnLog(), a_report()
    log.reported(report)
    assert log.heard(None) == [LoggedTurn(report, None)]


def test_the_line_has_the_figures_and_no_words() -> None:
    """One line: outcome, winner, TTFT, voice-to-voice, and each attempt with its outcome."""
    attempts = (
        AttemptReport("slow", "m", 0.0, "primary", None, 0.4, "failed", "server"),
        AttemptReport("fast", "m", 0.4, "failure", 0.2, 0.9, "won"),
    )
    line = LoggedTurn(a_report(3, attempts=attempts), 0.6567).line()
    assert line == (
        "turn 3: answered, winner fast, TTFT 0.213 s, voice-to-voice 0.657 s, "
        "attempts: slow failed (server); fast won (failure at 0.40 s)"
    )
    assert LoggedTurn(a_report(outcome="failed"), None).line() == (
        "turn 1: failed, winner none, TTFT none, voice-to-voice none, attempts: none"
    )
