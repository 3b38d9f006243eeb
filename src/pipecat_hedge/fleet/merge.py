"""What the processes of a fleet tell each other of their providers, and make of it. Pure.

Law: what a process tells is what it has found out itself; what it was told is never told on.

The problem: a provider's bad hour meets every process, and each finds out by losing callers. The
naive answer, to believe whoever says that a provider is down, lets one machine whose own network is
broken stop everybody, and a rumour go round for ever among processes that have it from each other.

Ours believes a breaker that is open when at least ``AT_LEAST`` processes and at least half of those
that ask the provider have found so themselves. A process that finds *none* of its providers well is
taken to be the one that is broken. What was opened by hearsay is no evidence: whoever asks nobody
knows nothing. It takes only one to try again: where a process's own requests have closed its
breaker, the others' go half open at once, and each lets one request at a time find out.

Nothing here depends on a clock that two machines would have to agree on: times are told as
durations, and what has happened as counts that only grow.

Documents that cannot be read, or are of another version, are as good as none.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pipecat_hedge.limits.fleet_advice import NOTHING, Advice, Finding

__all__ = [
    "VERSION",
    "UnknownVersion",
    "advise",
    "read_findings",
    "write",
]

VERSION = 3
AT_LEAST = 2
"""Processes that have to have found a provider down."""
MOST_SECS = 3600.0
"""Nobody is left alone for longer on anybody's word."""


class UnknownVersion(ValueError):
    """A document of another release."""


Findings: TypeAlias = Mapping[str, Finding]
"""By provider."""


@dataclass(slots=True)
class _Told:
    """What all together tell of one provider."""

    asked_by: int = 0
    open_secs: list[float] = field(default_factory=list[float])
    reason: str = ""
    try_it: bool = False


def advise(
    own: Findings,
    before: Mapping[str, Findings],
    now: Mapping[str, Findings],
) -> dict[str, Advice]:
    """What to make of what the others have found.

    Args:
        own: What this process has found.
        before: What each of the others told the last time, by process.
        now: What they tell now.

    Returns:
        By provider; those that somebody tells of.
    """
    told: dict[str, _Told] = {}
    for process, findings in now.items():
        is_believed = any(finding.found == "well" for finding in findings.values())
        for provider, finding in findings.items():
            _add(told.setdefault(provider, _Told()), finding, is_believed)
            if process in before:
                last = before[process].get(provider, NOTHING)
                told[provider].try_it |= finding.closings > last.closings
    return {provider: _advice(what, own.get(provider)) for provider, what in told.items()}


def _add(told: _Told, finding: Finding, is_believed: bool) -> None:
    if finding.found == "unsure" or not is_believed:
        return
    told.asked_by += 1
    if finding.found == "down":
        told.open_secs.append(finding.open_secs)
        told.reason = told.reason or finding.reason


def _advice(told: _Told, own: Finding | None) -> Advice:
    asked_by = told.asked_by + (own is not None and own.found == "well")
    down = len(told.open_secs)
    is_down = down >= AT_LEAST and 2 * down >= asked_by
    return Advice(
        open_secs=statistics.median(told.open_secs) if is_down else None,
        reason=f"the fleet: {down} of {asked_by} processes have found so: {told.reason}"
        if is_down
        else "",
        try_it=told.try_it,
    )


# ---- as text


def write(findings: Findings) -> str:
    """The document of a process.

    Args:
        findings: What it has found, by provider.
    """
    providers = {
        provider: {
            "found": each.found,
            "open_secs": round(each.open_secs, 3),
            "reason": each.reason,
            "closings": each.closings,
        }
        for provider, each in findings.items()
    }
    return json.dumps({"version": VERSION, "providers": providers}, separators=(",", ":"))


def read_findings(text: str) -> dict[str, Finding]:
    """Read a document.

    Args:
        text: As ``write`` makes it.

    Raises:
        UnknownVersion: If it is of another version.
        ValueError: If it is something else.
    """
    try:
        document = json.loads(text)
        version = document["version"]
        if version == VERSION:
            return {str(name): _finding(each) for name, each in document["providers"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ValueError(f"no document: {type(e).__name__}") from None
    raise UnknownVersion(f"version {str(version)[:20]}")


def _finding(saved: Mapping[str, Any]) -> Finding:
    found, secs, closings = saved["found"], float(saved["open_secs"]), saved["closings"]
    if found not in ("well", "down", "unsure") or not 0 <= secs < math.inf:
        raise ValueError("what was found")
    if not isinstance(closings, int) or isinstance(closings, bool) or closings < 0:
        raise ValueError("closings")
    return Finding(found, min(secs, MOST_SECS), str(saved["reason"])[:200], closings)
