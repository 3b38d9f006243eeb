"""What a turn will do: a policy, as the user states it, and what has been learned, made one.

The same for a turn in the pipeline and for one in virtual time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipecat_hedge.policy.backends import Backend
from pipecat_hedge.policy.hedge_budget import HedgeBudget
from pipecat_hedge.policy.hedge_burst import BurstBound
from pipecat_hedge.policy.hedge_policy import (
    Adaptive,
    HedgePolicy,
    LearnedRule,
    OnlyOnFailure,
)
from pipecat_hedge.policy.latency_registry import LatencyRegistry
from pipecat_hedge.policy.launch_rule import (
    LatencyEstimate,
    PricedDelay,
)
from pipecat_hedge.policy.routing import HedgeLate, Probing, Route
from pipecat_hedge.policy.slo import Slo
from pipecat_hedge.policy.slo_hedge import Aim, AimedDelay, aim_at
from pipecat_hedge.policy.survival import SurvivalCurve
from pipecat_hedge.race.attempt import Attempt
from pipecat_hedge.race.events import CommitOn, Launch, LaunchRule

__all__ = ["Plan", "learn", "plan_turn", "silent_secs"]

USUAL_PROMPT, USUAL_ANSWER = 2_000, 100
"""Tokens, where nothing better is known: costs are compared, so little depends on it."""
SILENT_SECS = 5.0
"""Where there is no stall time."""
SILENT_TIMES = 2.0
"""Times the p99: of a thousand answers one or two take longer."""
MOST_STALLS = 4.0
"""No more than so many stall times, or a provider that hangs would be taken for a slow one."""


@dataclass(slots=True)
class Plan:
    """How one turn is raced.

    Parameters:
        order: The providers' names, in the order in which to ask them.
        rule: When to launch the next attempt.
        route_reason: Why this order, where it is not as given; or None.
        prior_weight: How much of what is known of the first provider is still assumed, from 0 to 1;
            None where nothing that is learned is used.
        probe: Who is asked only to see how it does; or None.
        slowest_secs: By provider, how long its first token may take and still be usual; before that
            it is slow and not silent. Whom the table lacks, nothing is known of.
    """

    order: tuple[str, ...]
    rule: LaunchRule
    route_reason: str | None = None
    prior_weight: float | None = None
    probe: str | None = None
    slowest_secs: Mapping[str, float] = field(default_factory=dict[str, float])
    _stats: LatencyRegistry | None = None
    _budget: float = 0.0
    _costs: dict[str, float] = field(default_factory=dict[str, float])
    _bound: BurstBound | None = None

    def try_out(self, provider: str) -> None:
        """Ask somebody who was left alone beside the first provider, not in its place.

        Args:
            provider: Who; one of the order. If it is the only one, it is asked like any other.
        """
        others = [name for name in self.order if name != provider]
        self.probe = provider
        if not others:
            return
        self.order = (others[0], provider, *others[1:])
        usual = self.rule.usual if isinstance(self.rule, Probing) else self.rule
        self.rule = Probing(usual, provider)

    def launched(
        self, launch: Launch, now: float | None = None, *, is_waiting: bool = True
    ) -> None:
        """Pay for an attempt, if it is one that the budget is for.

        Args:
            launch: The attempt.
            now: The time, if the turn was planned at one.
            is_waiting: Whether nothing has been committed yet; if not, it is a rescue.
        """
        if self._stats is None or launch.reason not in ("hedge", "stall") or not is_waiting:
            return
        cost = self._costs.get(launch.provider, 1.0)
        if self._bound is None or not self._bound.take_claim():
            self._stats.accounts.pay(self._budget, cost, now)

    def close(self) -> None:
        """Pay back what was paid for and not sent; call it when the turn is over."""
        if self._bound is not None:
            self._bound.close()


def plan_turn(
    policy: HedgePolicy,
    backends: Sequence[Backend],
    stats: LatencyRegistry,
    *,
    prompt_tokens: int | None,
    commit_on: CommitOn,
    rng: random.Random,
    now: float | None = None,
    lag_secs: Callable[[], float] = lambda: 0.0,
) -> Plan:
    """Plan a turn.

    Args:
        policy: What the user wants.
        backends: Whom to ask, in the given order; may be empty.
        stats: What is known of them.
        prompt_tokens: The size of the prompt; None where it is not known.
        commit_on: What an attempt must have to win.
        rng: Decides where a rule decides by probability.
        now: The time, on the race's clock. None where turns come one after the other and not when
            callers call: then how many are hedged at once has no meaning, and is not bounded.
        lag_secs: Tells how far the event loop is behind: what has arrived since is not read yet.
    """
    rule = policy.rule
    order = tuple(backend.provider for backend in backends)
    if isinstance(rule, OnlyOnFailure) and now is not None:
        return Plan(order, rule, slowest_secs=_slowest(policy, backends, stats, prompt_tokens))
    if not isinstance(rule, (Adaptive, LearnedRule)):
        return Plan(order, rule)
    if not backends:
        return Plan(order, OnlyOnFailure())
    known = stats.known(backends, prompt_tokens, by_sentence=commit_on == "first_sentence")
    prior_weight = stats.prior_weight(backends[0], prompt_tokens)
    if isinstance(rule, LearnedRule):
        made = rule.launch_rule(known, order, rng.random())
        return Plan(order, made, prior_weight=prior_weight)
    return _adaptive(
        policy, rule, backends, known, stats, prompt_tokens, prior_weight, rng, now, lag_secs
    )


def _adaptive(
    policy: HedgePolicy,
    rule: Adaptive,
    backends: Sequence[Backend],
    known: dict[str, LatencyEstimate],
    stats: LatencyRegistry,
    prompt_tokens: int | None,
    prior_weight: float,
    rng: random.Random,
    now: float | None,
    lag_secs: Callable[[], float],
) -> Plan:
    given = tuple(backend.provider for backend in backends)
    accounts, budget = stats.accounts, rule.budget
    accounts.begin_turn(budget, now)
    route = stats.route(backends, known, rule, (now or 0.0) - lag_secs())
    if rule.order == "given":
        route = Route(given)
    order, probe = route.order, route.probe
    first = next(backend for backend in backends if backend.provider == order[0])
    if stats.is_slow(first) and not all(map(stats.is_slow, backends)):
        usual = stats.usual(first, prompt_tokens)  # what was a long wait before is one now
        known = {**known, order[0]: replace(known[order[0]], first_token=usual)}
    costs = _costs(backends, order[0], prompt_tokens)
    share_at = {
        cost: route.hedges * accounts.share(budget, cost)
        if now is not None or accounts.permits(budget, cost)
        else 0.0
        for cost in set(costs.values())
    }
    aim, within_secs = None, 0.0
    if rule.slo is not None and policy.max_attempts > 1:
        further = order[1 % len(order)]
        aim, within_secs = _aim(rule.slo, known[order[0]], known[further], share_at[costs[further]])
    if aim is not None:
        share_at = {cost: (1.0 - aim.spends) * share for cost, share in share_at.items()}
    rule_of_turn: LaunchRule = PricedDelay(
        known,
        {name: share_at[cost] for name, cost in costs.items()},
        rule.min_saving_secs,
        rule.target_ttft_secs,
        stats.benefits,
    )
    if aim is not None and rng.random() < aim.probability:
        rule_of_turn = AimedDelay(rule_of_turn, aim, within_secs)
    late_secs = stats.late_secs(first, prompt_tokens)
    if late_secs is not None:
        rule_of_turn = HedgeLate(
            rule_of_turn,
            order[0],
            late_secs,
            lambda now: (
                stats.has_turned_slow(first, now - lag_secs())
                and not all(map(stats.is_slow, backends))
                and accounts.has_credit(budget)
            ),
        )
    slowest_secs, bound = dict[str, float](), None
    if now is not None:
        slowest_secs = _slowest(policy, backends, stats, prompt_tokens)
        keys = {backend.provider: backend.key for backend in backends}
        rule_of_turn = bound = BurstBound(
            rule_of_turn,
            lambda provider, now: accounts.claim(budget, costs[provider], now),
            lambda provider: accounts.pay_back(budget, costs[provider]),
            slowest_secs,
            lambda provider: stats.answered_since(keys[provider]),
            lambda provider: stats.last_token_at(keys[provider]),
        )
    return Plan(
        order,
        rule_of_turn if probe is None else Probing(rule_of_turn, probe),
        route.reason,
        prior_weight,
        probe,
        slowest_secs,
        stats,
        budget,
        costs,
        bound,
    )


def _aim(
    slo: Slo, first: LatencyEstimate, further: LatencyEstimate, affordable: float
) -> tuple[Aim | None, float]:
    """How what is promised of what wins is kept, and within which time of its first token.

    A promise may be of the sentence; so its token should be there so much sooner as the provider
    usually takes from there.
    """
    within, ahead = slo.ttft_secs, 0.0
    if within is None or (first.sentence is not None and slo.ttfs_secs is not None):
        within = slo.ttfs_secs
        ahead = 0.0 if first.sentence is None else first.sentence.quantile(0.5)
    if within is None:
        return None, 0.0
    within = max(within - ahead, 0.0)
    return aim_at(first.first_token, further.first_token, within, slo.share, affordable), within


def silent_secs(usual: SurvivalCurve | None, stall_secs: float | None) -> float:
    """After how long without a word a provider is silent, and not slow.

    Args:
        usual: The times to first token that are usual for it; None where it may hang.
        stall_secs: The silence after which somebody else is asked, if there is such a time.

    Returns:
        Longer than nearly all of its answers take, and from once to ``MOST_STALLS`` times the stall
        time.
    """
    least = SILENT_SECS if stall_secs is None else stall_secs
    if usual is None:
        return least
    return min(max(SILENT_TIMES * usual.quantile(0.99), least), MOST_STALLS * least)


def _slowest(
    policy: HedgePolicy,
    backends: Sequence[Backend],
    stats: LatencyRegistry,
    prompt_tokens: int | None,
) -> dict[str, float]:
    """By provider, how long its first token may take and still be usual.

    Where the attempt before was waited for in vain, the next one is not waited for as long. Where
    little is known, or nothing is to be spent on what is merely slow, it is waited for twice as
    long.
    Under other policies the user's stall time holds until answers that take longer have been seen.
    """
    rule, found = policy.rule, dict[str, float]()
    for backend in backends:
        secs = silent_secs(stats.usual(backend, prompt_tokens), policy.stall_secs)
        prior_weight = stats.prior_weight(backend, prompt_tokens)
        if stats.may_hang(backend):
            secs = silent_secs(None, policy.stall_secs)
        elif not isinstance(rule, Adaptive):
            secs *= 1.0 - prior_weight
        else:
            secs *= 1.0 + prior_weight if rule.budget else 2.0
        found[backend.provider] = secs
    return found


def _costs(backends: Sequence[Backend], first: str, prompt_tokens: int | None) -> dict[str, float]:
    """What a request to each costs, in requests to the first."""
    if all(backend.usd_per_mtok is None for backend in backends):
        return dict.fromkeys((backend.provider for backend in backends), 1.0)
    usual = next(_usd(b, prompt_tokens) for b in backends if b.provider == first)
    return {b.provider: HedgeBudget.relative_cost(_usd(b, prompt_tokens), usual) for b in backends}


def _usd(backend: Backend, prompt_tokens: int | None) -> float | None:
    if backend.usd_per_mtok is None:
        return None
    prompt = USUAL_PROMPT if prompt_tokens is None else prompt_tokens
    return (prompt * backend.usd_per_mtok[0] + USUAL_ANSWER * backend.usd_per_mtok[1]) / 1e6


def learn(
    stats: LatencyRegistry,
    backends: Sequence[Backend],
    attempts: Sequence[Attempt],
    prompt_tokens: int | None,
    *,
    listened_to: Collection[int] = (),
    with_sentences: bool = True,
) -> None:
    """Learn from the attempts of a turn that is over.

    Args:
        stats: Where to.
        backends: Who was asked.
        attempts: Every attempt of the turn.
        prompt_tokens: The size of the prompt; None where it is not known.
        listened_to: The numbers of those that have lost, are let run to their first token, and are
            learned from then.
        with_sentences: Whether times to the first sentence are to be learned too.
    """
    by_name = {backend.provider: backend for backend in backends}
    for attempt in attempts:
        if attempt.number not in listened_to:
            backend = by_name[attempt.provider]
            stats.record(backend, attempt, prompt_tokens, with_sentence=with_sentences)
