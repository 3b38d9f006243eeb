"""Defines the store in which processes share statistics; ``fleet`` implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from pipecat_hedge.race.errors import HedgeError


class StoreUnavailable(HedgeError):
    """The store cannot be used now; the message gives the reason, without credentials."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One process's latency counts of one slice of time, as totals.

    Parameters:
        number: Hours from the store's epoch to the slice.
        counts: The packed counts by provider.
    """

    number: int
    counts: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Received:
    """What the other processes have in the store.

    Parameters:
        documents: Their documents by process; a random sample in a large fleet.
        processes: The number of processes, including this one.
        slices: Packed counts of other processes by slice, as pairs of provider and counts; a random
            sample in a large fleet.
        fields: The number of entries in the written slice.
    """

    documents: Mapping[str, str] = field(default_factory=dict[str, str])
    processes: int = 1
    slices: Mapping[int, Sequence[tuple[str, bytes]]] = field(
        default_factory=dict[int, Sequence[tuple[str, bytes]]]
    )
    fields: int = 0


@runtime_checkable
class SharedStore(Protocol):
    """A store that processes share. Used by one task at a time, on one event loop at a time.

    Each write replaces the process's previous one, so a repeated write is harmless.
    """

    async def now(self) -> float:
        """Return the store's own clock, in seconds.

        Raises:
            StoreUnavailable: If the store cannot be used now.
        """
        ...

    async def exchange(
        self, process: str, now: float, document: str, written: Slice | None, read: Sequence[int]
    ) -> Received:
        """Write this process's entries and read those of the others, within a second.

        Args:
            process: The name of this process.
            now: The result of ``now``, in seconds.
            document: This process's findings, valid for some seconds.
            written: This process's latency counts; None writes none.
            read: The numbers of the slices to read, the latest first.

        Raises:
            StoreUnavailable: If the store cannot be used now. The entries may have been written.
        """
        ...

    async def close(self) -> None:
        """Close the connections of this event loop; the next exchange opens them again."""
        ...
