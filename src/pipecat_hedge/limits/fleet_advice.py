"""What the processes of a fleet make of each other's circuit breakers. Pure.

A provider is taken to be down where at least ``AT_LEAST`` processes, and half of those that use it,
have found so with requests of their own. A process that finds none of its providers well has a
network problem of its own, and is not believed. A breaker that was opened by this rule is no
evidence. One process whose requests have closed its breaker is enough to try the provider again.

Times are durations, and what has happened is a count that grows: no two clocks have to agree.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = ["NOTHING", "Advice", "Finding", "Findings", "advise"]

AT_LEAST = 2
"""Processes that have to have found a provider down."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one process has found out about one provider with its own requests.

    Parameters:
        found: It answers; it fails; or nothing lately.
        open_secs: How long its breaker stays open yet, in seconds.
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


@dataclass(slots=True)
class _Votes:
    users: int = 0
    open_secs: list[float] = field(default_factory=list[float])
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
    votes: dict[str, _Votes] = {}
    for process, findings in now.items():
        is_believed = any(finding.found == "well" for finding in findings.values())
        for provider, finding in findings.items():
            vote = votes.setdefault(provider, _Votes())
            if finding.found != "unsure" and is_believed:
                vote.users += 1
                if finding.found == "down":
                    vote.open_secs.append(finding.open_secs)
                    vote.reason = vote.reason or finding.reason
            if process in before:
                last = before[process].get(provider, NOTHING)
                vote.try_it |= finding.closings > last.closings
    return {provider: _advice(vote, own.get(provider)) for provider, vote in votes.items()}


def _advice(vote: _Votes, own: Finding | None) -> Advice:
    users = vote.users + (own is not None and own.found == "well")
    down = len(vote.open_secs)
    if down < AT_LEAST or 2 * down < users:
        return Advice(try_it=vote.try_it)
    reason = f"the fleet: {down} of {users} processes have found so: {vote.reason}"
    return Advice(statistics.median(vote.open_secs), reason, vote.try_it)
