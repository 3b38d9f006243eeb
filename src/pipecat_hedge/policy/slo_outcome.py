"""What a turn says of a promise: that it was met, that it was broken, or nothing. Pure.

The problem: a share of turns is promised, so every turn must be told good or bad, and some are
neither. The naive answer counts the times there are: then a turn that fails, or is never answered,
has no time and counts as nothing, and the promise is met best by a bot that says nothing.

Ours counts from what the caller waited for:

- *good*: what is promised came within its time, and it was of the answer; a filler is none;
- *bad*: it came later, or never: the turn failed, or the caller heard the ``fallback_text`` in
  place of the answer or of a part of it, or cut the wait short when its time had run out;
- *nothing*: the caller spoke again, or hung up, before the time had run out; or only tools were
  called, so that the sentence is the next turn's.

Left out: the wait for the tools between two such turns, which are the LLM's each for itself. It is
in the voice-to-voice time.
"""

from __future__ import annotations

from typing import Literal

from pipecat_hedge.policy.slo import Objective, Slo
from pipecat_hedge.race.reports import TurnReport

__all__ = ["classify", "classify_llm", "classify_wait", "has_left", "is_degraded"]


def classify(slo: Slo, report: TurnReport) -> dict[Objective, bool]:
    """What a turn of the LLM says of each promise that it says anything of.

    Args:
        slo: What is promised.
        report: The turn. It knows nothing of the voice-to-voice time.

    Returns:
        By objective, whether the promise was met.
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
    """Whether the LLM's answer came as promised; None if that cannot be said.

    Args:
        objective: What is promised of it.
        within_secs: Within what time.
        report: The turn.
    """
    took = report.ttft_secs if objective == "ttft" else report.ttfs_secs
    if objective == "ttfs" and took is None and report.outcome == "answered_with_tools":
        return None
    is_cut = report.outcome == "interrupted" or has_left(report)
    return classify_wait(
        within_secs, took, report.duration_secs, is_cut=is_cut, is_degraded=is_degraded(report)
    )


def is_degraded(report: TurnReport) -> bool:
    """Whether the caller got no answer, or not all of one.

    Args:
        report: The turn.
    """
    if report.degraded_reason is not None:
        return True
    return report.outcome == "failed" and not has_left(report)


def has_left(report: TurnReport) -> bool:
    """Whether the caller went while waiting for room: nobody was asked, and nothing is wrong.

    Args:
        report: The turn.
    """
    return report.outcome == "failed" and not (report.attempts or report.degraded_reason)


def classify_wait(
    within_secs: float,
    took_secs: float | None,
    waited_secs: float | None,
    *,
    is_cut: bool,
    is_degraded: bool,
) -> bool | None:
    """Whether a promise was met; None if that cannot be said.

    Args:
        within_secs: What is promised.
        took_secs: When it came; None if it did not.
        waited_secs: How long the caller waited for it, if it did not come; None if that is not
            known.
        is_cut: Whether the caller ended the wait, by speaking again or by hanging up.
        is_degraded: Whether it was not, or not wholly, an answer.
    """
    if is_degraded:
        return False
    if took_secs is not None:
        return took_secs <= within_secs
    if is_cut and (waited_secs is None or waited_secs <= within_secs):
        return None
    return False
