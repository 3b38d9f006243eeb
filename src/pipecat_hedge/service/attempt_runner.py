"""The requests of one turn: leave to make them, their making, and what their end says.

Law: nothing is sent without a permit, and each permit comes back when its connection is closed.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence

from pipecat.frames.frames import LLMTextFrame
from pipecat.processors.aggregators.llm_context import LLMContext, LLMContextMessage
from pipecat.utils.types import is_given

from pipecat_hedge.limits.ending import ANSWERED, SILENT, Ending
from pipecat_hedge.limits.permits import Rejected
from pipecat_hedge.limits.priority import WorkClass, working_as
from pipecat_hedge.limits.provider_health import Permit
from pipecat_hedge.limits.verdict import classify
from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.policy.provider_latency import size_class
from pipecat_hedge.race.attempt import UNSURE_LAG_SECS, Attempt
from pipecat_hedge.race.driver import AttemptSink, RaceDriver
from pipecat_hedge.race.errors import SHED, AttemptError
from pipecat_hedge.race.events import HedgeEligibilityChanged, Launch, Progressed
from pipecat_hedge.race.race import Race
from pipecat_hedge.service.admission import Admission
from pipecat_hedge.service.conversation import answers_a_tool
from pipecat_hedge.service.output_buffer import OutputBuffer
from pipecat_hedge.service.probe import Probe
from pipecat_hedge.service.provider_client import exception_error
from pipecat_hedge.service.provider_pool import (
    ProviderMember,
    hedge_refusals,
    instances_of,
    take_least_busy,
)
from pipecat_hedge.service.service_adapter import AttemptStats, Piece, ServiceAdapter
from pipecat_hedge.service.tts_output import Output
from pipecat_hedge.service.turn_learning import Learning
from pipecat_hedge.telemetry.race_span import RaceSpan

__all__ = ["AttemptRunner", "most_wait_secs", "refusals"]

ALL_ELIGIBLE = HedgeEligibilityChanged({})

CONTINUE = (
    "Your answer was cut off by a broken connection. The caller has heard it up to the end of your "
    "last message. Go on exactly where it stops: say only what is missing, and do not repeat, "
    "apologise or comment."
)
"""What an attempt is told that takes over in mid-answer."""


class AttemptRunner:
    """Sends one turn's requests; the race's seam to the providers.

    Attributes:
        asked: Who was sent a request, by the attempt's number.
        sent_at: When, in the loop's time, by the attempt's number.
        tallies: What each attempt has produced.
        listened_to: The attempts that have lost and are let run to their first token.
        racing: The race's driver, once there is one.
    """

    def __init__(
        self,
        context: LLMContext,
        line_up: Sequence[ProviderMember],
        policy: HedgePolicy,
        learning: Learning,
        admission: Admission,
        output: Output,
        release: OutputBuffer,
        span: RaceSpan,
        *,
        drained: Callable[[Attempt], Awaitable[None]],
        asked_somebody: Callable[[], None],
        may_wait: bool,
    ):
        """Prepare a turn's requests; none is sent yet.

        Args:
            context: The conversation.
            line_up: Whom to ask.
            policy: What the user wants of a race.
            learning: What has been learned, and learns.
            admission: The turn's permits.
            output: What speaks the answer.
            release: What of the answer has been released.
            span: The race in the trace.
            drained: Told of a loser that was let run to its end.
            asked_somebody: Told whenever somebody is asked.
            may_wait: Whether a marker that says "the caller has not finished" is an answer.
        """
        self._loop = asyncio.get_running_loop()
        self._context = context
        self._policy = policy
        self._learning = learning
        self._admission = admission
        self._output = output
        self._release = release
        self._span = span
        self._drained = drained
        self._asked_somebody = asked_somebody
        self._may_wait = may_wait
        self._idle = {e.provider.name: list(e.contenders) for e in line_up}
        self._probes: dict[int, Probe] = {}
        self._sent_at_once: set[int] = set()
        self.asked: dict[int, ServiceAdapter] = {}
        self.sent_at: dict[int, float] = {}
        self.closed_at: dict[int, float] = {}
        self.tallies: dict[int, AttemptStats] = {}
        self.listened_to: set[int] = set()
        self.racing: RaceDriver[Piece] | None = None

    def first(self) -> WorkClass:
        """What the turn's first request is for."""
        return "tool_follow_up" if answers_a_tool(self._context) else "primary"

    async def ask(self, race: Race, launch: Launch, post: AttemptSink[Piece]) -> None:
        """Ask a provider, once there is leave to; see ``Ask``.

        Args:
            race: The turn's race.
            launch: Whom to ask, and why.
            post: Where to tell what happens.
        """
        work, attempt = self._work(race, launch), race.attempts[launch.attempt]
        try:
            permit = await self._admission.permit(
                launch.provider, work, most_wait_secs(race, attempt, self._loop.time())
            )
        except Rejected as rejected:
            post.failed(AttemptError(SHED, str(rejected)))
            return
        tally = self.tallies[launch.attempt] = AttemptStats(
            keeps_text=self._policy.losers == "drain"
        )
        error: AttemptError | None = None
        try:
            if launch.reason == "primary" or not permit.waited_secs:
                self._sent_at_once.add(launch.attempt)
            size = size_class(self._learning.prompt_tokens)
            tally.began = functools.partial(self._began, attempt, permit, size)
            tally.limited = functools.partial(self._hear_limit, permit, tally)
            with working_as(work):
                await self._answer(race, launch, self._probe(attempt, post, tally) or post, tally)
        except Exception as e:
            error = exception_error(e, has_begun=tally.has_begun)
            post.failed(error)
            raise
        finally:
            self._close(race, attempt, permit, tally, error)
            if tally.keeps_text and attempt.outcome == "superseded":
                await self._drained(attempt)

    async def _answer(
        self, race: Race, launch: Launch, post: AttemptSink[Piece], tally: AttemptStats
    ) -> None:
        if not self._idle[launch.provider]:  # it is asked again
            failed = [a.number for a in race.attempts if a.provider == launch.provider and a.error]
            self._idle[launch.provider] = instances_of(self.asked, failed)
        contender = take_least_busy(self._idle[launch.provider])
        self.asked[launch.attempt] = contender
        self.sent_at[launch.attempt] = self._loop.time()
        self._learning.plan.launched(launch, is_waiting=race.winner is None)
        if launch.attempt in self._sent_at_once:
            self._learning.sent(race.attempts[launch.attempt])
        self._asked_somebody()
        with self._span.asking(launch, contender):
            await contender.answer(
                self._context,
                post,
                tally,
                addition=self._continuation(),
                language=self._output.language,
                may_wait=self._may_wait,
            )
        if self._release.said and self._release.is_whole and tally.is_empty:
            # Asked to go on with an answer that broke off at a sentence's end: it was the end.
            post.piece(LLMTextFrame(""), usable=True)

    def refusals(self) -> HedgeEligibilityChanged:
        """Who is to get no hedge now, and where a request in another's place should not go."""
        first = None if self.asked else next(iter(self._idle), None)
        return refusals(self._admission, self._idle, first)

    def runs_on(self, attempt: Attempt) -> bool:
        """Whether an attempt that lost is let run on, to learn from it or to compare answers.

        If so, a second connection is opened for the next turn.
        One that still waits for a permit is not: what nobody needs is not sent any more.

        Args:
            attempt: The attempt.
        """
        if attempt.number not in self.asked:
            return False
        if self._policy.losers != "drain" and not self._listens(attempt):
            return False
        self.asked[attempt.number].yield_to_next()
        self.asked[attempt.number].connection.reopen(self.tallies[attempt.number].stages)
        return True

    def progress(self, attempt: int) -> Progressed | None:
        """What an attempt has written that it has not handed on, where that can be seen.

        A stream that cannot be read may carry a tool call's arguments, or be about to bring them
        all at once.

        Args:
            attempt: The attempt's number.
        """
        tally = self.tallies.get(attempt)
        if tally is None:
            return None
        deltas = tally.stages.deltas
        if deltas.knows_format:
            return None if deltas.delta_at is None else Progressed(attempt, deltas.delta_at)
        may_call = tally.has_answer and is_given(self._context.tools)
        return Progressed(attempt, None) if may_call else None

    def _listens(self, attempt: Attempt) -> bool:
        """Whether an attempt that lost is one of the few that are let run to their first token."""
        probe = self._probes.get(attempt.number)
        if probe is None or probe.first_at is not None or probe.is_silent:
            return False
        if not self._admission.listens(attempt.provider):
            return False
        self.listened_to.add(attempt.number)
        return True

    @property
    def still_listened_to(self) -> set[int]:
        """The attempts that have lost, and whose first token is still waited for."""
        return self.listened_to - self.closed_at.keys()

    def first_token_at(self, attempt: Attempt) -> float | None:
        """When an attempt's first usable token came, also if it had lost by then; or None.

        Args:
            attempt: The attempt.
        """
        if attempt.number in self.listened_to:
            return self._probes[attempt.number].first_at
        return attempt.first_token_at

    def sent_at_once(self, race: Race) -> list[Attempt]:
        """The attempts whose times say something of their provider: those that did not queue here.

        Args:
            race: The turn's race.
        """
        return [attempt for attempt in race.attempts if attempt.number in self._sent_at_once]

    def was_withdrawn(self, attempt: Attempt) -> bool:
        """Whether an attempt was closed because nobody needed it, before its request was sent.

        Args:
            attempt: The attempt; one that failed to connect is not withdrawn.
        """
        is_unneeded = attempt.outcome in ("superseded", "interrupted", None)
        is_closed = is_unneeded and attempt.number in self.closed_at
        return is_closed and self.tallies[attempt.number].stages.was_never_sent

    # ---- one request

    def _work(self, race: Race, launch: Launch) -> WorkClass:
        if launch.reason == "hedge":
            return "hedge"
        if all(earlier.was_shed for earlier in race.attempts[: launch.attempt]):
            return self.first()
        return "rescue"

    def _probe(
        self, attempt: Attempt, post: AttemptSink[Piece], tally: AttemptStats
    ) -> Probe | None:
        """Listen to whom little is heard of, also when the turn no longer needs it."""
        is_probe = attempt.provider == self._learning.plan.probe
        is_of_use = is_probe or self._admission.is_unheard(attempt.provider)
        if not (is_of_use and self._policy.probes):
            return None
        silent_secs = self._learning.silent_secs(attempt.provider, attempt.stall_secs)

        def stop() -> None:
            superseded = attempt.outcome == "superseded"
            if superseded and self._policy.losers == "cancel" and self.racing is not None:
                self.racing.stop(attempt.number)

        def is_alive() -> bool:
            return tally.stages.deltas.delta_at is not None

        probe = Probe(post, self._loop, silent_secs, is_alive, stop)
        self._probes[attempt.number] = probe
        return probe

    def _began(self, attempt: Attempt, permit: Permit, size: int) -> None:
        """Take note of an attempt's first usable token."""
        attempt.lag_secs = self._admission.heard(permit, size)

    def _hear_limit(self, permit: Permit, tally: AttemptStats) -> None:
        """Count down from now on what a response has just told of its provider's rate limit."""
        if tally.rate_limit is not None and tally.rate_limit_at is not None:
            prompt_tokens = self._learning.prompt_tokens
            self._admission.hear(permit, tally.rate_limit, tally.rate_limit_at, prompt_tokens)

    def _close(
        self,
        race: Race,
        attempt: Attempt,
        permit: Permit,
        tally: AttemptStats,
        error: AttemptError | None,
    ) -> None:
        """Give the permit back, with whatever the request's end says."""
        self.closed_at[attempt.number] = self._loop.time()
        probe = self._probes.get(attempt.number)
        is_lost = attempt.outcome == "superseded"
        failure = tally.error or error
        has_answered = tally.completed and tally.has_answer
        ending = classify(failure, has_answered=has_answered, attempt=attempt)
        if probe is not None:
            probe.close()
            if attempt.number in self.listened_to:
                self._admission.listened(attempt.provider)
                if probe.has_failed:
                    self._learning.forget(attempt)
                else:
                    self._learning.learn_listened(attempt, probe.first_at, self._loop.time())
                    ending = _judge_lost(probe, ending)
        if failure is not None and failure.retry_after_secs is not None:
            self._admission.rest(permit, failure.retry_after_secs)
        was_unheard = is_lost and not tally.has_answer
        was_late = was_unheard and self._was_late(race, attempt, permit)
        self._admission.give_back(
            permit,
            ending,
            host=tally.stages.host,
            has_begun=tally.has_answer,
            was_unheard=was_unheard,
            was_late=was_late,
        )

    def _was_late(self, race: Race, attempt: Attempt, permit: Permit) -> bool:
        """Whether an attempt that lost took long, or lost to one that was sent later."""
        if self._admission.lag_secs >= UNSURE_LAG_SECS:
            return False  # its answer may have come
        winner = None if race.winner is None else self.sent_at.get(race.winner.number)
        if winner is not None and winner > self.sent_at.get(attempt.number, winner):
            return True
        ended_at = self._loop.time() if attempt.ended_at is None else attempt.ended_at
        return self._learning.is_late(attempt.provider, ended_at - permit.taken_at)

    def _continuation(self) -> list[LLMContextMessage]:
        if is_silent(self._release.said):
            return []
        return [
            {"role": "assistant", "content": self._release.said},
            {"role": "developer", "content": CONTINUE},
        ]


