"""Converts reports to span attributes: names, counts and times, no text of a prompt or an answer.

Names follow OpenTelemetry's semantic conventions for generative AI where they exist; others are
``hedge.*``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeAlias

from pipecat_hedge.race.reports import AttemptReport, FillerReport, TurnReport

Attribute: TypeAlias = str | int | float | bool
Attributes: TypeAlias = dict[str, Attribute]

_ATTEMPT_FIELDS = (
    *("provider", "launch_reason", "launch_detail", "launched_secs"),
    *("outcome", "ttft_secs", "ttfs_secs", "input_tokens", "output_tokens", "usd"),
)
_RACE_FIELDS = (
    *("winner", "outcome", "ttft_secs", "ttfs_secs", "commit_on", "commit_reason"),
    *("prompt_tokens", "hedge_reason", "routing_reason", "degraded_reason"),
)


def attempt_attributes(report: AttemptReport, number: int) -> Attributes:
    """Return the attributes of an attempt's span, without those that are None.

    Args:
        report: The attempt.
        number: Its number in the turn, from 0.
    """
    attributes = {
        **{f"hedge.{name}": getattr(report, name) for name in _ATTEMPT_FIELDS},
        "hedge.attempt": number,
        "hedge.tokens_estimated": report.tokens_estimated or None,
        "error.type": report.error_category,
    }
    if report.stages is not None:
        stages = dataclasses.asdict(report.stages)
        attributes["gen_ai.response.time_to_first_chunk"] = stages.pop("first_token_secs")
        attributes |= {f"hedge.stage.{name}": value for name, value in stages.items()}
    return _without_none(attributes)


def usage_attributes(report: AttemptReport) -> Attributes:
    """Return an attempt's tokens under the names that backends add up over all spans."""
    return _without_none(
        {
            "gen_ai.usage.input_tokens": report.input_tokens,
            "gen_ai.usage.output_tokens": report.output_tokens,
        }
    )


def race_attributes(report: TurnReport) -> Attributes:
    """Return the attributes of a race's span, without those that are None."""
    costs = [attempt.usd for attempt in report.attempts if attempt.sent_secs is not None]
    known = [usd for usd in costs if usd is not None]
    return _without_none(
        {
            **{f"hedge.{name}": getattr(report, name) for name in _RACE_FIELDS},
            "hedge.attempts": len(report.attempts),
            "hedge.usd": sum(known, 0.0) if len(known) == len(costs) else None,
        }
    )


def filler_attributes(filler: FillerReport) -> Attributes:
    """Return the attributes of a filler's event, without those that are None."""
    fields = dataclasses.asdict(filler)
    return _without_none({f"hedge.filler.{name}": value for name, value in fields.items()})


def _without_none(attributes: Mapping[str, Attribute | None]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}
