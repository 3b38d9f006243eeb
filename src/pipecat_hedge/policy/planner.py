"""Plans a turn from the policy and the learned latencies: provider order, launch rule and budget.

The service plans live turns with it, and ``whatif`` plans turns in virtual time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipecat_hedge.policy.budget_accounts import BudgetAccounts
from pipecat_hedge.policy.first_place import AskReplaced, Trial, first_place
from pipecat_hedge.policy.hedge_budget import HedgeBudget
from pipecat_hedge.policy.hedge_burst import BurstBound
from pipecat_hedge.policy.hedge_policy import (
    Adaptive,
    AfterSilence,
    HedgePolicy,
    OnlyOnFailure,
    TurnFacts,
    TurnRule,
)
from pipecat_hedge.policy.priced_delay import PricedDelay
from pipecat_hedge.providers.backends import Backend
from pipecat_hedge.providers.latency import SILENT_SECS, LatencyEstimate
from pipecat_hedge.providers.registry import ProviderRegistry
from pipecat_hedge.providers.slow_period import late_secs
from pipecat_hedge.race.attempt import Attempt
from pipecat_hedge.race.events import CommitOn, Launch, LaunchRule

PROMPT_TOKENS = 2_000
"""Assumed size of an unknown prompt. Only cost ratios are used, so little depends on it."""
ANSWER_TOKENS = 100
"""Assumed length of an answer, likewise."""


@dataclass(slots=True)
class Plan:
    """The plan of one turn.

    Parameters:
        order: The providers' names, in the order of their attempts.
        rule: When to launch the next attempt.
        route_reason: Why the order differs from the given one; None if it does not.
        prior_weight: Weight of the prior in the first provider's latency estimate, from 0 to 1;
            None if the policy uses no estimate.
        trial: The provider that is tried beside the first one; or None.
        is_free: Whether the trial is not paid for: it is due by time, after a silence or an open
            breaker.
        estimates: The latency estimate of each provider.
        problem: Why the policy's own rule could not be used for this turn; None if it could.
    """

    order: tuple[str, ...]
    rule: LaunchRule
    route_reason: str | None = None
    prior_weight: float | None = None
    trial: str | None = None
    is_free: bool = False
    estimates: Mapping[str, LatencyEstimate] = field(default_factory=dict[str, LatencyEstimate])
    _pay: Callable[[str, float | None], None] = lambda provider, now: None
    _bound: BurstBound | None = None
    problem: str | None = None

    def try_out(self, provider: str, *, is_free: bool = False) -> None:
        """Try an excluded provider beside the first one, not in its place.

        Args:
            provider: A provider of the order. If it is the only one, it gets an ordinary attempt.
            is_free: Whether the trial is not paid for, because it is rare: it is due by time.
        """
        others = [name for name in self.order if name != provider]
        self.trial, self.is_free = provider, is_free
        if not others:
            return
        self.order = (others[0], provider, *others[1:])
        rule = self.rule.rule if isinstance(self.rule, Trial) else self.rule
        self.rule = Trial(rule, provider)

    def put_last(self, last: Collection[str]) -> None:
        """Move providers to the end of the order, which is kept otherwise."""
        self.order = tuple(sorted(self.order, key=last.__contains__))

    def launched(
        self, launch: Launch | Attempt, now: float | None = None, *, is_waiting: bool = True
    ) -> None:
        """Pay for an attempt if it is an extra request before commit.

        Args:
            launch: The attempt, or its launch.
            now: Time in seconds; None as for ``plan_turn``.
            is_waiting: Whether no answer is committed; a later attempt is a rescue and is not paid
                for.
        """
        is_free = self.is_free and launch.provider == self.trial
        is_extra = launch.reason == "hedge" and is_waiting and not is_free
        if is_extra and not (self._bound is not None and self._bound.take_claim()):
            self._pay(launch.provider, now)

    def close(self) -> None:
        """Refund what was paid for and not sent, at the turn's end."""
        if self._bound is not None:
            self._bound.close()


