"""Gives the first place to another provider while the first one is slow. Pure.

The order is the given one, unless the first provider has turned slow (``slow_period.py``) and
another has not: the other is then first until the first has recovered. Only a change counts. A
first provider that was always slower may be the cheaper or the more accurate one.

A replaced provider gets few requests, so its recovery would not show. Some turns try it beside the
new first provider, never alone: a trial, which the budget pays. At a budget of 0 the order stays as
given.

If the new first provider hangs, no turn may wait much longer than before the change. The replaced
one is therefore asked, without regard to the price, once a wait is as rare as the hedges that the
budget allows; and at once, while the new first provider has not answered since it hung.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pipecat_hedge.providers.slow_period import TRIALS, SlowPeriod
from pipecat_hedge.race.events import LaunchDecision, LaunchRule, Waiting


@dataclass(frozen=True, slots=True)
class FirstPlace:
    """Which provider comes first in a turn.

    Parameters:
        order: The providers' names.
        trial: The slow provider that is tried beside the first one; or None.
        replaced: The provider whose place another has taken; or None.
        hedges: The part of the budget that is left for hedges, from 0 to 1.
        reason: Why the order differs from the given one, for reports; None if it does not.
    """

    order: tuple[str, ...]
    trial: str | None = None
    replaced: str | None = None
    hedges: float = 1.0
    reason: str | None = None


def first_place(
    given: Sequence[str],
    slow_periods: Mapping[str, SlowPeriod],
    median_secs: Mapping[str, float],
    budget: float,
    now: float,
    *,
    may_hang: Collection[str] = (),
    in_debt: bool = False,
) -> FirstPlace:
    """Return which provider comes first in a turn.

    Args:
        given: The providers' names in the user's order; not empty.
        slow_periods: By provider, whether it has turned slow.
        median_secs: By provider, its learned or assumed median time to first token, in seconds.
        budget: Extra requests per turn.
        now: Time on the race's clock, in seconds.
        may_hang: The providers that have not answered since they hung.
        in_debt: Whether the budget account is in debt; then there is no trial.
    """
    first = given[0]
    if not slow_periods[first].is_on or budget <= 0:
        return FirstPlace(tuple(given))
    level = slow_periods[first].level_secs(now)
    well = (n for n in given[1:] if not slow_periods[n].is_on and median_secs[n] < level)
    other = next(well, None)
    if other is None:
        return FirstPlace(tuple(given))
    rest = [name for name in given[1:] if name != other]
    reason = f"{first} has turned slow ({level:.2f} s or more), {other} takes"
    reason += f" {median_secs[other]:.2f} s at the median"
    is_tried = not in_debt and (other in may_hang or slow_periods[first].is_trial_turn(budget))
    is_next = is_tried or other in may_hang
    order = (other, first, *rest) if is_next else (other, *rest, first)
    return FirstPlace(order, first if is_tried else None, first, 1.0 - TRIALS, reason)


@dataclass(frozen=True, slots=True)
class Trial:
    """Sends a trial request at the turn's start, then applies ``rule``; a ``LaunchRule``.

    Parameters:
        rule: The other rule.
        provider: The provider to try. If it is ineligible for hedges now, there is no trial:
            another provider in its place would yield no observation.
    """

    rule: LaunchRule
    provider: str

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Launch the trial beside the first attempt; see ``LaunchRule``."""
        if len(waiting.in_flight) > 1 or waiting.next_provider != self.provider:
            return self.rule.next_launch(waiting)
        return LaunchDecision(waiting.started_at, f"tries {waiting.next_provider}")


@dataclass(frozen=True, slots=True)
class AskReplaced:
    """Asks the replaced provider after a rare wait, and else applies ``rule``; a ``LaunchRule``.

    Parameters:
        rule: The other rule.
        replaced: The provider whose place another has taken.
        rare_secs: By provider, the wait for its first token in seconds that is rare.
    """

    rule: LaunchRule
    replaced: str
    rare_secs: Mapping[str, float]

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        """Launch a further attempt, at last the replaced provider's; see ``LaunchRule``."""
        decision, last = self.rule.next_launch(waiting), waiting.in_flight[-1]
        if last.first_token_at is not None or any(
            attempt.provider == self.replaced for attempt in waiting.in_flight
        ):
            return decision
        at = last.launched_at + self.rare_secs[last.provider]
        if decision.at is not None and decision.at <= at and not decision.is_put_off:
            return decision
        return LaunchDecision(at, f"{self.replaced} was first and may answer sooner")
