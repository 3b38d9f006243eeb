"""The race: which provider gets a request, when, and whose answer is released.

A pure state machine. Events go in with their time, commands come out, and ``wake_at`` names the
time of the next ``TimerFired``. The same object runs in the service and in virtual time.

Invariants: a failure never wins; at most one attempt is committed; every live attempt is cancelled
when the turn ends. Attempts that failed before their first token, or that were silent, do not count
against ``max_attempts``: a turn makes at most its providers + ``max_attempts`` - 1 requests, plus
retries. A failed attempt is replaced at once. If the answer breaks off or is silent, providers that
were not asked yet may continue it, and then those that have lost; a silent answer stays open beside
them, and the first to go on wins. If that one breaks off, too, the silent one may be asked again.
When no other request is left, those with a transient error are repeated after the SDKs' own pauses,
as often as the SDKs would (``Slot.retries``), also beside an attempt that is late.
``docs/design/one-turn.md`` walks through a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Any, Final, TypeAlias, TypeVar

from pipecat_hedge.race.attempt import EMPTY_ANSWER, MISSED_DEADLINE, STALLED, TIMED_OUT, Attempt
from pipecat_hedge.race.errors import AttemptError, HedgeError
from pipecat_hedge.race.events import (
    AttemptFailed,
    AttemptFinished,
    AttemptOutcome,
    Cancel,
    CancelCause,
    Command,
    Commit,
    CommitOn,
    Continue,
    Event,
    Fail,
    HedgeEligibilityChanged,
    InFlight,
    Interrupted,
    Launch,
    LaunchReason,
    LaunchRule,
    Progressed,
    SentenceReady,
    Slot,
    StreamBroken,
    TimerFired,
    ToolsCalled,
    TurnConfirmed,
    TurnStarted,
    UsableToken,
    Waiting,
)
from pipecat_hedge.race.slots import SlotQueue

RETRY_SECS = 0.5
"""The pause before the first retry, doubled with each one; as in the OpenAI and Anthropic SDKs."""
RETRY_MAX_SECS = 8.0
"""The longest pause, as in these SDKs."""
RETRY_JITTER = 0.25
"""The share of a pause that jitter takes off, as in these SDKs."""
RETRY_AFTER_MAX_SECS = 60.0
"""After a longer ``Retry-After`` nothing is retried. The SDKs' own limit."""
OPEN_TIMES = 4.0
"""A silent answer stays open so many times ``stall_secs``: a model may think before a tool call."""
SLOW_TIMES = 2.0
"""A provider that answers other requests is slow: its silence takes this many times as long."""
RECHECK_SECS = 0.1
"""How soon to check again whether a request that no provider had room for can be sent."""

REPLACEMENT_SECS = 3.0
"""How long a replacement may be silent before a broken answer ends, without ``stall_secs``. A model
whose typical first token takes longer thinks: it gets its p95."""

_T = TypeVar("_T")
MakeAttempt: TypeAlias = Callable[[int, Slot, LaunchReason, float, str | None], Attempt]


class IllegalEvent(HedgeError):
    """An event that cannot happen in the race's phase: a bug in the driver."""


class Phase(Enum):
    """Where a turn stands."""

    READY = auto()
    """No request has been sent yet."""
    WAITING = auto()
    """Attempts are in flight and none is committed."""
    COMMITTED = auto()
    """One attempt's answer is being released."""
    RESCUING = auto()
    """The committed answer broke off, or is silent, and no attempt continues it yet."""
    OVER = auto()
    """Answered, failed or interrupted; no attempt is live."""


