"""One turn of the hedged service: from the context frame to the report."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from pipecat.frames.frames import Frame, LLMTextFrame
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import LLMContext, LLMContextMessage

from pipecat_hedge.attempt import Attempt
from pipecat_hedge.contender import Contender, Piece, Tally, ToolCalls
from pipecat_hedge.conversation import answers_a_tool
from pipecat_hedge.errors import AllProvidersFailed, AttemptError
from pipecat_hedge.facts import BreakOff, Commit, CommitOn, Continue, Launch, TurnOutcome
from pipecat_hedge.learning import Learning
from pipecat_hedge.members import Entry, hedge_refusals, seats, take_least_busy
from pipecat_hedge.output import Output
from pipecat_hedge.policies.hedge_policy import HedgePolicy
from pipecat_hedge.policies.race import Phase, Race
from pipecat_hedge.probe import Probe
from pipecat_hedge.racing import Post, Racing
from pipecat_hedge.release import Release
from pipecat_hedge.reports import AttemptReport, DrainedAnswer, TurnReport
from pipecat_hedge.survival import Survival
from pipecat_hedge.task_scope import TaskScope
from pipecat_hedge.tokens import count_tokens, usd
from pipecat_hedge.work import WorkClass, working_as

__all__ = ["Mouth", "Turn"]

CONTINUE = (
    "Your answer was cut off by a broken connection. The caller has heard it up to the end of your "
    "last message. Go on exactly where it stops: say only what is missing, and do not repeat, "
    "apologise or comment."
)
"""What an attempt is told that takes over in mid-answer."""


class Mouth(Protocol):
    """How a turn speaks into the pipeline; the hedged service implements it."""

    async def say(self, text: str, *, wall_time: float) -> None:
        """Release a piece of answer text that came at ``wall_time``."""
        ...

    async def take_back(self, text: str) -> None:
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
    """

    def __init__(
        self,
        number: int,
        context: LLMContext,
        line_up: Sequence[Entry],
        policy: HedgePolicy,
        learning: Learning,
        mouth: Mouth,
        output: Output,
        committed: Callable[[str | None], None],
        drained: Callable[[DrainedAnswer], Awaitable[None]],
        asked: Callable[[], None],
        may_wait: bool = False,
    ):
        """Prepare a turn; it starts now.

        Args:
            number: The turn's number, from 1.
            context: The conversation.
            line_up: Whom to ask, in order.
            policy: What the user wants of a race.
            learning: When to ask the next, and who remembers how it went.
            mouth: Where the answer goes.
            output: What speaks the answer.
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
        self._committed = committed
        self._drained = drained
        self._asked_somebody = asked
        self._policy = policy
        self._may_wait = may_wait
        self._learning = learning
        self._entries: Mapping[str, Entry] = {e.provider.name: e for e in line_up}
        self._idle = {e.provider.name: list(e.contenders) for e in line_up}
        self._commit_on: CommitOn = learning.commit_on
        self._race = Race(
            seats(line_up, policy),
            learning.plan.rule,
            attempts=policy.attempts,
            commit_on=self._commit_on,
            deadline_secs=policy.deadline_secs,
        )
        self._release = Release(
            by_sentence=self._commit_on == "first_sentence",
            with_lookahead=output.needs_lookahead,
            language=output.language,
        )
        self._first_winner: Attempt | None = None
        self._committed_at: float | None = None
        self._heard: list[Attempt] = []
        self._asked: dict[int, Contender] = {}
        self._tallies: dict[int, Tally] = {}
        self._tools: list[tuple[ToolCalls, float]] = []
        self._racing: Racing[Piece] | None = None
        self._ran_tools = False
        self._ended_at = self._started_at
        self.failure: AllProvidersFailed | None = None

    async def run(self, drains: TaskScope, end: Callable[[], Awaitable[None]]) -> None:
        """Race to the end of the answer.

        Args:
            drains: Takes over the losers that are let run on.
            end: Called once the answer is complete, before the losers' last requests are closed.
        """
        async with TaskScope() as scope:
            racing = self._racing = Racing(
                self._race,
                scope,
                self._ask,
                self._deliver,
                self._obey_release,
                drains=drains,
                runs_on=self._runs_on,
                decided=self._mark_span,
                refusals=self._refusals,
            )
            try:
                await racing.run(self._started_at)
            finally:
                self._ended_at = self._loop.time()
                self._learning.learn(self._race.attempts)
            if racing.gave_up is not None:
                self.failure = AllProvidersFailed(
                    racing.gave_up.errors, broke_off=self.has_answered
                )
                self._mend_context()
            else:
                if rest := self._release.finish():
                    await self._mouth.say(rest, wall_time=time.time())
                await self._run_tools()
            await end()

    @property
    def has_answered(self) -> bool:
        """Whether any of an answer was released, and not taken back."""
        return self._first_winner is not None and not _is_silent(self._release.said)

    @property
    def is_failing(self) -> bool:
        """Whether nobody has answered, and somebody has failed."""
        attempts = self._race.attempts
        return any(a.outcome == "failed" for a in attempts) and not any(
            a.first_token_at is not None for a in attempts
        )

    @property
    def wait(self) -> Survival | None:
        """How long this turn waits from its beginning, as things stand; None if it does not."""
        if self._race.phase is not Phase.WAITING:
            return None
        return self._learning.wait_of(self._race.attempts, self._race.planned, self._started_at)

    @property
    def winner_usage(self) -> LLMTokenUsage | None:
        """The winner's own count of tokens, or None if it sent none."""
        winner = self._race.winner
        return None if winner is None else self._tallies[winner.number].usage

    @property
    def errors(self) -> list[tuple[str, AttemptError]]:
        """What went wrong with whom, whatever came of the turn."""
        return [(a.provider, a.error) for a in self._race.attempts if a.error is not None]

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
            order_reason=self._learning.plan.route_reason,
            prior_share=self._learning.plan.prior_share,
            committed_secs=self._since_start(self._committed_at),
        )

    # ---- the race's seams

    async def _ask(self, launch: Launch, post: Post[Piece]) -> None:
        contender = take_least_busy(self._idle[launch.provider])
        tally = Tally(keeps_text=self._policy.losers == "drain")
        self._asked[launch.attempt] = contender
        contender.span.issue(launch)
        self._tallies[launch.attempt] = tally
        self._learning.plan.launched(launch, is_waiting=self._first_winner is None)
        self._asked_somebody()
        probe = self._probe(launch, post)
        try:
            with working_as(self._work(launch)):
                await contender.answer(
                    self._context,
                    probe or post,
                    tally,
                    addition=self._continuation(),
                    language=self._output.language,
                    may_wait=self._may_wait,
                )
            if self._release.said and self._release.is_whole and tally.is_empty:
                # Asked to go on with an answer that broke off at a sentence's end: it was the end.
                post.piece(LLMTextFrame(""), usable=True)
        finally:
            attempt = self._race.attempts[launch.attempt]
            if probe is not None and attempt.outcome == "superseded" and not probe.has_failed:
                self._learning.learn_probe(attempt, probe.first_at, self._loop.time())
            if tally.keeps_text and attempt.outcome == "superseded":
                await self._drained(self._drained_answer(attempt))

    def _refusals(self) -> dict[str, str]:
        return hedge_refusals(self._idle, None if self._asked else next(iter(self._idle), None))

    def _work(self, launch: Launch) -> WorkClass:
        if launch.reason == "primary":
            return "tool_follow_up" if answers_a_tool(self._context) else "primary"
        return "hedge" if launch.reason == "hedge" else "rescue"

    def _runs_on(self, attempt: int) -> bool:
        superseded = self._race.attempts[attempt]
        return self._policy.losers == "drain" or (
            superseded.provider == self._learning.plan.probe and superseded.first_token_at is None
        )

    def _probe(self, launch: Launch, post: Post[Piece]) -> Probe | None:
        if launch.provider != self._learning.plan.probe:
            return None

        def seen() -> None:
            superseded = self._race.attempts[launch.attempt].outcome == "superseded"
            if superseded and self._policy.losers == "cancel" and self._racing is not None:
                self._racing.stop(launch.attempt)

        return Probe(post, self._loop.time, seen)

    def _mark_span(self, attempt: int) -> None:
        if (asked := self._asked.get(attempt)) is not None:
            asked.span.close(self._race.attempts[attempt].outcome or "won")

    def _continuation(self) -> list[LLMContextMessage]:
        if _is_silent(self._release.said):
            return []
        return [
            {"role": "assistant", "content": self._release.said},
            {"role": "developer", "content": CONTINUE},
        ]

    async def _obey_release(self, order: Commit | Continue | BreakOff) -> None:
        if isinstance(order, BreakOff):
            end = await self._release.break_off()
            if end.say:
                await self._mouth.say(end.say, wall_time=time.time())
            if end.take_back:
                await self._mouth.take_back(end.take_back)
            return
        attempt = self._race.attempts[order.attempt]
        self._heard.append(attempt)
        if isinstance(order, Commit):
            self._first_winner = attempt
            self._committed_at = self._loop.time()
        else:
            self._release.follow_on()
        self._committed(self._asked[order.attempt].model)

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

    def _mend_context(self) -> None:
        """Do for the conversation what a failed member did for its copy: drop a rejected file."""
        if any(tally.mended_context for tally in self._tallies.values()):
            self._context.remove_invalid_file_message()

    # ---- the sum

    def _outcome(self) -> TurnOutcome:
        winner = self._race.winner
        if winner is not None and winner.outcome == "won":
            return "answered_with_tools" if self._ran_tools else "answered"
        if any(attempt.outcome == "interrupted" for attempt in self._race.attempts):
            return "interrupted"
        return "failed"

    def _since_start(self, at: float | None) -> float | None:
        return None if at is None else at - self._started_at

    def _report_attempt(self, attempt: Attempt) -> AttemptReport:
        asked = self._asked.get(attempt.number)
        tokens = count_tokens(self._tallies.get(attempt.number, Tally()), self._context)
        first, speakable = attempt.first_token_at, attempt.speakable_at
        ended = self._ended_at if attempt.ended_at is None else attempt.ended_at
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
        )

    def _drained_answer(self, attempt: Attempt) -> DrainedAnswer:
        tally = self._tallies[attempt.number]
        tokens = count_tokens(tally, self._context)
        first = tally.first_text_at
        return DrainedAnswer(
            turn=self._number,
            provider=attempt.provider,
            model=self._asked[attempt.number].model,
            text=tally.text,
            complete=tally.completed,
            ttft_secs=None if first is None else first - attempt.launched_at,
            duration_secs=self._loop.time() - attempt.launched_at,
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            tokens_estimated=tokens.estimated,
        )


def _is_silent(text: str) -> bool:
    """Whether there is nothing to hear in a text: none, blanks, or a marker."""
    return not any(char.isalnum() for char in text)
