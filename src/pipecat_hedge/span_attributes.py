"""What spans say of a race and its attempts: reports, as attributes.

Law: names, counts and times; never a word of a prompt, an answer or a key. OpenTelemetry's semantic
conventions for generative AI where they have a name for it, ``hedge.*`` where they have not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from pipecat_hedge.reports import AttemptReport, FillerReport, StageReport, TurnReport

__all__ = ["Attributes", "attempt_attributes", "filler_attributes", "race_attributes"]

Attribute: TypeAlias = str | int | float | bool
Attributes: TypeAlias = dict[str, Attribute]


def attempt_attributes(report: AttemptReport, number: int) -> Attributes:
    """What the span of an attempt says at its end; ``tokens_estimated`` only where they are.

    Args:
        report: The attempt.
        number: Its number in the turn, from 0.
    """
    # One by one: to make all of it and leave out what is None takes half as long again.
    said: Attributes = {
        "hedge.provider": report.provider,
        "hedge.attempt": number,
        "hedge.launch_reason": report.launch_reason,
        "hedge.launched_secs": report.launched_secs,
        "hedge.outcome": report.outcome,
    }
    if (value := report.error_category) is not None:
        said["error.type"] = value
    if (value := report.input_tokens) is not None:
        said["gen_ai.usage.input_tokens"] = value
    if (value := report.output_tokens) is not None:
        said["gen_ai.usage.output_tokens"] = value
    if report.tokens_estimated:
        said["hedge.tokens_estimated"] = True
    if (value := report.launch_detail) is not None:
        said["hedge.launch_detail"] = value
    if (value := report.sent_secs) is not None:
        said["hedge.sent_secs"] = value
    if (value := report.ttft_secs) is not None:
        said["hedge.ttft_secs"] = value
    if (value := report.ttfs_secs) is not None:
        said["hedge.ttfs_secs"] = value
    if (value := report.usd) is not None:
        said["hedge.usd"] = value
    if report.stages is not None:
        _tell_stages(report.stages, said)
    return said


def _tell_stages(stages: StageReport, said: Attributes) -> None:
    if (value := stages.first_token_secs) is not None:
        said["gen_ai.response.time_to_first_chunk"] = value
    if (value := stages.is_cold) is not None:
        said["hedge.stage.is_cold"] = value
        if value:
            said |= _known(
                {
                    "hedge.stage.dns_secs": stages.dns_secs,
                    "hedge.stage.tcp_secs": stages.tcp_secs,
                    "hedge.stage.tls_secs": stages.tls_secs,
                }
            )
    if (value := stages.written_secs) is not None:
        said["hedge.stage.written_secs"] = value
    if (value := stages.headers_secs) is not None:
        said["hedge.stage.headers_secs"] = value
    if (value := stages.first_byte_secs) is not None:
        said["hedge.stage.first_byte_secs"] = value
    if (value := stages.server_secs) is not None:
        said["hedge.stage.server_secs"] = value
    if (value := stages.server_source) is not None:
        said["hedge.stage.server_source"] = value


def race_attributes(report: TurnReport) -> Attributes:
    """What the span of a race says at its end; ``queued_secs`` only where it was queued.

    Args:
        report: The turn.
    """
    said: Attributes = {
        "hedge.outcome": report.outcome,
        "hedge.attempts": len(report.attempts),
        "hedge.commit_on": report.commit_on,
    }
    if (value := report.winner) is not None:
        said["hedge.winner"] = value
    if (value := report.ttft_secs) is not None:
        said["hedge.ttft_secs"] = value
    if (value := report.ttfs_secs) is not None:
        said["hedge.ttfs_secs"] = value
    if (value := report.commit_reason) is not None:
        said["hedge.commit_reason"] = value
    if (value := report.prompt_tokens) is not None:
        said["hedge.prompt_tokens"] = value
    if (value := report.hedge_reason) is not None:
        said["hedge.hedge_reason"] = value
    if (value := report.order_reason) is not None:
        said["hedge.order_reason"] = value
    if report.queued_secs:
        said["hedge.queued_secs"] = report.queued_secs
    if (value := report.degraded_reason) is not None:
        said["hedge.degraded_reason"] = value
    if (value := _sum_usd(report)) is not None:
        said["hedge.usd"] = value
    return said


def filler_attributes(filler: FillerReport) -> Attributes:
    """What the event of a filler says.

    Args:
        filler: The filler.
    """
    return _known(
        {
            "hedge.filler.cause": filler.cause,
            "hedge.filler.spoken_secs": filler.spoken_secs,
            "hedge.filler.was_cut": filler.was_cut,
            "hedge.filler.reason": filler.reason,
        }
    )


def _known(said: Mapping[str, Attribute | None]) -> Attributes:
    return {name: value for name, value in said.items() if value is not None}


def _sum_usd(report: TurnReport) -> float | None:
    """What a turn cost; None where a price is not known."""
    total = 0.0
    for attempt in report.attempts:
        if attempt.sent_secs is None:
            continue
        if attempt.usd is None:
            return None
        total += attempt.usd
    return total
