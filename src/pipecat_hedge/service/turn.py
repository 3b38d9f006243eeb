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
from pipecat.processors.aggregators.llm_context import (
    LLMContext,
    LLMContextMessage,
)

from pipecat_hedge.policy.turn_route import RoutedTurn
from pipecat_hedge.providers.survival import SurvivalCurve
from pipecat_hedge.race.continuation import Continuation
from pipecat_hedge.race.driver import AttemptSink
from pipecat_hedge.race.errors import AllProvidersFailed
from pipecat_hedge.race.events import Commit, Continue, StreamBroken
from pipecat_hedge.race.reports import DrainedAnswer, FillerReport, TurnReport
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.output_buffer import Break, OutputBuffer
from pipecat_hedge.service.pipeline_search import Output
from pipecat_hedge.service.portable import note_author, prompt_of
from pipecat_hedge.service.provider_race import ProviderAttempt, ProviderRace
from pipecat_hedge.service.service_adapter import Piece, ServiceAdapter, ToolCalls
from pipecat_hedge.service.tracer import RaceTrace
from pipecat_hedge.service.turn_report import TurnRecord, report_drained, report_turn

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

    def attempt_sent(self, model: str | None, *, is_first: bool) -> None:
        """Record that a request was sent to a model."""
        ...

    def committed(self, model: str | None) -> None:
        """Record the winner's model, just before its answer is released."""
        ...

    async def drained(self, answer: DrainedAnswer) -> None:
        """Publish the answer of a loser that finished."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The options of a turn's answer.

    Parameters:
        output: How it becomes speech.
        may_wait: Whether an "incomplete turn" marker counts as an answer.
        most_tokens: Its limit, at which it may end in mid-sentence; or None.
    """

    output: Output
    may_wait: bool = False
    most_tokens: int | None = None


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
        race: ProviderRace[Piece, ServiceAdapter],
        sink: ResponseSink,
        options: AnswerOptions,
        trace: RaceTrace,
        *,
        is_speculative: bool = False,
    ):
        """Prepare a turn.

        Args:
            number: The turn's number, from 1.
            context: The conversation.
            race: Its race, not run yet.
            sink: Receives the answer.
            options: The answer's options.
            trace: Traces the race.
            is_speculative: Whether the caller's turn may still go on, until ``confirm``.
        """
        self._context, self._prompt = context, prompt_of(context)
        self._question = RoutedTurn(context.messages, ()).last_words
        self._sink = sink
        self._options = options
        self.trace = trace
        self._race = race
        race.is_speculative = is_speculative
        self._record = TurnRecord(number, race, _now(), _now())
        self._drains = TaskScope()
        self._over, self._confirmed = asyncio.Event(), asyncio.Event()
        if not is_speculative:
            self._confirmed.set()
        self._buffer = OutputBuffer(
            by_sentence=race.spec.commit_on == "first_sentence" or options.most_tokens is not None,
            with_lookahead=options.output.needs_lookahead,
            language=options.output.language,
        )
        self._tools: list[tuple[ToolCalls, float]] = []
        self.failure: AllProvidersFailed | None = None

    async def run(self, drains: TaskScope, end: Callable[[], Awaitable[None]]) -> None:
        """Race to the end of the answer.

        Args:
            drains: Takes over the losers that finish.
            end: Called when the answer is complete, before the last requests of losers are closed.
        """
        self._drains = drains
        try:
            async with TaskScope() as scope:
                await self._answer(scope)
                await end()
        finally:
            self._over.set()

    async def _answer(self, scope: TaskScope) -> None:
        try:
            await self._race.run(self, scope, self._drains)
        except asyncio.CancelledError:
            self._record.was_interrupted = True
            raise
        finally:
            self._record.ended_at = _now()
        if (failure := self._race.failure) is None:
            if self._is_cut_short:
                await self._break_off()
            elif rest := self._buffer.finish():
                await self._sink.say(rest)
            await self._run_tools()
            return
        self.failure = AllProvidersFailed(
            failure.causes, broke_off=self.has_answered, reason=failure.reason
        )
        self._repair_context()
        if self.has_answered and (closing := self._race.policy.fallback_text):
            await self._sink.say(self._buffer.close_with(closing))

    @property
    def whole_answer(self) -> str | None:
        """The answer, if it is whole, one provider's, of text alone, and not void."""
        record = self._record
        is_whole = (
            self.failure is None
            and len(record.released) == 1
            and not (
                record.was_interrupted or record.was_withdrawn or self._tools or self._reached_limit
            )
        )
        return self._buffer.said if is_whole and self.has_answered else None

    @property
    def has_answered(self) -> bool:
        """Whether a part of an answer was released and not retracted."""
        return bool(self._record.released) and _has_text(self._buffer.said)

    @property
    def is_failing(self) -> bool:
        """Whether an attempt has failed and none has answered, while the race runs."""
        attempts = [] if self._over.is_set() else self._race.attempts
        return any(a.outcome == "failed" for a in attempts) and not any(
            a.first_token_at is not None for a in attempts
        )

    @property
    def wait(self) -> SurvivalCurve | None:
        """The distribution of this turn's wait from its start; None if it does not wait."""
        return self._race.wait_from(self._record.started_at)

    def end_speculation(self, *, is_confirmed: bool) -> None:
        """End the speculation on the end of the caller's turn.

        Args:
            is_confirmed: Whether the turn has ended; otherwise the answer is void.
        """
        if self._confirmed.is_set():
            return
        self._confirmed.set()
        if is_confirmed:
            self._record.confirmed_at = _now()
            self._race.confirm()
        else:
            self._record.was_withdrawn = True

    @property
    def is_complete(self) -> bool:
        """Whether the report is complete: no loser is observed, and speculation is over."""
        return self._confirmed.is_set() and not self._observes

    async def wait_until_complete(self) -> None:
        """Wait until observed losers are closed and the turn is confirmed or withdrawn."""
        if self._observes:
            await self._race.wait_for_observed()
        await self._confirmed.wait()

    @property
    def _observes(self) -> bool:
        return self._race.losers == "cancel" and bool(self._race.observed)

    # ---- the attempts

    async def send(
        self,
        attempt: ProviderAttempt,
        sink: AttemptSink[Piece],
        instance: ServiceAdapter,
    ) -> None:
        """See ``TurnHost``."""
        is_first = attempt.number == 0 and not self._record.released
        self._sink.attempt_sent(instance.model, is_first=is_first)
        stats = attempt.stats
        said = (await self._break()).applied_to(self._buffer.said)
        addition, rest = _continuation(said), Continuation(said)
        if addition:
            sink.await_rest(lambda piece: _adds(piece, rest))
        try:
            with self.trace.request(attempt, instance.service, instance.model):
                await instance.answer(
                    self._prompt,
                    sink,
                    stats,
                    addition=addition,
                    language=self._options.output.language,
                    may_wait=self._options.may_wait,
                )
            adds_nothing = stats.is_empty or (stats.completed and sink.awaits_rest)
            # The answer broke off at a sentence's end and was complete, or this one's end differs.
            if adds_nothing and (rest.finish() or await self._is_whole()):
                sink.await_rest(None)
                await sink.piece(LLMTextFrame(""), usable=True)
        finally:
            if stats.keeps_text and attempt.outcome == "superseded" and not addition:
                await self._report_drained(attempt)

    async def _report_drained(self, attempt: ProviderAttempt) -> None:
        """Publish a loser's answer beside the released one, once that is whole."""
        ended_at, task = _now(), asyncio.current_task()

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
        winner = self._race.winner
        calls = [] if winner is None else winner.stats.tool_calls
        return dataclasses.replace(
            report_drained(self._record, attempt, ended_at),
            tool_calls=json.dumps(attempt.stats.tool_calls, default=str),
            winner=None if winner is None else winner.provider,
            said=self._buffer.said,
            said_tool_calls=json.dumps(calls, default=str),
            question=self._question,
        )

    async def _is_whole(self) -> bool:
        """Whether what was said ends with a sentence."""
        return bool(self._buffer.said) and (await self._break()).is_whole

    async def _break(self) -> Break:
        """Where the answer has broken off, or would if another attempt continued it now."""
        winner = self._race.winner
        is_silent = winner is not None and winner.outcome is None
        return await self._buffer.break_here() if is_silent else Break(self._buffer.is_whole)

    # ---- the answer

    async def released(self, command: Commit | Continue | StreamBroken) -> None:
        """See ``TurnHost``."""
        attempt = self._race.attempts[command.attempt]
        self.trace.command(command, attempt)
        if isinstance(command, StreamBroken):
            await self._break_off()
            return
        self._record.released.append(attempt)
        if isinstance(command, Commit):
            self._record.committed_at = _now()
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
        is_limited = self._options.most_tokens is not None
        return is_limited and self._reached_limit and self._buffer.has_sentence

    @property
    def _reached_limit(self) -> bool:
        """Whether the answer was cut at a limit: by its stream, or else by its count of tokens."""
        if (winner := self._race.winner) is None:
            return False
        stats, most = winner.stats, self._options.most_tokens
        return stats.stages.deltas.reached_limit or (
            most is not None and stats.usage is not None and stats.usage.completion_tokens >= most
        )

    async def deliver(self, piece: Piece, at: float) -> None:
        """See ``TurnHost``."""
        if isinstance(piece, LLMTextFrame):
            if text := await self._buffer.feed(piece.text):
                # The host decides what is spoken, not the member.
                is_plain = text is piece.text and piece.skip_tts is None
                await self._sink.say(text, at=at, frame=piece if is_plain else None)
            return
        wall_time = time.time() - (_now() - at)
        if isinstance(piece, ToolCalls):
            self._tools.append((piece, wall_time))
        else:
            # A thought of a continuation belongs to a prompt that no later one begins with.
            released = self._record.released
            note_author(piece, released[-1].provider if len(released) == 1 else "")
            await self._sink.pass_on(piece, wall_time=wall_time)

    async def _run_tools(self) -> None:
        """Run the answer's tools, after all text.

        Tools run in their own tasks. Started earlier, a quick one would put its result into the
        context before the text that precedes the call.
        """
        for piece, wall_time in self._tools:
            self._record.has_tools = True
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
        if any(attempt.stats.mended_context for attempt in self._race.attempts):
            self._context.remove_invalid_file_message()

    # ---- the report

    def report(self, filler: FillerReport | None) -> TurnReport:
        """Report the finished turn."""
        self._record.degraded_reason = self._degraded_reason()
        self._record.filler = filler
        return report_turn(self._record)

    def _degraded_reason(self) -> str | None:
        if self.failure is None:
            return None
        is_closed = self.has_answered and self._race.policy.fallback_text
        return self.failure.reason or (str(self.failure) if is_closed else None)


def _continuation(said: str) -> list[LLMContextMessage]:
    """What asks for the rest of an answer; nothing if none of it was said."""
    if not _has_text(said):
        return []
    return [
        {"role": "assistant", "content": said},
        {"role": "user", "content": CONTINUE},  # which every chat template knows
    ]


def _adds(piece: Piece, rest: Continuation) -> bool:
    """Whether a piece adds to the answer that its attempt continues: more than it repeats."""
    return isinstance(piece, LLMTextFrame) and bool(rest.feed(piece.text).strip())


def _has_text(text: str) -> bool:
    """Whether a text contains more than blanks and markers."""
    return any(char.isalnum() for char in text)


def _now() -> float:
    return asyncio.get_running_loop().time()
