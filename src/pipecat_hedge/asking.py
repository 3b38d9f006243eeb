"""The requests of one turn: leave to make them, their making, and what their end says.

Law: nothing is sent without a permit, and each permit comes back when its connection is closed.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from pipecat.frames.frames import LLMTextFrame
from pipecat.processors.aggregators.llm_context import LLMContext, LLMContextMessage

from pipecat_hedge.admission import Admission
from pipecat_hedge.attempt import Attempt
from pipecat_hedge.contender import Contender, Piece, Tally
from pipecat_hedge.conversation import answers_a_tool
from pipecat_hedge.ending import ANSWERED, SILENT, Ending
from pipecat_hedge.errors import SHED, AttemptError
from pipecat_hedge.facts import Launch
from pipecat_hedge.learning import Learning
from pipecat_hedge.members import Entry, hedge_refusals, take_least_busy
from pipecat_hedge.output import Output
from pipecat_hedge.permits import Shed
from pipecat_hedge.policies.hedge_policy import HedgePolicy
from pipecat_hedge.policies.race import Race
from pipecat_hedge.policies.verdict import judge
from pipecat_hedge.probe import Probe
from pipecat_hedge.provider_client import exception_error
from pipecat_hedge.provider_health import Permit
from pipecat_hedge.provider_latency import size_class
from pipecat_hedge.race_span import RaceSpan
from pipecat_hedge.racing import Post, Racing
from pipecat_hedge.release import Release
from pipecat_hedge.work import WorkClass, working_as

__all__ = ["Asking"]

CONTINUE = (
    "Your answer was cut off by a broken connection. The caller has heard it up to the end of your "
    "last message. Go on exactly where it stops: say only what is missing, and do not repeat, "
    "apologise or comment."
)
"""What an attempt is told that takes over in mid-answer."""
A_WHILE_SECS = 1.0
"""Who is recalled from a queue sooner has not been waited for."""


class Asking:
    """Sends one turn's requests; the race's seam to the providers.

    Attributes:
        asked: Who was sent a request, by the attempt's number.
        sent_at: When, in the loop's time, by the attempt's number.
        tallies: What each attempt has produced.
        racing: The race's driver, once there is one.
    """

    def __init__(
        self,
        context: LLMContext,
        line_up: Sequence[Entry],
        policy: HedgePolicy,
        learning: Learning,
        admission: Admission,
        output: Output,
        release: Release,
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
        self.asked: dict[int, Contender] = {}
        self.sent_at: dict[int, float] = {}
        self._closed: set[int] = set()
        self.tallies: dict[int, Tally] = {}
        self.racing: Racing[Piece] | None = None

    def first(self) -> WorkClass:
        """What the turn's first request is for."""
        return "tool_follow_up" if answers_a_tool(self._context) else "primary"

    async def ask(self, race: Race, launch: Launch, post: Post[Piece]) -> None:
        """Ask a provider, once there is leave to; see ``Ask``.

        Args:
            race: The turn's race.
            launch: Whom to ask, and why.
            post: Where to tell what happens.
        """
        work = self._work(race, launch)
        try:
            permit = await self._admission.permit(launch.provider, work)
        except Shed as shed:
            post.failed(AttemptError(SHED, str(shed)))
            return
        attempt = race.attempts[launch.attempt]
        tally = self.tallies[launch.attempt] = Tally(keeps_text=self._policy.losers == "drain")
        error: AttemptError | None = None
        try:
            if launch.reason == "primary" or not permit.waited_secs:
                self._sent_at_once.add(launch.attempt)
            size = size_class(self._learning.prompt_tokens)
            tally.began = functools.partial(self._admission.heard, permit, size)
            tally.limited = functools.partial(self._hear_limit, permit, tally)
            permit.recall = functools.partial(self._recall_soon, race, attempt, permit, post)
            with working_as(work):
                await self._answer(race, launch, self._probe(attempt, post) or post, tally)
        except Exception as e:
            error = exception_error(e, has_begun=tally.has_begun)
            post.failed(error)
            raise
        finally:
            self._close(attempt, permit, tally, error)
            if tally.keeps_text and attempt.outcome == "superseded":
                await self._drained(attempt)

    async def _answer(self, race: Race, launch: Launch, post: Post[Piece], tally: Tally) -> None:
        contender = take_least_busy(self._idle[launch.provider])
        self.asked[launch.attempt] = contender
        now = self.sent_at[launch.attempt] = self._loop.time()
        self._learning.plan.launched(launch, now, is_waiting=race.winner is None)
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

    def refusals(self) -> dict[str, str]:
        """Who is to get no hedge now, by the provider's name, and why."""
        free = [name for name, idle in self._idle.items() if idle]
        told = self._admission.refusals(free, "hedge")
        first = None if self.asked else next(iter(self._idle), None)
        return told | hedge_refusals(self._idle, first)

    def runs_on(self, attempt: Attempt) -> bool:
        """Whether an attempt that lost is let run on, to learn from it or to compare answers.

        One that still waits for a permit is not: what nobody needs is not sent any more.

        Args:
            attempt: The attempt.
        """
        if attempt.number not in self.asked:
            return False
        probe = self._probes.get(attempt.number)
        is_awaited = probe is not None and probe.first_at is None and not probe.is_silent
        return self._policy.losers == "drain" or is_awaited

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
        is_closed = is_unneeded and attempt.number in self._closed
        return is_closed and self.tallies[attempt.number].stages.was_never_sent

    # ---- one request

    def _work(self, race: Race, launch: Launch) -> WorkClass:
        if launch.reason == "hedge":
            return "hedge"
        if all(_is_shed(earlier) for earlier in race.attempts[: launch.attempt]):
            return self.first()  # also in place of one that was called back: it keeps its rank
        return "rescue"

    def _probe(self, attempt: Attempt, post: Post[Piece]) -> Probe | None:
        """Listen to whom little is heard of, also when the turn no longer needs it."""
        is_probe = attempt.provider == self._learning.plan.probe
        if not is_probe and not self._admission.is_unheard(attempt.provider):
            return None
        silent_secs = self._learning.silent_secs(attempt.provider, attempt.stall_secs)

        def stop() -> None:
            superseded = attempt.outcome == "superseded"
            if superseded and self._policy.losers == "cancel" and self.racing is not None:
                self.racing.stop(attempt.number)

        probe = Probe(post, self._loop, silent_secs, stop)
        self._probes[attempt.number] = probe
        return probe

    def _recall_soon(self, race: Race, attempt: Attempt, permit: Permit, post: Post[Piece]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing waits there any more
            self._loop.call_soon_threadsafe(self._recall, race, attempt, permit, post)

    def _recall(self, race: Race, attempt: Attempt, permit: Permit, post: Post[Piece]) -> None:
        """Give up a request that waits in a provider's queue, or for which there is no room now."""
        if self.racing is None:
            return
        if permit.is_displaced and attempt.outcome == "superseded":
            self.racing.stop(attempt.number)  # it was let run on, and nobody waits for it
            return
        is_late = attempt.ended_at is not None or attempt.first_token_at is not None
        if is_late or (permit.is_displaced and not race.can_spare(attempt)):
            permit.makes_room = permit.is_displaced = False
            return
        told = f"{attempt.provider} has a queue, it was to wait there no longer"
        if permit.is_displaced:
            told = f"it made room at {attempt.provider} for a more urgent request"
        if attempt.number in self.asked:  # may be asked again, once this request is closed
            self._idle[attempt.provider].append(self.asked[attempt.number])
        post.failed(AttemptError(SHED, told))
        self.racing.stop(attempt.number)

    def _hear_limit(self, permit: Permit, tally: Tally) -> None:
        """Count down from now on what a response has just told of its provider's rate limit."""
        if tally.rate_limit is not None and tally.rate_limit_at is not None:
            prompt_tokens = self._learning.prompt_tokens
            self._admission.hear(permit, tally.rate_limit, tally.rate_limit_at, prompt_tokens)

    def _close(
        self, attempt: Attempt, permit: Permit, tally: Tally, error: AttemptError | None
    ) -> None:
        """Give the permit back, with whatever the request's end says."""
        self._closed.add(attempt.number)
        probe = self._probes.get(attempt.number)
        is_lost = attempt.outcome == "superseded"
        failure = tally.error or error
        has_answered = tally.completed and tally.has_answer
        ending = judge(failure, has_answered=has_answered, attempt=attempt)
        if probe is not None:
            probe.close()
            if is_lost and not probe.has_failed:
                self._learning.learn_probe(attempt, probe.first_at, self._loop.time())
                ending = _judge_lost(probe, ending)
        if failure is not None and failure.retry_after_secs is not None:
            self._admission.rest(permit, failure.retry_after_secs)
        is_given_up = is_lost or (
            _is_shed(attempt) and self._loop.time() - permit.taken_at >= A_WHILE_SECS
        )
        self._admission.give_back(
            permit,
            ending,
            first_at=tally.first_answer_at,
            was_unheard=is_given_up and tally.first_answer_at is None,
        )

    def _continuation(self) -> list[LLMContextMessage]:
        if is_silent(self._release.said):
            return []
        return [
            {"role": "assistant", "content": self._release.said},
            {"role": "developer", "content": CONTINUE},
        ]


def _is_shed(attempt: Attempt) -> bool:
    """Whether it was given up for want of room, before a word came."""
    return attempt.error is not None and attempt.error.category == SHED


def _judge_lost(probe: Probe, ending: Ending) -> Ending:
    if probe.first_at is not None:
        return ANSWERED
    return SILENT if probe.is_silent else ending


def is_silent(text: str) -> bool:
    """Whether there is nothing to hear in a text: none, blanks, or a marker."""
    return not any(char.isalnum() for char in text)
