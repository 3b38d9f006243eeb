"""Plans one turn from the providers' statistics, and learns from its attempts."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection, Sequence
from typing import Generic

from loguru import logger

from pipecat_hedge.limits.concurrency_limit import LimitBounds
from pipecat_hedge.limits.provider_health import BreakerChange
from pipecat_hedge.policy.backends import Backend
from pipecat_hedge.policy.hedge_benefit import joint
from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.policy.planner import learn, plan_turn
from pipecat_hedge.policy.slow_period import late_secs
from pipecat_hedge.policy.survival import SurvivalCurve
from pipecat_hedge.policy.turn_route import RouteChoice
from pipecat_hedge.race.attempt import Attempt
from pipecat_hedge.race.events import CommitOn, InFlight
from pipecat_hedge.race.reports import BreakerReport, ProviderState
from pipecat_hedge.service.candidates import A, Candidates, ProviderMember
from pipecat_hedge.service.provider_stats import ProviderStats

_RNG = random.Random()
GIVEN_ORDER = RouteChoice((), "")


class TurnPlanner(Generic[A]):
    """Plans a turn and learns from its attempts.

    Attributes:
        plan: How the turn is raced.
        policy: The user's policy.
        candidates: The providers in the order of their requests.
        choice: The user's route.
        commit_on: What an attempt must have to win.
        prompt_tokens: An estimate of the prompt's size.
        has_tools: Whether the model may call tools.
        whole_answers: Whether the latency of whole answers counts, as in a one-shot inference.
    """

    def __init__(
        self,
        policy: HedgePolicy,
        candidates: Candidates[A],
        stats: ProviderStats,
        output_commits_on: CommitOn,
        *,
        prompt_tokens: int,
        has_tools: bool,
        whole_answers: bool = False,
        now: float | None = None,
        choice: RouteChoice = GIVEN_ORDER,
    ):
        """Plan the turn.

        Args:
            policy: The user's policy.
            candidates: The providers that may be used, in the given order.
            stats: The providers' statistics.
            output_commits_on: What suits the text-to-speech.
            prompt_tokens: An estimate of the prompt's size.
            has_tools: Whether the model may call tools.
            whole_answers: Whether the latency of whole answers counts, as in a one-shot inference.
            now: The loop's time.
            choice: The user's route, which the candidates' order follows.
        """
        self.choice = choice
        self.policy = policy
        self.whole_answers = whole_answers
        self._stats = stats
        by_name = {entry.provider.name: entry for entry in candidates.entries}
        self._backends = [_backend(entry, whole_answers) for entry in candidates.entries]
        self.commit_on: CommitOn = output_commits_on if policy.commit == "auto" else policy.commit
        self.prompt_tokens, self.has_tools = prompt_tokens, has_tools
        self.plan = plan_turn(
            policy,
            self._backends,
            stats,
            prompt_tokens=self.prompt_tokens,
            commit_on=self.commit_on,
            rng=_RNG,
            has_tools=has_tools,
            now=now,
            lag_secs=stats.loop_watch.lag_now,
            is_routed=bool(choice.first),
            last=candidates.last,
        )
        if self.plan.problem is not None:
            logger.warning(f"policy {policy.name}: {self.plan.problem}; this turn is not hedged")
        if candidates.in_panic:
            self.plan.order = tuple(by_name)
            self.plan.put_last(candidates.last)
        first = next(iter(candidates.keys), "")
        if first in candidates.last and self.plan.order[:1] not in ((), (first,)):
            self.plan.route_reason = f"{first} {candidates.last[first]}"
        rejecting = candidates.rejecting
        if candidates.probe is not None:
            self.plan.try_out(candidates.probe.provider.name)
            self.plan.is_trial = False
        elif (
            rejecting in by_name
            and self.plan.probe is None
            and stats.begin_trial(self._backend(rejecting), now)
        ):
            self.plan.try_out(rejecting)
        self.candidates = [by_name[name] for name in self.plan.order]

    @property
    def route_reason(self) -> str | None:
        """Why the order is not the given one; None if it is."""
        reasons = (self.choice.reason, self.plan.route_reason)
        return "; ".join(reason for reason in reasons if reason) or None

    def price_of(self, provider: str) -> tuple[float, float] | None:
        """A provider's US dollars per million ``(input, output)`` tokens; None if it is unknown."""
        return self._backend(provider).usd_per_mtok

    def wait_of(
        self, attempts: Sequence[Attempt], planned: InFlight | None, started_at: float
    ) -> SurvivalCurve | None:
        """The distribution of a turn's wait for its answer.

        Args:
            attempts: All attempts so far.
            planned: The next attempt, as it will be launched if no event comes before.
            started_at: When the turn began.

        Returns:
            The wait from the turn's start; None with just one live or planned attempt. Past waits
            are then the better estimate.
        """
        by_sentence = self.commit_on == "first_sentence"
        known = self._stats.known(self._backends, self.prompt_tokens, by_sentence=by_sentence)
        waits: list[tuple[SurvivalCurve, float]] = []
        live: list[Attempt | InFlight] = [a for a in attempts if a.outcome is None]
        for request in [*live, *([] if planned is None or not live else [planned])]:
            curve, sentence = known[request.provider].first_token, known[request.provider].sentence
            sent = request.launched_at
            if sentence is not None and request.first_token_at is not None:
                curve, sent = sentence, request.first_token_at
            elif sentence is not None:
                curve = curve.delayed(sentence.quantile(0.5))
            waits.append((curve, sent - started_at))
        return joint(waits) if len(waits) > 1 else None

    def slow(self, attempts: Sequence[Attempt], now: float) -> frozenset[str]:
        """The providers that are slow and not silent in this turn.

        Args:
            attempts: The turn's attempts.
            now: The loop's time.
        """
        waiting = [a for a in attempts if a.outcome is None and a.first_token_at is None]
        if not waiting:
            return frozenset()
        keys = {backend.provider: backend.key for backend in self._backends}
        asked = {attempt.provider for attempt in attempts}
        others = [key for provider, key in keys.items() if provider not in asked]
        return frozenset(
            a.provider for a in waiting if self._stats.is_slow(keys[a.provider], others, a, now)
        )

    def is_late(self, provider: str, secs: float) -> bool:
        """Whether a wait for a first token is longer than usual for a provider."""
        return secs > late_secs(self.plan.known[provider].usual)

    def observes(self, attempt: Attempt) -> bool:
        """Whether a loser runs on in any case, to see whether its provider is slow or silent."""
        if self.plan.is_trial and attempt.provider == self.plan.probe:
            return True
        backend = self._backend(attempt.provider)
        return self.is_unknown(attempt.provider) and self._stats.begin_observation(
            backend, attempt, self.prompt_tokens
        )

    def drop_observation(self, attempt: Attempt) -> None:
        """An observation of ``observes`` was cut short, so that nothing is known."""
        if not (self.plan.is_trial and attempt.provider == self.plan.probe):
            self._stats.drop_observation(self._backend(attempt.provider))

    def is_unknown(self, provider: str) -> bool:
        """Whether a provider had no answers when the turn began."""
        return not self.plan.known[provider].answers.seen

    def sent(self, attempt: Attempt) -> None:
        """Observe an attempt whose request is sent now, until ``learn``."""
        backend = self._backend(attempt.provider)
        self._stats.sent(backend, attempt, self.prompt_tokens)

    def learn(self, attempts: Sequence[Attempt], probes: Collection[int] = ()) -> None:
        """Learn from a finished race.

        Args:
            attempts: All its attempts.
            probes: The numbers of the losers that are still observed.
        """
        learn(
            self._stats,
            self._backends,
            attempts,
            self.prompt_tokens,
            listened_to=probes,
            lag_secs=self._stats.loop_watch.lag_now(),
        )

    def learn_from_probe(self, attempt: Attempt, first_at: float | None, now: float) -> None:
        """Learn from an observed loser that has ended.

        Args:
            attempt: The attempt.
            first_at: When its first token came; None if it ended before.
            now: The time.
        """
        backend = self._backend(attempt.provider)
        self._stats.record_listened(backend, attempt, first_at, now, self.prompt_tokens)

    def mark_simulated(self, provider: str) -> None:
        """Keep what is learned of a provider to this process."""
        self._stats.mark_simulated(self._backend(provider))

    def _backend(self, provider: str) -> Backend:
        return next(b for b in self._backends if b.provider == provider)

    def forget(self, attempt: Attempt) -> None:
        """Stop observing a loser without learning from it."""
        backend = self._backend(attempt.provider)
        self._stats.forget(backend, attempt)


