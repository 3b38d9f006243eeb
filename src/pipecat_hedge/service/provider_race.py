"""A race of providers: plans it, sends the requests, reports and learns from their outcomes.

One ``ProviderAttempt`` holds all of an attempt's state. A spoken turn, a one-shot inference and a
proxied request differ only in how a request is sent and where its answer goes (``TurnHost``).
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import random
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from pipecat_hedge.policy.hedge_benefit import joint
from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.providers.backends import Backend
from pipecat_hedge.providers.latency import size_class
from pipecat_hedge.providers.loop_holds import Hold
from pipecat_hedge.providers.permits import Permit, Terms
from pipecat_hedge.providers.priority import WorkClass, working_as
from pipecat_hedge.providers.slow_period import late_secs
from pipecat_hedge.providers.standing import Standing
from pipecat_hedge.providers.survival import SurvivalCurve
from pipecat_hedge.providers.verdict import Verdict, classify
from pipecat_hedge.race.attempt import UNSURE_LAG_SECS, Attempt
from pipecat_hedge.race.driver import ALL_ELIGIBLE, AttemptSink, RaceDriver, RaceHost
from pipecat_hedge.race.errors import AllProvidersFailed, AttemptError
from pipecat_hedge.race.events import (
    Commit,
    Continue,
    HedgeEligibilityChanged,
    InFlight,
    Launch,
    LaunchReason,
    Progressed,
    Slot,
    StreamBroken,
)
from pipecat_hedge.race.race import Phase, Race
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.attempt_stats import AttemptStats
from pipecat_hedge.service.candidates import TurnMembers
from pipecat_hedge.service.member import (
    A,
    Instance,
    ineligible_by_load,
    slots,
    take_best_instance,
)
from pipecat_hedge.service.planned_turn import PlannedTurn, TurnSpec, plan_of
from pipecat_hedge.service.provider_client import exception_error
from pipecat_hedge.service.provider_stats import ProviderStats

T = TypeVar("T")
B = TypeVar("B", contravariant=True)
OBSERVED_SECS = 15.0
"""How long a loser may run on: a provider without a token by then is silent, not slow."""


class ProviderAttempt(Attempt):
    """One request of a turn, from its launch to its close. Times are the loop's.

    Attributes:
        stats: What it has produced.
        adapter: The instance that carries it; None until it is sent.
        permit: Its permit.
        hold: Gives the permit back if the event loop is closed.
        sent_at: When it was passed to the service, or None.
        closed_at: When its request was closed, or None.
        is_observed: Whether it has lost and runs on to its first token, as an observed loser.
        has_claim: Whether it is the provider's only observed loser; see ``claim_observed_loser``.
        is_unmeasured: Whether its provider's latency is measured if it loses.
        silence_alarm: Ends the observation if the provider is silent for too long; None for an
            attempt that is not observed if it loses.
        is_silent: Whether that timer fired before anything came.
    """

    __slots__ = (
        "adapter",
        "closed_at",
        "has_claim",
        "hold",
        "is_observed",
        "is_silent",
        "is_unmeasured",
        "permit",
        "sent_at",
        "silence_alarm",
        "stats",
    )

    def __init__(
        self,
        number: int,
        slot: Slot,
        reason: LaunchReason,
        launched_at: float,
        detail: str | None,
        permit: Permit,
    ):
        """Record a launch."""
        super().__init__(number, slot, reason, launched_at, detail)
        self.stats = AttemptStats()
        self.adapter: Instance | None = None
        self.permit = permit
        self.hold: Hold | None = None
        self.sent_at: float | None = None
        self.closed_at: float | None = None
        self.is_observed = self.has_claim = self.is_unmeasured = False
        self.silence_alarm: asyncio.TimerHandle | None = None
        self.is_silent = False

    @property
    def was_withdrawn(self) -> bool:
        """Whether it was no longer needed and was closed before its request was sent."""
        is_unneeded = self.outcome in ("superseded", "interrupted", None)
        return is_unneeded and self.closed_at is not None and self.stats.stages.is_unsent

    @property
    def token_at(self) -> float | None:
        """When its first usable token came, also after it had lost; or None."""
        return self.stats.first_answer_at if self.is_observed else self.first_token_at


class TurnHost(Protocol[T, B]):
    """The owner of a race: a turn, an inference or a proxied request."""

    async def send(self, attempt: ProviderAttempt, sink: AttemptSink[T], instance: B) -> None:
        """Send a request through an instance and post its events. Close it when cancelled."""
        ...

    async def deliver(self, piece: T, at: float) -> None:
        """See ``RaceHost``."""
        ...

    async def released(self, command: Commit | Continue | StreamBroken) -> None:
        """See ``RaceHost``."""


class ProviderRace(RaceHost[T], Generic[T, A]):
    """The race of one turn, inference or proxied request.

    Attributes:
        policy: The user's policy.
        spec: What the turn asks for.
        planned: Its plan; None before ``run``.
        terms: The terms on which its requests get permits; the plan may change them.
        race: The race; None until a request may be sent.
        losers: ``cancel`` or ``drain``, for this turn.
        is_speculative: Whether the caller's turn may still go on; set it before ``run``.
        attempts: Every attempt, in the order of launch.
        failure: Why nothing was released, after the race; None if something was.
    """

    _host: TurnHost[T, A]  # set by run

    def __init__(
        self,
        stats: ProviderStats,
        policy: HedgePolicy,
        spec: TurnSpec,
        members: TurnMembers[A],
        terms: Terms,
    ):
        """Prepare a race; nothing is sent yet.

        Args:
            stats: The providers' statistics.
            policy: The user's policy.
            spec: What the turn asks for.
            members: The session's providers.
            terms: The terms on which its requests get permits.
        """
        self._loop = asyncio.get_running_loop()
        self._stats = stats
        self.policy = policy
        self.spec = spec
        self._members = members
        self.terms = terms
        self._idle: dict[str, list[A]] = {}
        self._driver: RaceDriver[T] | None = None
        self._recovering: str | None = None
        self.planned: PlannedTurn[A] | None = None
        self.race: Race | None = None
        self.losers = policy.losers
        if random.random() >= policy.drain_share:
            self.losers = "cancel"
        self.is_speculative = False
        self.attempts: list[ProviderAttempt] = []
        self.failure: AllProvidersFailed | None = None

    async def run(
        self,
        host: TurnHost[T, A],
        scope: TaskScope,
        drains: TaskScope | None = None,
    ) -> None:
        """Plan the race, run it to its end, and learn from it.

        Args:
            host: Sends the requests, and takes the answer.
            scope: Owns the attempts' tasks.
            drains: Takes over the losers that finish; None closes all of them.
        """
        self._host = host
        holds, planned = self._stats.holds, self._plan()
        claim, costs = holds.add(self._drop_recovery), holds.add(planned.plan.close)
        try:
            if not planned.order:
                self.failure = AllProvidersFailed((), reason=planned.reason)
                return
            self.race = self._new_race(planned)
            driver = self._driver = RaceDriver(self.race, scope, self, drains)
            await driver.run(self._loop.time())
            if driver.failure_command is not None:
                self.failure = AllProvidersFailed(driver.failure_command.errors)
        finally:
            for attempt in self.attempts:
                if attempt.sent_at is None and attempt.closed_at is None:  # was not begun
                    self._end(attempt, None)
            if holds.drop(claim):
                self._drop_recovery()
            if holds.drop(costs):
                planned.plan.close()
                self._learn()

    def _plan(self) -> PlannedTurn[A]:
        now = self._loop.time()
        planned = self.planned = plan_of(
            self.policy, self._stats, self.spec, self._members, self.terms, now
        )
        self.terms, self._recovering = planned.terms, planned.recovering
        self._idle = {member.name: list(member.adapters) for member in planned.order}
        return planned

    def _new_race(self, planned: PlannedTurn[A]) -> Race:
        stall_secs = self.spec.stall_secs
        candidates = slots(planned.order, self.policy, planned.plan.estimates)
        if stall_secs is not None:
            candidates = [
                dataclasses.replace(
                    slot,
                    stall_secs=stall_secs,
                    silent_secs=min(stall_secs, slot.silent_secs or stall_secs),
                )
                for slot in candidates
            ]
        # A recovery request is an additional attempt beside another provider's.
        has_recovery = self._recovering is not None and len(planned.order) > 1
        return Race(
            candidates,
            planned.plan.rule,
            max_attempts=self.policy.max_attempts + has_recovery,
            commit_on=self.spec.commit_on,
            deadline_secs=self.policy.deadline_secs,
            jitter=random.random(),
            is_speculative=self.is_speculative,
            rejection_secs=self.spec.rejection_secs,
            make_attempt=self._new_attempt,
        )

    def _new_attempt(
        self, number: int, slot: Slot, reason: LaunchReason, launched_at: float, detail: str | None
    ) -> ProviderAttempt:
        is_recovery = slot.provider == self._recovering
        if is_recovery:
            self._recovering = None  # releasing the permit ends the claim
        key, work = self._backend(slot.provider).record_key, self._work_of(number, reason)
        permit = self._stats.issue(
            key, work, self.terms, self._loop.time(), is_recovery=is_recovery
        )
        attempt = ProviderAttempt(number, slot, reason, launched_at, detail, permit)
        attempt.hold = self._stats.holds.add(functools.partial(self._abandon, attempt))
        attempt.stats.keeps_text = self.losers == "drain"
        self.attempts.append(attempt)
        return attempt

    def _drop_recovery(self) -> None:
        """Release the claim of a recovery request that was not sent."""
        if self._recovering is not None:
            key, self._recovering = self._backend(self._recovering).record_key, None
            self._stats.drop_recovery(key, self._loop.time())

    @property
    def _planned(self) -> PlannedTurn[A]:
        assert self.planned is not None, "run plans the race"
        return self.planned

    def _backend(self, provider: str) -> Backend:
        return self._planned.backends[provider]

    def confirm(self) -> None:
        """Report that the caller's turn has ended: from now on hedges may be sent."""
        self.is_speculative = False
        if self._driver is not None:
            self._driver.confirm()

    def _learn(self) -> None:
        """Learn from the attempts, except those of a withdrawn turn."""
        self._mark_simulated()
        is_withdrawn = self.is_speculative and self.race is not None and self.race.winner is None
        if is_withdrawn or not self.spec.is_learned:
            for attempt in self.attempts:
                self._forget(attempt)
            return
        for attempt in self.attempts:
            if attempt.first_token_at is None and attempt.progressed_at is None:
                attempt.progressed_at = attempt.stats.stages.deltas.delta_at
        self._stats.learn(
            list(self._planned.backends.values()),
            self.attempts,
            self.spec.prompt_tokens,
            observed={a.number for a in self.attempts if a.is_observed},
            lag_secs=self._stats.loop_watch.lag_now(),
        )

    def _forget(self, attempt: ProviderAttempt) -> None:
        self._stats.forget(self._backend(attempt.provider), attempt)

    @property
    def winner(self) -> ProviderAttempt | None:
        """The attempt whose answer is released (the latest one after a continuation), or None."""
        winner = None if self.race is None else self.race.winner
        return None if winner is None else self.attempts[winner.number]

    @property
    def errors(self) -> list[tuple[str, AttemptError]]:
        """Every failed provider with its error."""
        return [(a.provider, a.error) for a in self.attempts if a.error is not None]

    @property
    def answered(self) -> set[str]:
        """The providers that have begun to answer, winners or not."""
        return {a.provider for a in self.attempts if a.stats.has_answer}

    def price_of(self, provider: str) -> tuple[float, float] | None:
        """A provider's US dollars per million ``(input, output)`` tokens; None if it is unknown."""
        return self._backend(provider).usd_per_mtok

    @property
    def observed(self) -> list[ProviderAttempt]:
        """The observed losers that still run, and whose end is reported."""
        return [a for a in self.attempts if a.has_claim and a.closed_at is None]

    async def wait_for_observed(self) -> None:
        """Wait until the requests of ``observed`` are closed."""
        if self._driver is not None:
            await self._driver.wait_for([attempt.number for attempt in self.observed])

    def wait_from(self, started_at: float) -> SurvivalCurve | None:
        """The distribution of the wait for an answer.

        Args:
            started_at: When the wait began, in the loop's time.

        Returns:
            The wait from then on; None if the turn does not wait, or with just one live or planned
            attempt. Past waits are then the better estimate.
        """
        race = self.race
        if race is None or race.phase is not Phase.WAITING:
            return None
        estimates = self._stats.estimates(
            list(self._planned.backends.values()),
            self.spec.prompt_tokens,
            by_sentence=self.spec.commit_on == "first_sentence",
        )
        waits: list[tuple[SurvivalCurve, float]] = []
        live: list[Attempt | InFlight] = [a for a in race.attempts if a.outcome is None]
        planned = race.planned
        for request in [*live, *([] if planned is None or not live else [planned])]:
            estimate = estimates[request.provider]
            curve, sentence, sent = estimate.first_token, estimate.sentence, request.launched_at
            if sentence is not None and request.first_token_at is not None:
                curve, sent = sentence, request.first_token_at
            elif sentence is not None:
                curve = curve.delayed(sentence.quantile(0.5))
            waits.append((curve, sent - started_at))
        return joint(waits) if len(waits) > 1 else None

    @property
    def is_idle(self) -> bool:
        """Whether no request is open, not even a loser's."""
        return self._driver is None or self._driver.is_idle

    def close(self) -> None:
        """Drop what refers back to this, after the turn's report, when it is idle.

        So a turn's memory is free at once. The garbage collector finds it late: a proxy with 200
        streams needed 50 MB more.
        """
        self.race = self._driver = None
        for attempt in self.attempts:
            attempt.stats.on_answer = attempt.stats.stages.on_used_up = None

    # ---- one attempt

    async def run_attempt(self, launch: Launch, sink: AttemptSink[T]) -> None:
        """See ``RaceHost``."""
        attempt = self.attempts[launch.attempt]
        error: AttemptError | None = None
        try:
            self._observe(attempt)
            adapter = await self._take_instance(attempt)
            self._report_sent(attempt)
            with working_as(self._work_of(attempt.number, attempt.reason)):
                await self._host.send(attempt, sink, adapter)
        except Exception as e:
            error = exception_error(e, has_begun=attempt.stats.has_begun)
            sink.failed(error)
            raise
        finally:
            self._end(attempt, attempt.stats.error or error)

    def _end(self, attempt: ProviderAttempt, error: AttemptError | None) -> None:
        hold, attempt.hold = attempt.hold, None
        if hold is not None and self._stats.holds.drop(hold):
            self._close(attempt, error)

    def _work_of(self, number: int, reason: LaunchReason) -> WorkClass:
        if reason == "hedge":
            return "hedge"
        work = self.spec.work
        return work if number == 0 or work == "background" else "rescue"

    async def _take_instance(self, attempt: ProviderAttempt) -> A:
        idle = self._idle[attempt.provider]
        member = next(m for m in self._planned.order if m.name == attempt.provider)
        while not idle:  # all have failed or lost, and are asked again
            ours = [a for a in self.attempts if a.provider == attempt.provider and a.adapter]
            in_use = {a.adapter for a in ours if a.closed_at is None}
            idle += [adapter for adapter in member.adapters if adapter not in in_use]
            if not idle:
                await self._stop(next(a.number for a in ours if a.outcome and not a.closed_at))
        attempt.adapter = adapter = take_best_instance(idle)
        return adapter

    async def _stop(self, loser: int) -> None:
        assert self._driver is not None
        self._driver.stop(loser)
        await self._driver.wait_for([loser])

    def _report_sent(self, attempt: ProviderAttempt) -> None:
        attempt.sent_at = self._loop.time()
        is_waiting = self.race is not None and self.race.winner is None
        self._planned.plan.launched(attempt, attempt.sent_at, is_waiting=is_waiting)
        if not self.spec.whole_answers:
            backend = self._backend(attempt.provider)
            self._stats.sent(backend, attempt, self.spec.prompt_tokens)

    def _observe(self, attempt: ProviderAttempt) -> None:
        """Record an attempt's first token and a used-up rate limit as they come."""
        if self.spec.whole_answers:
            return
        attempt.stats.on_answer = functools.partial(self._on_first_token, attempt)
        attempt.stats.stages.on_used_up = functools.partial(self._on_used_up, attempt)
        attempt.is_unmeasured = attempt.provider == self._planned.plan.trial or (
            self._stats.is_unmeasured(attempt.permit.key)
        )
        is_useful = attempt.is_unmeasured or self._is_without_answers(attempt.provider)
        if is_useful and self.policy.probes:
            attempt.silence_alarm = self._loop.call_later(OBSERVED_SECS, self._end_silence, attempt)

    def _on_used_up(self, attempt: ProviderAttempt, secs: float) -> None:
        self._stats.set_used_up(attempt.permit.key, self._loop.time() + secs)

    def _is_without_answers(self, provider: str) -> bool:
        """Whether a provider had no answers when the turn began."""
        return not self._planned.plan.estimates[provider].answers.seen

    def _on_first_token(self, attempt: ProviderAttempt) -> None:
        self._mark_simulated()
        lag_secs = attempt.lag_secs = self._stats.loop_watch.lag_now()
        self._stats.record_first_token(
            attempt.permit,
            self._loop.time() - lag_secs,
            size_class=size_class(self.spec.prompt_tokens),
            lag_secs=lag_secs,
        )
        if attempt.silence_alarm is not None:
            attempt.silence_alarm.cancel()
            self._stop_observed(attempt)

    def _end_silence(self, attempt: ProviderAttempt) -> None:
        attempt.is_silent = attempt.stats.stages.deltas.delta_at is None
        self._stop_observed(attempt)

    def _stop_observed(self, attempt: ProviderAttempt) -> None:
        """Close a loser from which nothing more can be learned."""
        is_lost = attempt.outcome == "superseded" and self.losers == "cancel"
        if is_lost and self._driver is not None:
            self._driver.stop(attempt.number)

    def _mark_simulated(self) -> None:
        """Mark the providers that a simulator answers for, and silent ones at its address."""
        hosts = {a.stats.stages.host for a in self.attempts if a.stats.stages.is_simulated}
        for attempt in self.attempts:
            stages = attempt.stats.stages
            if stages.is_simulated or (stages.host is not None and stages.host in hosts):
                self._stats.mark_simulated(self._backend(attempt.provider))

    def _close(self, attempt: ProviderAttempt, failure: AttemptError | None) -> None:
        """Release the permit with the outcome."""
        now = attempt.closed_at = self._loop.time()
        stats, permit = attempt.stats, attempt.permit
        has_answered = stats.completed and stats.has_answer
        verdict = classify(failure, has_answered=has_answered, attempt=attempt)
        if attempt.silence_alarm is not None:
            attempt.silence_alarm.cancel()
        if attempt.is_observed:
            verdict = self._learn_observed(attempt, failure, verdict, now)
        if failure is not None and failure.retry_after_secs is not None:
            self._stats.set_retry_after(permit.key, now + failure.retry_after_secs)
        is_lost = attempt.outcome == "superseded" and attempt.sent_at is not None
        was_overtaken = is_lost and not (stats.has_answer or self.spec.whole_answers)
        self._stats.release(
            permit,
            verdict,
            now,
            host=stats.stages.host,
            has_begun=stats.has_answer,
            was_overtaken=was_overtaken,
            was_late=was_overtaken and self._was_late(attempt),
        )

    def _abandon(self, attempt: ProviderAttempt) -> None:
        """Release what an attempt of a closed event loop holds, and learn nothing from it."""
        if attempt.is_observed:
            self._stats.release_observed_loser(attempt.permit.key)
        self._forget(attempt)
        self._stats.release(attempt.permit, "dropped", attempt.permit.acquired_at)

    def _learn_observed(
        self, attempt: ProviderAttempt, failure: AttemptError | None, verdict: Verdict, now: float
    ) -> Verdict:
        backend = self._backend(attempt.provider)
        if attempt.has_claim:
            self._stats.release_observed_loser(attempt.permit.key)
        token_at = attempt.stats.first_answer_at
        is_cut = token_at is None and not attempt.is_silent  # so that nothing is known
        if is_cut and not attempt.has_claim and not self._is_free_trial(attempt):
            self._stats.drop_observation(backend)
        if failure is not None:
            self._forget(attempt)
            return verdict
        self._stats.learn_observed(backend, attempt, token_at, now, self.spec.prompt_tokens)
        if token_at is not None:
            return "answered"
        return "silent" if attempt.is_silent else verdict

    def _was_late(self, attempt: ProviderAttempt) -> bool:
        """Whether a losing attempt took long, or lost to one that was sent later."""
        if self._stats.loop_watch.lag_now() >= UNSURE_LAG_SECS:
            return False  # its answer may have come but not been read yet
        won_at, sent_at = None if self.winner is None else self.winner.sent_at, attempt.sent_at
        if won_at is not None and sent_at is not None and won_at > sent_at:
            return True
        ended_at = self._loop.time() if attempt.ended_at is None else attempt.ended_at
        typical = self._planned.plan.estimates[attempt.provider].typical
        return ended_at - attempt.permit.acquired_at > late_secs(typical)

    # ---- for the race's driver

    async def deliver(self, piece: T, at: float) -> None:
        """See ``RaceHost``."""
        await self._host.deliver(piece, at)

    async def released(self, command: Commit | Continue | StreamBroken) -> None:
        """See ``RaceHost``."""
        await self._host.released(command)

    def eligibility(self) -> HedgeEligibilityChanged:
        """Which providers may take no hedge now, and which to avoid for replacements."""
        is_first = all(attempt.adapter is None for attempt in self.attempts)
        first = next(iter(self._idle), None) if is_first else None
        lost = {a.provider for a in self.attempts if a.outcome == "superseded"}
        names = [name for name, idle in self._idle.items() if idle or name in lost]
        now = self._loop.time()
        standings = self._standings(names, now)
        others = {name: s for name, s in standings.items() if name != self._recovering}
        reasons = {name: s.ineligible for name, s in others.items() if s.ineligible is not None}
        by_server = ineligible_by_load(self._idle, first)
        reluctance = {name: s.rank for name, s in standings.items() if s.rank}
        for name in by_server:
            reluctance[name] = max(reluctance.get(name, 0), 1)
        full = frozenset(name for name, s in others.items() if s.full and self.terms.sheds)
        slow = self._slow(now)
        if not (reasons or reluctance or slow or full):
            return ALL_ELIGIBLE
        return HedgeEligibilityChanged(reasons | by_server, reluctance, slow, full)

    def _standings(self, names: Sequence[str], now: float) -> dict[str, Standing]:
        """How providers stand; at the turn's start as they were found."""
        planned = self._planned
        if not self.attempts:
            return {name: planned.standings[name] for name in names}
        keys = [planned.backends[name].record_key for name in names]
        found = self._stats.standing(keys, "rescue", self.terms, now)
        return dict(zip(names, found, strict=True))

    def _slow(self, now: float) -> frozenset[str]:
        """The providers that are slow and not silent in this turn."""
        waiting = [a for a in self.attempts if a.outcome is None and a.first_token_at is None]
        if not waiting:
            return frozenset()
        asked = {attempt.provider for attempt in self.attempts}
        names = [member.name for member in self._planned.order if member.name not in asked]
        others = [self._backend(name).record_key for name in names]
        return frozenset(
            a.provider for a in waiting if self._stats.is_slow(a.permit.key, others, a, now)
        )

    def runs_on(self, number: int) -> bool:
        """Whether an attempt that has just lost runs on, to be observed or drained.

        One that was not sent yet does not. For one that does, a second connection is opened for the
        next turn.
        """
        attempt = self.attempts[number]
        if attempt.adapter is None:
            return False
        if self.losers != "drain" and not self._is_to_observe(attempt):
            return False
        attempt.adapter.run_on()
        return True

    def _is_to_observe(self, attempt: ProviderAttempt) -> bool:
        """Whether a loser runs on to its first token. There are three cases.

        1. A free trial shows whether its provider has recovered.
        2. The first losers of a provider without answers show whether it is slow or silent; see
           ``AT_FIRST_OBSERVED``.
        3. So does one request in ``OBSERVED_LOSER_INTERVAL``, for providers that always lose.
        """
        is_open = attempt.silence_alarm is not None and not attempt.is_silent
        if not is_open or attempt.stats.has_answer:
            return False
        backend, tokens = self._backend(attempt.provider), self.spec.prompt_tokens
        if self._is_free_trial(attempt) or (
            self._is_without_answers(attempt.provider)
            and self._stats.claim_observation(backend, attempt, tokens)
        ):
            attempt.is_observed = True
        elif attempt.is_unmeasured:
            attempt.has_claim = self._stats.claim_observed_loser(attempt.permit.key)
            attempt.is_observed = attempt.has_claim
        return attempt.is_observed

    def _is_free_trial(self, attempt: ProviderAttempt) -> bool:
        plan = self._planned.plan
        return plan.is_free and attempt.provider == plan.trial

    def progress(self, number: int) -> Progressed | None:
        """An attempt's output that the race has not received, if the stream can be read.

        A stream that cannot be read may contain a tool call's arguments.
        """
        if not self.spec.rescues and self.winner is not None:
            return Progressed(number, None)
        stats = self.attempts[number].stats
        deltas = stats.stages.deltas
        if deltas.knows_format:
            at = deltas.delta_at
            is_call = bool(deltas.calls)
            is_whole = stats.has_answer and deltas.has_ended and not is_call
            return None if at is None else Progressed(number, at, is_call, is_whole)
        may_call = stats.has_answer and self.spec.has_tools
        return Progressed(number, None) if may_call else None
