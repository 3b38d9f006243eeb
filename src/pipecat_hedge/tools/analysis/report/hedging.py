"""What hedging did, and what every request cost: counted from the log, nothing assumed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipecat_hedge.race.reports import AttemptReport
from pipecat_hedge.tools.analysis.report.providers import Spending
from pipecat_hedge.tools.analysis.report.turns import LoggedTurn, was_sent

__all__ = ["Bill", "Hedging", "bill_of", "hedging_of"]


@dataclass(frozen=True, slots=True)
class Hedging:
    """What hedging did.

    Parameters:
        turns: How many turns there were.
        requests: Requests that were sent.
        hedged_turns: Turns in which a request was sent to overtake a slow one.
        hedges: Such requests.
        won: Those whose answer was released.
        rescues: Requests that replaced one that had failed or fallen silent.
        rescued: Those whose answer was released.
        extra_requests: Requests beyond one a turn in which somebody was asked, per such turn; None
            if nobody was asked in any.
        lost: What the hedges cost that did not win, and the requests that they overtook.
    """

    turns: int
    requests: int
    hedged_turns: int
    hedges: int
    won: int
    rescues: int
    rescued: int
    extra_requests: float | None
    lost: Spending


@dataclass(frozen=True, slots=True)
class Bill:
    """What it all cost.

    Parameters:
        total: Every request.
        answers: The requests whose answers were released.
        lost: Those that lost a race.
        failed: Those that failed.
        interrupted: Those that callers cut off.
        successful_turns: Turns that were answered to their end.
        usd_per_success: What a turn that was answered to its end cost, everything counted; None if
            no price is known or none was.
        is_least: Whether the price of some request is not known, so that it cost more.
    """

    total: Spending
    answers: Spending
    lost: Spending
    failed: Spending
    interrupted: Spending
    successful_turns: int
    usd_per_success: float | None
    is_least: bool


def hedging_of(turns: Sequence[LoggedTurn]) -> Hedging:
    """Count what hedging did.

    Args:
        turns: The turns.
    """
    sent = [_sent(turn) for turn in turns]
    hedges = [[a for a in mine if a.launch_reason == "hedge"] for mine in sent]
    rescues = [a for mine in sent for a in mine if a.launch_reason in ("failure", "stall")]
    requests, asked = sum(map(len, sent)), sum(bool(mine) for mine in sent)
    lost = [a for mine in sent for a in mine if a.outcome == "superseded"]
    return Hedging(
        len(turns),
        requests,
        sum(bool(mine) for mine in hedges),
        sum(map(len, hedges)),
        sum(a.outcome == "won" for mine in hedges for a in mine),
        len(rescues),
        sum(a.outcome == "won" for a in rescues),
        requests / asked - 1 if asked else None,
        Spending.of(lost),
    )


def bill_of(turns: Sequence[LoggedTurn]) -> Bill:
    """Add up what turns cost.

    Args:
        turns: The turns.
    """
    sent = [attempt for turn in turns for attempt in _sent(turn)]
    by_outcome = {
        outcome: Spending.of(a for a in sent if a.outcome == outcome)
        for outcome in ("won", "superseded", "failed", "interrupted")
    }
    total, successes = Spending.of(sent), sum(turn.is_success for turn in turns)
    return Bill(
        total,
        by_outcome["won"],
        by_outcome["superseded"],
        by_outcome["failed"],
        by_outcome["interrupted"],
        successes,
        None if total.usd is None or not successes else total.usd / successes,
        total.without_price > 0,
    )


def _sent(turn: LoggedTurn) -> list[AttemptReport]:
    return [a for a in turn.report.attempts if was_sent(a, turn.lacks)]