class Race:
    """One turn's race.

    Example::

        race = Race([Slot("claude"), Slot("local")], AfterSilence(0.6), max_attempts=2)
        race.handle(TurnStarted(), 0.0)   # (Launch(0, "claude", "primary"),)
        race.wake_at                      # 0.6
        race.handle(TimerFired(), 0.6)    # (Launch(1, "local", "hedge"),)
        race.handle(UsableToken(1), 0.7)  # (Commit(1, "first_token"), Cancel(0, "superseded"))
    """

    def __init__(
        self,
        candidates: Sequence[Slot],
        rule: LaunchRule,
        *,
        max_attempts: int,
        commit_on: CommitOn = "first_token",
        deadline_secs: float | None = None,
        jitter: float = 0.0,
        is_speculative: bool = False,
        rejection_secs: float | None = None,
        make_attempt: MakeAttempt = Attempt,
    ):
        """Create a race that has not started.

        Args:
            candidates: The requests that may be made, in order. A slot that is listed twice may be
                used twice.
            rule: Decides when an attempt that has not failed gets a hedge.
            max_attempts: The most requests to make, at least 1.
            commit_on: What an attempt must have to win.
            deadline_secs: The time within which the turn must have a winner; None is unlimited.
            jitter: A random number from 0 to 1, which shortens the pauses before retries.
            is_speculative: Whether the caller's turn may still go on. Until ``TurnConfirmed`` only
                failed attempts are replaced, and no time counts.
            rejection_secs: The least silence of the live attempts after which the turn ends with
                another attempt's rejection of the prompt, or empty answer; None waits for them.
            make_attempt: Creates an attempt's record, for a driver with state of its own.
        """
        self._slots = SlotQueue(candidates, max_attempts)
        self._replaces_silent = max_attempts > 1
        self._rule = rule
        self._commit_on = commit_on
        self._deadline_secs = deadline_secs
        self._backoff = 1 - RETRY_JITTER * jitter
        self._is_speculative = is_speculative
        self._rejection_secs = rejection_secs
        self._make_attempt = make_attempt
        self._attempts: list[Attempt] = []
        self._phase = Phase.READY
        self._winner: Attempt | None = None
        self._commit_reason: str | None = None
        self._launch_reason: str | None = None
        self._next_at: float | None = None
        self._wake_at: float | None = None
        self._started_at = self._counts_from = 0.0
        self._commands: list[Command] = []

    @property
    def phase(self) -> Phase:
        """The turn's phase."""
        return self._phase

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Every attempt so far, in the order of launch."""
        return self._attempts

    @property
    def winner(self) -> Attempt | None:
        """The attempt whose answer is released (the latest one after a continuation), or None."""
        return self._winner

    @property
    def planned(self) -> InFlight | None:
        """The next attempt, as it will be launched if no event comes before; or None."""
        if self._next_at is None or not self._slots:
            return None
        return InFlight(self._slots.next("hedge").provider, self._next_at, None)

    @property
    def commit_reason(self) -> str | None:
        """Why the first winner won; None without a winner."""
        return self._commit_reason

    @property
    def launch_reason(self) -> str | None:
        """The launch rule's latest reason; None if it was not consulted."""
        return self._launch_reason

    @property
    def started_at(self) -> float:
        """When the turn started, in the race's clock."""
        return self._started_at

    @property
    def deadline_at(self) -> float | None:
        """When the turn fails without a winner, in the race's clock; None is never."""
        return None if self._is_speculative else _after(self._counts_from, self._deadline_secs)

    @property
    def wake_at(self) -> float | None:
        """When to pass ``TimerFired`` if no event comes before; None is never.

        The time may be early but never late: a token postpones a stall without moving the timer.
        """
        return self._wake_at

    def handle(self, event: Event, now: float) -> tuple[Command, ...]:
        """Apply one event and return the resulting commands.

        Args:
            event: What happened. Events of attempts that have ended are ignored: they were on their
                way when the attempt was cancelled.
            now: When it happened, in seconds; never earlier than the event before.

        Returns:
            The commands, in the order in which to execute them.

        Raises:
            IllegalEvent: If the event cannot happen now.
        """
        if isinstance(event, HedgeEligibilityChanged):
            self._slots.eligibility = event
            return ()
        if isinstance(event, (TurnStarted, TurnConfirmed, TimerFired, Interrupted)):
            self._react(self._TURN_TABLE, event)(self, now)
        else:
            if not 0 <= event.attempt < len(self._attempts):
                raise IllegalEvent(f"{type(event).__name__} of unlaunched attempt {event.attempt}")
            attempt = self._attempts[event.attempt]
            if attempt.outcome is not None:
                return ()
            if isinstance(event, Progressed):
                self._progress(attempt, event)
                return ()
            reaction = self._react(self._ATTEMPT_TABLE, event)
            if isinstance(event, AttemptFailed):
                attempt.error = event.error
            reaction(self, attempt, now)
        if not self._commands:
            return ()
        commands, self._commands = tuple(self._commands), []
        return commands

    def token(self, attempt: int, now: float) -> None:
        """Record a usable token of the committed attempt, which changes no decision."""
        self._attempts[attempt].last_token_at = now

    def _react(self, table: Mapping[Any, _T], event: Event) -> _T:
        try:
            return table[self._phase, type(event)]
        except KeyError:
            raise IllegalEvent(f"{type(event).__name__} while {self._phase.name}") from None

    # ---- events of the turn

    def _start(self, now: float) -> None:
        self._started_at = self._counts_from = now
        self._phase = Phase.WAITING
        if self._slots:
            self._launch("primary", now)
        self._reconsider(now)

    def _confirm(self, now: float) -> None:
        self._is_speculative, self._counts_from = False, now
        self._reconsider(now)

    def _wake(self, now: float) -> None:
        self._reconsider(now)

    def _interrupt(self, now: float) -> None:
        self._cancel_live("interrupted", "interrupted", now)
        self._finish_turn()

    def _ignore(self, now: float) -> None:
        pass

    # ---- events of an attempt

    def _token(self, attempt: Attempt, now: float) -> None:
        if attempt.first_token_at is None:
            attempt.first_token_at = now
        attempt.last_token_at = now

    def _token_while_waiting(self, attempt: Attempt, now: float) -> None:
        is_first = attempt.first_token_at is None
        self._token(attempt, now)
        if self._commit_on == "first_token" or attempt is self._winner:
            self._release(attempt, "first_token", now)
            self._reconsider(now)
        elif is_first and self._phase is Phase.WAITING:
            self._reconsider(now)  # the rule may now estimate better how long the sentence takes

    def _progress(self, attempt: Attempt, event: Progressed) -> None:
        attempt.is_whole = event.is_whole
        if event.at is not None:
            attempt.progressed_at = event.at
            attempt.calling_at = event.at if event.is_call else attempt.calling_at
        elif self._phase is Phase.COMMITTED:
            attempt.stall_secs = None  # an unreadable stream must not end for its silence

    def _sentence(self, attempt: Attempt, now: float) -> None:
        if attempt.speakable_at is None:
            attempt.speakable_at = now

    def _sentence_while_waiting(self, attempt: Attempt, now: float) -> None:
        self._sentence(attempt, now)
        self._release(attempt, "first_sentence", now)
        self._reconsider(now)

    def _tools(self, attempt: Attempt, now: float) -> None:
        self._token(attempt, now)
        attempt.called_tools = True

    def _tools_while_waiting(self, attempt: Attempt, now: float) -> None:
        self._tools(attempt, now)
        self._release(attempt, "tool_call", now)
        self._reconsider(now)

    def _finish_while_waiting(self, attempt: Attempt, now: float) -> None:
        if attempt.first_token_at is None:
            earlier = self._empty_attempt()
            attempt.error = EMPTY_ANSWER
            if earlier is None:
                self._replace(attempt, now)
            else:
                self._accept_empty(attempt, now)
        else:  # a whole answer, though without a whole sentence
            self._release(attempt, "whole_answer", now)
            self._complete(attempt, now)

    def _empty_attempt(self) -> Attempt | None:
        """An attempt that ended without text while nothing was committed. The model may mean it."""
        empty = (a for a in self._attempts if a.error is EMPTY_ANSWER)
        return next(empty, None) if self._phase is Phase.WAITING else None

    def _accept_empty(self, attempt: Attempt, now: float) -> None:
        """Accept an empty answer, because two attempts agree or no other is left."""
        attempt.error = None
        self._release(attempt, "silence", now)
        self._complete(attempt, now)

    def _replace(self, attempt: Attempt, now: float) -> None:
        self._end(attempt, "failed", now)
        self._exclude(attempt)
        self._launch_replacement(attempt, now)
        self._reconsider(now)

    def _launch_replacement(self, failed: Attempt, now: float) -> None:
        if failed.first_token_at is None and failed.error is not EMPTY_ANSWER:
            self._slots.refund()
        if self._phase is Phase.RESCUING:
            self._reopen_lost()
        if self._slots:
            self._launch("failure", now)

    def _complete(self, attempt: Attempt, now: float) -> None:
        has_token = attempt.first_token_at is not None
        if attempt.speakable_at is None and has_token and not attempt.called_tools:
            attempt.speakable_at = now  # the end of the answer completes the sentence
        self._end(attempt, "won", now)
        self._finish_turn()

    def _break_off(self, attempt: Attempt, now: float) -> None:
        if attempt.called_tools:
            self._complete(attempt, now)
            return
        self._rescue()
        self._replace(attempt, now)

    def _break_off_while_rescuing(self, attempt: Attempt, now: float) -> None:
        if attempt is self._winner:
            self._rescue()
        self._replace(attempt, now)

    # ---- transitions

    def _launch(self, reason: LaunchReason, now: float, detail: str | None = None) -> None:
        slot = self._slots.take(reason)
        attempt = self._make_attempt(len(self._attempts), slot, reason, now, detail)
        self._attempts.append(attempt)
        self._commands.append(Launch(attempt.number, attempt.provider, reason))

    def _reconsider(self, now: float) -> None:
        """Apply what is due by now and set the next wake time."""
        self._wake_at = self._next_at = None
        self._expire(now)
        if self._is_over():
            return
        self._launch_due(now)
        while self._repeat_failed(now):
            self._launch_due(now)
        if self._is_over():
            return
        live = self._live()
        repeat_at = self._repeat_at()
        rejected_at = self._rejected_at(live) if repeat_at is None else None
        if rejected_at is not None and rejected_at <= now:
            self._cancel_live("superseded", "superseded", now)
            live = []
        if not live and repeat_at is None:
            if (empty := self._empty_attempt()) is not None:
                self._accept_empty(empty, now)
            else:
                self._fail()
            return
        self._wake_by(repeat_at)
        self._wake_by(rejected_at)
        self._wake_by(self._give_up_at())
        for attempt in live:
            self._wake_by(self._expiry(attempt)[0])
        if self._phase is Phase.WAITING:
            self._wake_by(self.deadline_at)

    def _is_over(self) -> bool:
        return self._phase is Phase.OVER

    def _expire(self, now: float) -> None:
        """End the attempts that have been silent for too long."""
        deadline = self.deadline_at
        if self._phase is Phase.WAITING and deadline is not None and deadline <= now:
            for attempt in self._live():
                attempt.error = MISSED_DEADLINE
            self._cancel_live("deadline", "failed", now)
            self._fail()
            return
        for attempt in self._live():
            expires, error = self._expiry(attempt)
            if expires is None or expires > now:
                continue
            self._commands.append(Cancel(attempt.number, "stall"))
            if self._phase is Phase.COMMITTED and attempt.is_complete:
                self._complete(attempt, now)
                return
            if attempt is self._winner:
                self._rescue()
            attempt.error = error
            self._end(attempt, "failed", now)
            self._launch_replacement(attempt, now)
        give_up_at = self._give_up_at()
        if give_up_at is not None and give_up_at <= now:
            for attempt in self._live():
                attempt.error = TIMED_OUT
            self._stop_silent_winner(now)
            self._cancel_live("stall", "failed", now)
            self._fail()

    def _expiry(self, attempt: Attempt) -> tuple[float | None, AttemptError]:
        """When an attempt's silence becomes an error, and which error.

        Reasoning and tool call arguments count as progress only for the committed attempt.
        """
        last_usable_at = (
            attempt.last_progress_at if attempt is self._winner else attempt.last_usable_at
        )
        expires = _after(last_usable_at, attempt.slot.timeout_secs)
        if attempt.is_complete and self._phase is Phase.COMMITTED:
            stalls = _after(attempt.last_progress_at, attempt.stall_secs)
            if stalls is not None and (expires is None or stalls < expires):
                return stalls, STALLED
        return expires, TIMED_OUT

    def _give_up_at(self) -> float | None:
        """When a broken answer ends because no replacement answers, and none is left."""
        if self._phase is not Phase.RESCUING or self._may_launch():
            return None
        replacements = self._live() or self._attempts[-1:]
        times = [each.last_progress_at + _patience_secs(each) for each in replacements]
        winner = self._winner
        if winner is not None and winner.outcome is None:
            times.append(winner.last_progress_at + OPEN_TIMES * _patience_secs(winner))
        return max(times)

    def _launch_due(self, now: float) -> None:
        """Launch what is due, and set the time of the next launch."""
        if self._slots.eligibility.full:
            self._wake_by(now + RECHECK_SECS)
        if self._is_speculative and self._phase is Phase.WAITING:
            self._launch_reason = "the caller's turn may go on"
            return
        while live := self._live():
            at, reason = self._next_launch(live, now)
            if at is None or at > now:
                self._next_at = at
                self._wake_by(at)
                return
            if reason == "stall":
                self._stall(live[-1], now)
                continue
            if reason == "silence":
                self._launch_reason = f"{live[-1].provider} is silent"
                self._slots.refund_silent()
            self._launch(reason, now, self._launch_reason)

    def _next_launch(
        self, live: Sequence[Attempt], now: float
    ) -> tuple[float | None, LaunchReason]:
        """When the next attempt is launched if no event comes before, and why."""
        last = live[-1]
        if self._phase is Phase.RESCUING:
            return (_stalls_at(last) if self._may_launch() else None), "stall"
        if self._phase is Phase.COMMITTED:
            stalls_at = _after(max(last.last_progress_at, self._counts_from), last.stall_secs)
            return (stalls_at if self._slots or self._lost() else None), "stall"
        hedge_at = self._hedge_at(live, now) if self._slots else None
        silent_at = self._silent_at(last)
        if silent_at is not None and (hedge_at is None or silent_at < hedge_at):
            return silent_at, "silence"
        return hedge_at, "hedge"

    def _hedge_at(self, live: Sequence[Attempt], now: float) -> float | None:
        decision = self._rule.next_launch(self._waiting(live, now))
        at, self._launch_reason = decision.at, decision.reason
        if not decision.is_put_off:
            if at is None or at > now or (why := self._slots.why_ineligible) is None:
                return at
            self._launch_reason = why
        self._wake_by(now + RECHECK_SECS)
        return None

    def _may_launch(self) -> bool:
        """Whether another request may be made beside a silent one."""
        if self._phase is Phase.RESCUING and self._lost():
            return True
        return bool(self._slots) or (self._replaces_silent and self._slots.has_refund)

    def _silent_at(self, attempt: Attempt) -> float | None:
        """When an attempt becomes silent, so that another provider gets a request as well."""
        if not self._may_launch():
            return None
        if attempt.first_token_at is not None:
            return _after(max(attempt.last_progress_at, self._counts_from), attempt.stall_secs)
        since = max(attempt.calling_at or attempt.launched_at, self._counts_from)
        return _after(since, self._silent_secs(attempt))

    def _silent_secs(self, attempt: Attempt) -> float | None:
        times = SLOW_TIMES if attempt.provider in self._slots.eligibility.slow else 1.0
        return None if attempt.slot.silent_secs is None else times * attempt.slot.silent_secs

    def _rejected_at(self, live: Sequence[Attempt]) -> float | None:
        """When a rejection of the prompt, or an empty answer, ends the turn beside silent attempts.

        Any other failure says nothing about their answers.
        """
        least_secs = self._rejection_secs
        if least_secs is None or self._phase is not Phase.WAITING or self._may_launch():
            return None
        rejected_at = [a.ended_at for a in self._attempts if _is_rejection(a.error)]
        if not rejected_at:
            return None
        silent_at = list[float]()
        for attempt in live:
            secs = self._silent_secs(attempt)
            if secs is None or attempt.first_token_at is not None:
                return None
            since = max(attempt.last_progress_at, self._counts_from, rejected_at[0] or 0.0)
            silent_at.append(since + max(secs, least_secs))
        return max(silent_at, default=None)

    def _repeat_at(self) -> float | None:
        """When failed requests are repeated: no other is left, and each live attempt is late."""
        if self._slots or self._phase not in (Phase.WAITING, Phase.RESCUING):
            return None
        due = [at for a in self._attempts if (at := _repeats_at(a, self._backoff)) is not None]
        if not due:
            return None
        late = (max(a.last_usable_at, self._counts_from) + a.slot.late_secs for a in self._live())
        return max([min(due), *late])

    def _repeat_failed(self, now: float) -> bool:
        """Repeat the failed requests that are due; returns whether there are any."""
        at = None if self._is_over() else self._repeat_at()
        if at is None or at > now:
            return False
        slots: list[Slot] = []
        for attempt in self._attempts:
            due_at = _repeats_at(attempt, self._backoff)
            if due_at is not None and due_at <= now:
                attempt.is_repeated = True
                slots.append(replace(attempt.slot, tries=attempt.slot.tries + 1))
        self._slots.reopen(slots)
        self._launch("failure", now)
        return True

    def _stall(self, attempt: Attempt, now: float) -> None:
        if self._phase is Phase.COMMITTED:
            if attempt.is_complete:
                self._commands.append(Cancel(attempt.number, "stall"))
                self._complete(attempt, now)
                return
            self._phase = Phase.RESCUING
        else:
            self._slots.refund_silent()
        self._reopen_lost()
        self._launch("stall", now)

    def _wake_by(self, at: float | None) -> None:
        if at is not None and (self._wake_at is None or at < self._wake_at):
            self._wake_at = at

    def _release(self, attempt: Attempt, reason: str, now: float) -> None:
        """Release this attempt's answer, from its start or from where another one broke off."""
        if self._winner is None:
            self._commit_reason = reason
            self._commands.append(Commit(attempt.number, reason))
        elif attempt is not self._winner:
            self._stop_silent_winner(now)
            self._commands.append(Continue(attempt.number))
        self._phase = Phase.COMMITTED
        self._winner = attempt
        self._cancel_live("superseded", "superseded", now, keep=attempt)

    def _rescue(self) -> None:
        """Have another attempt continue the answer, which has broken off."""
        assert self._winner is not None
        self._phase = Phase.RESCUING
        self._commands.append(StreamBroken(self._winner.number))

    def _stop_silent_winner(self, now: float) -> None:
        """End the committed answer where it has been silent, if it is open."""
        if self._winner is not None and self._winner.outcome is None:
            self._winner.error = STALLED
            self._end(self._winner, "failed", now)
            self._commands.append(Cancel(self._winner.number, "stall"))
            self._commands.append(StreamBroken(self._winner.number))

    def _lost(self) -> list[Attempt]:
        """The attempts that lost or were silent, and may be asked to continue the answer.

        Once each. Beside an open answer only those that lost, however often it pauses.
        """
        is_open = self._winner is not None and self._winner.outcome is None
        return [
            attempt
            for attempt in self._attempts
            if (attempt.outcome == "superseded" or (attempt.error is STALLED and not is_open))
            and not (is_open and attempt.reason == "stall")
            and not attempt.is_repeated
            and attempt.provider not in self._slots.excluded
        ]

    def _reopen_lost(self) -> None:
        """Allow the next provider a request, or else those that have lost another one."""
        lost = [] if self._slots else self._lost()
        if lost and self._slots.allow_one_more():
            return
        for loser in lost:
            loser.is_repeated = True
        self._slots.reopen([loser.slot for loser in lost])

    def _exclude(self, attempt: Attempt) -> None:
        """Exclude a provider that failed permanently or sent ``Retry-After`` from this turn."""
        error = attempt.error
        if error is not None and (error.permanent or error.retry_after_secs is not None):
            self._slots.exclude(attempt.provider)

    def _end(self, attempt: Attempt, outcome: AttemptOutcome, now: float) -> None:
        attempt.outcome = outcome
        attempt.ended_at = now

    def _cancel_live(
        self,
        cause: CancelCause,
        outcome: AttemptOutcome,
        now: float,
        keep: Attempt | None = None,
    ) -> None:
        for attempt in self._live():
            if attempt is not keep:
                self._end(attempt, outcome, now)
                self._commands.append(Cancel(attempt.number, cause))

    def _fail(self) -> None:
        errors = tuple((a.provider, a.error) for a in self._attempts if a.error is not None)
        self._commands.append(Fail(errors))
        self._finish_turn()

    def _finish_turn(self) -> None:
        self._phase = Phase.OVER
        self._wake_at = self._next_at = None

    # ---- views

    def _live(self) -> list[Attempt]:
        return [attempt for attempt in self._attempts if attempt.outcome is None]

    def _waiting(self, live: Sequence[Attempt], now: float) -> Waiting:
        since = self._counts_from
        in_flight = tuple(
            InFlight(
                a.provider,
                max(a.launched_at, since),
                None if a.last_token_at is None else max(a.last_token_at, since),
                None if a.first_token_at is None else max(a.first_token_at, since),
            )
            for a in live
        )
        return Waiting(since, in_flight, self._slots.next("hedge").provider, now)

    # ---- transition tables. A missing row is an illegal event.
    # fmt: off

    _TURN_TABLE: Final = {
        (Phase.READY,      TurnStarted):     _start,
        (Phase.READY,      Interrupted):     _interrupt,
        (Phase.WAITING,    TurnConfirmed):   _confirm,
        (Phase.COMMITTED,  TurnConfirmed):   _confirm,
        (Phase.RESCUING,   TurnConfirmed):   _confirm,
        (Phase.OVER,       TurnConfirmed):   _ignore,
        (Phase.WAITING,    TimerFired):      _wake,
        (Phase.WAITING,    Interrupted):     _interrupt,
        (Phase.COMMITTED,  TimerFired):      _wake,
        (Phase.COMMITTED,  Interrupted):     _interrupt,
        (Phase.RESCUING,   TimerFired):      _wake,
        (Phase.RESCUING,   Interrupted):     _interrupt,
        (Phase.OVER,       TimerFired):      _ignore,
        (Phase.OVER,       Interrupted):     _ignore,
    }

    # In Phase.OVER every attempt has ended, and events of ended attempts are ignored.
    _ATTEMPT_TABLE: Final = {
        (Phase.WAITING,    UsableToken):     _token_while_waiting,
        (Phase.WAITING,    SentenceReady):   _sentence_while_waiting,
        (Phase.WAITING,    ToolsCalled):     _tools_while_waiting,
        (Phase.WAITING,    AttemptFinished): _finish_while_waiting,
        (Phase.WAITING,    AttemptFailed):   _replace,
        (Phase.COMMITTED,  UsableToken):     _token,
        (Phase.COMMITTED,  SentenceReady):   _sentence,
        (Phase.COMMITTED,  ToolsCalled):     _tools,
        (Phase.COMMITTED,  AttemptFinished): _complete,
        (Phase.COMMITTED,  AttemptFailed):   _break_off,
        (Phase.RESCUING,   UsableToken):     _token_while_waiting,
        (Phase.RESCUING,   SentenceReady):   _sentence_while_waiting,
        (Phase.RESCUING,   ToolsCalled):     _tools_while_waiting,
        (Phase.RESCUING,   AttemptFinished): _finish_while_waiting,
        (Phase.RESCUING,   AttemptFailed):   _break_off_while_rescuing,
    }
    # fmt: on


