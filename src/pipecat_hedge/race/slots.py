"""The requests that a race may still make, in order. Pure; time is an argument.

Law: a seat is taken once; one that comes entry is that of a request which was never made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipecat_hedge.race.events import LaunchReason, Slot

__all__ = ["SLOT_RETRY_SECS", "SlotQueue"]

SLOT_RETRY_SECS = 1.0
"""How soon to try again whether there is room where there was none."""


class SlotQueue:
    """The seats of a race's lineup that are still to be taken."""

    def __init__(self, candidates: Sequence[Slot], attempts: int, probe: str | None):
        """Begin with all of them.

        Args:
            candidates: The seats, in the order in which to take them.
            attempts: The most that are taken.
            probe: The provider that is only probe, beside another; None if none is.
        """
        self._slots = list(candidates)
        self._spare = attempts
        self._probe = probe
        self._refusals: Mapping[str, str] = {}
        self._reluctance: Mapping[str, int] = {}
        self._deferred: list[tuple[float, Slot]] = []

    def __bool__(self) -> bool:
        """Whether another request may be made now."""
        return self._spare > 0 and bool(self._slots)

    @property
    def room_at(self) -> float | None:
        """When a seat comes entry for which there was no room; None if none does."""
        return self._deferred[0][0] if self._deferred else None

    @property
    def refusal(self) -> str | None:
        """Why nobody who is left takes a hedge; None if somebody does."""
        if not self._refusals:
            return None
        provider = self.next("hedge").provider
        reason = self._refusals.get(provider)
        return None if reason is None else f"no hedge: {provider} {reason}"

    def refuse(self, reasons: Mapping[str, str], reluctance: Mapping[str, int]) -> None:
        """Take note of who takes no hedges for now; see ``HedgeEligibilityChanged``.

        Args:
            reasons: Why, by provider.
            reluctance: How little a request in another's place should go to each.
        """
        self._refusals, self._reluctance = reasons, reluctance

    def next(self, reason: LaunchReason) -> Slot:
        """Whose turn it would be; call it only where there is a seat."""
        return self._slots[self._index(reason)]

    def take(self, reason: LaunchReason) -> Slot:
        """Take a seat; call it only where there is one."""
        self._spare -= 1
        return self._slots.pop(self._index(reason))

    def exclude(self, provider: str) -> None:
        """Do not ask a provider again."""
        self._slots = [slot for slot in self._slots if slot.provider != provider]
        self._deferred = [entry for entry in self._deferred if entry[1].provider != provider]

    def release(self, slot: Slot, now: float) -> None:
        """Give a seat entry for whose request there was no room; it may be taken again later."""
        self._spare += 1
        self._deferred.append((now + SLOT_RETRY_SECS, slot))

    def reopen(self, slots: Sequence[Slot]) -> None:
        """Begin anew with some of the seats that were taken.

        Args:
            slots: Which, in the order in which to take them.
        """
        self._slots, self._spare = list(slots), len(slots)

    def readmit(self, now: float, *, ignore_delay: bool) -> None:
        """Open the seats again for which there may be room by now.

        Args:
            now: The time.
            ignore_delay: All of them, whether it is time or not.
        """
        while self._deferred and (ignore_delay or self._deferred[0][0] <= now):
            self._slots.append(self._deferred.pop(0)[1])

    def _index(self, reason: LaunchReason) -> int:
        """The first, to begin with; for a hedge the first who does not refuse, or the first of all.

        In another's place comes the least reluctant provider; one that refuses only hedges
        may well be asked. Somebody who is only probe comes after those who are well.
        """
        if reason == "primary" or not (self._refusals or self._reluctance or self._probe):
            return 0

        def reluctance(index: int) -> int:
            provider = self._slots[index].provider
            if reason == "hedge":
                return provider in self._refusals
            return max(self._reluctance.get(provider, 0), provider == self._probe)

        return min(range(len(self._slots)), key=reluctance)
