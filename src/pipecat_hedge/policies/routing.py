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
recovered is repeated at once.

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
        seems_recovered: bool = False,
    ) -> Route:
        """Order the providers for a turn.

        Args:
            given: Their names, in the order that the user gave; not empty.
            median_secs: The time in which each answers half of the turns; of the first, and of
                those others that enough is known of to put them first.
            budget: Extra requests per turn.
            seems_recovered: Whether the first one's latest answers were as they once used to be.
        """
        first = given[0]
        others = [name for name in given[1:] if name in median_secs]
        if not others:
            return Route(tuple(given), None, 1.0, "nobody else is known")
        other = min(others, key=lambda name: median_secs[name])
        mine, best = median_secs[first], median_secs[other]
        if self._replaced == first:
            if mine < LITTLE * best:
                self._replaced = None
        elif mine > MUCH * best and mine > best + BY_SECS:
            self._replaced, self._since_probe = first, 0
        if self._replaced != first:
            return Route(tuple(given), None, 1.0, "as given")
        self._since_probe += 1
        every = math.ceil(1 / max(PROBES * budget, LEAST_PROBES))
        probe = first if seems_recovered or self._since_probe >= every else None
        if probe is not None:
            self._since_probe = 0
        rest = [name for name in given[1:] if name != other]
        order = (other, *rest, first) if probe is None else (other, first, *rest)
        told = f"{first} takes {mine:.2f} s at the median, {other} {best:.2f} s"
        return Route(order, probe, 1.0 - PROBES, told)


@dataclass(frozen=True, slots=True)
class Probing:
    """Asks the second provider at the turn's start, and then goes on as usual; a ``LaunchRule``.

    Parameters:
        usual: What is done otherwise.
    """

    usual: LaunchRule

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Launch the probe beside the first attempt; see ``LaunchRule``."""
        if len(waiting.in_flight) > 1:
            return self.usual.next_launch(waiting)
        return LaunchDecision(waiting.started_at, f"probes {waiting.next_provider}")
