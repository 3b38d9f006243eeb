"""One turn of the hedged service: from the context frame to the report."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from pipecat.frames.frames import Frame, LLMTextFrame
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge.limits.permits import Rejected
from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.policy.survival import SurvivalCurve
from pipecat_hedge.race.attempt import Attempt
from pipecat_hedge.race.driver import RaceDriver
from pipecat_hedge.race.errors import AllProvidersFailed, AttemptError
from pipecat_hedge.race.events import Commit, CommitOn, Continue, StreamBroken, TurnOutcome
from pipecat_hedge.race.race import Phase, Race
from pipecat_hedge.race.reports import AttemptReport, DrainedAnswer, TurnReport
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.admission import Admission
from pipecat_hedge.service.attempt_runner import AttemptRunner, is_silent
from pipecat_hedge.service.output_buffer import OutputBuffer
from pipecat_hedge.service.provider_pool import ProviderMember, seats
from pipecat_hedge.service.service_adapter import AttemptStats, Piece, ToolCalls
from pipecat_hedge.service.tokens import NONE, count_tokens, usd
from pipecat_hedge.service.tts_output import Output
from pipecat_hedge.service.turn_learning import Learning
from pipecat_hedge.telemetry.race_span import RaceSpan

__all__ = ["ResponseSink", "Turn"]


class ResponseSink(Protocol):
    """How a turn speaks into the pipeline; ``FrontService`` implements it."""

    async def say(self, text: str, *, wall_time: float) -> None:
        """Release a piece of answer text that came at ``wall_time``."""
        ...

    async def retract(self, text: str) -> None:
        """Keep the last text that was released, ``text``, from being spoken."""
        ...

    async def run_tools(self, calls: ToolCalls, *, wall_time: float) -> None:
        """Run the winner's tools; the call was complete at ``wall_time``."""
        ...

    async def pass_on(self, frame: Frame, *, wall_time: float) -> None:
        """Release any other frame of the answer."""
        ...


