"""The requests that a race may still make, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipecat_hedge.race.events import LaunchReason, Slot

__all__ = ["SLOT_RETRY_SECS", "SlotQueue"]

SLOT_RETRY_SECS = 1.0
"""How soon to try again after a provider had no room: concurrency limits change within a second."""


class SlotQueue:
    """The slots of a race that are not used yet.

    Attempts that failed before their first token, or that were silent, do not count: as many more
    may be made, up to one for each further provider.
    """

    def __init__(self, candidates: Sequence[Slot], attempts: int, probe: str | None):
        """Create the queue.

        Args:
            candidates: The slots, in the order of use.
            attempts: The most slots to use.
            probe: The provider with a half-open breaker, which is used last; or None.
        """
        self._slots = list(candidates)
        self._spare = attempts
        self._refunds = len({slot.provider for slot in candidates}) - 1
        self._probe = probe
        self._refusals: Mapping[str, str] = {}
        self._reluctance: Mapping[str, int] = {}
        self._deferred: list[tuple[float, Slot]] = []

    def __bool__(self) -> bool:
        """Whether another request may be made now."""
        return self._spare > 0 and bool(self._slots)

    @property
    def room_at(self) -> float | None:
        """When a rejected slot may be used again; None if there is none."""
        return self._deferred[0][0] if self._deferred else None

    @property
    def refusal(self) -> str | None:
        """Why no remaining provider takes a hedge; None if one does."""
        if not self._refusals:
            return None
        provider = self.next("hedge").provider
        reason = self._refusals.get(provider)
        return None if reason is None else f"no hedge: {provider} {reason}"

    def refuse(self, reasons: Mapping[str, str], reluctance: Mapping[str, int]) -> None:
        """Set which providers take no hedge; see ``HedgeEligibilityChanged``."""
        self._refusals, self._reluctance = reasons, reluctance

    def next(self, reason: LaunchReason) -> Slot:
        """The slot that ``take`` would return. The queue must not be empty."""
        return self._slots[self._index(reason)]

    def take(self, reason: LaunchReason) -> Slot:
        """Remove and return the next slot. The queue must not be empty."""
        self._spare -= 1
        return self._slots.pop(self._index(reason))

    def exclude(self, provider: str) -> None:
        """Remove all slots of a provider."""
        self._slots = [slot for slot in self._slots if slot.provider != provider]
        self._deferred = [entry for entry in self._deferred if entry[1].provider != provider]

    def release(self, slot: Slot, now: float) -> None:
        """Return the slot of a rejected attempt. It may be used again after ``SLOT_RETRY_SECS``."""
        self._spare += 1
        self._deferred.append((now + SLOT_RETRY_SECS, slot))

    def refund(self) -> None:
        """Allow one more attempt in place of one that does not count."""
        if self._refunds > 0:
            self._refunds -= 1
            self._spare += 1

    @property
    def has_refund(self) -> bool:
        """Whether another request may be made if one of those made does not count."""
        return bool(self._slots) and self._refunds > 0

    def refund_silent(self) -> None:
        """Allow a request beside a silent one, which does not count if there is no other left."""
        if not self:
            self.refund()

    def reopen(self, slots: Sequence[Slot]) -> None:
        """Repeat some of the requests that have failed."""
        self._slots += slots
        self._spare += len(slots)

    def readmit(self, now: float, *, ignore_delay: bool) -> None:
        """Make returned slots available whose delay is over.

        Args:
            now: The time.
            ignore_delay: Make all of them available.
        """
        while self._deferred and (ignore_delay or self._deferred[0][0] <= now):
            self._slots.append(self._deferred.pop(0)[1])

    def _index(self, reason: LaunchReason) -> int:
        """The index of the next slot.

        A hedge takes the first provider that accepts hedges, or else the first one. A replacement
        takes the least reluctant provider; the probed provider comes after healthy ones.
        """
        if reason == "primary" or not (self._refusals or self._reluctance or self._probe):
            return 0

        def reluctance(index: int) -> int:
            provider = self._slots[index].provider
            if reason == "hedge":
                return provider in self._refusals
            return max(self._reluctance.get(provider, 0), provider == self._probe)

        return min(range(len(self._slots)), key=reluctance)
