"""No schedule of facts makes the race break its law."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.race.errors import SHED, AttemptError
from pipecat_hedge.race.events import (
    AttemptFailed,
    AttemptFinished,
    AttemptOpened,
    BreakOff,
    Cancel,
    Commit,
    CommitOn,
    Continue,
    Fact,
    GiveUp,
    HedgesRefused,
    Interrupted,
    Launch,
    Order,
    Progressed,
    Seat,
    Speakable,
    ToolsCalled,
    TurnStarted,
    UsableToken,
    Woke,
)
from pipecat_hedge.race.race import Phase, Race
from tests.policies.rules import rule_of

_SECS = st.one_of(st.none(), st.floats(0.1, 5))
_POLICIES = st.one_of(
    st.builds(HedgePolicy.race, st.integers(1, 4)),
    st.builds(HedgePolicy.after, st.one_of(st.none(), st.floats(0, 5)), st.integers(1, 4)),
    st.builds(HedgePolicy.fallback, st.integers(1, 4)),
)
_SEATS = st.builds(
    Seat,
    st.sampled_from("abc"),
    stall_secs=_SECS,
    timeout_secs=_SECS,
    retries=st.integers(0, 2),
)
_ERRORS = st.builds(
    AttemptError,
    st.sampled_from(["server", SHED]),
    st.just("told"),
    permanent=st.booleans(),
    retry_after_secs=st.one_of(st.none(), st.just(1.0)),
) | st.builds(
    AttemptError,
    st.just("server"),
    st.just("told"),
    retry_after_secs=st.sampled_from([None, 1.0, 90.0]),
    is_transient=st.just(True),
)


class RaceModel(RuleBasedStateMachine):
    """Facts in any order that a driver can produce, against what must always hold."""

    @initialize(
        policy=_POLICIES,
        lineup=st.lists(_SEATS, max_size=5),
        commit_on=st.sampled_from(["first_token", "first_sentence"]),
        deadline_secs=_SECS,
    )
    def begin(
        self,
        policy: HedgePolicy,
        lineup: list[Seat],
        commit_on: CommitOn,
        deadline_secs: float | None,
    ) -> None:
        self.policy = policy
        self.lineup = lineup
        self.race = Race(
            lineup,
            rule_of(policy),
            attempts=policy.attempts,
            commit_on=commit_on,
            deadline_secs=deadline_secs,
        )
        self.now = 0.0
        self.launched: list[str] = []
        self.live: set[int] = set()
        self.speaker: int | None = None
        self.commits = 0
        self.broken = 0
        self.ends = 0
        self.was_interrupted = False
        self.usable: set[int] = set()
        self.empty: set[int] = set()
        self.useless: set[str] = set()
        self.refusing: frozenset[str] = frozenset()
        self._take(TurnStarted())

    def _take(self, fact: Fact) -> None:
        was_over = self.race.phase is Phase.OVER
        spoke_before = self.speaker
        orders = self.race.handle(fact, self.now)
        for order in orders:
            assert not was_over, f"{order} after the end"
            match order:
                case Launch():
                    if not self.live and order.reason == "failure":
                        self.useless.clear()  # the lineup may have begun anew
                    assert not isinstance(fact, Interrupted), "launched by an interruption"
                    speaking = self.speaker is not None and self.speaker in self.live
                    assert not speaking, "launched beside a committed answer"
                    assert order.attempt == len(self.launched)
                    assert order.provider not in self.useless, "asked who had said it is no use"
                    if order.reason == "hedge":
                        assert order.provider not in self.refusing, "hedged with who refuses"
                    self.launched.append(order.provider)
                    self.live.add(order.attempt)
                case Commit(reason="silence"):
                    self.commits += 1
                    assert self.commits == 1, "committed twice"
                    assert order.attempt in self.empty, "took silence for an answer"
                    assert len(self.empty) > 1 or not self.live, "did not wait for others"
                case Commit() | Continue():
                    if isinstance(order, Commit):
                        self.commits += 1
                        assert self.commits == 1, "committed twice"
                    else:
                        assert self.commits == 1, "continued what had not begun"
                        assert spoke_before not in self.live, "took over from one who speaks"
                    assert order.attempt in self.live or isinstance(fact, AttemptFinished)
                    assert order.attempt in self.usable, "released what is not usable"
                    self.speaker = order.attempt
                case BreakOff():
                    assert order.attempt == self.speaker, "broke off who does not speak"
                    self.broken += 1
                    assert self.broken <= len(self.launched)
                case Cancel():
                    assert order.attempt in self.live, "cancelled what is not live"
                    if order.cause == "stall" and order.attempt == spoke_before:
                        self._has_been_given_up_for_good_reason(order.attempt, orders)
                    self.live.discard(order.attempt)
                case GiveUp():
                    self.ends += 1
                    won = [a.outcome for a in self.race.attempts if a.outcome == "won"]
                    assert not won, "gave up an answer that was complete"
        assert self.ends <= 1, "ended twice"

    def _has_been_given_up_for_good_reason(self, number: int, orders: Sequence[Order]) -> None:
        """The answer is whole, another attempt takes over, or its time is up."""
        attempt = self.race.attempts[number]
        is_taken_over = any(isinstance(order, Launch) for order in orders)
        timeout_secs = attempt.timeout_secs
        is_out = timeout_secs is not None and attempt.alive_at + timeout_secs <= self.now
        if not is_out and attempt.stall_secs is not None:
            assert attempt.alive_at + attempt.stall_secs <= self.now, "gave up who was writing"
        assert attempt.called_tools or is_taken_over or is_out, "gave up an answer for its silence"

    @rule(secs=st.floats(0, 3))
    def time_passes(self, secs: float) -> None:
        end = self.now + secs
        while self.race.wake_at is not None and self.race.wake_at <= end:
            self.now = max(self.now, self.race.wake_at)
            before = self.race.wake_at
            self._take(Woke())
            after = self.race.wake_at
            assert after is None or after > before, "woken for nothing, for ever"
        self.now = end

    @rule(who=st.frozensets(st.sampled_from("abc")))
    def some_refuse_hedges(self, who: frozenset[str]) -> None:
        self.refusing = who
        self._take(HedgesRefused(dict.fromkeys(who, "is busy")))

    @precondition(lambda self: self.launched)
    @rule(
        data=st.data(),
        kind=st.sampled_from(["open", "token", "write", "speak", "tools", "finish", "fail"]),
        error=_ERRORS,
    )
    def an_attempt_speaks(self, data: st.DataObject, kind: str, error: AttemptError) -> None:
        attempt = data.draw(st.integers(0, len(self.launched) - 1))
        if kind in ("speak", "tools") and attempt not in self.usable:
            kind = "token" if kind == "speak" else kind  # a sentence is made of tokens
        if kind in ("token", "tools"):
            self.usable.add(attempt)
        if kind in ("finish", "fail"):
            if (
                kind == "fail"
                and attempt in self.live
                and (error.permanent or error.retry_after_secs)
            ):
                self.useless.add(self.launched[attempt])
            if kind == "finish" and attempt in self.live and attempt not in self.usable:
                self.empty.add(attempt)
            self.live.discard(attempt)
        facts: dict[str, Fact] = {
            "open": AttemptOpened(attempt),
            "token": UsableToken(attempt),
            "write": Progressed(attempt, self.now),
            "speak": Speakable(attempt),
            "tools": ToolsCalled(attempt),
            "finish": AttemptFinished(attempt),
            "fail": AttemptFailed(attempt, error),
        }
        self._take(facts[kind])

    @precondition(lambda self: self.live)
    @rule(secs=st.floats(0, 9))
    def an_answer_begins_and_falls_silent(self, secs: float) -> None:
        attempt = min(self.live)
        self.usable.add(attempt)
        self._take(UsableToken(attempt))
        self._take(Speakable(attempt))
        self.time_passes(secs)

    @rule()
    def nobody_has_room(self) -> None:
        """Where nothing is on its way, a turn that finds no room has an end."""
        most = 3 * (self.policy.attempts + len(self.lineup))
        for _ in range(most):
            waiting = [a for a in self.race.attempts if a.outcome is None]
            if not waiting or any(a.is_sent for a in waiting):
                return
            self.live.discard(waiting[0].number)
            self._take(AttemptFailed(waiting[0].number, AttemptError(SHED, "no room")))
        left = [a for a in self.race.attempts if a.outcome is None]
        assert not left or any(a.is_sent for a in left), "tried for ever"

    @rule()
    def the_caller_interrupts(self) -> None:
        self._take(Interrupted())
        self.was_interrupted = True
        assert self.race.phase is Phase.OVER

    @invariant()
    def requests_are_bounded(self) -> None:
        sent = len(self.launched) - sum(a.was_shed for a in self.race.attempts)
        rounds = 1 + max((seat.retries for seat in self.lineup), default=0)
        assert sent <= rounds * min(self.policy.attempts, len(self.lineup))
        assert len(self.live) <= self.policy.attempts

    @invariant()
    def the_end_is_an_end(self) -> None:
        if self.race.phase is Phase.OVER:
            assert not self.live, "an attempt was left running"
            assert self.race.wake_at is None
            outcomes = {attempt.outcome for attempt in self.race.attempts}
            assert None not in outcomes
            assert "won" in outcomes or self.was_interrupted or self.ends == 1 or not outcomes

    @invariant()
    def somebody_is_being_waited_for(self) -> None:
        if self.race.phase is not Phase.OVER:
            assert self.live or self.race.wake_at is not None, "waiting for nobody"
        assert {a.number for a in self.race.attempts if a.outcome is None} == self.live

    @invariant()
    def silence_has_an_end(self) -> None:
        """As long as every attempt has a time-out, an alarm is set."""
        timed = [a.timeout_secs is not None for a in self.race.attempts if a.outcome is None]
        if timed and all(timed):
            assert self.race.wake_at is not None

    @invariant()
    def one_winner(self) -> None:
        assert sum(a.outcome == "won" for a in self.race.attempts) <= 1


RaceModel.TestCase.settings = settings(max_examples=500, stateful_step_count=40, deadline=None)
TestRaceModel = RaceModel.TestCase
