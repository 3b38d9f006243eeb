"""The requests that a race may still make, in order."""

from __future__ import annotations

from collections.abc import Sequence

from pipecat_hedge.race.events import HedgeEligibilityChanged, LaunchReason, Slot


class SlotQueue:
    """The slots of a race that are not used yet.

    Attempts that failed before their first token, or that were silent, do not count: as many more
    may be made, up to one for each further provider.

    Attributes:
        excluded: The providers that are asked no more, except to repeat a request.
    """

    def __init__(self, candidates: Sequence[Slot], attempts: int):
        """Create the queue.

        Args:
            candidates: The slots, in the order of use.
            attempts: The most slots to use.
        """
        self._slots = list(candidates)
        self._spare = attempts
        self._refunds = len({slot.provider for slot in candidates}) - 1
        self.excluded = set[str]()
        self.eligibility = HedgeEligibilityChanged({})

    def __bool__(self) -> bool:
        """Whether another request may be made now."""
        return self._spare > 0 and self._has_room

    @property
    def _has_room(self) -> bool:
        full = self.eligibility.full
        return any(slot.provider not in full for slot in self._slots) if full else bool(self._slots)

    @property
    def why_ineligible(self) -> str | None:
        """Why no remaining provider takes a hedge; None if one does."""
        if not self.eligibility.reasons:
            return None
        provider = self.next("hedge").provider
        reason = self.eligibility.reasons.get(provider)
        return None if reason is None else f"no hedge: {provider} {reason}"

    def next(self, reason: LaunchReason) -> Slot:
        """The slot that ``take`` would return. The queue must not be empty."""
        return self._slots[self._index(reason)]

    def take(self, reason: LaunchReason) -> Slot:
        """Remove and return the next slot. The queue must not be empty."""
        self._spare -= 1
        return self._slots.pop(self._index(reason))

    def exclude(self, provider: str) -> None:
        """Remove all slots of a provider."""
        self.excluded.add(provider)
        self._slots = [slot for slot in self._slots if slot.provider != provider]

    def refund(self) -> None:
        """Allow one more attempt in place of one that does not count."""
        if self._refunds > 0:
            self._refunds -= 1
            self._spare += 1

    @property
    def has_refund(self) -> bool:
        """Whether another request may be made if one of those made does not count."""
        return self._has_room and self._refunds > 0

    def refund_silent(self) -> None:
        """Allow a request beside a silent one, which does not count if there is no other left."""
        if not self:
            self.refund()

    def allow_one_more(self) -> bool:
        """Allow a request beyond the limit; returns False if no slot is left."""
        if not self._has_room:
            return False
        self._spare += 1
        return True

    def reopen(self, slots: Sequence[Slot]) -> None:
        """Repeat some of the requests that have failed or lost."""
        self._slots += slots
        self._spare += len(slots)

    def _index(self, reason: LaunchReason) -> int:
        """The index of the next slot.

        A hedge takes the first provider that accepts hedges, or else the first one. A replacement
        takes the least reluctant provider. A provider without room comes last: it may be asked only
        to repeat a request.
        """
        eligibility = self.eligibility
        if reason == "primary" or not (
            eligibility.reasons or eligibility.reluctance or eligibility.full
        ):
            return 0

        def rank(index: int) -> tuple[bool, int]:
            provider = self._slots[index].provider
            if reason == "hedge":
                return provider in eligibility.full, provider in eligibility.reasons
            return provider in eligibility.full, eligibility.reluctance.get(provider, 0)

        return min(range(len(self._slots)), key=rank)
