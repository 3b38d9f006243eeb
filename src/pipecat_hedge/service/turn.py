"""One spoken turn: from the context frame to the report."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Awaitable, Callable
from typing import Protocol
from uuid import uuid4

from pipecat.frames.frames import Frame, LLMTextFrame
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import (
    LLMContext,
    LLMContextMessage,
)

from pipecat_hedge.policy.survival import SurvivalCurve
from pipecat_hedge.policy.turn_route import RoutedTurn
from pipecat_hedge.race.driver import AttemptSink
from pipecat_hedge.race.errors import AllProvidersFailed, AttemptError
from pipecat_hedge.race.events import Commit, Continue, Launch, StreamBroken, TurnOutcome
from pipecat_hedge.race.race import Phase
from pipecat_hedge.race.reports import DrainedAnswer, FillerReport, TurnReport
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.admission import Admission
from pipecat_hedge.service.output_buffer import OutputBuffer
from pipecat_hedge.service.pipeline_search import Output
from pipecat_hedge.service.portable import note_author
from pipecat_hedge.service.provider_race import ProviderAttempt, ProviderRace
from pipecat_hedge.service.service_adapter import Piece, ServiceAdapter, ToolCalls
from pipecat_hedge.service.tracer import RaceTrace
from pipecat_hedge.service.turn_planner import TurnPlanner
from pipecat_hedge.service.turn_report import report_drained, report_turn

CONTINUE = (
    "Your answer was cut off by a broken connection. The caller has heard it up to the end of your "
    "last message. Go on exactly where it stops: say only what is missing, and do not repeat, "
    "apologise or comment."
)
"""The last message of an attempt that continues an answer."""


class ResponseSink(Protocol):
    """Receives a turn's answer; implemented by ``HedgedLLMService``.

    A ``wall_time`` is when a piece came from the provider, in Unix time.
    """

    async def say(
        self, text: str, *, at: float | None = None, frame: LLMTextFrame | None = None
    ) -> None:
        """Release a piece of answer text.

        Args:
            text: The text.
            at: When it came, in the loop's time; None is now.
            frame: The provider's frame with just this text, to be released itself; None makes one.
        """
        ...

    async def retract(self, text: str) -> None:
        """Prevent ``text``, the last text released, from being spoken."""
        ...

    async def run_tools(self, calls: ToolCalls, *, wall_time: float) -> None:
        """Run the winner's tools."""
        ...

    async def pass_on(self, frame: Frame, *, wall_time: float) -> None:
        """Release any other frame of the answer."""
        ...

    def attempt_sent(self) -> None:
        """Record that a request was sent."""
        ...

    def committed(self, model: str | None) -> None:
        """Record the winner's model, just before its answer is released."""
        ...

    async def drained(self, answer: DrainedAnswer) -> None:
        """Publish the answer of a loser that finished."""
        ...


