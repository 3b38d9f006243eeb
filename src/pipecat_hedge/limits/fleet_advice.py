"""What the processes of a fleet report about a provider, and the resulting advice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["NOTHING", "Advice", "Finding", "Found"]

Found: TypeAlias = Literal["well", "down", "unsure"]
"""A process's finding about a provider: it answers; it fails; or no recent requests."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one process's own requests show about one provider.

    Parameters:
        found: The finding.
        open_secs: How long its breaker stays open, in seconds.
        reason: Why it is open.
        closings: How many times its own answers have closed the breaker.
    """

    found: Found
    open_secs: float = 0.0
    reason: str = ""
    closings: int = 0


NOTHING = Finding("unsure")
"""The finding of a process that has none to report."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about one provider.

    Parameters:
        open_secs: How long to open the breaker; None leaves it as it is.
        reason: Why, in words.
        try_it: Whether another process got an answer, so that the provider may be probed.
    """

    open_secs: float | None = None
    reason: str = ""
    try_it: bool = False
