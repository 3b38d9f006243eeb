"""Whom to ask first. Pure: what each provider usually takes goes in, an order comes out.

Law: the order is as given unless somebody else is clearly faster, and becomes so again.

The problem: when the first provider turns slow for good, hedging every turn is the wrong cure. It
pays twice for every answer, and the caller waits out the hedge's delay first. The naive answer, to
sort by speed turn by turn, swaps two equal providers all the time, and with them the voice of the
bot, the prompt cache and the bill.

Ours compares medians, because a median is known after a dozen turns, and a tail is what hedging is
for. The first provider is replaced when it takes ``MUCH`` times as long as another and ``BY_SECS``
longer, and is put back when it takes less than ``LITTLE`` times as long: between them nothing
changes.

Who has been replaced is hardly asked any more, so nobody would see it recover. It is therefore
probed: asked beside the first one at the start of a turn, and never alone. Probes take most of the
budget for extra requests (``PROBES``) for as long as the order is not as given; one that finds it
recovered is repeated at once. A debt beyond chance, or no budget at all, ends the probing for as
long as it lasts.

Who has hardly been asked yet is never put first on an assumption. But where the first one is slow,
and another is assumed to be much faster, that one is probed in the same way until it is known:
else a first provider without a tail, slow and never hedged, would stay first for ever.

Left out: prices. Who comes first is the user's choice; this departs from it only for the caller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipecat_hedge.facts import LaunchDecision, LaunchRule, Waiting

__all__ = ["Probing", "Route", "Router"]

MUCH, BY_SECS = 1.4, 0.1
LITTLE = 1.15
PROBES = 0.75
"""The share of the budget that goes to probing who has been replaced."""
LEAST_PROBES = 0.01
"""However small the budget, who has been replaced is probed in so many of the turns."""


@dataclass(frozen=True, slots=True)
class Route:
    """An order to ask in.

    Parameters:
        order: The providers' names.
        probe: Who is asked beside the first at the turn's start, to see how it does; or None.
        hedges: The share of the budget that is left for hedging.
        reason: Why this order, for a person to read.
    """

    order: tuple[str, ...]
    probe: str | None
    hedges: float
    reason: str


class Router:
    """Keeps the order between turns."""

    def __init__(self) -> None:
        """Begin with the order as given."""
        self._replaced: str | None = None
        self._since_probe = 0

    def route(
        self,
        given: Sequence[str],
        median_secs: Mapping[str, float],
        budget: float,
        *,
        assumed_secs: Mapping[str, float] | None = None,
        seems_recovered: bool = False,
        in_debt: bool = False,
    ) -> Route:
        """Order the providers for a turn.

        Args:
            given: Their names, in the order that the user gave; not empty.
            median_secs: The time in which each answers half of the turns; of the first, and of
                those others that enough is known of to put them first.
            budget: Extra requests per turn.
            assumed_secs: The same of those of whom too little is known: what is assumed.
            seems_recovered: Whether the first one's latest answers were as they once used to be.
            in_debt: Whether more has been spent than chance explains: then nobody is probed.
        """
        first = given[0]
        others = [name for name in given[1:] if name in median_secs]
        other = min(others, key=lambda name: median_secs[name], default=first)
        mine, best = median_secs[first], median_secs[other]
        if self._replaced == first:
            if mine < LITTLE * best:
                self._replaced = None
        elif _is_much_faster(best, mine):
            self._replaced, self._since_probe = first, 0
        if self._replaced != first:
            return self._as_given(given, mine, 0.0 if in_debt else budget, assumed_secs or {})
        is_probed = self._is_probes_turn(0.0 if in_debt else budget, at_once=seems_recovered)
        rest = [name for name in given[1:] if name != other]
        order = (other, first, *rest) if is_probed else (other, *rest, first)
        told = f"{first} takes {mine:.2f} s at the median, {other} {best:.2f} s"
        return Route(order, first if is_probed else None, 1.0 - PROBES, told)

    def _as_given(
        self, given: Sequence[str], mine: float, budget: float, assumed_secs: Mapping[str, float]
    ) -> Route:
        """The given order, unless somebody should be tried out."""
        first = given[0]
        untried = [
            name for name in given[1:] if _is_much_faster(assumed_secs.get(name, mine), mine)
        ]
        if not untried:
            return Route(tuple(given), None, 1.0, "as given")
        probe = min(untried, key=lambda name: assumed_secs[name])
        theirs = assumed_secs[probe]
        told = f"{first} takes {mine:.2f} s at the median, {probe} may take {theirs:.2f} s"
        if not self._is_probes_turn(budget):
            return Route(tuple(given), None, 1.0 - PROBES, told)
        rest = [name for name in given[1:] if name != probe]
        return Route((first, probe, *rest), probe, 1.0 - PROBES, told)

    def _is_probes_turn(self, budget: float, *, at_once: bool = False) -> bool:
        """Whether this turn is one of those that have a probe."""
        self._since_probe += 1
        if not budget:
            return False
        every = math.ceil(1 / max(PROBES * budget, LEAST_PROBES))
        if not at_once and self._since_probe < every:
            return False
        self._since_probe = 0
        return True


def _is_much_faster(secs: float, than_secs: float) -> bool:
    return than_secs > MUCH * secs and than_secs > secs + BY_SECS


@dataclass(frozen=True, slots=True)
class Probing:
    """Asks a provider at the turn's start, and then goes on as usual; a ``LaunchRule``.

    Parameters:
        usual: What is done otherwise.
        probe: Who is asked. Where it takes no hedges now there is no probe: to ask somebody else
            in its place would find out nothing.
    """

    usual: LaunchRule
    probe: str

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Launch the probe beside the first attempt; see ``LaunchRule``."""
        if len(waiting.in_flight) > 1 or waiting.next_provider != self.probe:
            return self.usual.next_launch(waiting)
        return LaunchDecision(waiting.started_at, f"probes {waiting.next_provider}")
