"""Plans a turn: which providers it asks, in which order, and when it sends further requests."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from loguru import logger

from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.policy.planner import Plan, plan_turn
from pipecat_hedge.policy.turn_route import RouteChoice
from pipecat_hedge.providers.backends import Backend, Measures
from pipecat_hedge.providers.permits import Terms
from pipecat_hedge.providers.priority import WorkClass
from pipecat_hedge.providers.standing import Standing, first_choice
from pipecat_hedge.race.events import CommitOn
from pipecat_hedge.service.candidates import TurnMembers, choose_candidates
from pipecat_hedge.service.member import A, Member
from pipecat_hedge.service.provider_stats import ProviderStats

_RNG = random.Random()
GIVEN_ORDER = RouteChoice((), "")


@dataclass(frozen=True, slots=True)
class TurnSpec:
    """What a turn, an inference or a proxied request asks for.

    Parameters:
        work: The work class of its first request.
        commit_on: What an attempt must have to win.
        prompt_tokens: An estimate of the prompt's size.
        has_tools: Whether the model may call tools.
        measures: What is timed: the first token, or the whole answer.
        choice: The user's route, which the members' order follows.
        is_learned: Whether its latencies are learned.
        rescues: Whether a committed answer that stalls is continued.
        stall_secs: The stall time of all providers, and the longest silence before another one gets
            a request; None keeps each provider's own.
        rejection_secs: See ``Race``.
    """

    work: WorkClass
    commit_on: CommitOn
    prompt_tokens: int
    has_tools: bool = False
    measures: Measures = "first_token"
    choice: RouteChoice = GIVEN_ORDER
    is_learned: bool = True
    rescues: bool = True
    stall_secs: float | None = None
    rejection_secs: float | None = None

    @property
    def whole_answers(self) -> bool:
        """Whether an answer comes all at once, as in a one-shot inference."""
        return self.measures == "whole_answer"


@dataclass(frozen=True, slots=True)
class PlannedTurn(Generic[A]):
    """The plan of a turn: its providers, its rule and its terms.

    Parameters:
        plan: The order, the launch rule and the costs.
        order: The providers in the order of their requests; empty if none may be used.
        backends: The statistics of each provider, by name.
        standings: How each provider stands at the turn's start, by name.
        terms: The terms on which the turn's requests get permits.
        recovering: The half-open provider whose recovery request the turn has claimed, or None. The
            turn must release the claim.
        reason: Why no provider may be used; empty if one may.
    """

    plan: Plan
    order: Sequence[Member[A]]
    backends: Mapping[str, Backend]
    standings: Mapping[str, Standing]
    terms: Terms
    recovering: str | None
    reason: str


def plan_of(
    policy: HedgePolicy,
    stats: ProviderStats,
    spec: TurnSpec,
    members: TurnMembers[A],
    terms: Terms,
    now: float,
) -> PlannedTurn[A]:
    """Plan a turn.

    Args:
        policy: The user's policy.
        stats: The providers' statistics.
        spec: What the turn asks for.
        members: The session's providers.
        terms: On which terms its requests are admitted.
        now: The loop's time.
    """
    given = members.given
    backends = {member.name: member.backend(spec.measures) for member in given}
    keys = [backend.record_key for backend in backends.values()]
    _report_queues(given, stats, now)
    stats.begin_turn(terms, now)
    standings = stats.standing(keys, spec.work, terms, now)
    found = choose_candidates(given, standings, stats, now, sheds=terms.sheds)
    try:
        if found.ignores_breakers:
            terms = dataclasses.replace(terms, ignores_breakers=True)
            standings = stats.standing(keys, spec.work, terms, now)
        last = {**found.last, **members.last}
        plan = plan_turn(
            policy,
            [backends[member.name] for member in found.members],
            stats,
            stats.accounts,
            prompt_tokens=spec.prompt_tokens,
            commit_on=spec.commit_on,
            rng=_RNG,
            has_tools=spec.has_tools,
            now=now,
            lag_secs=stats.loop_watch.lag_now,
            is_routed=bool(spec.choice.first),
            last=last,
        )
    except BaseException:
        if found.recovering is not None:
            stats.drop_recovery(backends[found.recovering].record_key, now)
        raise
    if plan.problem is not None:
        logger.warning(f"policy {policy.name}: {plan.problem}; this turn is not hedged")
    first = given[0].name
    if first in last and plan.order[:1] not in ((), (first,)):
        plan.route_reason = f"{first} {last[first]}"
    if found.recovering is not None:
        plan.try_out(found.recovering, is_free=True)
    elif (
        members.rejecting in plan.order
        and plan.trial is None
        and stats.claim_trial(backends[members.rejecting], now)
    ):
        plan.try_out(members.rejecting)
    plan.route_reason = "; ".join(filter(None, (spec.choice.reason, plan.route_reason))) or None
    by_name = dict(zip(backends, standings, strict=True))
    name, reason = _first(plan.order, by_name, found.recovering, sheds=terms.sheds)
    # It may be another provider than the plan's first.
    names = [] if name is None else sorted(plan.order, key=lambda each: each != name)
    return PlannedTurn(
        plan,
        [next(member for member in given if member.name == each) for each in names],
        backends,
        by_name,
        terms,
        found.recovering,
        found.reason or reason,
    )


def _report_queues(members: Sequence[Member], stats: ProviderStats, now: float) -> None:
    for member in members:
        load = member.server_load
        if load is not None and load.is_up:
            stats.set_queue(member.key, load.running, load.waiting, now)


def _first(
    order: Sequence[str], standings: Mapping[str, Standing], recovering: str | None, *, sheds: bool
) -> tuple[str | None, str]:
    """The provider of a turn's first request; or None, and why."""
    # A half-open provider comes last; with "shed" it is used only if it is the only one.
    names = [name for name in order if name != recovering]
    if not names:
        return (recovering if order else None), ""
    if sheds and all(standings[name].full is not None for name in names):
        return None, ", ".join(f"{name} {standings[name].full}" for name in names)
    if not sheds and recovering is not None:
        names.append(recovering)
    return names[first_choice([standings[name] for name in names])], ""
