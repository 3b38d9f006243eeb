"""A turn becomes one line for each of its races."""

from typing import Any

import pytest
from examples.voice_bot.turn_log import LoggedTurn, Playback, logged

from pipecat_hedge import AttemptReport, TranscriptReport, TurnReport
from pipecat_hedge.race import FillerReport, StageReport, TurnOutcome
from pipecat_hedge.voice import TurnLatency

HEARD = Playback(0.6, None, 0.6)


def a_report(turn: int = 1, outcome: TurnOutcome = "answered", **changes: Any) -> TurnReport:
    answered = outcome.startswith("answered")
    values: dict[str, Any] = {"ttfs_secs": None, "duration_secs": 0.9, "attempts": (), **changes}
    values |= {"winner": "fast", "ttft_secs": 0.2134} if answered else {}
    return TurnReport(turn=turn, outcome=outcome, **{"winner": None, "ttft_secs": None, **values})


def an_attempt(provider: str, at: float, ttft: float | None, ended: float, **fields: Any):
    outcome = fields.pop("outcome", "won" if ttft else "superseded")
    reason = "hedge" if at else "primary"
    return AttemptReport(provider, "m", at, reason, ttft, ended, outcome, **fields)


def a_turn(*reports: TurnReport, **moments: Any) -> TurnLatency:
    heard = {"anchor": "user_silence", "first_sound_secs": 0.6, "first_answer_secs": 0.6}
    moments.setdefault("asked_secs", tuple(0.3 + 1.2 * n for n in range(len(reports))))
    return TurnLatency(turn=1, at=0.0, reports=reports, **heard | moments)


def test_what_was_heard_belongs_to_the_last_race() -> None:
    """The caller waits through a tool call and its answer, and hears the second."""
    call, answer = a_report(1, "answered_with_tools"), a_report(2)
    assert logged(a_turn(call, answer)) == [
        LoggedTurn(call, origin="user_silence", asked_secs=0.3),
        LoggedTurn(answer, 0.6, 0.6, "user_silence", 1.5, HEARD, continues=True),
    ]
    assert logged(a_turn()) == []  # the caller has hung up first


def test_a_greeting_is_heard_without_a_latency() -> None:
    """No caller's turn comes before it."""
    (race,) = logged(a_turn(a_report(), anchor="context", asked_secs=(0.0,)))
    assert race == LoggedTurn(a_report(), playback=HEARD)


def test_a_filler_is_told_apart() -> None:
    """By when it was heard."""
    filler = FillerReport("slow", 0.8, "1.9 s left to wait")
    (race,) = logged(a_turn(a_report(filler=filler), first_sound_secs=1.2, first_answer_secs=3.4))
    assert "voice-to-voice 3.400 s (a filler at 1.200 s)" in race.line()
    assert race.message()["filler"]["cause"] == "slow"
    assert race.message()["first_sound_secs"] == 1.2


def test_all_moments_of_a_turn_have_one_origin() -> None:
    """The caller's silence: a race's own times are moved, and durations are not."""
    attempts = (an_attempt("slow", 0.0, None, 0.9), an_attempt("fast", 0.6, 0.2, 1.4))
    report = a_report(attempts=attempts, committed_secs=0.9, filler=FillerReport("slow", 0.7, ""))
    turn = a_turn(report, first_sound_secs=1.1, filler_end_secs=1.3, first_answer_secs=1.4)
    message = logged(turn)[0].message()
    assert (message["origin"], message["asked_secs"]) == ("user_silence", 0.3)
    assert message["committed_secs"] == pytest.approx(1.2)
    heard = {"sound_secs": 1.1, "filler_end_secs": 1.3, "answer_secs": 1.4, "interrupted": False}
    assert message["heard"] == heard
    moments = ("launched_secs", "first_token_secs", "ended_secs", "ttft_secs")
    slow, fast = ([attempt[m] for m in moments] for attempt in message["attempts"])
    assert slow == [0.3, None, pytest.approx(1.2), None]
    assert fast == pytest.approx([0.9, 1.1, 1.7, 0.2])


def test_a_connection_that_was_opened_on_the_turn_is_told() -> None:
    """How long that took, both parts together; nothing where one was open or it is unknown."""
    cold = StageReport(new_connection=True, tcp_secs=0.05, tls_secs=0.125)
    attempts = tuple(
        an_attempt("slow", 0.0, None, 0.9, stages=stages)
        for stages in (cold, StageReport(new_connection=False), None)
    )
    told = LoggedTurn(a_report(attempts=attempts)).message()["attempts"]
    assert [attempt["connecting_secs"] for attempt in told] == [0.175, None, None]


def test_the_wait_for_the_transcript_is_told() -> None:
    """And whether another recogniser had to help."""
    late = TranscriptReport("deepgram", 0.45, 1, None, is_rescued=True)
    (told,) = LoggedTurn(a_report(transcripts=(late,))).message()["transcripts"]
    found = [told[name] for name in ("transcript_secs", "is_rescued", "was_replaced")]
    assert found == [0.45, True, False]


def test_an_interrupted_turn_says_so() -> None:
    """As far as it went."""
    silent = {"first_sound_secs": None, "first_answer_secs": None}
    (race,) = logged(a_turn(a_report(outcome="interrupted"), interrupted=True, **silent))
    nothing = dict.fromkeys(("sound_secs", "filler_end_secs", "answer_secs"))
    assert race.message()["heard"] == {**nothing, "interrupted": True}
    assert race.message()["committed_secs"] is None


def test_the_line_has_the_figures_and_no_words() -> None:
    """One line: outcome, winner, TTFT, voice-to-voice, and each attempt with its outcome."""
    attempts = (
        an_attempt("slow", 0.0, None, 0.4, outcome="failed", error_category="server"),
        an_attempt("fast", 0.4, 0.2, 0.9),
    )
    assert LoggedTurn(a_report(3, attempts=attempts), 0.6567).line() == (
        "turn 3: answered, winner fast, TTFT 0.213 s, voice-to-voice 0.657 s, "
        "attempts: slow failed (server); fast won (hedge at 0.40 s)"
    )
    assert LoggedTurn(a_report(outcome="failed"), None).line() == (
        "turn 1: failed, winner none, TTFT none, voice-to-voice none, attempts: none"
    )
