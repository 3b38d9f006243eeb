"""The race: who is asked, when, and whose answer the caller hears. Pure; time is an argument.

Law: a failure never wins, at most one attempt is committed, never more than ``attempts`` requests
are made, and every attempt that is still live when the turn ends is cancelled.

A race is a state machine. Facts go in with the time at which they happened, orders come out, and
``wake_at`` says when to ask again if nothing happens before. It knows no asyncio, no Pipecat and
no clock, so the same object runs inside the service and in virtual time.

The problem: of the requests in flight, which answer should be released, and when should another
request be sent? The naive answer, the first request that returns a byte, releases streams that
begin on time and then carry nothing: role-only deltas, keep-alives, an error in mid-stream. Ours
counts only usable tokens (``policies/usable.py`` says which those are) and treats every other
ending as a failure, which launches the next attempt at once instead of waiting for the delay.

Places in the tables marked (late commit) and (rescue) are where an answer may also be held back
until it has a speakable sentence, and where a committed answer that breaks off is continued by
another attempt. Until they are filled, a committed attempt that fails ends the turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final, TypeVar

from pipecat_hedge.errors import AttemptError, HedgeError
from pipecat_hedge.facts import (
    AttemptFailed,
    AttemptFinished,
    AttemptOpened,
    AttemptOutcome,
    Cancel,
    CancelCause,
    Commit,
    Fact,
    GiveUp,
    InFlight,
    Interrupted,
    Launch,
    LaunchReason,
    LaunchRule,
    Order,
    Speakable,
    TurnStarted,
    UsableToken,
    Waiting,
    Woke,
)

__all__ = ["Attempt", "IllegalFact", "Phase", "Race"]

_T = TypeVar("_T")

EMPTY_ANSWER = AttemptError("empty", "the answer ended without any text or tool call")


class IllegalFact(HedgeError):
    """A fact that cannot happen in the race's phase: a bug in whoever drives it."""


class Phase(Enum):
    """Where a turn stands."""

    READY = auto()
    """Nobody has been asked yet."""
    WAITING = auto()
    """Attempts are in flight and none is committed."""
    COMMITTED = auto()
    """One attempt's answer is being released."""
    OVER = auto()
    """Answered, failed or interrupted; nothing is live."""


class Attempt:
    """What the race knows of one request. Written by the race alone.

    Attributes:
        number: Its number within the turn, from 0.
        provider: The provider's name.
        reason: Why it was launched.
        launched_at: When, on the race's clock.
        opened_at: When its request was on its way, or None.
        first_token_at: When its first usable token came, or None.
        last_token_at: When its latest usable token came, or None.
        speakable_at: When it had a speakable unit, or None.
        ended_at: When it ended or was cancelled, or None while it is live.
        outcome: How it ended, or None while it is live.
        error: Why it failed, or None.
    """

    __slots__ = (
        "ended_at",
        "error",
        "first_token_at",
        "last_token_at",
        "launched_at",
        "number",
        "opened_at",
        "outcome",
        "provider",
        "reason",
        "speakable_at",
    )

    def __init__(self, number: int, provider: str, reason: LaunchReason, launched_at: float):
        """Record a launch."""
        self.number = number
        self.provider = provider
        self.reason: LaunchReason = reason
        self.launched_at = launched_at
        self.opened_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.speakable_at: float | None = None
        self.ended_at: float | None = None
        self.outcome: AttemptOutcome | None = None
        self.error: AttemptError | None = None


