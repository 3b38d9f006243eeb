"""Chooses the providers that a turn may use, and their order before the policy changes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic

from pipecat_hedge.providers.registry import ProviderRegistry
from pipecat_hedge.providers.server_queue import is_last_resort, why_ineligible
from pipecat_hedge.providers.standing import Standing
from pipecat_hedge.service.member import A, Member


@dataclass(frozen=True, slots=True)
class TurnMembers(Generic[A]):
    """A session's providers in one turn.

    Parameters:
        given: The providers in this turn's order, with their usable instances; at least one.
        last: Those that come last, whatever their standing, and why; by name.
        rejecting: The name of one that rejected requests and is tried again; or empty.
    """

    given: Sequence[Member[A]]
    last: Mapping[str, str] = field(default_factory=dict[str, str])
    rejecting: str = ""


@dataclass(frozen=True, slots=True)
class Candidates(Generic[A]):
    """The providers that a turn may use.

    Parameters:
        members: The providers in order; empty if none may be used.
        recovering: The name of the half-open provider whose recovery request the turn has claimed,
            or None. The turn must release the claim.
        reason: Why no provider may be used; empty if one may.
        last: Those that come last, whatever the planned order, and why; by name.
        ignores_breakers: Whether the turn is planned as if every breaker were closed.
    """

    members: tuple[Member[A], ...]
    recovering: str | None = None
    reason: str = ""
    last: Mapping[str, str] = field(default_factory=dict[str, str])
    ignores_breakers: bool = False


def choose_candidates(
    members: Sequence[Member[A]],
    standings: Sequence[Standing],
    stats: ProviderRegistry,
    now: float,
    *,
    sheds: bool = False,
) -> Candidates[A]:
    """The providers that a turn may use.

    Those with a ``Retry-After`` come last. An open breaker puts its provider last, without hedges.
    One half-open provider gets a recovery request beside a healthy one. If no breaker is closed,
    the turn is planned as if all were. Servers that say that they are down or overloaded come last.

    Args:
        members: The providers in the given order, with their usable instances.
        standings: How they stand.
        stats: The process's registry, for claims.
        now: The loop's time.
        sheds: Whether open breakers end the turn instead (``admission="shed"``).
    """
    loads = [member.server_load for member in members]
    if all(s.is_well for s in standings) and not any(map(is_last_resort, loads)):
        return Candidates(tuple(members))  # the common case, kept fast
    states = [s.breaker for s in standings]
    retry_after_secs = [s.retry_after_secs for s in standings]
    by_retry_after = sorted(range(len(members)), key=lambda n: retry_after_secs[n])
    available = [n for n in by_retry_after if not retry_after_secs[n]]
    eligible = available or by_retry_after
    later = by_retry_after[len(available) :] if available else []
    closed = [n for n in eligible if states[n] == "closed"]
    half_open = [n for n in available if states[n] == "half_open"]
    tried = next((n for n in half_open if stats.claim_recovery(members[n].key, now)), None)
    recovering = None if tried is None else members[tried].name
    has_closed = closed or any(states[n] == "closed" for n in later)
    if sheds and not has_closed:
        if tried is not None:
            return Candidates((members[tried],), recovering)
        reasons = (
            f"{m.name} ({s.breaker_reason})" for m, s in zip(members, standings, strict=True)
        )
        return Candidates((), reason=f"all breakers are open: {', '.join(reasons)}")
    ignores_breakers = not closed and not sheds
    if ignores_breakers and tried is not None:
        stats.drop_recovery(members[tried].key, now)
        recovering = None
    last: dict[str, str] = {}
    for n in by_retry_after:
        if available and retry_after_secs[n]:
            last[members[n].name] = "has sent Retry-After"
        elif is_last_resort(loads[n]):
            last[members[n].name] = why_ineligible(loads[n]) or "is overloaded"
        elif states[n] != "closed" and n != tried and not ignores_breakers:
            last[members[n].name] = f"has an {states[n].replace('_', '-')} breaker"
    found = [
        members[n] for n in [*eligible, *later] if not sheds or states[n] == "closed" or n == tried
    ]
    return Candidates(tuple(found), recovering, last=last, ignores_breakers=ignores_breakers)
