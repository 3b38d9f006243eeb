"""Finds the slowest turns: requests, times, and the main cause of the wait. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pipecat_hedge.race import AttemptReport
from pipecat_hedge.tools.analysis.turn_log import LoggedTurn

Cause: TypeAlias = Literal["no request", "connection", "failure", "silence", "slow"]
"""The cause of most of the wait."""

MOST_OF_IT = 0.5
UNUSUAL = 1.5
"""An answer that took this many times its provider's median is slow."""


Part: TypeAlias = Literal["unsent", "answered", "failed", "late", "stalled", "silent"]
"""A request's part in the wait: without a request, the answer that ended it, a failure, a first
token after that answer, or silence, after the headers or from the beginning."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A request in a timeline; times are seconds from the turn's start.

    Parameters:
        provider: The provider.
        reason: Why it was launched, as in ``AttemptReport``.
        outcome: As in ``AttemptReport``.
        category: The category of a failure.
        launched_secs: Launch.
        token_secs: First token; None without one.
        connected_secs: Connection established, if one was opened; else None.
        ended_secs: End.
        connecting_secs: How long opening a connection took.
        part: Its part in the wait; None if it was launched after the answer.
        part_secs: How long the answer's first token or the silence took; when a failure or a late
            token came.
        usual_secs: The provider's median time to first token; None if unknown.
        times_usual: How many times as long the answer took, if that is unusual.
    """

    provider: str
    reason: str
    outcome: str
    category: str | None
    launched_secs: float
    token_secs: float | None
    connected_secs: float | None
    ended_secs: float
    connecting_secs: float
    part: Part | None
    part_secs: float
    usual_secs: float | None
    times_usual: float | None


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
        ending: How it ended, if not with an answer.
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
    ending: Literal["fallback", "given up", "unanswered"] | None
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
        _ending(turn),
        max(waited, *(a.ended_secs for a in report.attempts), 1e-3),
        tuple(
            _lane(a, _part(a, a is answering, report.ttft_secs) if a in chain else None, usual_secs)
            for a in report.attempts
        ),
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


def _ending(turn: LoggedTurn) -> Literal["fallback", "given up", "unanswered"] | None:
    if turn.report.degraded_reason is not None:
        return "fallback"
    if turn.given_up:
        return "given up"
    return "unanswered" if turn.report.outcome == "failed" else None


def _part(attempt: AttemptReport, is_answer: bool, until: float | None) -> tuple[Part, float]:
    """Return a request's part in the wait until a time, and the time that belongs to it."""
    if attempt.sent_secs is None:
        return "unsent", 0.0
    if is_answer:
        return "answered", attempt.ttft_secs or 0.0
    if attempt.outcome == "failed":
        return "failed", attempt.ended_secs
    if attempt.ttft_secs is not None:
        return "late", attempt.launched_secs + attempt.ttft_secs
    end = attempt.ended_secs if until is None else min(attempt.ended_secs, until)
    headers = None if attempt.stages is None else attempt.stages.headers_secs
    if headers is not None:
        return "stalled", max(end - attempt.sent_secs - headers, 0.0)
    return "silent", max(end - attempt.launched_secs, 0.0)


def _lane(
    attempt: AttemptReport, part: tuple[Part, float] | None, usual_secs: Mapping[str, float]
) -> Lane:
    name, part_secs = part or (None, 0.0)
    launched, ended = attempt.launched_secs, max(attempt.ended_secs, attempt.launched_secs)
    opening, usual = _connecting_secs(attempt), usual_secs.get(attempt.provider)
    times = part_secs / usual if name == "answered" and usual else 0.0
    return Lane(
        attempt.provider,
        attempt.launch_reason,
        attempt.outcome,
        attempt.error_category if attempt.outcome == "failed" else None,
        launched,
        None if attempt.ttft_secs is None else min(launched + attempt.ttft_secs, ended),
        min((attempt.sent_secs or launched) + opening, ended) if opening else None,
        ended,
        opening or 0.0,
        name,
        part_secs,
        usual,
        times if times >= UNUSUAL else None,
    )


def _connecting_secs(attempt: AttemptReport) -> float | None:
    """Return the time to open a connection; None if none was opened or it is unknown."""
    stages = attempt.stages
    if stages is None or not stages.new_connection:
        return None
    return sum(s or 0.0 for s in (stages.tcp_secs, stages.tls_secs)) or None
