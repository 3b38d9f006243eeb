"""The seam between what a process knows and a place where the processes of a fleet meet.

Law: one exchange is one step for everybody: all of it has happened there, or nothing. An exchange
whose outcome is not known is repeated with the same batch, and what a batch adds is added once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from pipecat_hedge.policy.latency_sketch import LatencyCounts
from pipecat_hedge.race.errors import HedgeError

__all__ = ["Batch", "Place", "Received", "SharedStore", "StoreUnavailable", "Sum", "Wanted"]


class StoreUnavailable(HedgeError):
    """The store cannot be used now; the message says why, for a person, without credentials."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where observations were added.

    Parameters:
        epoch: The name of the row of generations.
        number: The generation in it.
    """

    epoch: str
    number: int


@dataclass(frozen=True, slots=True)
class Sum:
    """What the store holds of a provider.

    Parameters:
        place: The present generation.
        count: How many observations of the first token it counts.
        present: Its counts.
        before: Those of the generation before.
    """

    place: Place
    count: int
    present: LatencyCounts = field(default_factory=LatencyCounts)
    before: LatencyCounts = field(default_factory=LatencyCounts)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a process adds, once.

    Parameters:
        number: Its number; each batch has the next one, from 1.
        counts: What it has seen since the batch before, by provider.
        balances: What is in its accounts, in requests, by account.
    """

    number: int
    counts: Mapping[str, LatencyCounts] = field(default_factory=dict[str, LatencyCounts])
    balances: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which of a provider's sums are news.

    Parameters:
        place: The generation that is known; None if none is.
        count: How many observations of the first token it must count to be worth reading again.
    """

    place: Place | None = None
    count: int = 0


@dataclass(frozen=True, slots=True)
class Received:
    """What came of an exchange.

    Parameters:
        places: Where the batch's counts were added, by provider.
        moved: What went from each of the batch's balances to the others', in requests.
        sums: The sums that are news, by provider.
        lost: The providers that are known here, and of which nothing is there any more.
        documents: What the processes tell of themselves, by process; perhaps not of all.
        unusable: What cannot be used of what is there, for a person to look at.
    """

    places: Mapping[str, Place] = field(default_factory=dict[str, Place])
    moved: Mapping[str, float] = field(default_factory=dict[str, float])
    sums: Mapping[str, Sum] = field(default_factory=dict[str, Sum])
    lost: frozenset[str] = frozenset()
    documents: Mapping[str, str] = field(default_factory=dict[str, str])
    unusable: frozenset[str] = frozenset()


@runtime_checkable
class SharedStore(Protocol):
    """Where processes meet. It is used by one task at a time, on one event loop at a time."""

    async def exchange(
        self, process: str, batch: Batch, document: str, wanted: Mapping[str, Wanted]
    ) -> Received:
        """Add a batch, tell of this process, and learn what is news. Takes a second at most.

        Args:
            process: The name of this process.
            batch: What it adds; the last one again, if what became of that is not known.
            document: What it tells of itself, until it is told again, or for some seconds.
            wanted: What is known already, by provider. Others that are found count as news.

        Raises:
            StoreUnavailable: If that cannot be done now; it may have been done all the same.
        """
        ...

    async def close(self) -> None:
        """Close what is open on this event loop; the next exchange opens it again."""
        ...