def state_of(
    entry: ProviderMember,
    stats: ProviderStats,
    now: float,
    *,
    is_last: bool,
    bounds: LimitBounds,
) -> ProviderState:
    """A provider's state, with its estimated time to first token over all prompt sizes.

    Args:
        entry: The provider.
        stats: Its statistics.
        now: The loop's time.
        is_last: Whether it comes last because of what it rejected, or as unusable.
        bounds: Bounds of its concurrency limit.
    """
    health = stats.health
    in_flight, limit = health.occupancy(entry.key, now, bounds)
    backend = entry.backend
    known = stats.known([backend], None, by_sentence=False)[backend.provider]
    return ProviderState(
        provider=backend.provider,
        model=backend.model,
        p50_secs=known.first_token.quantile(0.5),
        p95_secs=known.first_token.quantile(0.95),
        prior_weight=known.prior_weight,
        is_last=is_last,
        retry_after_secs=health.retry_after_secs(entry.key, now),
        server=entry.server_load,
        breaker=health.state(entry.key, now),
        breaker_reason=health.open_reason(entry.key, now),
        in_flight=in_flight,
        limit=limit,
    )


def breaker_report(change: BreakerChange) -> BreakerReport:
    """Convert a change of a breaker to the public report."""
    provider, _, model = change.key.partition(" | ")
    event = change.event
    return BreakerReport(provider, model or None, event.before, event.after, event.reason)


def _backend(entry: ProviderMember, whole_answers: bool) -> Backend:
    backend = entry.backend
    return dataclasses.replace(backend, measures="whole_answer") if whole_answers else backend
