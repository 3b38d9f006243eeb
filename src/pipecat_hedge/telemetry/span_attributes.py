"""Converts reports to span attributes: names, counts and times, no text of a prompt or an answer.

Names follow OpenTelemetry's semantic conventions for generative AI where they exist; others are
``hedge.*``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from pipecat_hedge.race.reports import AttemptReport, FillerReport, TurnReport

__all__ = ["Attributes", "attempt_attributes", "filler_attributes", "race_attributes"]

Attribute: TypeAlias = str | int | float | bool
Attributes: TypeAlias = dict[str, Attribute]


def attempt_attributes(report: AttemptReport, number: int) -> Attributes:
    """Return the attributes of an attempt's span, without those that are None.

    Args:
        report: The attempt.
        number: Its number in the turn, from 0.
    """
    attributes = {
        "error.type": report.error_category,
        "gen_ai.usage.input_tokens": report.input_tokens,
        "gen_ai.usage.output_tokens": report.output_tokens,
        "hedge.provider": report.provider,
        "hedge.attempt": number,
        "hedge.launch_reason": report.launch_reason,
        "hedge.launch_detail": report.launch_detail,
        "hedge.launched_secs": report.launched_secs,
        "hedge.outcome": report.outcome,
        "hedge.ttft_secs": report.ttft_secs,
        "hedge.ttfs_secs": report.ttfs_secs,
        "hedge.tokens_estimated": report.tokens_estimated or None,
        "hedge.usd": report.usd,
    }
    if (stages := report.stages) is not None:
        attributes |= {
            "gen_ai.response.time_to_first_chunk": stages.first_token_secs,
            "hedge.stage.new_connection": stages.new_connection,
            "hedge.stage.dns_secs": stages.dns_secs,
            "hedge.stage.tcp_secs": stages.tcp_secs,
            "hedge.stage.tls_secs": stages.tls_secs,
            "hedge.stage.written_secs": stages.written_secs,
            "hedge.stage.headers_secs": stages.headers_secs,
            "hedge.stage.first_byte_secs": stages.first_byte_secs,
            "hedge.stage.server_secs": stages.server_secs,
            "hedge.stage.server_source": stages.server_source,
        }
    return _without_none(attributes)


def race_attributes(report: TurnReport) -> Attributes:
    """Return the attributes of a race's span, without those that are None."""
    return _without_none(
        {
            "hedge.winner": report.winner,
            "hedge.outcome": report.outcome,
            "hedge.ttft_secs": report.ttft_secs,
            "hedge.ttfs_secs": report.ttfs_secs,
            "hedge.attempts": len(report.attempts),
            "hedge.commit_on": report.commit_on,
            "hedge.commit_reason": report.commit_reason,
            "hedge.prompt_tokens": report.prompt_tokens,
            "hedge.hedge_reason": report.hedge_reason,
            "hedge.routing_reason": report.routing_reason,
            "hedge.queued_secs": report.queued_secs or None,
            "hedge.degraded_reason": report.degraded_reason,
            "hedge.usd": _sum_usd(report),
        }
    )


def filler_attributes(filler: FillerReport) -> Attributes:
    """Return the attributes of a filler's event, without those that are None."""
    return _without_none(
        {
            "hedge.filler.cause": filler.cause,
            "hedge.filler.spoken_secs": filler.spoken_secs,
            "hedge.filler.was_cut": filler.was_cut,
            "hedge.filler.reason": filler.reason,
        }
    )


def _without_none(attributes: Mapping[str, Attribute | None]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


def _sum_usd(report: TurnReport) -> float | None:
    """Sum the turn's costs; None if a price is unknown."""
    total = 0.0
    for attempt in report.attempts:
        if attempt.sent_secs is None:
            continue
        if attempt.usd is None:
            return None
        total += attempt.usd
    return total
