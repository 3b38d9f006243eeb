"""What the processes of a fleet report of a provider, and what one of them is to make of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["NOTHING", "Advice", "Finding", "Found"]

Found: TypeAlias = Literal["well", "down", "unsure"]
"""What a process has found of a provider: it answers; it fails; or nothing lately."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one process has found out of one provider by itself.

    Parameters:
        found: What it has found.
        open_secs: How long its breaker stays open yet, in seconds.
        reason: Why it is open, for a person to read.
        closings: How many times its own requests have closed it.
    """

    found: Found
    open_secs: float = 0.0
    reason: str = ""
    closings: int = 0


NOTHING = Finding("unsure")
"""What a process has found of which it tells nothing."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about one provider.

    Parameters:
        open_secs: For how long to leave it alone; None: no need.
        reason: Why, for a person to read.
        try_it: Whether somebody's request has been answered where it had been left alone.
    """

    open_secs: float | None = None
    reason: str = ""
    try_it: bool = False