def most_wait_secs(race: Race, attempt: Attempt, now: float) -> float:
    """How long a request may wait for room: half the time is to be left for its answer.

    Args:
        race: Its race.
        attempt: Its record.
        now: The time.
    """
    left = [math.inf if attempt.timeout_secs is None else attempt.timeout_secs]
    if race.winner is None and race.deadline_at is not None:
        left.append(race.deadline_at - now)
    return min(left) / 2


def refusals(
    admission: Admission, idle: Mapping[str, Sequence[ServiceAdapter]], first: str | None
) -> HedgeEligibilityChanged:
    """Who is to get no hedge now, and where a request in another's place should not go.

    Args:
        admission: The turn's permits.
        idle: The free instances of each provider.
        first: Whose least busy instance the turn's first request is about to take; or None.
    """
    names = [name for name, free in idle.items() if free]
    reasons, by_server = admission.refusals(names), hedge_refusals(idle, first)
    reluctance = admission.reluctance(names)
    if not (reasons or by_server or reluctance):
        return ALL_ELIGIBLE
    for name in by_server:
        reluctance[name] = max(reluctance.get(name, 0), 1)
    return HedgeEligibilityChanged(reasons | by_server, reluctance)


def _judge_lost(probe: Probe, ending: Ending) -> Ending:
    if probe.first_at is not None:
        return ANSWERED
    return SILENT if probe.is_silent else ending


def is_silent(text: str) -> bool:
    """Whether there is nothing to hear in a text: none, blanks, or a marker."""
    return not any(char.isalnum() for char in text)