def plan_turn(
    policy: HedgePolicy,
    backends: Sequence[Backend],
    stats: ProviderRegistry,
    accounts: BudgetAccounts,
    *,
    prompt_tokens: int | None,
    commit_on: CommitOn,
    rng: random.Random,
    has_tools: bool = False,
    now: float | None = None,
    lag_secs: Callable[[], float] = lambda: 0.0,
    is_routed: bool = False,
    last: Collection[str] = (),
) -> Plan:
    """Plan a turn.

    Args:
        policy: The user's policy.
        backends: The candidates in the given order; may be empty.
        stats: The learned latencies.
        accounts: What may be spent on hedges.
        prompt_tokens: Size of the prompt; None if unknown.
        commit_on: What an attempt must produce to win.
        rng: Draws the turns that a randomised rule hedges.
        has_tools: Whether the model may call tools.
        now: Time on the race's clock. None for turns replayed one after the other: they do not
            overlap, so bursts are not bounded.
        lag_secs: Returns the delay of the event loop in seconds. Tokens that arrived within it have
            not been read yet.
        is_routed: Whether the user's route has put the candidates into their order.
        last: The candidates that come last in any case.
    """
    rule, order = policy.rule, tuple(backend.provider for backend in backends)
    if not backends:
        return Plan(order, OnlyOnFailure())
    estimates = stats.estimates(backends, prompt_tokens, by_sentence=commit_on == "first_sentence")
    prior_weight, problem = None, None
    # Adaptive comes first: to look a protocol's methods up takes longer than the rest.
    if isinstance(rule, (Adaptive, TurnRule)):
        prior_weight = estimates[order[0]].prior_weight
    if not isinstance(rule, Adaptive) and isinstance(rule, TurnRule):
        facts = TurnFacts(order, estimates, rng.random(), prompt_tokens, has_tools)
        rule, problem = _rule_of_turn(rule, facts)
    is_given = is_routed or (isinstance(rule, Adaptive) and rule.order == "given")
    silent = None if is_given else _silent_first(order, estimates, last)
    if not isinstance(rule, Adaptive):
        plan = Plan(order, rule, prior_weight=prior_weight, estimates=estimates, problem=problem)
        plan.put_last(last)
        if silent is not None and plan.order[0] == silent:
            _replace_silent(plan, silent, backends, stats, now, policy.max_attempts)
        return plan

    budget = rule.budget
    accounts.begin_turn(budget, now)
    # Without a budget the order stays as given; slow periods are watched in any case.
    place_budget = budget if rule.order == "learned" and not is_routed else 0.0
    in_debt, seen_at = accounts.in_debt(budget), (now or 0.0) - lag_secs()
    with stats.lock:
        place = first_place(
            order,
            stats.slow_periods(backends, seen_at),
            {name: estimates[name].first_token.quantile(0.5) for name in order},
            place_budget,
            seen_at,
            may_hang=[name for name in order if estimates[name].may_hang],
            in_debt=in_debt,
        )
    order = place.order
    costs = _costs(backends, order[0], prompt_tokens)
    share_at = {
        cost: place.hedges * accounts.share(budget, cost)
        if now is not None or accounts.permits(budget, cost)
        else 0.0
        for cost in set(costs.values())
    }
    shares = {name: share_at[cost] for name, cost in costs.items()}
    of_turn: LaunchRule = PricedDelay(
        estimates, shares, rule.min_saving_secs, rule.target_ttft_secs, accounts.benefits
    )
    if place.replaced is not None:
        curves = {backend: estimates[backend.provider].first_token for backend in backends}
        common = 1.0 - min(place.hedges * budget, 1.0)
        rare_secs = {
            backend.provider: 0.0
            if estimates[backend.provider].may_hang
            else max(curve.quantile(common), late_secs(curve))
            for backend, curve in curves.items()
        }
        of_turn = AskReplaced(of_turn, place.replaced, rare_secs)
    bound = None
    if now is not None:
        of_turn = bound = BurstBound(
            of_turn,
            lambda provider, now: accounts.claim(budget, costs[provider], now),
            lambda provider: accounts.pay_back(budget, costs[provider]),
        )
    if place.trial is not None:
        of_turn = Trial(of_turn, place.trial)
    plan = Plan(
        order,
        of_turn,
        route_reason=place.reason,
        prior_weight=prior_weight,
        trial=place.trial,
        estimates=estimates,
        _pay=lambda provider, now: accounts.pay(budget, costs.get(provider, 1.0), now),
        _bound=bound,
    )
    plan.put_last(last)
    if silent is not None and plan.order[0] == silent:
        _replace_silent(plan, silent, backends, stats, now, policy.max_attempts)
    return plan


