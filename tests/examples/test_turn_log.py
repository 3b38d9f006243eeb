"""A turn becomes one line for each of its races."""

from typing import Any

from examples.voice_bot.turn_log import LoggedTurn, logged

from pipecat_hedge import AttemptReport, TurnReport
from pipecat_hedge.facts import TurnOutcome
from pipecat_hedge.reports import FillerReport
from pipecat_hedge.turn_latency import TurnLatency


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


def a_turn(*reports: TurnReport, **moments: Any) -> TurnLatency:
    heard = {"anchor": "user_silence", "first_sound_secs": 0.6, "first_answer_secs": 0.6}
    return TurnLatency(turn=1, at=0.0, reports=reports, **heard | moments)


def test_what_was_heard_belongs_to_the_last_race() -> None:
    """The caller waits through a tool call and its answer, and hears the second."""
    call, answer = a_report(1, "answered_with_tools"), a_report(2)
    assert logged(a_turn(call, answer)) == [LoggedTurn(call), LoggedTurn(answer, 0.6, 0.6)]


def test_a_greeting_is_heard_without_a_latency() -> None:
    """Nobody has spoken before it."""
    assert logged(a_turn(a_report(), anchor="context")) == [LoggedTurn(a_report())]


def test_a_turn_without_a_race_is_none() -> None:
    """As when the caller hangs up first."""
    assert logged(a_turn()) == []


def test_a_filler_is_told_apart() -> None:
    """By when it was heard."""
    filler = FillerReport("slow", 0.8, "1.9 s left to wait")
    (race,) = logged(a_turn(a_report(filler=filler), first_sound_secs=1.2, first_answer_secs=3.4))
    assert "voice-to-voice 3.400 s (a filler at 1.200 s)" in race.line()
    assert race.message()["filler"]["cause"] == "slow"
    assert race.message()["first_sound_secs"] == 1.2


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
