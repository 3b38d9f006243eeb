"""No sequence of events breaks the race's invariants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipecat_hedge.policy import HedgePolicy
from pipecat_hedge.race.attempt import STALLED
from pipecat_hedge.race.errors import AttemptError
from pipecat_hedge.race.events import (
    AttemptFailed,
    AttemptFinished,
    Cancel,
    Command,
    Commit,
    CommitOn,
    Continue,
    Event,
    Fail,
    HedgeEligibilityChanged,
    Interrupted,
    Launch,
    LaunchRule,
    Progressed,
    SentenceReady,
    Slot,
    StreamBroken,
    TimerFired,
    ToolsCalled,
    TurnStarted,
    UsableToken,
)
from pipecat_hedge.race.race import Phase, Race

_SECS = st.one_of(st.none(), st.floats(0.1, 5))
_POLICIES = st.one_of(
    st.builds(HedgePolicy.race, st.integers(1, 4)),
    st.builds(HedgePolicy.after, st.one_of(st.none(), st.floats(0, 5)), st.integers(1, 4)),
    st.builds(HedgePolicy.fallback, st.integers(1, 4)),
)
_SLOTS = st.builds(
    Slot,
    st.sampled_from("abc"),
    silent_secs=_SECS,
    stall_secs=_SECS,
    timeout_secs=_SECS,
    late_secs=st.floats(0, 3),
    retries=st.integers(0, 2),
)
_ERRORS = st.builds(
    AttemptError,
    st.just("server"),
    st.just("message"),
    permanent=st.booleans(),
    is_of_prompt=st.booleans(),
    retry_after_secs=st.one_of(st.none(), st.just(1.0)),
) | st.builds(
    AttemptError,
    st.just("server"),
    st.just("message"),
    retry_after_secs=st.sampled_from([None, 1.0, 90.0]),
    is_transient=st.just(True),
)


class RaceModel(RuleBasedStateMachine):
    """Events in any order that a driver can produce, checked against the invariants."""

    @initialize(
        policy=_POLICIES,
        candidates=st.lists(_SLOTS, max_size=5),
        commit_on=st.sampled_from(["first_token", "first_sentence"]),
        deadline_secs=_SECS,
        rejection_secs=_SECS,
    )
    def begin(
        self,
        policy: HedgePolicy,
        candidates: list[Slot],
        commit_on: CommitOn,
        deadline_secs: float | None,
        rejection_secs: float | None,
    ) -> None:
        self.policy, rule = policy, cast("LaunchRule", policy.rule)
        self.candidates = candidates
        self.rejection_secs = rejection_secs
        self.race = Race(
            candidates,
            rule,
            max_attempts=policy.max_attempts,
            commit_on=commit_on,
            deadline_secs=deadline_secs,
            rejection_secs=rejection_secs,
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
        self.useless: dict[str, float] = {}
        self.ineligible: frozenset[str] = frozenset()
        self._take(TurnStarted())

    def _take(self, event: Event) -> None:
        was_over = self.race.phase is Phase.OVER
        spoke_before = self.speaker
        commands = self.race.handle(event, self.now)
        for command in commands:
            assert not was_over, f"{command} after the end"
            match command:
                case Launch():
                    assert not isinstance(event, Interrupted), "launched by an interruption"
                    speaking = self.speaker is not None and self.speaker in self.live
                    assert not speaking or self._is_silent(), "launched beside a spoken answer"
                    assert command.attempt == len(self.launched)
                    until = self.useless.get(command.provider, self.now)
                    assert until <= self.now + 1e-9, "request to an excluded provider"
                    if command.reason == "hedge":
                        assert command.provider not in self.ineligible, (
                            "hedge to an ineligible provider"
                        )
                    self.launched.append(command.provider)
                    self.live.add(command.attempt)
                case Commit(reason="silence"):
                    self.commits += 1
                    assert self.commits == 1, "committed twice"
                    assert command.attempt in self.empty, "took silence for an answer"
                    was_waited_for = not self.live or self.rejection_secs is not None
                    assert len(self.empty) > 1 or was_waited_for, "did not wait for others"
                case Commit() | Continue():
                    if isinstance(command, Commit):
                        self.commits += 1
                        assert self.commits == 1, "committed twice"
                    else:
                        assert self.commits == 1, "continued what had not begun"
                        assert spoke_before not in self.live, "continued a live answer"
                    assert command.attempt in self.live or isinstance(event, AttemptFinished)
                    assert command.attempt in self.usable, "released what is not usable"
                    self.speaker = command.attempt
                case StreamBroken():
                    assert command.attempt == self.speaker, "broke off an uncommitted attempt"
                    self.broken += 1
                    assert self.broken <= len(self.launched)
                case Cancel():
                    assert command.attempt in self.live, "cancelled what is not live"
                    if command.cause == "stall" and command.attempt == spoke_before:
                        self._has_been_given_up_for_good_reason(command.attempt, commands)
                    self.live.discard(command.attempt)
                case Fail():
                    self.ends += 1
                    won = [a.outcome for a in self.race.attempts if a.outcome == "won"]
                    assert not won, "gave up an answer that was complete"
        assert self.ends <= 1, "ended twice"

    def _is_silent(self) -> bool:
        """Whether the committed answer has been silent for its limit."""
        winner = self.race.winner
        if winner is None or winner.stall_secs is None:
            return False
        return winner.last_progress_at + winner.stall_secs <= self.now + 1e-9

    def _has_been_given_up_for_good_reason(self, number: int, commands: Sequence[Command]) -> None:
        """The answer is whole, another attempt continues it, or its time is over."""
        attempt = self.race.attempts[number]
        is_taken_over = any(isinstance(command, (Continue, Fail)) for command in commands)
        timeout_secs = attempt.slot.timeout_secs
        is_active = timeout_secs is not None and attempt.last_progress_at + timeout_secs <= self.now
        if not is_active and attempt.stall_secs is not None:
            assert attempt.last_progress_at + attempt.stall_secs <= self.now, (
                "ended an attempt that made progress"
            )
        assert attempt.called_tools or is_taken_over or is_active, (
            "gave up an answer for its silence"
        )

    @rule(secs=st.floats(0, 3))
    def time_passes(self, secs: float) -> None:
        end = self.now + secs
        while self.race.wake_at is not None and self.race.wake_at <= end:
            self.now = max(self.now, self.race.wake_at)
            before = self.race.wake_at
            self._take(TimerFired())
            after = self.race.wake_at
            assert after is None or after > before, "woken for nothing, for ever"
        self.now = end

    @rule(providers=st.frozensets(st.sampled_from("abc")))
    def some_are_ineligible(self, providers: frozenset[str]) -> None:
        self.ineligible = providers
        self._take(HedgeEligibilityChanged(dict.fromkeys(providers, "is busy"), slow=providers))

    @precondition(lambda self: self.launched)
    @rule(
        data=st.data(),
        kind=st.sampled_from(["token", "write", "speak", "tools", "finish", "fail"]),
        error=_ERRORS,
    )
    def an_attempt_speaks(self, data: st.DataObject, kind: str, error: AttemptError) -> None:
        attempt = data.draw(st.integers(0, len(self.launched) - 1))
        if kind in ("speak", "tools") and attempt not in self.usable:
            kind = "token" if kind == "speak" else kind  # a sentence is made of tokens
        if kind in ("token", "tools"):
            self.usable.add(attempt)
        if kind in ("finish", "fail"):
            if kind == "fail" and attempt in self.live:
                self._exclude(self.launched[attempt], error)
            if kind == "finish" and attempt in self.live and attempt not in self.usable:
                self.empty.add(attempt)
            self.live.discard(attempt)
        events: dict[str, Event] = {
            "token": UsableToken(attempt),
            "write": Progressed(attempt, self.now),
            "speak": SentenceReady(attempt),
            "tools": ToolsCalled(attempt),
            "finish": AttemptFinished(attempt),
            "fail": AttemptFailed(attempt, error),
        }
        self._take(events[kind])

    def _exclude(self, provider: str, error: AttemptError) -> None:
        """A request may be repeated after a ``Retry-After``, and none after a permanent error."""
        if error.permanent or error.retry_after_secs:
            again = error.is_transient and not error.permanent
            until = self.now + (error.retry_after_secs or 0.0) if again else math.inf
            self.useless[provider] = max(self.useless.get(provider, self.now), until)

    @precondition(lambda self: self.live)
    @rule(secs=st.floats(0, 9))
    def an_answer_begins_and_falls_silent(self, secs: float) -> None:
        attempt = min(self.live)
        self.usable.add(attempt)
        self._take(UsableToken(attempt))
        self._take(SentenceReady(attempt))
        self.time_passes(secs)

    @rule(names=st.frozensets(st.sampled_from("abc")))
    def room_changes(self, names: frozenset[str]) -> None:
        self._take(HedgeEligibilityChanged({}, full=names))

    @rule()
    def the_caller_interrupts(self) -> None:
        self._take(Interrupted())
        self.was_interrupted = True
        assert self.race.phase is Phase.OVER

    @invariant()
    def requests_are_bounded(self) -> None:
        providers = len({slot.provider for slot in self.candidates})
        most = min(providers + self.policy.max_attempts - 1, len(self.candidates))
        lost = [a for a in self.race.attempts if a.outcome == "superseded" or a.error is STALLED]
        again = sum(slot.retries for slot in self.candidates)
        if lost:  # each slot, before those are asked again
            most = len(self.candidates)
        assert len(self.launched) <= most + again + len(lost)

    @invariant()
    def the_end_is_an_end(self) -> None:
        if self.race.phase is Phase.OVER:
            assert not self.live, "an attempt was left running"
            assert self.race.wake_at is None
            outcomes = {attempt.outcome for attempt in self.race.attempts}
            assert None not in outcomes
            assert "won" in outcomes or self.was_interrupted or self.ends == 1 or not outcomes

    @invariant()
    def an_attempt_is_waited_for(self) -> None:
        if self.race.phase is not Phase.OVER:
            assert self.live or self.race.wake_at is not None, "waiting without an attempt"
        assert {a.number for a in self.race.attempts if a.outcome is None} == self.live

    @invariant()
    def silence_has_an_end(self) -> None:
        """If every attempt has a timeout, a wake time is set."""
        timed = [a.slot.timeout_secs is not None for a in self.race.attempts if a.outcome is None]
        if timed and all(timed):
            assert self.race.wake_at is not None

    @invariant()
    def one_winner(self) -> None:
        assert sum(a.outcome == "won" for a in self.race.attempts) <= 1


RaceModel.TestCase.settings = settings(max_examples=500, stateful_step_count=40, deadline=None)
TestRaceModel = RaceModel.TestCase
