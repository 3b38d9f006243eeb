"""How a request to a provider ended, in the words of those who learn from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["ANSWERED", "DROPPED", "SILENT", "Ending", "LimitVerdict", "Verdict"]

Verdict: TypeAlias = Literal["answered", "failed", "busy", "dropped"]
"""What became of an attempt: it answered, it failed by its own fault, it was refused for load, or
it was ended by somebody else and says nothing."""

LimitVerdict: TypeAlias = Literal["answered", "failed", "busy", "timed_out", "dropped"]
"""How an attempt ended: answered; failed for a reason that says nothing about load; refused for
load; silent for too long; or ended by somebody else."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What an attempt's end says.

    Parameters:
        breaker: To the breaker.
        limit: To the limit of requests in flight.
        is_connection: Whether the connection failed, which may be our own network's doing.
    """

    breaker: Verdict
    limit: LimitVerdict
    is_connection: bool = False


ANSWERED = Ending("answered", "answered")
DROPPED = Ending("dropped", "dropped")
SILENT = Ending("failed", "timed_out")
