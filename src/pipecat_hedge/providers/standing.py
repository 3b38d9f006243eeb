"""The standing of one provider at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipecat_hedge.race.reports import BreakerState


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether a provider takes a request now, and how much to avoid it.

    Parameters:
        breaker: The state of its breaker.
        breaker_reason: Why the breaker is not closed; empty if it is.
        retry_after_secs: The seconds left of its ``Retry-After``.
        is_rejecting: Whether it has just rejected requests with as many in flight as now.
        full: Why it has no room for a request of the turn; None if it has.
        ineligible: Why it gets no hedge; None if it may get one.
        in_flight: Its requests in flight from this process.
        limit: The most of them.
    """

    breaker: BreakerState
    breaker_reason: str
    retry_after_secs: float
    is_rejecting: bool
    full: str | None
    ineligible: str | None
    in_flight: int
    limit: int

    @property
    def is_well(self) -> bool:
        """Whether its breaker is closed and no ``Retry-After`` applies."""
        return self.breaker == "closed" and not self.retry_after_secs

    @property
    def rank(self) -> int:
        """How much to avoid it for a caller's request.

        0 is a provider with room, 1 one without room or with a half-open breaker, 2 one with an
        open breaker, 3 one that rejects requests or has sent ``Retry-After``.
        """
        if self.retry_after_secs or self.is_rejecting:
            return 3
        if self.breaker != "closed":
            return 1 if self.breaker == "half_open" else 2
        return 0 if self.full is None else 1


def first_choice(standings: Sequence[Standing]) -> int:
    """Choose the provider of a turn's first request.

    Args:
        standings: Those of the candidates in order of preference; at least one.

    Returns:
        The index of the first with room. Without any, of the first that rejects nothing, those with
        an open breaker last; else of the one whose ``Retry-After`` ends first.
    """
    for index, standing in enumerate(standings):
        if standing.full is None:
            return index
    places = {"closed": 0, "half_open": 1, "open": 2}

    def key(index: int) -> tuple[float, bool, int]:
        it = standings[index]
        return it.retry_after_secs, it.is_rejecting, places[it.breaker]

    return min(range(len(standings)), key=key)
