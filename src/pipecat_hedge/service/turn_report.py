"""Builds the report of a finished turn from its attempts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from pipecat_hedge.race.events import TurnOutcome
from pipecat_hedge.race.reports import AttemptReport, DrainedAnswer, FillerReport, TurnReport
from pipecat_hedge.service.admission import Admission
from pipecat_hedge.service.candidates import Instance
from pipecat_hedge.service.provider_race import ProviderAttempt, ProviderRace
from pipecat_hedge.service.tokens import NONE, count_tokens, usd
from pipecat_hedge.service.turn_planner import TurnPlanner


def report_turn(
    number: int,
    runner: ProviderRace[Any, Instance],
    planner: TurnPlanner[Instance],
    admission: Admission,
    *,
    outcome: TurnOutcome,
    released: Sequence[ProviderAttempt],
    started_at: float,
    committed_at: float | None,
    ended_at: float,
    confirmed_at: float | None = None,
    degraded_reason: str | None = None,
    filler: FillerReport | None = None,
) -> TurnReport:
    """Report a finished turn. Times are the loop's.

    Args:
        number: The turn's number, from 1.
        runner: Its attempts.
        planner: Its plan.
        admission: Its permits.
        outcome: How it ended.
        released: The attempts whose answers were released, in order.
        started_at: When it started.
        committed_at: When an answer was first released; None if none was.
        ended_at: When its answer was complete.
        confirmed_at: When a speculative turn was confirmed; None if it was not one, or was not.
        degraded_reason: Why the caller got less than an answer; None if they did not.
        filler: What was said in the meantime.
    """
    race, plan, since_start = runner.race, planner.plan, functools.partial(_since, started_at)
    first, winner = released[0] if released else None, runner.winner
    spoken = [a.speakable_at for a in released if a.speakable_at is not None]
    return TurnReport(
        turn=number,
        winner=None if winner is None else winner.provider,
        outcome=outcome,
        ttft_secs=None if first is None else since_start(first.first_token_at),
        ttfs_secs=since_start(min(spoken, default=None)),
        duration_secs=ended_at - started_at,
        attempts=tuple(_attempt(a, planner, started_at, ended_at) for a in runner.attempts),
        commit_on=planner.commit_on,
        commit_reason=None if race is None else race.commit_reason,
        prompt_tokens=planner.prompt_tokens,
        hedge_reason=None if race is None else race.launch_reason,
        routing_reason=planner.route_reason,
        route_score=planner.choice.score,
        prior_weight=plan.prior_weight,
        committed_secs=since_start(committed_at),
        confirmed_secs=since_start(confirmed_at),
        degraded_reason=degraded_reason,
        tier=admission.tier,
        filler=filler,
    )


def _attempt(
    attempt: ProviderAttempt,
    planner: TurnPlanner[Instance],
    started_at: float,
    turn_ended_at: float,
) -> AttemptReport:
    stats, sent_at = attempt.stats, attempt.sent_at
    was_sent = sent_at is not None and not attempt.was_withdrawn
    tokens = count_tokens(stats, planner.prompt_tokens) if was_sent else NONE
    ended_at = turn_ended_at if attempt.ended_at is None else attempt.ended_at
    if attempt.is_probing and attempt.closed_at is not None:
        ended_at = attempt.closed_at
    since_launch = functools.partial(_since, attempt.launched_at)
    return AttemptReport(
        provider=attempt.provider,
        model=None if attempt.adapter is None else attempt.adapter.model,
        launched_secs=attempt.launched_at - started_at,
        launch_reason=attempt.reason,
        ttft_secs=since_launch(attempt.token_at),
        ended_secs=ended_at - started_at,
        outcome=attempt.outcome or "interrupted",
        error_category=None if attempt.error is None else attempt.error.category,
        input_tokens=tokens.input,
        output_tokens=tokens.output,
        tokens_estimated=tokens.estimated,
        usd=usd(tokens, planner.price_of(attempt.provider)),
        ttfs_secs=since_launch(attempt.speakable_at),
        launch_detail=attempt.detail,
        sent_secs=_since(started_at, sent_at) if was_sent else None,
        stages=None if sent_at is None else stats.stages.report(sent_at),
    )


def report_drained(
    number: int, attempt: ProviderAttempt, planner: TurnPlanner[Instance], now: float
) -> DrainedAnswer:
    """Report the answer of a loser that finished.

    Args:
        number: The turn's number, from 1.
        attempt: The loser.
        planner: The turn's plan.
        now: The time.
    """
    stats = attempt.stats
    tokens = count_tokens(stats, planner.prompt_tokens)
    return DrainedAnswer(
        turn=number,
        provider=attempt.provider,
        model=None if attempt.adapter is None else attempt.adapter.model,
        text=stats.text,
        complete=stats.completed,
        ttft_secs=_since(attempt.launched_at, stats.first_text_at),
        duration_secs=now - attempt.launched_at,
        input_tokens=tokens.input,
        output_tokens=tokens.output,
        tokens_estimated=tokens.estimated,
    )


def _since(start: float, at: float | None) -> float | None:
    return None if at is None else at - start
