"""Whom to ask first. Pure.

The order is as given, unless the first provider has turned slow (``slow_spell.py``) and another is
well: then that one comes first until the first has recovered. Only a change counts. A first
provider that has always been slower than the second stays first: the quicker model may be the
dearer or the less accurate one, and the order is the user's.

A provider that has been replaced is hardly asked any more, so nothing would show that it has
recovered. It is therefore probed: asked beside the first one at the start of a turn, never alone,
and paid for from the budget. With a budget of 0 it cannot be, and the order stays as given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipecat_hedge.policy.slow_spell import PROBES, SlowSpell
from pipecat_hedge.race.events import LaunchDecision, LaunchRule, Waiting

__all__ = ["HedgeLate", "Probing", "Route", "route"]

LOOK_AGAIN_SECS = 0.1
"""How often a late attempt looks whether its provider has turned slow."""


@dataclass(frozen=True, slots=True)
class Route:
    """An order to ask in.

    Parameters:
        order: The providers' names.
        probe: Who is asked beside the first at the turn's start, to see how it does; or None.
        hedges: The share of the budget that is left for hedging.
        reason: Why this order, for a person to read; None where it is as given.
    """

    order: tuple[str, ...]
    probe: str | None = None
    hedges: float = 1.0
    reason: str | None = None


def route(
    given: Sequence[str],
    slow_periods: Mapping[str, SlowSpell],
    median_secs: Mapping[str, float],
    budget: float,
    now: float,
    *,
    in_debt: bool = False,
) -> Route:
    """Order the providers for a turn.

    Args:
        given: Their names, in the order that the user gave; not empty.
        slow_periods: Whether each has turned slow.
        median_secs: The time to first token that each is known, or assumed, to take at the median.
        budget: Extra requests per turn.
        now: The time on the race's clock.
        in_debt: Whether more has been spent than chance explains: then nobody is probed.
    """
    first = given[0]
    if not slow_periods[first].is_on or budget <= 0:
        return Route(tuple(given))
    level = slow_periods[first].level_secs(now)
    well = (n for n in given[1:] if not slow_periods[n].is_on and median_secs[n] < level)
    other = next(well, None)
    if other is None:
        return Route(tuple(given))
    rest = [name for name in given[1:] if name != other]
    reason = f"{first} has turned slow ({level:.2f} s or more), {other} takes"
    reason += f" {median_secs[other]:.2f} s at the median"
    if not in_debt and slow_periods[first].is_probes_turn(budget):
        return Route((other, first, *rest), first, 1.0 - PROBES, reason)
    return Route((other, *rest, first), None, 1.0 - PROBES, reason)


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


@dataclass(frozen=True, slots=True)
class HedgeLate:
    """Hedges a late attempt at once if its provider has turned slow; a ``LaunchRule``.

    What is usual says that a spell is soon over, and that a hedge saves little.

    Parameters:
        usual: What is done otherwise.
        provider: The provider that is asked first.
        late_secs: After how long its attempt is late.
        has_turned_slow: Whether it has turned slow, by the time on the race's clock.
    """

    usual: LaunchRule
    provider: str
    late_secs: float
    has_turned_slow: Callable[[float], bool]

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Launch as usual, or now, or look again soon; see ``LaunchRule``."""
        decision = self.usual.next_launch(waiting)
        first, now = waiting.in_flight[0], waiting.now
        late_at = first.launched_at + self.late_secs
        is_other = first.provider != self.provider or len(waiting.in_flight) > 1
        if is_other or first.first_token_at is not None or decision.at is None:
            return decision
        if decision.at <= max(late_at, now):
            return decision
        if now < late_at:
            return replace(decision, ask_again_at=late_at)
        if self.has_turned_slow(now):
            return LaunchDecision(late_at, f"{first.provider} has turned slow")
        return replace(decision, ask_again_at=now + LOOK_AGAIN_SECS)