class Race:
    """One turn's race.

    Example::

        race = Race(["claude", "local"], AfterSilence(0.6), attempts=2)
        race.handle(TurnStarted(), 0.0)   # (Launch(0, "claude", "primary"),)
        race.wake_at                      # 0.6
        race.handle(Woke(), 0.6)          # (Launch(1, "local", "hedge"),)
        race.handle(UsableToken(1), 0.7)  # (Commit(1, "first_token"), Cancel(0, "superseded"))
    """

    def __init__(self, lineup: Sequence[str], rule: LaunchRule, *, attempts: int):
        """Line up.

        Args:
            lineup: The providers in the order in which to ask them. A name that stands twice may
                be asked twice.
            rule: When an attempt that has not failed is worth another request.
            attempts: The most requests to make, at least 1.
        """
        self._lineup = list(lineup)
        self._rule = rule
        self._spare_attempts = attempts
        self._attempts: list[Attempt] = []
        self._live = 0
        self._phase = Phase.READY
        self._winner: Attempt | None = None
        self._commit_reason: str | None = None
        self._wake_at: float | None = None
        self._started_at = 0.0
        self._orders: list[Order] = []

    @property
    def phase(self) -> Phase:
        """Where the turn stands."""
        return self._phase

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Every attempt so far, in the order of launch."""
        return self._attempts

    @property
    def winner(self) -> Attempt | None:
        """The attempt whose answer was released, or None."""
        return self._winner

    @property
    def commit_reason(self) -> str | None:
        """What made the winner win, or None without a winner."""
        return self._commit_reason

    @property
    def started_at(self) -> float:
        """When the turn started, on the race's clock."""
        return self._started_at

    @property
    def wake_at(self) -> float | None:
        """When to hand in ``Woke`` if nothing happens before; None is never."""
        return self._wake_at

    def handle(self, fact: Fact, now: float) -> tuple[Order, ...]:
        """Take one fact and say what to do about it.

        Args:
            fact: What happened. Facts of attempts that have already ended are ignored: they were
                under way when the attempt was cancelled.
            now: When it happened, in seconds; never earlier than the fact before.

        Returns:
            The orders, in the order in which to carry them out.

        Raises:
            IllegalFact: If the fact cannot happen now.
        """
        if isinstance(fact, (TurnStarted, Woke, Interrupted)):
            self._react(self._TURN_TABLE, fact)(self, now)
        else:
            if not 0 <= fact.attempt < len(self._attempts):
                raise IllegalFact(
                    f"{type(fact).__name__} of attempt {fact.attempt}, never launched"
                )
            attempt = self._attempts[fact.attempt]
            if attempt.outcome is not None:
                return ()
            reaction = self._react(self._ATTEMPT_TABLE, fact)
            if isinstance(fact, AttemptFailed):
                attempt.error = fact.error
            reaction(self, attempt, now)
        if not self._orders:
            return ()
        orders, self._orders = tuple(self._orders), []
        return orders

    def _react(self, table: Mapping[Any, _T], fact: Fact) -> _T:
        try:
            return table[self._phase, type(fact)]
        except KeyError:
            raise IllegalFact(f"{type(fact).__name__} while {self._phase.name}") from None

    # ---- reactions to the turn's own facts

    def _start(self, now: float) -> None:
        self._started_at = now
        self._phase = Phase.WAITING
        if self._can_launch():
            self._launch("primary", now)
        self._reconsider(now)

    def _wake(self, now: float) -> None:
        self._reconsider(now)

    def _interrupt(self, now: float) -> None:
        self._cancel_live("interrupted", "interrupted", now)
        self._finish_turn()

    def _ignore(self, now: float) -> None:
        pass

    # ---- reactions to an attempt's facts

    def _open(self, attempt: Attempt, now: float) -> None:
        attempt.opened_at = now

    def _first_token(self, attempt: Attempt, now: float) -> None:
        attempt.first_token_at = attempt.last_token_at = now
        self._commit(attempt, "first_token", now)  # (late commit) holds it back for a sentence

    def _next_token(self, attempt: Attempt, now: float) -> None:
        attempt.last_token_at = now

    def _speakable(self, attempt: Attempt, now: float) -> None:
        if attempt.speakable_at is None:
            attempt.speakable_at = now  # (late commit) this is where a held answer commits

    def _end_empty(self, attempt: Attempt, now: float) -> None:
        # While nothing is committed nothing usable has come: a token would have committed it.
        attempt.error = EMPTY_ANSWER
        self._replace(attempt, now)

    def _replace(self, attempt: Attempt, now: float) -> None:
        self._end(attempt, "failed", now)
        if self._can_launch():
            self._launch("failure", now)
        self._reconsider(now)

    def _complete(self, attempt: Attempt, now: float) -> None:
        self._end(attempt, "won", now)
        self._finish_turn()

    def _break_off(self, attempt: Attempt, now: float) -> None:
        self._end(attempt, "failed", now)
        self._give_up()  # (rescue) continues the answer with another attempt instead

    # ---- moves

    def _can_launch(self) -> bool:
        return self._spare_attempts > 0 and bool(self._lineup)

    def _launch(self, reason: LaunchReason, now: float) -> None:
        attempt = Attempt(len(self._attempts), self._lineup.pop(0), reason, now)
        self._spare_attempts -= 1
        self._attempts.append(attempt)
        self._live += 1
        self._orders.append(Launch(attempt.number, attempt.provider, reason))

    def _reconsider(self, now: float) -> None:
        """Launch what is due and set the alarm for what is not."""
        self._wake_at = None
        if not self._live:
            self._give_up()
            return
        while self._can_launch():
            at = self._rule.next_launch(self._waiting()).at
            if at is None:
                return
            if at > now:
                self._wake_at = at
                return
            self._launch("hedge", now)

    def _commit(self, attempt: Attempt, reason: str, now: float) -> None:
        self._phase = Phase.COMMITTED
        self._winner = attempt
        self._commit_reason = reason
        self._wake_at = None
        self._orders.append(Commit(attempt.number, reason))
        self._cancel_live("superseded", "superseded", now, keep=attempt)

    def _end(self, attempt: Attempt, outcome: AttemptOutcome, now: float) -> None:
        attempt.outcome = outcome
        attempt.ended_at = now
        self._live -= 1

    def _cancel_live(
        self,
        cause: CancelCause,
        outcome: AttemptOutcome,
        now: float,
        keep: Attempt | None = None,
    ) -> None:
        for attempt in self._attempts:
            if attempt.outcome is None and attempt is not keep:
                self._end(attempt, outcome, now)
                self._orders.append(Cancel(attempt.number, cause))

    def _give_up(self) -> None:
        errors = tuple((a.provider, a.error) for a in self._attempts if a.error is not None)
        self._orders.append(GiveUp(errors))
        self._finish_turn()

    def _finish_turn(self) -> None:
        self._phase = Phase.OVER
        self._wake_at = None

    # ---- views

    def _waiting(self) -> Waiting:
        in_flight = tuple(
            InFlight(a.provider, a.launched_at, a.last_token_at)
            for a in self._attempts
            if a.outcome is None
        )
        return Waiting(self._started_at, in_flight, self._lineup[0])

    # ---- the tables: what may happen when, and what it does. A missing row is an illegal fact.
    # fmt: off

    _TURN_TABLE: Final = {
        (Phase.READY,     TurnStarted): _start,
        (Phase.READY,     Interrupted): _interrupt,
        (Phase.WAITING,   Woke):        _wake,
        (Phase.WAITING,   Interrupted): _interrupt,
        (Phase.COMMITTED, Woke):        _ignore,     # (rescue) a committed answer has stalled
        (Phase.COMMITTED, Interrupted): _interrupt,
        (Phase.OVER,      Woke):        _ignore,
        (Phase.OVER,      Interrupted): _ignore,
    }

    # Once over, every attempt has ended, and facts of ended attempts are dropped before the table.
    _ATTEMPT_TABLE: Final = {
        (Phase.WAITING,   AttemptOpened):   _open,
        (Phase.WAITING,   UsableToken):     _first_token,
        (Phase.WAITING,   Speakable):       _speakable,
        (Phase.WAITING,   AttemptFinished): _end_empty,
        (Phase.WAITING,   AttemptFailed):   _replace,
        (Phase.COMMITTED, AttemptOpened):   _open,
        (Phase.COMMITTED, UsableToken):     _next_token,
        (Phase.COMMITTED, Speakable):       _speakable,
        (Phase.COMMITTED, AttemptFinished): _complete,
        (Phase.COMMITTED, AttemptFailed):   _break_off,
    }
    # fmt: on
