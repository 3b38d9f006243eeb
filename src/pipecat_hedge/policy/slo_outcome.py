"""Classifies a turn against an SLO: met, missed, or not counted. Pure.

- Met: the answer came within the limit. A filler is not an answer.
- Missed: the answer came later or never, the turn failed, ``fallback_text`` replaced a part of it,
  or the caller ended the wait after the limit.
- Not counted: the caller spoke or hung up before the limit, or the turn only called tools, so that
  the sentence belongs to the next turn.

Turns without an answer count, because otherwise a silent bot would meet every SLO. The time that
tools take between two LLM turns is part of the voice-to-voice time only.
"""

from __future__ import annotations

from typing import Literal

from pipecat_hedge.policy.slo import Objective, Slo
from pipecat_hedge.race.reports import TurnReport


def classify(slo: Slo, report: TurnReport) -> dict[Objective, bool]:
    """Return by LLM objective whether a turn met it; objectives that do not count are left out.

    Args:
        slo: The SLO.
        report: The turn. It has no voice-to-voice time.
    """
    found: dict[Objective, bool] = {}
    for objective, within in slo.objectives():
        met = None if objective == "voice_to_voice" else classify_llm(objective, within, report)
        if met is not None:
            found[objective] = met
    return found


def classify_llm(
    objective: Literal["ttft", "ttfs"], within_secs: float, report: TurnReport
) -> bool | None:
    """Return whether the LLM's answer met an objective; None if the turn does not count.

    Args:
        objective: The objective.
        within_secs: Its limit in seconds.
        report: The turn.
    """
    took = report.ttft_secs if objective == "ttft" else report.ttfs_secs
    if objective == "ttfs" and took is None and report.outcome == "answered_with_tools":
        return None
    is_cut = report.outcome in ("interrupted", "withdrawn") or has_left(report)
    return classify_wait(
        within_secs, took, report.duration_secs, is_cut=is_cut, is_degraded=is_degraded(report)
    )


def is_degraded(report: TurnReport) -> bool:
    """Return whether the caller got no answer, or only a part of one."""
    if report.degraded_reason is not None:
        return True
    return report.outcome == "failed" and not has_left(report)


def has_left(report: TurnReport) -> bool:
    """Return whether the caller left while the turn waited for a permit, before any attempt."""
    return report.outcome == "failed" and not (report.attempts or report.degraded_reason)


def classify_wait(
    within_secs: float,
    took_secs: float | None,
    waited_secs: float | None,
    *,
    is_cut: bool,
    is_degraded: bool,
) -> bool | None:
    """Return whether a wait met its limit; None if it does not count.

    Args:
        within_secs: The limit in seconds.
        took_secs: Time to the answer in seconds; None if there was no answer.
        waited_secs: Length of a wait without an answer, in seconds; None if unknown.
        is_cut: Whether the caller ended the wait, by speaking again or by hanging up.
        is_degraded: Whether the answer failed, or was not complete.
    """
    if is_degraded:
        return False
    if took_secs is not None:
        return took_secs <= within_secs
    if is_cut and (waited_secs is None or waited_secs <= within_secs):
        return None
    return False
