"""What is known of the latency of each provider: one record per provider, model and prompt class.

Everything is behind one lock, held for microseconds as a rule, for a millisecond when a curve is
made anew, and never while anything is awaited or written.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pipecat_hedge.policy.backends import MOST_PROVIDERS, Backend, key_of, provider_key
from pipecat_hedge.policy.budget_accounts import BudgetAccounts, BudgetState
from pipecat_hedge.policy.hedge_benefit import BenefitCache
from pipecat_hedge.policy.latency_model import in_doubt
from pipecat_hedge.policy.priced_delay import LatencyEstimate
from pipecat_hedge.policy.priors import prior_for
from pipecat_hedge.policy.provider_latency import ProviderLatency
from pipecat_hedge.policy.routing import Route, route
from pipecat_hedge.race.attempt import MISSED_DEADLINE, STALLED, TIMED_OUT, Attempt

WHOLE_ANSWER = 5.0
"""Assumed duration of a whole answer, in times to first token."""
_WAITED = (STALLED, TIMED_OUT, MISSED_DEADLINE)
"""Errors after which only the length of the wait is known."""


class LatencyRegistry:
    """Latency estimates of providers, and the accounts of the hedge budgets. Thread-safe.

    Attributes:
        latencies: By the provider's key, the one used last at the end.
        accounts: What may be spent on hedges, by budget.
        simulated: The providers whose statistics stay in this process, by ``provider_key``.
        benefits: What has been computed for pairs of curves.
    """

    def __init__(self, processes: Callable[[], int] = lambda: 1):
        """Create an empty registry.

        Args:
            processes: The number of processes that share the budgets.
        """
        self._lock = threading.Lock()
        self.latencies: OrderedDict[str, ProviderLatency] = OrderedDict()
        self.benefits = BenefitCache()
        self.simulated: set[str] = set()
        self._kept: dict[str, Any] = {}
        self._is_new = False
        self.accounts = BudgetAccounts(self._lock, processes)

    def answered_since(self, key: str) -> float:
        """When the latest request was sent that a provider has begun to answer, by its key."""
        return float("-inf")

    def is_slow(self, key: str, others: Collection[str], attempt: Attempt, now: float) -> bool:
        """Whether an attempt that waits for its first token is slow and not silent.

        Args:
            key: Its provider's key.
            others: The keys of the providers that were not asked yet.
            attempt: The attempt.
            now: The time on the race's clock.
        """
        return False

    # ---- what is known

    def known(
        self, backends: Sequence[Backend], prompt_tokens: int | None, *, by_sentence: bool
    ) -> dict[str, LatencyEstimate]:
        """What is known of providers, by name.

        Args:
            backends: The providers.
            prompt_tokens: The size of the prompt; None where it is not known.
            by_sentence: Whether a sentence is what wins.
        """
        with self._lock:
            return {
                b.provider: self._of(b).known(prompt_tokens, by_sentence=by_sentence)
                for b in backends
            }

    # ---- what happened

    def mark_simulated(self, backend: Backend) -> None:
        """Keep what is learned of a provider to this process: a simulator answers for it."""
        with self._lock:
            self.simulated.add(key_of(backend.provider, backend.model))

    def is_simulated(self, backend: Backend) -> bool:
        """Whether a simulator has answered for a provider."""
        return key_of(backend.provider, backend.model) in self.simulated

    def record(
        self,
        backend: Backend,
        attempt: Attempt,
        prompt_tokens: int | None,
        *,
        with_sentence: bool = True,
        is_silence: bool = False,
    ) -> None:
        """Learn from an attempt that has ended.

        An error says nothing of a provider's latency, unless it is that there was no answer.

        Args:
            backend: The provider.
            attempt: The attempt.
            prompt_tokens: The size of the prompt; None where it is not known.
            with_sentence: Whether the time to its first sentence is to be learned too.
            is_silence: Whether it was silent; see ``ProviderLatency.record_silence``.
        """
        if attempt.ended_at is None:
            return
        first = attempt.first_token_at
        with self._lock:
            latency = self._of(backend)
            if first is None and attempt.outcome == "failed" and attempt.error not in _WAITED:
                self._is_new = True
                latency.slow_period.forget(attempt)
                return
            self._learn(latency, attempt, first, attempt.ended_at, prompt_tokens, is_silence)
            if first is None or not with_sentence or attempt.is_unsure:
                return
            if attempt.speakable_at is not None:
                latency.record_sentence(attempt.speakable_at - first, censored=False)
            elif not attempt.called_tools and attempt.outcome != "failed":
                latency.record_sentence(attempt.ended_at - first, censored=True)

    def count_silence(
        self, backend: Backend, attempt: Attempt, prompt_tokens: int | None, lag_secs: float = 0.0
    ) -> bool:
        """Count an attempt if it was silent: cut long after its launch and before any sign.

        Args:
            backend: The provider.
            attempt: The attempt.
            prompt_tokens: The size of the prompt; None where it is not known.
            lag_secs: How far the event loop was behind: something may have come in that time.
        """
        is_cut = attempt.error is None or attempt.error in _WAITED
        if attempt.ended_at is None or attempt.has_sign or not is_cut:
            return False
        if self.is_slow(backend.key, (), attempt, attempt.ended_at):
            return False
        with self._lock:
            latency = self._of(backend)
            waited_secs = attempt.ended_at - attempt.launched_at - lag_secs
            is_silence = latency.is_silence(waited_secs, prompt_tokens)
            latency.silences += is_silence
            return is_silence

    def _learn(
        self,
        latency: ProviderLatency,
        attempt: Attempt,
        first_at: float | None,
        now: float,
        prompt_tokens: int | None,
        is_silence: bool = False,
    ) -> None:
        """Learn an attempt's time to first token, or its wait until now."""
        self._is_new = True
        has_answered = first_at is not None
        # The loop was ``lag_secs`` behind: the token came between ``first_at - lag_secs`` and
        # ``first_at``. Use the lower bound.
        until = first_at - attempt.lag_secs if first_at is not None else now
        secs = max(until - attempt.launched_at, 0.0)
        if has_answered:
            latency.end_silence()
        late_after = latency.late_secs(prompt_tokens)
        if has_answered and not latency.is_settled:
            late_after = math.inf
        latency.slow_period.ended(attempt, secs, late_after, has_answered=has_answered)
        if is_silence:
            latency.record_silence(secs, prompt_tokens)
        else:
            is_censored = not has_answered or attempt.is_unsure
            latency.record(secs, censored=is_censored, prompt_tokens=prompt_tokens)

    def sent(self, backend: Backend, attempt: Attempt, prompt_tokens: int | None) -> None:
        """Watch an attempt of a turn that is under way, until ``record`` or ``forget``.

        Args:
            backend: The provider.
            attempt: The attempt.
            prompt_tokens: The size of the prompt; None where it is not known.
        """
        with self._lock:
            latency = self._of(backend)
            if latency.is_settled:
                latency.slow_period.sent(attempt, latency.late_secs(prompt_tokens))

    def forget(self, backend: Backend, attempt: Attempt) -> None:
        """Stop watching an attempt of which nothing is learned."""
        with self._lock:
            self._of(backend).slow_period.forget(attempt)

    def record_first_token(
        self, backend: Backend, secs: float, prompt_tokens: int | None, *, censored: bool = False
    ) -> None:
        """Learn a time to first token that was measured apart from a race.

        Args:
            backend: The provider.
            secs: From the request, in seconds; if censored, how long it was waited for.
            prompt_tokens: The size of the prompt; None where it is not known.
            censored: Whether the wait ended without a token.
        """
        with self._lock:
            self._is_new = True
            self._of(backend).record_apart(secs, censored=censored, prompt_tokens=prompt_tokens)

    def record_listened(
        self,
        backend: Backend,
        attempt: Attempt,
        first_at: float | None,
        now: float,
        prompt_tokens: int | None,
    ) -> None:
        """Learn from an attempt that was let run on after it had lost.

        Args:
            backend: The provider.
            attempt: The attempt.
            first_at: When its first token came; None if it was ended before.
            now: The time.
            prompt_tokens: The size of the prompt; None where it is not known.
        """
        with self._lock:
            self._learn(self._of(backend), attempt, first_at, now, prompt_tokens)

    def budgets(self) -> tuple[BudgetState, ...]:
        """The state of each budget that was used lately."""
        return self.accounts.states()

    # ---- how providers do now

    def route(
        self,
        given: Sequence[Backend],
        known: Mapping[str, LatencyEstimate],
        budget: float,
        now: float,
    ) -> Route:
        """Order the providers for a turn; see ``routing.route``.

        Args:
            given: The providers, in the order that the user gave; not empty.
            known: What is known of each.
            budget: Extra requests per turn.
            now: The time on the race's clock, less what the event loop is behind.
        """
        in_debt = self.accounts.in_debt(budget)
        with self._lock:
            latencies = {backend.provider: self._of(backend) for backend in given}
            for latency in latencies.values():
                latency.slow_period.look(now)
            return route(
                list(latencies),
                {name: latency.slow_period for name, latency in latencies.items()},
                {name: known[name].first_token.quantile(0.5) for name in latencies},
                budget,
                now,
                may_hang=[name for name in latencies if known[name].may_hang],
                in_debt=in_debt,
            )

    def begin_trial(self, backend: Backend, now: float | None) -> bool:
        """Whether a provider that lost its place by its silence is tried again in this turn.

        Args:
            backend: The provider.
            now: The time on the race's clock; None for turns replayed one after the other.
        """
        with self._lock:
            return self._of(backend).begin_trial(now)

    def begin_observation(
        self, backend: Backend, attempt: Attempt, prompt_tokens: int | None
    ) -> bool:
        """Whether a silent loser runs on, because its provider has no answers; see ``OBSERVED``.

        Args:
            backend: The provider.
            attempt: The attempt.
            prompt_tokens: The size of the prompt; None where it is not known.
        """
        if attempt.ended_at is None:
            return False
        with self._lock:
            latency = self._of(backend)
            waited_secs = attempt.ended_at - attempt.launched_at
            return latency.is_silence(waited_secs, prompt_tokens) and latency.begin_observation()

    def drop_observation(self, backend: Backend) -> None:
        """An observation of ``begin_observation`` was cut short."""
        with self._lock:
            self._of(backend).drop_observation()

    def slow(self) -> set[str]:
        """The keys (``key_of``) of the providers that are slower than was usual for them."""
        with self._lock:
            keys = [key for key, latency in self.latencies.items() if latency.slow_period.is_on]
        return {provider_key(key) for key in keys}

    def _of(self, backend: Backend) -> ProviderLatency:
        latency = self.latencies.get(backend.key)
        if latency is not None:
            self.latencies.move_to_end(backend.key)
        else:
            prior = prior_for(backend.provider, backend.model)
            if backend.measures == "whole_answer":
                prior = prior.scaled(WHOLE_ANSWER)
            elif backend.measures == "wait":
                prior = in_doubt(prior)
            latency = ProviderLatency(prior)
            if (saved := self._kept.get(backend.key)) is not None:
                latency.restore(saved)
            self._introduce(backend.key, latency)
            self.latencies[backend.key] = latency
            if len(self.latencies) > MOST_PROVIDERS:
                self.latencies.popitem(last=False)
        return latency

    def _introduce(self, key: str, latency: ProviderLatency) -> None:
        """Called with the lock held for a provider that is new here."""