def _silent_first(
    order: Sequence[str], estimates: Mapping[str, LatencyEstimate], last: Collection[str]
) -> str | None:
    """The first provider, if it has been silent in a row and another one is well."""
    are_well = (not estimates[name].may_hang and name not in last for name in order[1:])
    return order[0] if estimates[order[0]].is_silent and any(are_well) else None


def _replace_silent(
    plan: Plan,
    silent: str,
    backends: Sequence[Backend],
    stats: ProviderRegistry,
    now: float | None,
    max_attempts: int,
) -> None:
    """Put the first provider last, or, when a trial is due, beside the next one."""
    backend = next(b for b in backends if b.provider == silent)
    is_trial = stats.claim_trial(backend, now)
    if is_trial and max_attempts == 1:
        return
    others = [name for name in plan.order if name != silent]
    others.sort(key=lambda name: plan.estimates[name].may_hang)
    plan.order = (*others, silent)
    plan.route_reason = f"{silent} was silent {plan.estimates[silent].silences} times in a row"
    if is_trial:
        plan.try_out(silent, is_free=True)


def silent_secs(
    policy: HedgePolicy, estimate: LatencyEstimate, own_stall_secs: float | None = 0.0
) -> float | None:
    """Return the silence guard: the wait for a first token after which another provider is asked.

    It starts from ``silence_secs``, with ``fallback`` from ``stall_secs``. None is never.

    Args:
        policy: The user's policy.
        estimate: The provider's latency estimate.
        own_stall_secs: The provider's own stall time, which it may take in any case; None is never.
    """
    rule = policy.rule
    least = policy.stall_secs if isinstance(rule, OnlyOnFailure) else policy.silence_secs
    if least is None or own_stall_secs is None or math.inf in (least, own_stall_secs):
        return None
    own_secs = max(own_stall_secs, rule.seconds if isinstance(rule, AfterSilence) else 0.0)
    secs = max(least, own_secs, estimate.answers.p98)
    if estimate.may_hang:
        secs = min(max(SILENT_SECS, own_secs, estimate.answers.p90), secs)
    return secs if policy.deadline_secs is None else min(secs, policy.deadline_secs / 2)


def _rule_of_turn(rule: TurnRule, facts: TurnFacts) -> tuple[LaunchRule | Adaptive, str | None]:
    """Return the rule that a user's rule chooses; if it fails, one without hedges, and why."""
    try:
        found: Any = rule.rule_for(facts)
    except Exception as e:
        return OnlyOnFailure(), f"rule_for raised {type(e).__name__}: {e}"
    if isinstance(found, Adaptive) or callable(getattr(found, "next_launch", None)):
        return found, None
    return OnlyOnFailure(), f"rule_for returned {found!r}: return an object with next_launch"


def _costs(backends: Sequence[Backend], first: str, prompt_tokens: int | None) -> dict[str, float]:
    """Return the cost of a request to each provider, in requests to the first one."""
    if all(backend.usd_per_mtok is None for backend in backends):
        return dict.fromkeys((backend.provider for backend in backends), 1.0)
    usd = next(_usd(b, prompt_tokens) for b in backends if b.provider == first)
    return {b.provider: HedgeBudget.relative_cost(_usd(b, prompt_tokens), usd) for b in backends}


def _usd(backend: Backend, prompt_tokens: int | None) -> float | None:
    if backend.usd_per_mtok is None:
        return None
    prompt = PROMPT_TOKENS if prompt_tokens is None else prompt_tokens
    return (prompt * backend.usd_per_mtok[0] + ANSWER_TOKENS * backend.usd_per_mtok[1]) / 1e6
