"""Why a turn was slow: the slowest turns, each with its cause named. Pure.

A turn's wait is told as a chain: who was asked, when, and what came of it, up to the answer. The
cause is whatever took the largest part of the wait: the wait for room, a connection that had to be
opened, a provider that failed or one that was silent. What is not in the log is not guessed at:
"silent after its headers" is said only where the headers' time is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pipecat_hedge.race.errors import SHED
from pipecat_hedge.race.reports import AttemptReport
from pipecat_hedge.tools.analysis.report.turns import LoggedTurn, connecting_secs, was_sent
from pipecat_hedge.tools.analysis.report.wording import secs

__all__ = ["Cause", "SlowTurn", "slowest_turns"]

Cause: TypeAlias = Literal[
    "no room", "nobody asked", "cold connection", "failure", "silence", "slow", "all slow"
]
"""What took most of the wait."""

MOST_OF_IT = 0.5
"""A connection, or the wait for room, is the cause if it took so much of the wait."""
UNUSUAL = 1.5
"""An answer that took no longer than so many usual medians was not slow."""


@dataclass(frozen=True, slots=True)
class SlowTurn:
    """One of the slowest turns.

    Parameters:
        place: Its place in the log, from 1.
        at: When it began, in seconds since the epoch; None if the log does not say.
        tier: Whose it was; None if the log does not say.
        outcome: What became of it: ``degraded``, or as in ``TurnReport``.
        waited_secs: To the first token of the answer, or until it ended without one.
        given_up: Whether the caller ended the wait, which would have been longer.
        answered: Whether there was an answer.
        winner: Who gave it.
        cause: What took most of the wait.
        provider: Whose doing that was; None if nobody's in particular.
        told: The same in a sentence, for a person to read.
        queued_secs: How long the first request waited for room.
        attempts: Every attempt, in the order of launch.
    """

    place: int
    at: float | None
    tier: str | None
    outcome: str
    waited_secs: float
    given_up: bool
    answered: bool
    winner: str | None
    cause: Cause
    provider: str | None
    told: str
    queued_secs: float
    attempts: tuple[AttemptReport, ...]


def slowest_turns(
    turns: Sequence[LoggedTurn], usual_secs: Mapping[str, float], most: int = 10
) -> tuple[SlowTurn, ...]:
    """The turns whose callers waited longest, the slowest first.

    Args:
        turns: The turns.
        usual_secs: Each provider's usual median time to the first token.
        most: How many.
    """
    waits = [(_waited(turn), place) for place, turn in enumerate(turns, 1)]
    known = [(waited, place) for waited, place in waits if waited is not None]
    known.sort(key=lambda each: (-each[0], each[1]))
    return tuple(_slow(turns[p - 1], p, waited, usual_secs) for waited, p in known[:most])


def _waited(turn: LoggedTurn) -> float | None:
    """How long its caller waited; None for an answer of which nothing was to be said."""
    if turn.report.ttft_secs is not None:
        return turn.report.ttft_secs
    return turn.report.duration_secs if turn.is_unanswered or turn.was_given_up else None


def _slow(turn: LoggedTurn, place: int, waited: float, usual_secs: Mapping[str, float]) -> SlowTurn:
    report = turn.report
    answering = _answering(turn)
    chain = [a for a in report.attempts if answering is None or a is answering or _before(a, turn)]
    cause, provider = _cause(turn, chain, answering, waited, usual_secs)
    return SlowTurn(
        place,
        turn.began_at,
        turn.tier,
        "degraded" if turn.is_degraded else report.outcome,
        waited,
        turn.was_given_up,
        report.ttft_secs is not None,
        None if answering is None else answering.provider,
        cause,
        provider,
        _told(turn, chain, answering, usual_secs),
        report.queued_secs,
        report.attempts,
    )


def _answering(turn: LoggedTurn) -> AttemptReport | None:
    """The attempt whose first token the caller's wait ended with."""
    ttft = turn.report.ttft_secs
    if ttft is None:
        return None
    spoke = [a for a in turn.report.attempts if a.ttft_secs is not None]
    return min(
        spoke,
        key=lambda a: (abs(a.launched_secs + (a.ttft_secs or 0.0) - ttft), a.outcome != "won"),
        default=None,
    )


def _before(attempt: AttemptReport, turn: LoggedTurn) -> bool:
    return attempt.launched_secs < (turn.report.ttft_secs or float("inf"))


