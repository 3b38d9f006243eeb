"""One turn of the hedged service: from the context frame to the report."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipecat.frames.frames import Frame, LLMTextFrame
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge.contender import Contender, Piece, Tally, ToolCalls
from pipecat_hedge.errors import AllProvidersFailed
from pipecat_hedge.facts import Launch, TurnOutcome
from pipecat_hedge.members import Entry
from pipecat_hedge.policies.hedge_policy import HedgePolicy
from pipecat_hedge.policies.race import Attempt, Race
from pipecat_hedge.racing import Post, Racing
from pipecat_hedge.reports import AttemptReport, TurnReport
from pipecat_hedge.task_scope import TaskScope

__all__ = ["Mouth", "Turn"]

CHARS_PER_TOKEN = 4
"""The usual rule of thumb for English text; used only where a provider sent no count."""


class Mouth(Protocol):
    """How a turn speaks into the pipeline; the hedged service implements it."""

    async def say(self, text: str, *, wall_time: float) -> None:
        """Release a piece of answer text that came at ``wall_time``."""
        ...

    async def run_tools(self, calls: ToolCalls, *, wall_time: float) -> None:
        """Run the winner's tools; the call was complete at ``wall_time``."""
        ...

    async def pass_on(self, frame: Frame, *, wall_time: float) -> None:
        """Release any other frame of the answer."""
        ...


class Turn:
    """Runs one race for one context and sums it up."""

    def __init__(
        self,
        number: int,
        context: LLMContext,
        line_up: Sequence[Entry],
        policy: HedgePolicy,
        mouth: Mouth,
        committed: Callable[[str | None], None],
    ):
        """Prepare a turn; it starts now.

        Args:
            number: The turn's number, from 1.
            context: The conversation.
            line_up: Whom to ask, in order.
            policy: When to ask the next.
            mouth: Where the answer goes.
            committed: Told the winner's model just before its answer is released.
        """
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self._number = number
        self._context = context
        self._mouth = mouth
        self._committed = committed
        self._entries: Mapping[str, Entry] = {e.provider.name: e for e in line_up}
        self._idle = {e.provider.name: list(e.contenders) for e in line_up}
        self._race = Race(_take_turns(line_up), policy.rule, attempts=policy.attempts)
        self._asked: dict[int, Contender] = {}
        self._tallies: dict[int, Tally] = {}
        self._released = False
        self._ran_tools = False
        self._ended_at = self._started_at

    async def run(self, end: Callable[[], Awaitable[None]]) -> AllProvidersFailed | None:
        """Race to the end of the answer.

        Args:
            end: Called once the answer is complete, before the losers' last requests are closed.

        Returns:
            What went wrong if the turn failed, else None.
        """
        async with TaskScope() as scope:
            racing = Racing(self._race, scope, self._ask, self._deliver)
            try:
                await racing.run(self._started_at)
            finally:
                self._ended_at = self._loop.time()
            await end()
        return AllProvidersFailed(racing.gave_up.errors) if racing.gave_up else None

    @property
    def winner_usage(self) -> LLMTokenUsage | None:
        """The winner's own count of tokens, or None if it sent none."""
        winner = self._race.winner
        return None if winner is None else self._tallies[winner.number].usage

    def report(self) -> TurnReport:
        """Sum the turn up; call it once it is over."""
        winner = self._race.winner
        return TurnReport(
            turn=self._number,
            winner=None if winner is None else winner.provider,
            outcome=self._outcome(),
            ttft_secs=None if winner is None else self._since_start(winner.first_token_at),
            ttfs_secs=None if winner is None else self._since_start(winner.speakable_at),
            duration_secs=self._ended_at - self._started_at,
            attempts=tuple(self._report_attempt(attempt) for attempt in self._race.attempts),
            commit_reason=self._race.commit_reason,
        )

    # ---- the race's seams

    async def _ask(self, launch: Launch, post: Post[Piece]) -> None:
        contender = self._idle[launch.provider].pop(0)
        tally = Tally()
        self._asked[launch.attempt] = contender
        self._tallies[launch.attempt] = tally
        await contender.answer(self._context, post, tally)

    async def _deliver(self, piece: Piece, at: float) -> None:
        if not self._released:
            self._released = True
            winner = self._race.winner
            assert winner is not None  # only a committed answer is delivered
            self._committed(self._asked[winner.number].model)
        wall_time = time.time() - (self._loop.time() - at)
        if isinstance(piece, LLMTextFrame):
            await self._mouth.say(piece.text, wall_time=wall_time)
        elif isinstance(piece, ToolCalls):
            self._ran_tools = True
            calls = [dataclasses.replace(call, context=self._context) for call in piece.calls]
            await self._mouth.run_tools(ToolCalls(calls), wall_time=wall_time)
        else:
            await self._mouth.pass_on(piece, wall_time=wall_time)

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
        provider = self._entries[attempt.provider].provider
        asked = self._asked.get(attempt.number)
        tally = self._tallies.get(attempt.number, Tally())
        tokens = _count_tokens(tally, self._context)
        first = attempt.first_token_at
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
            usd=tokens.price(provider.usd_per_mtok),
        )


@dataclass(frozen=True, slots=True)
class _Tokens:
    input: int
    output: int
    estimated: bool

    def price(self, usd_per_mtok: tuple[float, float] | None) -> float | None:
        if usd_per_mtok is None:
            return None
        return (self.input * usd_per_mtok[0] + self.output * usd_per_mtok[1]) / 1e6


def _count_tokens(tally: Tally, context: LLMContext) -> _Tokens:
    """The provider's count if it is final, else the best there is, and marked so."""
    usage = tally.usage
    if usage is None:
        prompt_chars = sum(len(str(message)) for message in context.messages)
        return _Tokens(
            input=math.ceil(prompt_chars / CHARS_PER_TOKEN),
            output=math.ceil(tally.text_chars / CHARS_PER_TOKEN),
            estimated=True,
        )
    # Some services count a prompt without its cached part, but total_tokens always with it.
    gross = max(usage.prompt_tokens, usage.total_tokens - usage.completion_tokens)
    return _Tokens(gross, usage.completion_tokens, estimated=not tally.completed)


def _take_turns(line_up: Sequence[Entry]) -> list[str]:
    """Every provider once, in order, then those that have a second instance, and so on."""
    rounds = max((len(entry.contenders) for entry in line_up), default=0)
    return [e.provider.name for i in range(rounds) for e in line_up if i < len(e.contenders)]
