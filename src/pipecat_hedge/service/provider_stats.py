"""What a process has learned of its providers: one registry for every service, loop and thread.

A call has some twenty turns. Learned call by call, the tail of a provider would never be known, so
what one call has seen is there for the next, and, through a store, for the next process.

Everything is behind one lock, held for microseconds as a rule, for a millisecond when a curve is
made anew, and never while anything is awaited or written.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loguru import logger

from pipecat_hedge.fleet.sync import FleetSync
from pipecat_hedge.limits.admission_controller import MOST_PROVIDERS, AdmissionController
from pipecat_hedge.limits.background import LoopWork
from pipecat_hedge.limits.loop_lag import LoopWatch
from pipecat_hedge.policy.backends import Backend
from pipecat_hedge.policy.budget_accounts import BudgetAccounts, BudgetState
from pipecat_hedge.policy.hedge_benefit import Worths
from pipecat_hedge.policy.hedge_policy import Adaptive
from pipecat_hedge.policy.launch_rule import LatencyEstimate
from pipecat_hedge.policy.priors import prior_for
from pipecat_hedge.policy.provider_latency import ProviderLatency
from pipecat_hedge.policy.routing import Route, route
from pipecat_hedge.policy.shared_store import SharedStore
from pipecat_hedge.policy.stats_store import StatsStore, default_store
from pipecat_hedge.policy.survival import SurvivalCurve
from pipecat_hedge.race.attempt import MISSED_DEADLINE, STALLED, TIMED_OUT, Attempt
from pipecat_hedge.service.registries import introduce
from pipecat_hedge.service.turn_hooks import TurnHooks
from pipecat_hedge.telemetry.slo_board import SloBoard

__all__ = ["BudgetState", "ProviderStats", "shared_stats"]

VERSION = 1
SAVE_EVERY_SECS = 60.0
WHOLE_ANSWER = 5.0
"""How many times as long as its first token a whole answer is taken to take, until it is known."""
_IN_DOUBT = ((2.0, 0.2), (4.0, 0.1))
"""How many times as long as assumed a wait may be, and how likely that is."""
_WAITED = (STALLED, TIMED_OUT, MISSED_DEADLINE)
"""Errors that say no more than that it was waited for so long."""


class ProviderStats:
    """The registry.

    Attributes:
        health: Who of them is left alone, and how many requests each may have.
        loop_watch: Whether the process itself is too busy.
        fleet: This process's part in a fleet; None if nothing is shared with other processes.
        bursts: What may be hedged at once.
        turn_hooks: Who is told of every turn of every service that uses this registry.
        remembered: What rules have computed from curves, under keys of their own.
        slo_board: How the promises to callers are kept.

    Services use the process's own unless they are given another: ``HedgedLLMService(stats=...)``.

    Example::

        stats = ProviderStats(FileStore("stats.json"))   # or ProviderStats(RedisStore())
        llm = HedgedLLMService([...], stats=stats)
    """

    def __init__(
        self,
        store: StatsStore | SharedStore | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Take up what was kept, if anything.

        Args:
            store: Where statistics are kept between runs, or shared with other processes while
                sessions run; None keeps them in this process alone.
            clock: Tells when to save again, in seconds.
        """
        shared = store if isinstance(store, SharedStore) else None
        self._store = None if isinstance(store, SharedStore) else store
        self._clock = clock
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._latencies: OrderedDict[str, ProviderLatency] = OrderedDict()
        self._worths = Worths()
        self.remembered: dict[object, Any] = {}
        self.slo_board = SloBoard()
        self._kept: dict[str, Any] = {}
        self._is_new = False
        self._saved_at = clock()
        self.loop_watch = LoopWatch()
        self.health = AdmissionController(lag_secs=self.loop_watch.lag_now)
        self.turn_hooks = TurnHooks()
        works = {"watches the loop": self.loop_watch.run_if_real}
        self.fleet: FleetSync | None = None
        self.accounts = BudgetAccounts(
            self._lock, lambda: 1 if self.fleet is None else self.fleet.processes
        )
        if shared is not None:
            accounts = self.accounts.accounts
            self.fleet = FleetSync(shared, self._lock, self._latencies, accounts, self.health)
            works["shares statistics"] = self.fleet.run
        self._background = LoopWork(works)
        self._load()
        introduce(self)

    # ---- while there are sessions

    def hold(self) -> None:
        """Watch the loop and share what is known with other processes, until ``release``.

        Each session holds once, on its own event loop. Without a shared store nothing is shared.
        """
        self._background.hold()

    async def release(self) -> None:
        """End what ``hold`` began; the last session tells what has not been told yet."""
        if await self._background.release() and self.fleet is not None:
            await self.fleet.flush()

    @property
    def sessions(self) -> int:
        """How many sessions there are now."""
        return self._background.holders

    # ---- what is known

    def known(
        self, backends: Sequence[Backend], prompt_tokens: int | None, *, by_sentence: bool
    ) -> dict[str, LatencyEstimate]:
        """What is known of providers, by name.

        Args:
            backends: Who.
            prompt_tokens: The size of the prompt; None where it is not known.
            by_sentence: Whether a sentence is what wins.
        """
        with self._lock:
            return {
                b.provider: self._of(b).known(prompt_tokens, by_sentence=by_sentence)
                for b in backends
            }

    def prior_weight(self, backend: Backend, prompt_tokens: int | None = None) -> float:
        """How much of what is known of a provider is still assumed, from 1 to nearly 0."""
        with self._lock:
            return self._of(backend).prior_weight(prompt_tokens)

    @property
    def worths(self) -> Worths:
        """What has been computed for pairs of curves."""
        return self._worths

    # ---- what happened

    def record(
        self,
        backend: Backend,
        attempt: Attempt,
        prompt_tokens: int | None,
        *,
        with_sentence: bool = True,
    ) -> None:
        """Learn from an attempt that has ended.

        An error says nothing of a provider's latency, unless it is that there was no answer.

        Args:
            backend: Who was asked.
            attempt: The attempt.
            prompt_tokens: The size of the prompt; None where it is not known.
            with_sentence: Whether the time to its first sentence is to be learned too.
        """
        if attempt.ended_at is None:
            return
        first = attempt.first_token_at
        with self._lock:
            self._is_new = True
            latency = self._of(backend)
            late_after = latency.late_secs(prompt_tokens)
            if first is None:
                if attempt.outcome != "failed" or attempt.error in _WAITED:
                    waited = attempt.ended_at - attempt.launched_at
                    latency.count_unanswered(waited, prompt_tokens)
                    latency.spell.ended(attempt, waited, late_after, has_answered=False)
                    latency.record(waited, censored=True, prompt_tokens=prompt_tokens)
                else:
                    latency.spell.forget(attempt)
                return
            # Not before its lag it had not come, and it may have come at once then.
            secs = max(first - attempt.launched_at - attempt.lag_secs, 0.0)
            latency.unanswered = 0
            is_unsure = attempt.is_unsure
            latency.spell.ended(attempt, secs, late_after, has_answered=True)
            latency.record(secs, censored=is_unsure, prompt_tokens=prompt_tokens)
            if not with_sentence or is_unsure:
                return
            if attempt.speakable_at is not None:
                latency.record_sentence(attempt.speakable_at - first, censored=False)
            elif not attempt.called_tools and attempt.outcome != "failed":
                latency.record_sentence(attempt.ended_at - first, censored=True)

    def sent(self, backend: Backend, attempt: Attempt, prompt_tokens: int | None) -> None:
        """Watch an attempt of a turn that is under way, until ``record`` or ``forget``.

        Args:
            backend: Who is asked.
            attempt: The attempt.
            prompt_tokens: The size of the prompt; None where it is not known.
        """
        with self._lock:
            latency = self._of(backend)
            latency.spell.sent(attempt, latency.late_secs(prompt_tokens))

    def forget(self, backend: Backend, attempt: Attempt) -> None:
        """Stop watching an attempt of which nothing is learned."""
        with self._lock:
            self._of(backend).spell.forget(attempt)

    def record_first_token(
        self, backend: Backend, secs: float, prompt_tokens: int | None, *, censored: bool = False
    ) -> None:
        """Learn a time to first token that was measured apart from a race.

        Args:
            backend: Who was asked.
            secs: From the request, in seconds; if censored, how long it was waited for.
            prompt_tokens: The size of the prompt; None where it is not known.
            censored: Whether the wait ended without a token.
        """
        with self._lock:
            self._is_new = True
            self._of(backend).record(secs, censored=censored, prompt_tokens=prompt_tokens)

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
            backend: Who was asked.
            attempt: The attempt.
            first_at: When its first token came; None if it was ended before.
            now: The time.
            prompt_tokens: The size of the prompt; None where it is not known.
        """
        secs = (now if first_at is None else first_at - attempt.lag_secs) - attempt.launched_at
        with self._lock:
            self._is_new = True
            latency = self._of(backend)
            has_come = first_at is not None
            if has_come:
                latency.unanswered = 0
            else:
                latency.count_unanswered(secs, prompt_tokens)
            late_after = latency.late_secs(prompt_tokens)
            latency.spell.ended(attempt, secs, late_after, has_answered=has_come)
            is_unsure = not has_come or attempt.is_unsure
            latency.record(max(secs, 0.0), censored=is_unsure, prompt_tokens=prompt_tokens)

    def budgets(self) -> tuple[BudgetState, ...]:
        """How each budget stands that anybody has used lately."""
        return self.accounts.states()

    # ---- how providers do now

    def route(
        self,
        given: Sequence[Backend],
        known: Mapping[str, LatencyEstimate],
        rule: Adaptive,
        now: float,
    ) -> Route:
        """Order the providers for a turn; see ``routing.route``.

        Args:
            given: The providers, in the order that the user gave; not empty.
            known: What is known of each.
            rule: The user's policy.
            now: The time on the race's clock, less what the event loop is behind.
        """
        in_debt = self.accounts.in_debt(rule.budget)
        with self._lock:
            latencies = {backend.provider: self._of(backend) for backend in given}
            for latency in latencies.values():
                latency.spell.look(now)
            return route(
                list(latencies),
                {name: latency.spell for name, latency in latencies.items()},
                {name: known[name].first_token.quantile(0.5) for name in latencies},
                rule.budget,
                now,
                in_debt=in_debt,
            )

    def slow(self) -> set[str]:
        """The keys (``key_of``) of the providers that have turned slow; see ``is_slow``."""
        with self._lock:
            keys = [key for key, latency in self._latencies.items() if latency.spell.is_on]
        return {" | ".join(key.split(" | ")[:2]) for key in keys}

    def is_slow(self, backend: Backend) -> bool:
        """Whether a provider has turned slow, compared with what was usual for it."""
        with self._lock:
            return self._of(backend).spell.is_on

    def has_turned_slow(self, backend: Backend, now: float) -> bool:
        """The same, with the attempts counted that have become late since it was asked last.

        Args:
            backend: The provider.
            now: The time on the race's clock, less what the event loop is behind.
        """
        with self._lock:
            spell = self._of(backend).spell
            spell.look(now)
            return spell.is_on

    def may_hang(self, backend: Backend) -> bool:
        """Whether the attempt before was waited for in vain, and none has been answered since."""
        with self._lock:
            return self._of(backend).unanswered > 0

    def late_secs(self, backend: Backend, prompt_tokens: int | None) -> float | None:
        """After how long an attempt is late; None while too little has been seen to say.

        Args:
            backend: The provider.
            prompt_tokens: The size of the prompt; None where it is not known.
        """
        with self._lock:
            return self._of(backend).late_secs(prompt_tokens)

    def usual(self, backend: Backend, prompt_tokens: int | None) -> SurvivalCurve:
        """A provider's usual times to first token; in a slow spell those from before.

        Args:
            backend: The provider.
            prompt_tokens: The size of the prompt; None where it is not known.
        """
        with self._lock:
            return self._of(backend).usual(prompt_tokens)

    # ---- kept between runs

    @property
    def is_due(self) -> bool:
        """Whether it is time to save again."""
        return (
            self._store is not None
            and self._is_new
            and self._clock() - self._saved_at >= SAVE_EVERY_SECS
        )

    def save(self) -> None:
        """Keep what is known, if there is anything new and a store to keep it in."""
        if self._store is None:
            return
        with self._saving:  # one after the other, or an older one might come last
            with self._lock:
                if not self._is_new:
                    return
                self._is_new, self._saved_at = False, self._clock()
                providers = dict(self._kept)
                latencies = list(self._latencies.items())
            for key, latency in latencies:
                with self._lock:  # for each of them anew: a turn waits for one at most
                    providers.pop(key, None)
                    providers[key] = latency.saved()
            for key in list(providers)[:-MOST_PROVIDERS]:
                del providers[key]
            try:
                self._store.save(json.dumps({"version": VERSION, "providers": providers}))
            except Exception as e:
                self._is_new = True  # the next time is another try
                why = (e.strerror if isinstance(e, OSError) else None) or type(e).__name__
                logger.warning(f"statistics could not be kept in {self._store}: {why}")

    def _load(self) -> None:
        if self._store is None:
            return
        try:
            text = self._store.load()
        except Exception as e:
            logger.warning(f"statistics could not be read: {type(e).__name__}")
            return
        if text is None:
            return
        try:
            found = json.loads(text)
            version = found["version"]
            if version == VERSION:
                for key, saved in found["providers"].items():
                    ProviderLatency(prior_for(key)).restore(saved)  # refuses what cannot be used
                self._kept = dict(list(found["providers"].items())[-MOST_PROVIDERS:])
                return
            why = f"of version {version}, which this release does not know"
        except Exception:  # whatever it holds, it must not keep a service from starting
            why = "corrupt"
        try:
            self._store.set_aside(why)
        except Exception as e:
            logger.warning(f"statistics are {why}, and stay where they are: {type(e).__name__}")

    def _of(self, backend: Backend) -> ProviderLatency:
        latency = self._latencies.get(backend.key)
        if latency is not None:
            self._latencies.move_to_end(backend.key)
        else:
            prior = prior_for(backend.provider, backend.model)
            if backend.measures == "whole_answer":
                prior = replace(prior, curve=prior.curve.scaled(WHOLE_ANSWER))
            elif backend.measures == "wait":
                prior = replace(prior, curve=_in_doubt(prior.curve))
            latency = ProviderLatency(prior)
            if (saved := self._kept.pop(backend.key, None)) is not None:
                latency.restore(saved)
            if self.fleet is not None:
                self.fleet.introduce(backend.key, latency)
            self._latencies[backend.key] = latency
            if len(self._latencies) > MOST_PROVIDERS:
                self._latencies.popitem(last=False)
        return latency


def _in_doubt(curve: SurvivalCurve) -> SurvivalCurve:
    """What may be quite different from what is assumed: then a long wait says that it is."""
    for times, share in _IN_DOUBT:
        curve = curve.mixed_with(curve.scaled(times), share)
    return curve


_shared: ProviderStats | None = None
_shared_lock = threading.Lock()


def shared_stats() -> ProviderStats:
    """The process's own registry, made and loaded when it is first asked for."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = ProviderStats(default_store())
        return _shared
