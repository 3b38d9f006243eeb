"""What a fleet has seen of one provider, without what this process has seen of it. Pure.

Law: no observation is counted twice, neither in the fleet's sum nor beside one's own.

The problem: all processes add what they see to one sum of counts, which holds what the reader has
seen itself; and latencies of last week are not those of today, but no two machines agree on the
time. The naive answer, a sum per hour, needs their clocks, and an hour holds ten observations or
a million.

Ours counts in *generations* of some thousand observations: the sum that is being added to, and the
one before it. Of the one before as much is used as the present one lacks, so a curve is always of
about the latest ``GENERATION``. Sums are told apart by an *epoch*, a name that is made up when a
sum is begun where there was none: when an epoch is gone, the store has lost what was in it, and
what this process had added there it adds again.

A process that sees a provider change (see ``change_point.py``) has no use for what the fleet saw
before: the sum as it stands is remembered, and from then on only what is more than that counts.
"""

from __future__ import annotations

from pipecat_hedge.policy.latency_sketch import LatencyCounts
from pipecat_hedge.policy.shared_store import Place, Sum

__all__ = ["GENERATION", "FleetLatency"]

GENERATION = 4096
"""Observations of the first token to a generation; the one that is begun then may be a bit larger,
as what is added at once is not divided."""


class FleetLatency:
    """One provider's sums, as one process sees them.

    Attributes:
        place: The present generation, as far as is known; None before anything is.
        count: How many observations of the first token it counted when it was read.
        others: What others have seen, with the weight of one of those observations.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.place: Place | None = None
        self.count = 0
        self.others: list[tuple[LatencyCounts, float]] = []
        self._own: dict[Place, LatencyCounts] = {}
        self._known: dict[Place, LatencyCounts] = {}  # of others, when it was told to forget
        self._forgets = False

    def added(self, counts: LatencyCounts, place: Place) -> None:
        """Remember what this process has added.

        Args:
            counts: What.
            place: Where to.
        """
        self._own.setdefault(place, LatencyCounts()).merge(counts)

    def forget(self) -> None:
        """Do without all that others have seen until now: it is no longer true."""
        self.others = []
        self._forgets = True

    @property
    def wants(self) -> int:
        """From how many observations on the present generation is worth reading again."""
        return 0 if self._forgets else self.count + max(self.count // 32, 4)

    def lost(self) -> LatencyCounts:
        """The store has nothing of this provider.

        Returns:
            What is to be added again.
        """
        again = LatencyCounts()
        for counts in self._own.values():
            again.merge(counts)
        self._own.clear()
        self._known.clear()
        self.place, self.count = None, 0
        return again

    def found(self, now: Sum) -> LatencyCounts:
        """Take what the store holds.

        Args:
            now: Its sums; what was added is in them.

        Returns:
            What is to be added again, because the store has lost it; mostly nothing.
        """
        again = LatencyCounts()
        for place in [place for place in self._own if place.epoch != now.place.epoch]:
            again.merge(self._own.pop(place))
        before = Place(now.place.epoch, now.place.number - 1)
        for kept in (self._own, self._known):
            for place in [p for p in kept if p not in (now.place, before)]:
                del kept[place]
        sums = {now.place: now.present, before: now.before}
        nothing = LatencyCounts()
        theirs = {place: sums[place].minus(self._own.get(place, nothing)) for place in sums}
        if self._forgets:
            self._known, self._forgets = theirs, False
        lacks = max(1.0 - now.count / GENERATION, 0.0)
        self.others = [
            (theirs[place].minus(self._known.get(place, nothing)), weight)
            for place, weight in ((now.place, 1.0), (before, lacks))
        ]
        self.place, self.count = now.place, now.count
        return again