def _repeats_at(attempt: Attempt, backoff: float) -> float | None:
    """When a failed request may be sent again, as its SDK would; None is never."""
    error, slot = attempt.error, attempt.slot
    if attempt.is_repeated or attempt.ended_at is None or slot.tries >= slot.retries:
        return None
    if error is None or not error.is_transient:
        return None
    pause = error.retry_after_secs or backoff * min(RETRY_SECS * 2**slot.tries, RETRY_MAX_SECS)
    return None if pause > RETRY_AFTER_MAX_SECS else attempt.ended_at + pause


def _is_rejection(error: AttemptError | None) -> bool:
    """Whether a client of this provider alone would have got this error, or no text, at once."""
    return error is not None and (error.is_of_prompt or error is EMPTY_ANSWER)


def _patience_secs(attempt: Attempt) -> float:
    """How long an answer's rest is waited for; of a model that thinks, as long as it may think."""
    secs = REPLACEMENT_SECS if attempt.stall_secs is None else attempt.stall_secs
    late_secs = attempt.slot.late_secs
    return max(secs, late_secs) if late_secs > REPLACEMENT_SECS else secs


def _stalls_at(replacement: Attempt) -> float:
    """When the replacement of a broken answer is silent."""
    secs = replacement.stall_secs
    return replacement.last_progress_at + (REPLACEMENT_SECS if secs is None else secs)


def _after(start: float, secs: float | None) -> float | None:
    return None if secs is None else start + secs