def _cause(
    turn: LoggedTurn,
    chain: Sequence[AttemptReport],
    answering: AttemptReport | None,
    waited: float,
    usual_secs: Mapping[str, float],
) -> tuple[Cause, str | None]:
    sent = [a for a in chain if was_sent(a, turn.lacks)]
    if not sent:
        return ("no room" if chain or turn.has_left else "nobody asked"), None
    if turn.report.queued_secs >= MOST_OF_IT * waited:
        return "no room", None
    for attempt in sent:
        if (connecting_secs(attempt) or 0.0) >= MOST_OF_IT * waited:
            return "cold connection", attempt.provider
    others = [a for a in sent if a is not answering]
    if answering is not None and not others:
        return "slow", answering.provider
    if answering is not None and answering is not chain[0]:
        took = answering.ttft_secs or 0.0
        is_slow = took > UNUSUAL * usual_secs.get(answering.provider, float("inf"))
        if is_slow and took >= MOST_OF_IT * waited:
            return "all slow", None
    longest = max(sent, key=lambda a: _share_of_wait(a, waited))
    if longest is answering:
        return "slow", longest.provider
    return ("failure" if longest.outcome == "failed" else "silence"), longest.provider


def _share_of_wait(attempt: AttemptReport, waited: float) -> float:
    end = min(attempt.ended_secs, waited)
    if attempt.ttft_secs is not None:
        end = min(end, attempt.launched_secs + attempt.ttft_secs)
    return max(end - attempt.launched_secs, 0.0)


def _told(
    turn: LoggedTurn,
    chain: Sequence[AttemptReport],
    answering: AttemptReport | None,
    usual_secs: Mapping[str, float],
) -> str:
    parts = list[str]()
    if turn.has_left:
        parts.append(f"waited {secs(turn.report.duration_secs)} for room")
    elif not chain:
        parts.append("nobody could be asked: every provider was left alone, or had no room")
    if turn.report.queued_secs >= 0.05 and not turn.has_left:
        parts.append(f"waited {secs(turn.report.queued_secs)} until there was room")
    until = turn.report.ttft_secs
    parts += [
        _deed(attempt, number, attempt is answering, until, turn, usual_secs)
        for number, attempt in enumerate(chain)
    ]
    if turn.is_degraded:
        parts.append("the caller heard the fallback text")
    elif turn.was_given_up:
        parts.append("the caller gave up")
    elif turn.report.outcome == "failed":
        parts.append("the caller had no answer")
    return "; ".join(parts)


_WHY = {"hedge": "hedge to ", "failure": "replacement ", "stall": "rescue by ", "primary": ""}


def _deed(
    attempt: AttemptReport,
    number: int,
    is_answer: bool,
    until: float | None,
    turn: LoggedTurn,
    usual_secs: Mapping[str, float],
) -> str:
    who = f"{_WHY[attempt.launch_reason]}{attempt.provider}"
    if not was_sent(attempt, turn.lacks):
        return f"{who}: there was no room for the request"
    if attempt.error_category == SHED:
        return f"{who} gave its place to a more urgent request at {secs(attempt.ended_secs)}"
    launched = "" if not number else f" launched at {secs(attempt.launched_secs)}"
    cold = connecting_secs(attempt)
    opening = f", {secs(cold)} of it to open a connection" if cold and cold >= 0.05 else ""
    if is_answer:
        took = attempt.ttft_secs or 0.0
        if number:
            return f"{who}{launched} won at {secs(until)}{opening}"
        return f"{who} took {secs(took)} to its first token{_times(attempt, took, usual_secs)}" + (
            opening
        )
    if attempt.outcome == "failed":
        why = (attempt.error_category or "for an unknown reason").replace("_", " ")
        return f"{who}{launched} failed at {secs(attempt.ended_secs)} ({why}){opening}"
    end = attempt.ended_secs if until is None else min(attempt.ended_secs, until)
    if attempt.ttft_secs is not None:
        return f"{who}{launched} began at {secs(attempt.launched_secs + attempt.ttft_secs)}, later"
    headers = None if attempt.stages is None else attempt.stages.headers_secs
    if headers is not None and attempt.sent_secs is not None:
        silent = max(end - attempt.sent_secs - headers, 0.0)
        return f"{who}{launched} stalled {secs(silent)} after headers{opening}"
    return f"{who}{launched} was silent for {secs(max(end - attempt.launched_secs, 0.0))}{opening}"


def _times(attempt: AttemptReport, took: float, usual_secs: Mapping[str, float]) -> str:
    usual = usual_secs.get(attempt.provider)
    if not usual or took < UNUSUAL * usual:
        return ""
    return f", {took / usual:.1f} times its usual {secs(usual)}"
