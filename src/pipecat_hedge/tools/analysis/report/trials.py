"""What to try on logged turns: other orders, policies and providers. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from pipecat_hedge.policy.hedge_policy import Adaptive, HedgePolicy
from pipecat_hedge.policy.settings import with_rule
from pipecat_hedge.race.reports import AttemptReport, TurnReport
from pipecat_hedge.tools.analysis.report.candidates import Lineup
from pipecat_hedge.tools.analysis.report.turns import connecting_secs
from pipecat_hedge.tools.analysis.report.wording import secs
from pipecat_hedge.tools.analysis.whatif.reading import Recorded

__all__ = [
    "AS_IT_WAS",
    "LEARNED",
    "LEAST_ANSWERS",
    "NONE",
    "REPLACED",
    "SECOND_BUILD",
    "Kind",
    "Trial",
    "budget_of",
    "guessed_policy",
    "is_learned",
    "trials_of",
    "warmed",
]

LEAST_ANSWERS = 30
"""Of a provider with fewer answers nothing is predicted."""
BUDGETS = (0.05, 0.1, 0.25, 0.5)
NONE, AS_IT_WAS, REPLACED = "one request a turn", "as it was", "failed requests replaced"
LEARNED = "the order learned"
SECOND_BUILD = 'Provider("{0}", [service, another_instance])'

Kind: TypeAlias = Literal["order", "policy", "race", "second", "only one", "connections"]


@dataclass(frozen=True, slots=True)
class Trial:
    """A question to ask of the turns.

    Parameters:
        kind: What would be changed.
        first: Who is asked first.
        second: Who is hedged to.
        title: The change, in a few words; empty where only policies differ.
        how: The change, for whoever writes the bot.
        policies: Policies to try beside the log's own, by name.
        warm: Whether every connection is open beforehand.
    """

    kind: Kind
    first: str
    second: str
    title: str = ""
    how: str = ""
    policies: tuple[tuple[str, HedgePolicy], ...] = ()
    warm: bool = False


def trials_of(
    candidates: Lineup, recorded: Recorded, reports: Sequence[TurnReport]
) -> Iterator[Trial]:
    """What to try; first the turns as they were, with other policies.

    Args:
        candidates: How turns were raced.
        recorded: What was measured of each provider.
        reports: The turns.
    """
    first, second = candidates.first or "", candidates.second or ""
    others = [
        name
        for name, measured in recorded.providers.items()
        if name != first and int((~measured.censored & ~measured.failed).sum()) >= LEAST_ANSWERS
    ]
    fallback = HedgePolicy.fallback(candidates.attempts, stall_secs=None)
    known = candidates.policy or fallback
    usual = known if isinstance(known.rule, Adaptive) else fallback
    adaptive = (with_rule(usual, budget=budget) for budget in BUDGETS)
    policies = [
        (policy.name, policy)
        for policy in (*adaptive, fallback, HedgePolicy.race(2, stall_secs=None))
        if candidates.policy is None or policy.rule != candidates.policy.rule
    ]
    if second != first and not is_learned(candidates.policy):
        learned = with_rule(usual, budget=budget_of(candidates.policy), order="learned")
        policies.append((LEARNED, learned))
    if any(measured.failed.any() for measured in recorded.providers.values()):
        policies.append((REPLACED, HedgePolicy.fallback(2, stall_secs=None)))
    yield Trial("policy", first, second, policies=tuple(policies))
    if second != first and second in others:
        title = f"Ask {second} first, and {first} next"
        yield Trial("order", second, first, title, f'llms=[Provider("{second}", …), …]')
        title, how = f"Ask {second} alone, and hedge to it again", SECOND_BUILD.format(second)
        yield Trial("only one", second, second, title, how)
    for other in others:
        if other == second:
            continue
        title, how = f"Hedge to {other} instead of {second}", f'the second one: Provider("{other}")'
        yield Trial("second", first, other, title, how)
        title = f"Ask {other} first, and {first} next"
        yield Trial("order", other, first, title, f'llms=[Provider("{other}", …), …]')
        title = f"Leave {first} out: ask {other} first, and {second} next"
        yield Trial("only one", other, second, title, f'llms=[Provider("{other}", …), …]')
    if second != first:
        title = f"Hedge to {first} itself instead of {second}"
        yield Trial("second", first, first, title, SECOND_BUILD.format(first))
    opening = [s for r in reports for a in r.attempts if (s := connecting_secs(a))]
    if opening:
        share = len(opening) / max(sum(len(r.attempts) for r in reports), 1)
        title = "Have connections open before they are needed"
        how = (
            f"{share:.0%} of the requests opened one, in {secs(float(np.median(opening)))} (median)"
            ": warm=True, one HTTP client for all services, keep-alive longer than callers' pauses"
        )
        yield Trial("connections", first, second, title, how, warm=True)


def is_learned(policy: HedgePolicy | None) -> bool:
    """Whether a policy learns the order of providers.

    Args:
        policy: The policy, if it is known.
    """
    return (
        policy is not None
        and isinstance(policy.rule, Adaptive)
        and (policy.rule.order == "learned")
    )


def budget_of(policy: HedgePolicy | None) -> float:
    """The budget of a policy that has one, or the usual one.

    Args:
        policy: The policy, if it is known.
    """
    if policy is not None and isinstance(policy.rule, Adaptive):
        return policy.rule.budget
    return 0.1


def guessed_policy(reports: Sequence[TurnReport], candidates: Lineup) -> HedgePolicy:
    """A policy that sends about as many hedges as the log has, where it does not tell its policy.

    Args:
        reports: The turns.
        candidates: How they were raced.
    """
    hedges = sum(a.launch_reason == "hedge" for r in reports for a in r.attempts)
    if not hedges:
        return HedgePolicy.fallback(candidates.attempts, stall_secs=None)
    budget = round(hedges / len(reports), 2)
    return HedgePolicy.adaptive(max(budget, 0.01), candidates.attempts, stall_secs=None)


def warmed(report: TurnReport) -> TurnReport:
    """The turn as it were if no connection had had to be opened.

    Args:
        report: The turn.
    """
    if not any(connecting_secs(attempt) for attempt in report.attempts):
        return report
    return dataclasses.replace(report, attempts=tuple(map(_warm, report.attempts)))


def _warm(attempt: AttemptReport) -> AttemptReport:
    opening = connecting_secs(attempt)
    if not opening:
        return attempt
    ttft = attempt.ttft_secs
    return dataclasses.replace(
        attempt,
        ttft_secs=None if ttft is None else max(ttft - opening, 0.0),
        ended_secs=max(attempt.ended_secs - opening, attempt.launched_secs),
    )
