"""Defines the store in which processes share statistics; ``fleet`` implements it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from pipecat_hedge.race.errors import HedgeError

Sums = Mapping[str, int]
"""Counts by field. A field is the store's: see ``fleet.counts``."""


class StoreUnavailable(HedgeError):
    """The store cannot be used now; the message gives the reason, without credentials."""


class StoreRefused(StoreUnavailable):
    """The same, and nothing was added."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What a process adds to its fleet's sums.

    Parameters:
        hour: Hours since 1970.
        latencies: Counts by the key of a provider's statistics.
        window: Windows of a budget since 1970.
        budgets: Turns and hedges by budget.
    """

    hour: int
    latencies: Mapping[str, Sums]
    window: int
    budgets: Mapping[str, Sums]


@dataclass(frozen=True, slots=True)
class Request:
    """What a process reads.

    Parameters:
        hours: The hours of the latencies.
        latencies: The keys of the statistics.
        windows: The windows of the budgets.
        budgets: The budgets.
        providers: The keys of the providers that may be down.
    """

    hours: Collection[int]
    latencies: Collection[str]
    windows: Collection[int]
    budgets: Collection[str]
    providers: Collection[str]


@dataclass(frozen=True, slots=True)
class News:
    """The sums of a fleet.

    Parameters:
        latencies: Counts by statistics and hour.
        budgets: Turns and hedges by budget, over the windows.
        down: Why a provider is down, by its key, for each that is.
    """

    latencies: Mapping[tuple[str, int], Sums] = field(default_factory=dict[tuple[str, int], Sums])
    budgets: Mapping[str, Sums] = field(default_factory=dict[str, Sums])
    down: Mapping[str, str] = field(default_factory=dict[str, str])


@runtime_checkable
class SharedStore(Protocol):
    """A store that processes share. Used by one task at a time, on one event loop at a time.

    Every method raises ``StoreUnavailable`` if the store cannot be used now.
    """

    async def add(self, delta: Delta) -> None:
        """Add a process's counts, within a second.

        Raises:
            StoreRefused: If nothing was added, so that it is added again later. After any other
                error or a cancellation it may have been, and is not.
        """
        ...

    async def read(self, request: Request) -> News:
        """Read the fleet's sums, within a second."""
        ...

    async def report_down(self, provider: str, process: str, reason: str, secs: float) -> None:
        """Report that a process finds a provider down. It is down once a second process does.

        A later report prolongs an earlier one.

        Args:
            provider: The provider's key.
            process: The name of the process.
            reason: Why, for a person to read.
            secs: How long each report holds.
        """
        ...

    async def report_up(self, provider: str) -> None:
        """Report that a provider has answered."""
        ...

    async def close(self) -> None:
        """Close the connections of this event loop; the next call opens them again."""
        ...
