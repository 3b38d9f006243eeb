"""Opens circuit breakers on the findings of a fleet's other processes. Pure.

A provider counts as down if at least ``AT_LEAST`` processes, and half of those that use it, have
found so with their own requests. A process to which no provider answers is ignored: its own network
is probably down. Breakers opened by this rule are not counted. As soon as one process has closed
its breaker with its own requests, the others try the provider again.

Times are durations, and past events are growing counts: clocks need not agree.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

AT_LEAST = 2
"""Processes that have to have found a provider down."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one process has found out about one provider with its own requests.

    Parameters:
        found: It answers; it fails; or nothing lately.
        open_secs: Seconds until its breaker becomes half-open.
        reason: Why it is open, for a person to read.
        closings: How many times its own requests have closed it.
    """

    found: Literal["well", "down", "unsure"]
    open_secs: float = 0.0
    reason: str = ""
    closings: int = 0


Findings: TypeAlias = Mapping[str, Finding]
"""By provider."""

NOTHING = Finding("unsure")
"""What a process has found of a provider that it does not mention."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about one provider.

    Parameters:
        open_secs: For how long to keep its breaker open, in seconds; None if it need not be.
        reason: Why, for a person to read.
        try_it: Whether another process has had an answer, so that it should be tried.
    """

    open_secs: float | None = None
    reason: str = ""
    try_it: bool = False


def advise(
    own: Findings, before: Mapping[str, Findings], now: Mapping[str, Findings]
) -> dict[str, Advice]:
    """What to make of the other processes' findings.

    Args:
        own: What this process has found.
        before: What each of the others had found the last time, by process.
        now: What they have found now.

    Returns:
        By provider, for each that another process mentions.
    """
    believed = [each for each in now.values() if any(f.found == "well" for f in each.values())]
    advice: dict[str, Advice] = {}
    for provider in {provider for findings in now.values() for provider in findings}:
        try_it = any(
            findings.get(provider, NOTHING).closings
            > before[process].get(provider, NOTHING).closings
            for process, findings in now.items()
            if process in before
        )
        found = [findings.get(provider, NOTHING) for findings in believed]
        down = [finding for finding in found if finding.found == "down"]
        well = [f for f in (*found, own.get(provider, NOTHING)) if f.found == "well"]
        users = len(down) + len(well)
        if len(down) < AT_LEAST or 2 * len(down) < users:
            advice[provider] = Advice(try_it=try_it)
            continue
        why = next((finding.reason for finding in down if finding.reason), "")
        reason = f"the fleet: {len(down)} of {users} processes have found so: {why}"
        open_secs = statistics.median(finding.open_secs for finding in down)
        advice[provider] = Advice(open_secs, reason, try_it)
    return advice
