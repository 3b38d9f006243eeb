"""Explains the slowest turns: requests, times, and the main cause of the wait. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pipecat_hedge.race import AttemptReport
from pipecat_hedge.tools.analysis.turn_log import LoggedTurn
from pipecat_hedge.tools.formatting import secs

Cause: TypeAlias = Literal["no request", "connection", "failure", "silence", "slow"]
"""The cause of most of the wait."""

MOST_OF_IT = 0.5
UNUSUAL = 1.5
"""An answer that took this many times its provider's median is slow."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A request in a timeline; times are seconds from the turn's start.

    Parameters:
        label: The provider, the launch reason, and the outcome.
        launched_secs: Launch.
        token_secs: First token; None without one.
        connected_secs: Connection established, if one was opened; else None.
        ended_secs: End.
    """

    label: str
    launched_secs: float
    token_secs: float | None
    connected_secs: float | None
    ended_secs: float


@dataclass(frozen=True, slots=True)
class SlowTurn:
    """One of the slowest turns.

    Parameters:
        place: Its position in the log, from 1.
        began_at: Its beginning, in seconds since the epoch; None if unknown.
        tier: Its caller's tier.
        outcome: As in ``TurnReport``, or ``degraded``.
        waited_secs: To the first token, or to its end without one.
        given_up: Whether the caller gave up.
        cause: The cause of most of the wait.
        explanation: The explanation as a sentence.
        span_secs: The length of the timeline.
        lanes: Its requests, in the order of launch.
    """

    place: int
    began_at: float | None
    tier: str
    outcome: str
    waited_secs: float
    given_up: bool
    cause: Cause
    explanation: str
    span_secs: float
    lanes: tuple[Lane, ...]


def slowest_turns(
    turns: Sequence[LoggedTurn], usual_secs: Mapping[str, float], most: int = 10
) -> tuple[SlowTurn, ...]:
    """Return the turns with the longest waits, slowest first.

    Args:
        turns: The turns.
        usual_secs: Each provider's median time to first token.
        most: The number of turns.
    """
    waits = [
        (turn.report.ttft_secs, place)
        if turn.report.ttft_secs is not None
        else (turn.report.duration_secs, place)
        for place, turn in enumerate(turns)
        if turn.report.ttft_secs is not None or turn.unanswered or turn.given_up
    ]
    waits.sort(key=lambda each: (-each[0], each[1]))
    return tuple(_slow(turns[at], at + 1, waited, usual_secs) for waited, at in waits[:most])


def _slow(turn: LoggedTurn, place: int, waited: float, usual_secs: Mapping[str, float]) -> SlowTurn:
    report, answering = turn.report, _answering(turn)
    until = waited if report.ttft_secs is not None else float("inf")
    chain = [a for a in report.attempts if a is answering or a.launched_secs < until]
    return SlowTurn(
        place,
        turn.began_at,
        report.tier,
        "degraded" if report.degraded_reason is not None else report.outcome,
        waited,
        turn.given_up,
        _cause(turn, chain, answering, waited),
        _explained(turn, chain, answering, usual_secs),
        max(waited, *(a.ended_secs for a in report.attempts), 1e-3),
        tuple(_lane(attempt) for attempt in report.attempts),
    )


def _answering(turn: LoggedTurn) -> AttemptReport | None:
    """Return the attempt whose first token ended the caller's wait."""
    ttft = turn.report.ttft_secs
    spoke = [a for a in turn.report.attempts if a.ttft_secs is not None]
    if ttft is None or not spoke:
        return None
    return min(
        spoke,
        key=lambda a: (abs(a.launched_secs + (a.ttft_secs or 0.0) - ttft), a.outcome != "won"),
    )


