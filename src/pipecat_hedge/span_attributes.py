"""What spans say of a race and its attempts: reports, as attributes.

Law: names, counts and times; never a word of a prompt, an answer or a key. OpenTelemetry's semantic
conventions for generative AI where they have a name for it, ``hedge.*`` where they have not.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeAlias

from pipecat_hedge.reports import AttemptReport, FillerReport, TurnReport

__all__ = ["Attributes", "attempt_attributes", "filler_attributes", "race_attributes"]

Attributes: TypeAlias = dict[str, str | int | float | bool]


def attempt_attributes(report: AttemptReport, number: int) -> Attributes:
    """What the span of an attempt says at its end.

    Args:
        report: The attempt.
        number: Its number in the turn, from 0.
    """
    said = _attempt(report)
    said["hedge.attempt"] = number
    if report.stages is not None:
        said |= _stages(report.stages)
    return said


def race_attributes(report: TurnReport) -> Attributes:
    """What the span of a race says at its end.

    Args:
        report: The turn.
    """
    said = _race(report)
    said["hedge.attempts"] = len(report.attempts)
    if (usd := _sum_usd(report)) is not None:
        said["hedge.usd"] = usd
    return said


def filler_attributes(filler: FillerReport) -> Attributes:
    """What the event of a filler says.

    Args:
        filler: The filler.
    """
    return _filler(filler)


def _reader(names: dict[str, str]) -> Callable[[Any], Attributes]:
    """What reads so many fields at once, and leaves out those that are None.

    Args:
        names: The attributes' names, by field.
    """
    read, told = attrgetter(*names), tuple(names.values())

    def reads(report: Any) -> Attributes:
        pairs = zip(told, read(report), strict=True)
        return {name: value for name, value in pairs if value is not None}

    return reads


def _ours(*fields: str, below: str = "hedge") -> dict[str, str]:
    return {field: f"{below}.{field}" for field in fields}


_attempt = _reader(
    {
        "error_category": "error.type",
        "input_tokens": "gen_ai.usage.input_tokens",
        "output_tokens": "gen_ai.usage.output_tokens",
        **_ours("provider", "launch_reason", "launch_detail", "launched_secs", "sent_secs"),
        **_ours("outcome", "ttft_secs", "ttfs_secs", "tokens_estimated", "usd"),
    }
)
_stages = _reader(
    {
        "first_token_secs": "gen_ai.response.time_to_first_chunk",
        **_ours("is_cold", "dns_secs", "tcp_secs", "tls_secs", "written_secs", below="hedge.stage"),
        **_ours("headers_secs", "first_byte_secs", below="hedge.stage"),
        **_ours("server_secs", "server_source", below="hedge.stage"),
    }
)
_race = _reader(
    {
        **_ours("winner", "outcome", "ttft_secs", "ttfs_secs", "commit_on", "commit_reason"),
        **_ours("prompt_tokens", "hedge_reason", "order_reason", "queued_secs"),
        **_ours("degraded_reason"),
    }
)
_filler = _reader(_ours("cause", "spoken_secs", "was_cut", "reason", below="hedge.filler"))


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
