"""Builds the report of a finished turn."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from pipecat_hedge.race.events import TurnOutcome
from pipecat_hedge.race.reports import AttemptReport, DrainedAnswer, FillerReport, TurnReport
from pipecat_hedge.service.provider_race import ProviderAttempt, ProviderRace
from pipecat_hedge.service.tokens import NONE, count_tokens, usd


@dataclass(slots=True)
class TurnRecord:
    """What happens in a turn. Times are the loop's.

    Parameters:
        number: The turn's number, from 1.
        race: Its race.
        started_at: When it started.
        ended_at: When its answer was complete.
        committed_at: When an answer was first released; None if none was.
        confirmed_at: When a speculative turn was confirmed; None if it was not one, or was not.
        released: The attempts whose answers were released, in order.
        has_tools: Whether the answer called tools.
        was_withdrawn: Whether the caller's turn went on after a speculation.
        was_interrupted: Whether it was cancelled.
        was_cut: Whether the answer broke off, although its last attempt did not fail.
        degraded_reason: Why the caller got less than an answer; None if they did not.
        filler: What was said in the meantime.
    """

    number: int
    race: ProviderRace[Any, Any]
    started_at: float
    ended_at: float
    committed_at: float | None = None
    confirmed_at: float | None = None
    released: list[ProviderAttempt] = field(default_factory=list[ProviderAttempt])
    has_tools: bool = False
    was_withdrawn: bool = False
    was_interrupted: bool = False
    was_cut: bool = False
    degraded_reason: str | None = None
    filler: FillerReport | None = None

    @property
    def outcome(self) -> TurnOutcome:
        """How the turn has ended."""
        winner = self.race.winner
        if self.was_withdrawn:
            return "withdrawn"
        if self.was_cut:
            return "failed"
        if winner is not None and winner.outcome == "won":
            return "answered_with_tools" if self.has_tools else "answered"
        if self.was_interrupted or any(a.outcome == "interrupted" for a in self.race.attempts):
            return "interrupted"
        return "failed"


def report_turn(turn: TurnRecord) -> TurnReport:
    """Report a finished turn."""
    race, released, since_start = turn.race, turn.released, functools.partial(_since, turn)
    decided, spec, planned = race.race, race.spec, race.planned
    first, winner = released[0] if released else None, race.winner
    spoken = [a.speakable_at for a in released if a.speakable_at is not None]
    return TurnReport(
        turn=turn.number,
        winner=None if winner is None else winner.provider,
        outcome=turn.outcome,
        ttft_secs=None if first is None else since_start(first.first_token_at),
        ttfs_secs=since_start(min(spoken, default=None)),
        duration_secs=turn.ended_at - turn.started_at,
        attempts=tuple(_attempt(attempt, turn) for attempt in race.attempts),
        commit_on=spec.commit_on,
        commit_reason=None if decided is None else decided.commit_reason,
        prompt_tokens=spec.prompt_tokens,
        hedge_reason=None if decided is None else decided.launch_reason,
        routing_reason=None if planned is None else planned.plan.route_reason,
        route_score=spec.choice.score,
        prior_weight=None if planned is None else planned.plan.prior_weight,
        committed_secs=since_start(turn.committed_at),
        confirmed_secs=since_start(turn.confirmed_at),
        degraded_reason=turn.degraded_reason,
        tier=race.terms.tier,
        filler=turn.filler,
    )


def _attempt(attempt: ProviderAttempt, turn: TurnRecord) -> AttemptReport:
    stats, sent_at, race = attempt.stats, attempt.sent_at, turn.race
    was_sent = sent_at is not None and not attempt.was_withdrawn
    tokens = count_tokens(stats, race.spec.prompt_tokens) if was_sent else NONE
    ended_at = turn.ended_at if attempt.ended_at is None else attempt.ended_at
    if attempt.is_observed and attempt.closed_at is not None:
        ended_at = attempt.closed_at
    return AttemptReport(
        provider=attempt.provider,
        model=None if attempt.adapter is None else attempt.adapter.model,
        launched_secs=attempt.launched_at - turn.started_at,
        launch_reason=attempt.reason,
        ttft_secs=_between(attempt.launched_at, attempt.token_at),
        ended_secs=ended_at - turn.started_at,
        outcome=attempt.outcome or "interrupted",
        error_category=None if attempt.error is None else attempt.error.category,
        input_tokens=tokens.input,
        output_tokens=tokens.output,
        tokens_estimated=tokens.estimated,
        usd=usd(tokens, race.price_of(attempt.provider)),
        ttfs_secs=_between(attempt.launched_at, attempt.speakable_at),
        launch_detail=attempt.detail,
        sent_secs=_since(turn, sent_at) if was_sent else None,
        stages=None if sent_at is None else stats.stages.report(sent_at),
    )


def report_drained(turn: TurnRecord, attempt: ProviderAttempt, now: float) -> DrainedAnswer:
    """Report the answer of a loser that finished.

    Args:
        turn: Its turn.
        attempt: The loser.
        now: The time.
    """
    stats = attempt.stats
    tokens = count_tokens(stats, turn.race.spec.prompt_tokens)
    return DrainedAnswer(
        turn=turn.number,
        provider=attempt.provider,
        model=None if attempt.adapter is None else attempt.adapter.model,
        text=stats.text,
        complete=stats.completed,
        ttft_secs=_between(attempt.launched_at, stats.first_answer_at),
        duration_secs=now - attempt.launched_at,
        input_tokens=tokens.input,
        output_tokens=tokens.output,
        tokens_estimated=tokens.estimated,
    )


def _since(turn: TurnRecord, at: float | None) -> float | None:
    return _between(turn.started_at, at)


def _between(start: float, at: float | None) -> float | None:
    return None if at is None else at - start
