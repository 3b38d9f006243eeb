"""A race of providers: sends the requests, reports their outcomes, releases their permits.

One ``ProviderAttempt`` holds all of an attempt's state. A spoken turn, a one-shot inference and a
proxied request differ only in how a request is sent and where its answer goes (``TurnHost``).
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import random
from typing import Generic, Protocol, TypeVar

from pipecat_hedge.limits.loop_holds import Hold
from pipecat_hedge.limits.permits import Permit
from pipecat_hedge.limits.priority import WorkClass, working_as
from pipecat_hedge.limits.verdict import Verdict, classify
from pipecat_hedge.policy.provider_latency import size_class
from pipecat_hedge.race.attempt import UNSURE_LAG_SECS, Attempt
from pipecat_hedge.race.driver import ALL_ELIGIBLE, AttemptSink, RaceDriver, RaceHost
from pipecat_hedge.race.errors import AllProvidersFailed, AttemptError
from pipecat_hedge.race.events import (
    Commit,
    Continue,
    HedgeEligibilityChanged,
    Launch,
    LaunchReason,
    Progressed,
    Slot,
    StreamBroken,
)
from pipecat_hedge.race.race import Race
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.admission import Admission
from pipecat_hedge.service.attempt_stats import AttemptStats
from pipecat_hedge.service.candidates import (
    A,
    Instance,
    ProviderMember,
    hedge_refusals,
    slots,
    take_best_instance,
)
from pipecat_hedge.service.provider_client import exception_error
from pipecat_hedge.service.turn_planner import TurnPlanner

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
        is_probing: Whether it has lost and runs on to its first token, as a latency probe.
        has_claim: Whether it is the provider's only latency probe.
        is_unmeasured: Whether its provider's latency is to be measured if it loses.
        probe_alarm: Ends the latency probe if the provider is silent for too long; None for an
            attempt that does not become one.
        is_silent: Whether that timer fired before anything came.
    """

    __slots__ = (
        "adapter",
        "closed_at",
        "has_claim",
        "hold",
        "is_probing",
        "is_silent",
        "is_unmeasured",
        "permit",
        "probe_alarm",
        "sent_at",
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
        self.is_probing = self.has_claim = self.is_unmeasured = False
        self.probe_alarm: asyncio.TimerHandle | None = None
        self.is_silent = False

    @property
    def was_withdrawn(self) -> bool:
        """Whether it was no longer needed and was closed before its request was sent."""
        is_unneeded = self.outcome in ("superseded", "interrupted", None)
        return is_unneeded and self.closed_at is not None and self.stats.stages.is_unsent

    @property
    def token_at(self) -> float | None:
        """When its first usable token came, also after it had lost; or None."""
        return self.stats.first_answer_at if self.is_probing else self.first_token_at


class TurnHost(Protocol[T, B]):
    """What a turn, an inference or a proxied request does for its race."""

    async def send(
        self, launch: Launch, attempt: ProviderAttempt, sink: AttemptSink[T], instance: B
    ) -> None:
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
        race: The race; None until the turn is admitted.
        losers: ``cancel`` or ``drain``, for this turn.
        is_speculative: Whether the caller's turn may still go on; set it before ``admit``.
        attempts: Every attempt, in the order of launch.
        failure: Why nothing was released, after the race; None if something was.
    """

    def __init__(
        self,
        planner: TurnPlanner[A],
        admission: Admission,
        work: WorkClass,
        host: TurnHost[T, A],
        *,
        rescues: bool = True,
    ):
        """Prepare the attempts; nothing is sent yet.

        Args:
            planner: The turn's plan, which also learns from it.
            admission: The turn's permits.
            work: The work class of the first request.
            host: Sends the requests, and takes the answer.
            rescues: Whether a committed answer that stalls is continued.
        """
        self._loop = asyncio.get_running_loop()
        self._planner = planner
        self._policy = planner.policy
        self._admission = admission
        self._work: WorkClass = work
        self._host = host
        self._rescues = rescues
        self._instances = {m.provider.name: m.adapters for m in planner.candidates}
        self._idle = {name: list(instances) for name, instances in self._instances.items()}
        self._driver: RaceDriver[T] | None = None
        self.race: Race | None = None
        self.losers = self._policy.losers
        if random.random() >= self._policy.drain_share:
            self.losers = "cancel"
        self.is_speculative = False
        self.attempts: list[ProviderAttempt] = []
        self.failure: AllProvidersFailed | None = None

    def admit(
        self, *, stall_secs: float | None = None, rejection_secs: float | None = None
    ) -> bool:
        """Choose the first provider and create the race.

        Args:
            stall_secs: The stall time of all providers, and the longest silence before another one
                gets a request; None keeps each provider's own.
            rejection_secs: See ``Race``.

        Returns:
            Whether a request may be sent.
        """
        candidates, admission = self._planner.candidates, self._admission
        name = admission.first_choice(candidates, self._work)
        if name is None:
            self.failure = AllProvidersFailed((), reason=admission.reason)
            return False
        # It may be another provider than the plan's first.
        order = sorted(candidates, key=lambda member: member.provider.name != name)
        self.race = self._new_race(order, stall_secs, rejection_secs)
        return True

    def _new_race(
        self,
        order: list[ProviderMember[A]],
        stall_secs: float | None,
        rejection_secs: float | None,
    ) -> Race:
        plan, policy = self._planner.plan, self._policy
        candidates = slots(order, policy, plan.known)
        if stall_secs is not None:
            candidates = [
                dataclasses.replace(
                    slot,
                    stall_secs=stall_secs,
                    silent_secs=min(stall_secs, slot.silent_secs or stall_secs),
                )
                for slot in candidates
            ]
        # A recovery probe is an additional attempt.
        probe = self._admission.probe if len(order) > 1 else None
        return Race(
            candidates,
            plan.rule,
            max_attempts=policy.max_attempts + (probe is not None),
            commit_on=self._planner.commit_on,
            deadline_secs=policy.deadline_secs,
            probe=probe,
            jitter=random.random(),
            is_speculative=self.is_speculative,
            rejection_secs=rejection_secs,
            make_attempt=self._new_attempt,
        )

    def _new_attempt(
        self, number: int, slot: Slot, reason: LaunchReason, launched_at: float, detail: str | None
    ) -> ProviderAttempt:
        permit = self._admission.issue(slot.provider, self._work_of(number, reason))
        attempt = ProviderAttempt(number, slot, reason, launched_at, detail, permit)
        attempt.hold = self._admission.holds.add(functools.partial(self._abandon, attempt))
        attempt.stats.keeps_text = self.losers == "drain"
        self.attempts.append(attempt)
        return attempt

    async def run(
        self,
        scope: TaskScope,
        drains: TaskScope | None = None,
    ) -> None:
        """Run the race to its end, and learn from it.

        Args:
            scope: Owns the attempts' tasks.
            drains: Takes over the losers that finish; None closes all of them.
        """
        assert self.race is not None
        driver = self._driver = RaceDriver(self.race, scope, self, drains)
        hold = self._admission.holds.add(self._planner.plan.close)
        try:
            await driver.run(self._loop.time())
        finally:
            for attempt in self.attempts:
                if attempt.sent_at is None and attempt.closed_at is None:  # was not begun
                    self._end(attempt, None)
            if self._admission.holds.drop(hold):
                self._planner.plan.close()
                self._learn()
        if driver.failure_command is not None:
            self.failure = AllProvidersFailed(driver.failure_command.errors)

    def confirm(self) -> None:
        """Report that the caller's turn has ended: from now on hedges may be sent."""
        self.is_speculative = False
        if self._driver is not None:
            self._driver.confirm()

    def _learn(self) -> None:
        """Learn from the attempts; those of a withdrawn turn were not waited for."""
        self._mark_simulated()
        if self.is_speculative and self.race is not None and self.race.winner is None:
            for attempt in self.attempts:
                self._planner.forget(attempt)
            return
        for attempt in self.attempts:
            if attempt.first_token_at is None and attempt.progressed_at is None:
                attempt.progressed_at = attempt.stats.stages.deltas.delta_at
        self._planner.learn(self.attempts, {a.number for a in self.attempts if a.is_probing})

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

    @property
    def probes(self) -> list[ProviderAttempt]:
        """The losing attempts that still run as latency probes, and whose end is reported."""
        return [a for a in self.attempts if a.has_claim and a.closed_at is None]

    async def wait_for_probes(self) -> None:
        """Wait until the requests of ``probes`` are closed."""
        if self._driver is not None:
            await self._driver.wait_for([attempt.number for attempt in self.probes])

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
            attempt.stats.on_answer = attempt.stats.on_used_up = None

    # ---- one attempt

    async def run_attempt(self, launch: Launch, sink: AttemptSink[T]) -> None:
        """See ``RaceHost``."""
        attempt = self.attempts[launch.attempt]
        error: AttemptError | None = None
        try:
            self._observe(attempt)
            adapter = self._take_instance(attempt)
            self._report_sent(launch, attempt)
            with working_as(self._work_of(attempt.number, attempt.reason)):
                await self._host.send(launch, attempt, sink, adapter)
        except Exception as e:
            error = exception_error(e, has_begun=attempt.stats.has_begun)
            sink.failed(error)
            raise
        finally:
            self._end(attempt, attempt.stats.error or error)

    def _end(self, attempt: ProviderAttempt, error: AttemptError | None) -> None:
        hold, attempt.hold = attempt.hold, None
        if hold is not None and self._admission.holds.drop(hold):
            self._close(attempt, error)

    def _work_of(self, number: int, reason: LaunchReason) -> WorkClass:
        if reason == "hedge":
            return "hedge"
        return self._work if number == 0 or self._work == "background" else "rescue"

    def _take_instance(self, attempt: ProviderAttempt) -> A:
        idle = self._idle[attempt.provider]
        if not idle:  # all have failed, and are retried
            failed = [a.adapter for a in self.attempts if a.error is not None]
            idle += [a for a in self._instances[attempt.provider] if a in failed]
        attempt.adapter = adapter = take_best_instance(idle)
        return adapter

    def _report_sent(self, launch: Launch, attempt: ProviderAttempt) -> None:
        attempt.sent_at = self._loop.time()
        is_waiting = self.race is not None and self.race.winner is None
        self._planner.plan.launched(launch, attempt.sent_at, is_waiting=is_waiting)
        if not self._planner.whole_answers:
            self._planner.sent(attempt)

    def _observe(self, attempt: ProviderAttempt) -> None:
        """Record an attempt's first token and a used-up rate limit as they come."""
        if self._planner.whole_answers:
            return
        attempt.stats.on_answer = functools.partial(self._on_first_token, attempt)
        attempt.stats.on_used_up = functools.partial(self._admission.set_used_up, attempt.permit)
        attempt.is_unmeasured = attempt.provider == self._planner.plan.probe or (
            self._admission.is_unmeasured(attempt.provider)
        )
        is_useful = attempt.is_unmeasured or self._planner.is_unknown(attempt.provider)
        if is_useful and self._policy.probes:
            attempt.probe_alarm = self._loop.call_later(OBSERVED_SECS, self._end_probe, attempt)

    def _on_first_token(self, attempt: ProviderAttempt) -> None:
        self._mark_simulated()
        size = size_class(self._planner.prompt_tokens)
        attempt.lag_secs = self._admission.record_first_token(attempt.permit, size)
        if attempt.probe_alarm is not None:
            attempt.probe_alarm.cancel()
            self._stop_probe(attempt)

    def _end_probe(self, attempt: ProviderAttempt) -> None:
        attempt.is_silent = attempt.stats.stages.deltas.delta_at is None
        self._stop_probe(attempt)

    def _stop_probe(self, attempt: ProviderAttempt) -> None:
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
                self._planner.mark_simulated(attempt.provider)

    def _close(self, attempt: ProviderAttempt, failure: AttemptError | None) -> None:
        """Release the permit with the outcome."""
        now = attempt.closed_at = self._loop.time()
        stats, permit = attempt.stats, attempt.permit
        has_answered = stats.completed and stats.has_answer
        verdict = classify(failure, has_answered=has_answered, attempt=attempt)
        if attempt.probe_alarm is not None:
            attempt.probe_alarm.cancel()
        if attempt.is_probing:
            verdict = self._learn_from_probe(attempt, failure, verdict, now)
        if failure is not None and failure.retry_after_secs is not None:
            self._admission.set_retry_after(permit, failure.retry_after_secs)
        is_lost = attempt.outcome == "superseded" and attempt.sent_at is not None
        was_overtaken = is_lost and not (stats.has_answer or self._planner.whole_answers)
        self._admission.release(
            permit,
            verdict,
            host=stats.stages.host,
            has_begun=stats.has_answer,
            was_overtaken=was_overtaken,
            was_late=was_overtaken and self._was_late(attempt),
        )

    def _abandon(self, attempt: ProviderAttempt) -> None:
        """Give back what an attempt holds whose event loop was closed. Nothing is learned of it."""
        if attempt.is_probing:
            self._admission.release_latency_probe(attempt.provider)
        self._planner.forget(attempt)
        self._admission.abandon(attempt.permit)

    def _learn_from_probe(
        self, attempt: ProviderAttempt, failure: AttemptError | None, verdict: Verdict, now: float
    ) -> Verdict:
        if attempt.has_claim:
            self._admission.release_latency_probe(attempt.provider)
        token_at = attempt.stats.first_answer_at
        if token_at is None and not attempt.is_silent and not attempt.has_claim:
            self._planner.drop_observation(attempt)
        if failure is not None:
            self._planner.forget(attempt)
            return verdict
        self._planner.learn_from_probe(attempt, token_at, now)
        if token_at is not None:
            return "answered"
        return "silent" if attempt.is_silent else verdict

    def _was_late(self, attempt: ProviderAttempt) -> bool:
        """Whether a losing attempt took long, or lost to one that was sent later."""
        if self._admission.lag_secs >= UNSURE_LAG_SECS:
            return False  # its answer may have come but not been read yet
        won_at, sent_at = None if self.winner is None else self.winner.sent_at, attempt.sent_at
        if won_at is not None and sent_at is not None and won_at > sent_at:
            return True
        ended_at = self._loop.time() if attempt.ended_at is None else attempt.ended_at
        return self._planner.is_late(attempt.provider, ended_at - attempt.permit.acquired_at)

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
        names = [name for name, idle in self._idle.items() if idle]
        reasons, by_server = self._admission.refusals(names), hedge_refusals(self._idle, first)
        reluctance = self._admission.reluctance(names)
        slow = self._planner.slow(self.attempts, self._loop.time())
        full = self._admission.full(names)
        if not (reasons or by_server or reluctance or slow or full):
            return ALL_ELIGIBLE
        for name in by_server:
            reluctance[name] = max(reluctance.get(name, 0), 1)
        return HedgeEligibilityChanged(reasons | by_server, reluctance, slow, full)

    def runs_on(self, number: int) -> bool:
        """Whether an attempt that has just lost runs on, as a latency probe or to be drained.

        One that was not sent yet does not. For one that does, a second connection is opened for the
        next turn.
        """
        attempt = self.attempts[number]
        if attempt.adapter is None:
            return False
        if self.losers != "drain" and not self._becomes_probe(attempt):
            return False
        attempt.adapter.run_on()
        return True

    def _becomes_probe(self, attempt: ProviderAttempt) -> bool:
        is_open = attempt.probe_alarm is not None and not attempt.is_silent
        if not is_open or attempt.stats.has_answer:
            return False
        if self._planner.observes(attempt):
            attempt.is_probing = True
        elif attempt.is_unmeasured:
            attempt.has_claim = self._admission.claim_latency_probe(attempt.provider)
            attempt.is_probing = attempt.has_claim
        return attempt.is_probing

    def progress(self, number: int) -> Progressed | None:
        """An attempt's output that the race has not received, if the stream can be read.

        A stream that cannot be read may contain a tool call's arguments.
        """
        if not self._rescues and self.winner is not None:
            return Progressed(number, None)
        stats = self.attempts[number].stats
        deltas = stats.stages.deltas
        if deltas.knows_format:
            at = deltas.delta_at
            return None if at is None else Progressed(number, at, is_call=bool(deltas.calls))
        may_call = stats.has_answer and self._planner.has_tools
        return Progressed(number, None) if may_call else None
