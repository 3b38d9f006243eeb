"""How turns were raced, as far as a log tells: who was asked first, who next, by what policy.

A line tells its policy with all settings. An older log names it and no more: settings that the name
does not tell (a deadline, what an extra request is worth) are taken to be the usual ones. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.tools.analysis.report.turns import LoggedTurn, was_sent

__all__ = ["Lineup", "RacedTurn", "lineup_of", "policy_named"]

MOST_ATTEMPTS = 4
_NUMBER = r"(\d+(?:\.\d+)?)"
_NAMES: tuple[tuple[str, Callable[[float, int], HedgePolicy]], ...] = (
    (
        rf"adaptive\({_NUMBER} %\)",
        lambda budget, attempts: HedgePolicy.adaptive(budget / 100, attempts, stall_secs=None),
    ),
    (rf"race\({_NUMBER}\)", lambda most, _: HedgePolicy.race(int(most), stall_secs=None)),
    (
        rf"after\({_NUMBER} s\)",
        lambda secs, attempts: HedgePolicy.after(secs, attempts, stall_secs=None),
    ),
    (
        rf"at p{_NUMBER}",
        lambda p, attempts: HedgePolicy.at_quantile(p / 100, attempts, stall_secs=None),
    ),
    (
        r"after\(never\)|fallback()",
        lambda _, attempts: HedgePolicy.fallback(attempts, stall_secs=None),
    ),
)


@dataclass(frozen=True, slots=True)
class RacedTurn(LoggedTurn):
    """A turn whose line tells how its policy was set, as those of older logs do not.

    Parameters:
        raced_by: The policy; None for a rule of the user's own, or one of a later release.
    """

    raced_by: HedgePolicy | None = None


@dataclass(frozen=True, slots=True)
class Lineup:
    """How turns were raced.

    Parameters:
        policies: The policies' names and how many turns each was used for, the commonest first.
        first: Who was asked first most often; None if nobody was ever asked.
        second: Who was asked next most often; the first itself where nobody else ever was.
        others: Whoever else was asked.
        attempts: The most requests that a turn made, from 2 on.
        policy: The commonest policy, made again from its settings or, in an older log, from its
            name; None if those do not tell it.
    """

    policies: tuple[tuple[str, int], ...]
    first: str | None
    second: str | None
    others: tuple[str, ...]
    attempts: int
    policy: HedgePolicy | None


def lineup_of(turns: Sequence[LoggedTurn]) -> Lineup:
    """See how turns were raced.

    Args:
        turns: The turns.
    """
    names = Counter(turn.policy for turn in turns if turn.policy is not None).most_common()
    firsts, nexts, everybody = Counter[str](), Counter[str](), Counter[str]()
    most = 2
    for turn in turns:
        asked = [a.provider for a in turn.report.attempts if was_sent(a, turn.lacks)]
        firsts.update(asked[:1])
        nexts.update(asked[1:])
        everybody.update(asked)
        most = max(most, len(asked))
    first = firsts.most_common(1)[0][0] if firsts else None
    follow = [name for name, _ in nexts.most_common() if name != first]
    others = [name for name, _ in everybody.most_common() if name != first]
    second = next(iter(follow), next(iter(others), first))
    attempts = min(most, MOST_ATTEMPTS)
    policy = _commonest(turns, names[0][0], attempts) if names else None
    return Lineup(
        tuple((name, count) for name, count in names),
        first,
        second,
        tuple(name for name in others if name != second),
        attempts if policy is None else max(attempts, policy.max_attempts),
        policy,
    )


def _commonest(turns: Sequence[LoggedTurn], name: str, attempts: int) -> HedgePolicy | None:
    """The policy of that name, as most lines tell it that tell its settings."""
    told = Counter(
        turn.raced_by for turn in turns if isinstance(turn, RacedTurn) and turn.policy == name
    )
    return told.most_common(1)[0][0] if told else policy_named(name, attempts)


def policy_named(name: str, attempts: int) -> HedgePolicy | None:
    """The policy that calls itself so.

    Args:
        name: Its name, as in a log.
        attempts: The most requests a turn may make, where the name does not say.

    Returns:
        It, without a stall time; None if the name does not tell.
    """
    for pattern, made in _NAMES:
        if (found := re.fullmatch(pattern, name)) is not None:
            try:
                return made(float(found[1] or 0), attempts)
            except ValueError:  # a name that no policy of ours has
                return None
    return None
