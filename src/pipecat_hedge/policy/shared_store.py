"""What ``ProviderStats`` needs of a place where processes meet; ``fleet`` implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from pipecat_hedge.race.errors import HedgeError

__all__ = ["Received", "SharedStore", "Slice", "StoreUnavailable"]


class StoreUnavailable(HedgeError):
    """The store cannot be used now; the message says why, without credentials."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One process's latencies of one slice of time, as totals.

    Parameters:
        number: The slice: hours since the store's epoch.
        counts: The packed counts by provider.
    """

    number: int
    counts: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Received:
    """What the other processes have in the store.

    Parameters:
        documents: Their documents, by process; of a large fleet a random sample.
        processes: How many processes there are, this one included.
        slices: Packed counts of other processes by slice, as pairs of provider and counts; of a
            large fleet a random sample.
        fields: How many entries the slice has that was written.
        unusable: What is in the store and cannot be used, for a person to look at.
    """

    documents: Mapping[str, str] = field(default_factory=dict[str, str])
    processes: int = 1
    slices: Mapping[int, Sequence[tuple[str, bytes]]] = field(
        default_factory=dict[int, Sequence[tuple[str, bytes]]]
    )
    fields: int = 0
    unusable: frozenset[str] = frozenset()


@runtime_checkable
class SharedStore(Protocol):
    """Where processes meet. Used by one task at a time, on one event loop at a time.

    All that a process writes replaces what it wrote before, so that it may be written twice.
    """

    async def now(self) -> float:
        """The store's own clock, in seconds.

        Raises:
            StoreUnavailable: If the store cannot be used now.
        """
        ...

    async def exchange(
        self, process: str, now: float, document: str, written: Slice | None, read: Sequence[int]
    ) -> Received:
        """Write what this process has, and read what the others have. Takes a second at most.

        Args:
            process: The name of this process.
            now: What ``now`` has returned.
            document: What this process has found, valid for some seconds.
            written: This process's latencies; None writes none.
            read: The numbers of the slices to read, the latest first.

        Raises:
            StoreUnavailable: If the store cannot be used now; it may have been written all the
                same.
        """
        ...

    async def close(self) -> None:
        """Close what is open on this event loop; the next exchange opens it again."""
        ...