def _cause(
    turn: LoggedTurn, chain: Sequence[AttemptReport], answering: AttemptReport | None, waited: float
) -> Cause:
    sent = [a for a in chain if a.sent_secs is not None]
    if not sent:
        return "no request"
    if any((_connecting_secs(attempt) or 0.0) >= MOST_OF_IT * waited for attempt in sent):
        return "connection"

    def part(attempt: AttemptReport) -> float:
        ttft = attempt.ttft_secs
        end = attempt.ended_secs if ttft is None else attempt.launched_secs + ttft
        return min(end, waited) - attempt.launched_secs

    longest = max(sent, key=part)
    if longest is answering:
        return "slow"
    return "failure" if longest.outcome == "failed" else "silence"


def _explained(
    turn: LoggedTurn,
    chain: Sequence[AttemptReport],
    answering: AttemptReport | None,
    usual_secs: Mapping[str, float],
) -> str:
    parts, report = list[str](), turn.report
    if not chain:
        parts.append("no provider was available")
    for number, attempt in enumerate(chain):
        is_answer = attempt is answering
        parts.append(_attempt_text(attempt, number, is_answer, report.ttft_secs, usual_secs))
    if report.degraded_reason is not None:
        parts.append("the caller heard the fallback text")
    elif turn.given_up:
        parts.append("the caller gave up")
    elif report.outcome == "failed":
        parts.append("the caller had no answer")
    return "; ".join(parts)


_REASONS = {
    "hedge": "hedge to ",
    "failure": "replacement ",
    "silence": "after a silence ",
    "stall": "continuation by ",
    "primary": "",
}


def _attempt_text(
    attempt: AttemptReport,
    number: int,
    is_answer: bool,
    until: float | None,
    usual_secs: Mapping[str, float],
) -> str:
    name = f"{_REASONS[attempt.launch_reason]}{attempt.provider}"
    if attempt.sent_secs is None:
        return f"{name}: no request was sent"
    launched = f" launched at {secs(attempt.launched_secs)}" if number else ""
    connecting = _connecting_secs(attempt) or 0.0
    opening = f", {secs(connecting)} of it to open a connection" if connecting >= 0.05 else ""
    if is_answer and number:
        return f"{name}{launched} won at {secs(until)}{opening}"
    if is_answer:
        took, usual = attempt.ttft_secs or 0.0, usual_secs.get(attempt.provider)
        times = f", {took / usual:.1f} times its usual {secs(usual)}" if usual else ""
        is_slow = usual is not None and took >= UNUSUAL * usual
        return f"{name} took {secs(took)} to its first token{times if is_slow else ''}{opening}"
    if attempt.outcome == "failed":
        why = (attempt.error_category or "unknown").replace("_", " ")
        return f"{name}{launched} failed at {secs(attempt.ended_secs)} ({why}){opening}"
    if attempt.ttft_secs is not None:
        return f"{name}{launched} began at {secs(attempt.launched_secs + attempt.ttft_secs)}, later"
    end = attempt.ended_secs if until is None else min(attempt.ended_secs, until)
    headers = None if attempt.stages is None else attempt.stages.headers_secs
    if headers is not None:
        silent = max(end - attempt.sent_secs - headers, 0.0)
        return f"{name}{launched} stalled {secs(silent)} after headers{opening}"
    return f"{name}{launched} was silent for {secs(max(end - attempt.launched_secs, 0.0))}{opening}"


def _lane(attempt: AttemptReport) -> Lane:
    outcome: str = attempt.outcome
    if outcome == "failed" and attempt.error_category:
        outcome = f"failed, {attempt.error_category.replace('_', ' ')}"
    launched, ended = attempt.launched_secs, max(attempt.ended_secs, attempt.launched_secs)
    opening = _connecting_secs(attempt)
    return Lane(
        f"{attempt.provider} · {attempt.launch_reason} · {outcome}",
        launched,
        None if attempt.ttft_secs is None else min(launched + attempt.ttft_secs, ended),
        min((attempt.sent_secs or launched) + opening, ended) if opening else None,
        ended,
    )


def _connecting_secs(attempt: AttemptReport) -> float | None:
    """Return the time to open a connection; None if none was opened or it is unknown."""
    stages = attempt.stages
    if stages is None or not stages.new_connection:
        return None
    return sum(s or 0.0 for s in (stages.dns_secs, stages.tcp_secs, stages.tls_secs)) or None