class Turn:
    """Runs one race for one context and sums it up.

    Attributes:
        failure: What went wrong, once the race is over, if it gave up.
        span: The race in the trace.
    """

    def __init__(
        self,
        number: int,
        context: LLMContext,
        policy: HedgePolicy,
        learning: Learning,
        admission: Admission,
        mouth: ResponseSink,
        output: Output,
        span: RaceSpan,
        committed: Callable[[str | None], None],
        drained: Callable[[DrainedAnswer], Awaitable[None]],
        asked: Callable[[], None],
        may_wait: bool = False,
    ):
        """Prepare a turn; it starts now.

        Args:
            number: The turn's number, from 1.
            context: The conversation.
            policy: What the user wants of a race.
            learning: Whom to ask and when, and who remembers how it went.
            admission: Leave to ask them.
            mouth: Where the answer goes.
            output: What speaks the answer.
            span: The race in the trace.
            committed: Told the winner's model just before its answer is released.
            drained: Told what a loser said that was let run to its end.
            asked: Told whenever somebody is asked.
            may_wait: Whether a marker that says "the caller has not finished" is an answer.
        """
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self._number = number
        self._context = context
        self._mouth = mouth
        self._output = output
        self.span = span
        self._committed = committed
        self._drained = drained
        self._policy = policy
        self._learning = learning
        self._admission = admission
        self._entries: Mapping[str, ProviderMember] = {e.provider.name: e for e in learning.line_up}
        self._commit_on: CommitOn = learning.commit_on
        self._race = self._new_race(learning.line_up, policy.deadline_secs)
        self._release = OutputBuffer(
            by_sentence=self._commit_on == "first_sentence",
            with_lookahead=output.needs_lookahead,
            language=output.language,
        )
        self._first_winner: Attempt | None = None
        self._committed_at: float | None = None
        self._heard: list[Attempt] = []
        self._tools: list[tuple[ToolCalls, float]] = []
        self._ran_tools = False
        self._asking = AttemptRunner(
            context,
            learning.line_up,
            policy,
            learning,
            admission,
            output,
            self._release,
            span,
            drained=self._report_drained,
            asked_somebody=asked,
            may_wait=may_wait,
        )
        self._ended_at = self._started_at
        self._was_interrupted = False
        self.failure: AllProvidersFailed | None = None

    async def run(self, drains: TaskScope, end: Callable[[], Awaitable[None]]) -> None:
        """Race to the end of the answer.

        Args:
            drains: Takes over the losers that are let run on.
            end: Called once the answer is complete, before the losers' last requests are closed.
        """
        async with TaskScope() as scope:
            if not await self._admit():
                await end()
                return
            race, asking = self._race, self._asking
            racing = asking.racing = RaceDriver(
                race,
                scope,
                functools.partial(asking.ask, race),
                self._deliver,
                self._obey_release,
                drains=drains,
                runs_on=lambda attempt: asking.runs_on(race.attempts[attempt]),
                refusals=asking.refusals,
                progress=asking.progress,
            )
            try:
                await racing.run(self._loop.time())
            finally:
                self._ended_at = self._loop.time()
                self._learning.plan.close()
                self._learning.learn(asking.sent_at_once(race), asking.listened_to)
            if racing.gave_up is not None:
                self.failure = AllProvidersFailed(
                    racing.gave_up.errors, broke_off=self.has_answered
                )
                self._mend_context()
                await self._tell_the_rest()
            else:
                if rest := self._release.finish():
                    await self._mouth.say(rest, wall_time=time.time())
                await self._run_tools()
            await end()

    async def _admit(self) -> bool:
        """Wait for leave to ask the first provider; whether there is any."""
        order = self._learning.line_up
        try:
            name = await self._admission.admit(order, self._asking.first())
        except Rejected as rejected:
            self.failure = AllProvidersFailed((), reason=str(rejected))
            return False
        except asyncio.CancelledError:
            self._was_interrupted = True
            raise
        finally:
            self._ended_at = self._loop.time()
        if name is None:
            self.failure = AllProvidersFailed((), reason=self._admission.reason)
            return False
        first = self._entries[name]
        deadline_secs = self._policy.deadline_secs
        if deadline_secs is not None:
            deadline_secs = max(deadline_secs - self._admission.queued_secs, 0.0)
        if first is not order[0] or self._admission.queued_secs:
            others = [entry for entry in order if entry is not first]
            self._race = self._new_race([first, *others], deadline_secs)
        return True

    def _new_race(self, order: Sequence[ProviderMember], deadline_secs: float | None) -> Race:
        plan, policy = self._learning.plan, self._policy
        # Whoever is only tried takes nobody's place.
        tried = self._admission.tried if len(order) > 1 else None
        return Race(
            seats(order, policy, plan.slowest_secs),
            plan.rule,
            max_attempts=policy.max_attempts + (tried is not None),
            commit_on=self._commit_on,
            deadline_secs=deadline_secs,
            tried=tried,
            jitter=random.random(),
        )

    @property
    def has_answered(self) -> bool:
        """Whether any of an answer was released, and not taken back."""
        return self._first_winner is not None and not is_silent(self._release.said)

    @property
    def is_failing(self) -> bool:
        """Whether nobody has answered, and somebody has failed."""
        attempts = self._race.attempts
        return any(a.outcome == "failed" for a in attempts) and not any(
            a.first_token_at is not None for a in attempts
        )

    @property
    def wait(self) -> SurvivalCurve | None:
        """How long this turn waits from its beginning, as things stand; None if it does not."""
        if self._race.phase is not Phase.WAITING:
            return None
        return self._learning.wait_of(self._race.attempts, self._race.planned, self._started_at)

    @property
    def winner_usage(self) -> LLMTokenUsage | None:
        """The winner's own count of tokens, or None if it sent none."""
        winner = self._race.winner
        return None if winner is None else self._asking.tallies[winner.number].usage

    @property
    def errors(self) -> list[tuple[str, AttemptError]]:
        """What went wrong with whom, whatever came of the turn."""
        return [(a.provider, a.error) for a in self._race.attempts if a.error is not None]

    @property
    def has_probe(self) -> bool:
        """Whether an attempt that has lost is still let run to its first token."""
        return self._policy.losers == "cancel" and bool(self._asking.still_listened_to)

    async def wait_for_probe(self) -> None:
        """Wait until what was let run on is closed."""
        if self._asking.racing is not None:
            await self._asking.racing.wait_for(self._asking.still_listened_to)

    def report(self) -> TurnReport:
        """Sum the turn up; call it once it is over."""
        first, winner = self._first_winner, self._race.winner
        speakable_at = [a.speakable_at for a in self._heard if a.speakable_at is not None]
        return TurnReport(
            turn=self._number,
            winner=None if winner is None else winner.provider,
            outcome=self._outcome(),
            ttft_secs=None if first is None else self._since_start(first.first_token_at),
            ttfs_secs=None if not speakable_at else self._since_start(min(speakable_at)),
            duration_secs=self._ended_at - self._started_at,
            attempts=tuple(self._report_attempt(attempt) for attempt in self._race.attempts),
            commit_on=self._commit_on,
            commit_reason=self._race.commit_reason,
            prompt_tokens=self._learning.prompt_tokens,
            hedge_reason=self._race.launch_reason,
            routing_reason=self._learning.plan.route_reason,
            prior_weight=self._learning.plan.prior_weight,
            committed_secs=self._since_start(self._committed_at),
            queued_secs=self._admission.queued_secs,
            degraded_reason=self._degraded_reason(),
            tier=self._admission.tier,
        )

    # ---- the race's seams

    async def _obey_release(self, order: Commit | Continue | StreamBroken) -> None:
        self.span.obey(order, self._race.attempts[order.attempt])
        if isinstance(order, StreamBroken):
            end = await self._release.break_off()
            if end.say:
                await self._mouth.say(end.say, wall_time=time.time())
            if end.retract:
                await self._mouth.retract(end.retract)
            return
        attempt = self._race.attempts[order.attempt]
        self._heard.append(attempt)
        if isinstance(order, Commit):
            self._first_winner = attempt
            self._committed_at = self._loop.time()
        else:
            self._release.follow_on()
        self._committed(self._asking.asked[order.attempt].model)

    async def _deliver(self, piece: Piece, at: float) -> None:
        wall_time = time.time() - (self._loop.time() - at)
        if isinstance(piece, LLMTextFrame):
            if text := await self._release.feed(piece.text):
                await self._mouth.say(text, wall_time=wall_time)
        elif isinstance(piece, ToolCalls):
            self._tools.append((piece, wall_time))
        else:
            await self._mouth.pass_on(piece, wall_time=wall_time)

    async def _run_tools(self) -> None:
        """Run what the answer called for, last of all.

        Tools run in tasks of their own. Started earlier, a quick one would put its result into the
        conversation before the words that were said in front of the call.
        """
        for piece, wall_time in self._tools:
            self._ran_tools = True
            calls = [dataclasses.replace(call, context=self._context) for call in piece.calls]
            await self._mouth.run_tools(ToolCalls(calls), wall_time=wall_time)

    async def _tell_the_rest(self) -> None:
        """Where an answer has broken off for good, say so in place of the rest of it."""
        if self.has_answered and self._policy.fallback_text:
            told = self._release.close_with(self._policy.fallback_text)
            await self._mouth.say(told, wall_time=time.time())

    def _mend_context(self) -> None:
        """Do for the conversation what a failed member did for its copy: drop a rejected file."""
        if any(tally.mended_context for tally in self._asking.tallies.values()):
            self._context.remove_invalid_file_message()

    # ---- the sum

    def _outcome(self) -> TurnOutcome:
        winner = self._race.winner
        if winner is not None and winner.outcome == "won":
            return "answered_with_tools" if self._ran_tools else "answered"
        interrupted = (attempt.outcome == "interrupted" for attempt in self._race.attempts)
        if self._was_interrupted or any(interrupted):
            return "interrupted"
        return "failed"

    def _degraded_reason(self) -> str | None:
        if self.failure is None:
            return None
        told = str(self.failure) if self.has_answered and self._policy.fallback_text else None
        return self.failure.reason or told

    def _since_start(self, at: float | None) -> float | None:
        return None if at is None else at - self._started_at

    def _report_attempt(self, attempt: Attempt) -> AttemptReport:
        asked = self._asking.asked.get(attempt.number)
        tally = self._asking.tallies.get(attempt.number, AttemptStats())
        sent_at = self._asking.sent_at.get(attempt.number)
        was_sent = sent_at is not None and not self._asking.was_withdrawn(attempt)
        tokens = count_tokens(tally, self._context) if was_sent else NONE
        first, speakable = self._asking.first_token_at(attempt), attempt.speakable_at
        ended = self._ended_at if attempt.ended_at is None else attempt.ended_at
        if attempt.number in self._asking.listened_to:
            ended = self._asking.closed_at.get(attempt.number, ended)
        return AttemptReport(
            provider=attempt.provider,
            model=None if asked is None else asked.model,
            launched_secs=attempt.launched_at - self._started_at,
            launch_reason=attempt.reason,
            ttft_secs=None if first is None else first - attempt.launched_at,
            ended_secs=ended - self._started_at,
            outcome=attempt.outcome or "interrupted",
            error_category=None if attempt.error is None else attempt.error.category,
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            tokens_estimated=tokens.estimated,
            usd=usd(tokens, self._entries[attempt.provider].provider.usd_per_mtok),
            ttfs_secs=None if speakable is None else speakable - attempt.launched_at,
            launch_detail=attempt.detail,
            sent_secs=self._since_start(sent_at) if was_sent else None,
            stages=None if sent_at is None else tally.stages.report(sent_at),
        )

    async def _report_drained(self, attempt: Attempt) -> None:
        await self._drained(self._drained_answer(attempt))

    def _drained_answer(self, attempt: Attempt) -> DrainedAnswer:
        tally = self._asking.tallies[attempt.number]
        tokens = count_tokens(tally, self._context)
        first = tally.first_text_at
        return DrainedAnswer(
            turn=self._number,
            provider=attempt.provider,
            model=self._asking.asked[attempt.number].model,
            text=tally.text,
            complete=tally.completed,
            ttft_secs=None if first is None else first - attempt.launched_at,
            duration_secs=self._loop.time() - attempt.launched_at,
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            tokens_estimated=tokens.estimated,
        )