class Turn:
    """Runs one race for one context and reports it. The turn starts on creation.

    Attributes:
        failure: Why there is no whole answer, after the race; None if there is one.
        trace: Traces the race.
    """

    def __init__(
        self,
        number: int,
        context: LLMContext,
        planner: TurnPlanner[ServiceAdapter],
        admission: Admission,
        sink: ResponseSink,
        output: Output,
        trace: RaceTrace,
        may_wait: bool = False,
        is_speculative: bool = False,
        most_tokens: int | None = None,
    ):
        """Prepare a turn.

        Args:
            number: The turn's number, from 1.
            context: The conversation.
            planner: The turn's plan.
            admission: The turn's permits.
            sink: Receives the answer.
            output: What speaks the answer.
            trace: Traces the race.
            may_wait: Whether an "incomplete turn" marker counts as an answer.
            is_speculative: Whether the caller's turn may still go on, until ``settle``.
            most_tokens: The limit of the answer, at which it may end in mid-sentence; or None.
        """
        self._loop = asyncio.get_running_loop()
        self._started_at = self._ended_at = self._loop.time()
        self._number = number
        self._context = context
        self._question = RoutedTurn(context.messages, ()).last_words
        self._planner = planner
        self._policy = planner.policy
        self._admission = admission
        self._sink = sink
        self._output = output
        self.trace = trace
        self._may_wait = may_wait
        self._most_tokens = most_tokens
        last = context.messages[-1] if context.messages else None
        answers_tool = isinstance(last, dict) and last.get("role") == "tool"
        work = "tool_follow_up" if answers_tool else "primary"
        self._runner = ProviderRace[Piece, ServiceAdapter](planner, admission, work, self)
        self._runner.is_speculative = is_speculative
        self._drains = TaskScope()
        self._over, self._settled = asyncio.Event(), asyncio.Event()
        self._confirmed_at: float | None = None
        self._was_withdrawn = False
        if not is_speculative:
            self._settled.set()
        self._buffer = OutputBuffer(
            by_sentence=planner.commit_on == "first_sentence" or most_tokens is not None,
            with_lookahead=output.needs_lookahead,
            language=output.language,
        )
        self._released: list[ProviderAttempt] = []
        self._committed_at: float | None = None
        self._tools: list[tuple[ToolCalls, float]] = []
        self._ran_tools = self._was_interrupted = False
        self.failure: AllProvidersFailed | None = None

    async def run(self, drains: TaskScope, end: Callable[[], Awaitable[None]]) -> None:
        """Race to the end of the answer.

        Args:
            drains: Takes over the losers that finish.
            end: Called when the answer is complete, before the last requests of losers are closed.
        """
        self._drains = drains
        try:
            await self._race(drains, end)
        finally:
            self._over.set()

    async def _race(self, drains: TaskScope, end: Callable[[], Awaitable[None]]) -> None:
        runner = self._runner
        async with TaskScope() as scope:
            try:
                if runner.admit():
                    await runner.run(scope, drains)
            except asyncio.CancelledError:
                self._was_interrupted = True
                raise
            finally:
                self._ended_at = self._loop.time()
            if (failure := runner.failure) is None:
                if self._is_cut_short:
                    await self._break_off()
                elif rest := self._buffer.finish():
                    await self._sink.say(rest)
                await self._run_tools()
            else:
                self.failure = AllProvidersFailed(
                    failure.causes, broke_off=self.has_answered, reason=failure.reason
                )
                self._repair_context()
                if self.has_answered and self._policy.fallback_text:
                    rest = self._buffer.close_with(self._policy.fallback_text)
                    await self._sink.say(rest)
            await end()

    @property
    def whole_answer(self) -> str | None:
        """The answer, if it is whole, one provider's, of text alone, and not void."""
        is_whole = (
            self.failure is None
            and len(self._released) == 1
            and not (
                self._was_interrupted or self._was_withdrawn or self._tools or self._reached_limit
            )
        )
        return self._buffer.said if is_whole and self.has_answered else None

    @property
    def has_answered(self) -> bool:
        """Whether a part of an answer was released and not retracted."""
        return bool(self._released) and _has_text(self._buffer.said)

    @property
    def is_failing(self) -> bool:
        """Whether an attempt has failed and none has answered."""
        attempts = self._runner.attempts
        return any(a.outcome == "failed" for a in attempts) and not any(
            a.first_token_at is not None for a in attempts
        )

    @property
    def wait(self) -> SurvivalCurve | None:
        """The distribution of this turn's wait from its start; None if it does not wait."""
        race = self._runner.race
        if race is None or race.phase is not Phase.WAITING:
            return None
        return self._planner.wait_of(race.attempts, race.planned, self._started_at)

    @property
    def winner_usage(self) -> LLMTokenUsage | None:
        """The winner's own token counts, or None if it sent none."""
        winner = self._runner.winner
        return None if winner is None else winner.stats.usage

    @property
    def errors(self) -> list[tuple[str, AttemptError]]:
        """Every failed provider with its error, whatever the turn's outcome."""
        return self._runner.errors

    @property
    def answered(self) -> set[str]:
        """The providers that have begun to answer."""
        return self._runner.answered

    def settle(self, *, is_confirmed: bool) -> None:
        """Report whether the caller's turn has ended, which was only expected when this began.

        Args:
            is_confirmed: Whether it has; otherwise the answer is void.
        """
        if self._settled.is_set():
            return
        self._settled.set()
        if is_confirmed:
            self._confirmed_at = self._loop.time()
            self._runner.confirm()
        else:
            self._was_withdrawn = True

    @property
    def is_complete(self) -> bool:
        """Whether the report is complete: no probe runs, and no answer waits for its turn's end."""
        return self._settled.is_set() and not self._has_probe

    async def wait_until_complete(self) -> None:
        """Wait until the latency probes are closed and the turn is settled."""
        if self._has_probe:
            await self._runner.wait_for_probes()
        await self._settled.wait()

    @property
    def _has_probe(self) -> bool:
        return self._runner.losers == "cancel" and bool(self._runner.probes)

    # ---- the attempts

    async def send(
        self,
        launch: Launch,
        attempt: ProviderAttempt,
        sink: AttemptSink[Piece],
        instance: ServiceAdapter,
    ) -> None:
        """See ``TurnHost``."""
        self._sink.attempt_sent()
        stats = attempt.stats
        try:
            with self.trace.request(launch, instance.service, instance.model):
                await instance.answer(
                    self._context,
                    sink,
                    stats,
                    addition=self._continuation(),
                    language=self._output.language,
                    may_wait=self._may_wait,
                )
            if self._buffer.said and self._buffer.is_whole and stats.is_empty:
                # Asked to continue an answer that broke off at a sentence's end: it was complete.
                await sink.piece(LLMTextFrame(""), usable=True)
        finally:
            if stats.keeps_text and attempt.outcome == "superseded":
                await self._report_drained(attempt)

    async def _report_drained(self, attempt: ProviderAttempt) -> None:
        """Publish a loser's answer beside the released one, once that is whole."""
        ended_at, task = self._loop.time(), asyncio.current_task()

        async def publish() -> None:
            try:
                await self._over.wait()
            finally:  # also if the next turn or an interruption ends the wait
                await self._sink.drained(self._drained(attempt, ended_at))

        if task is not None and task.cancelling():
            await self._sink.drained(self._drained(attempt, ended_at))
        else:  # in a task of its own: the loser's permit is released now
            self._drains.start(publish(), name=f"drained: {attempt.provider}")

    def _drained(self, attempt: ProviderAttempt, ended_at: float) -> DrainedAnswer:
        winner = self._runner.winner
        calls = [] if winner is None else winner.stats.tool_calls
        return dataclasses.replace(
            report_drained(self._number, attempt, self._planner, ended_at),
            tool_calls=json.dumps(attempt.stats.tool_calls, default=str),
            winner=None if winner is None else winner.provider,
            said=self._buffer.said,
            said_tool_calls=json.dumps(calls, default=str),
            question=self._question,
        )

    def _continuation(self) -> list[LLMContextMessage]:
        if not _has_text(self._buffer.said):
            return []
        return [
            {"role": "assistant", "content": self._buffer.said},
            {"role": "user", "content": CONTINUE},  # which every chat template knows
        ]

    # ---- the answer

    async def released(self, command: Commit | Continue | StreamBroken) -> None:
        """See ``TurnHost``."""
        attempt = self._runner.attempts[command.attempt]
        self.trace.command(command, attempt)
        if isinstance(command, StreamBroken):
            await self._break_off()
            return
        self._released.append(attempt)
        if isinstance(command, Commit):
            self._committed_at = self._loop.time()
        else:
            self._buffer.start_continuation()
        self._sink.committed(None if attempt.adapter is None else attempt.adapter.model)

    async def _break_off(self) -> None:
        """Release the answer's whole sentences, and drop the rest."""
        end = await self._buffer.break_off()
        if end.say:
            await self._sink.say(end.say)
        if end.retract:
            await self._sink.retract(end.retract)

    @property
    def _is_cut_short(self) -> bool:
        """Whether the answer has reached its limit and has a whole sentence to end with."""
        is_limited = self._most_tokens is not None
        return is_limited and self._reached_limit and self._buffer.has_sentence

    @property
    def _reached_limit(self) -> bool:
        """Whether the answer was cut at a limit: by its stream, or else by its count of tokens."""
        if (winner := self._runner.winner) is None:
            return False
        stats, most = winner.stats, self._most_tokens
        return stats.stages.deltas.reached_limit or (
            most is not None and stats.usage is not None and stats.usage.completion_tokens >= most
        )

    async def deliver(self, piece: Piece, at: float) -> None:
        """See ``TurnHost``."""
        if isinstance(piece, LLMTextFrame):
            if text := await self._buffer.feed(piece.text):
                # What a member says of speech does not hold: that is the host's to say.
                is_plain = text is piece.text and piece.skip_tts is None
                await self._sink.say(text, at=at, frame=piece if is_plain else None)
            return
        wall_time = time.time() - (self._loop.time() - at)
        if isinstance(piece, ToolCalls):
            self._tools.append((piece, wall_time))
        else:
            # A thought of a continuation belongs to a prompt that no later one begins with.
            is_whole = len(self._released) == 1
            note_author(piece, self._released[-1].provider if is_whole else "")
            await self._sink.pass_on(piece, wall_time=wall_time)

    async def _run_tools(self) -> None:
        """Run the answer's tools, after all text.

        Tools run in their own tasks. Started earlier, a quick one would put its result into the
        context before the text that precedes the call.
        """
        for piece, wall_time in self._tools:
            self._ran_tools = True
            calls = [
                dataclasses.replace(
                    call,
                    context=self._context,
                    # Pipecat finds the place for a result by it.
                    tool_call_id=call.tool_call_id or f"call_{uuid4().hex}",
                )
                for call in piece.calls
            ]
            await self._sink.run_tools(ToolCalls(calls), wall_time=wall_time)

    def _repair_context(self) -> None:
        """Remove a rejected file from the context, as a failed member did from its copy."""
        if any(attempt.stats.mended_context for attempt in self._runner.attempts):
            self._context.remove_invalid_file_message()

    # ---- the report

    def report(self, filler: FillerReport | None) -> TurnReport:
        """Report the finished turn, with what was said in the meantime."""
        return report_turn(
            self._number,
            self._runner,
            self._planner,
            self._admission,
            outcome=self._outcome(self._runner.winner),
            released=self._released,
            started_at=self._started_at,
            committed_at=self._committed_at,
            ended_at=self._ended_at,
            confirmed_at=self._confirmed_at,
            degraded_reason=self._degraded_reason(),
            filler=filler,
        )

    def _outcome(self, winner: ProviderAttempt | None) -> TurnOutcome:
        if self._was_withdrawn:
            return "withdrawn"
        if winner is not None and winner.outcome == "won":
            return "answered_with_tools" if self._ran_tools else "answered"
        if self._was_interrupted or any(
            attempt.outcome == "interrupted" for attempt in self._runner.attempts
        ):
            return "interrupted"
        return "failed"

    def _degraded_reason(self) -> str | None:
        if self.failure is None:
            return None
        closed = str(self.failure) if self.has_answered and self._policy.fallback_text else None
        return self.failure.reason or closed


def _has_text(text: str) -> bool:
    """Whether a text contains more than blanks and markers."""
    return any(char.isalnum() for char in text)
