"""No schedule of facts makes the race break its law."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipecat_hedge.errors import AttemptError
from pipecat_hedge.facts import (
    AttemptFailed,
    AttemptFinished,
    AttemptOpened,
    Cancel,
    Commit,
    Fact,
    GiveUp,
    Interrupted,
    Launch,
    Speakable,
    TurnStarted,
    UsableToken,
    Woke,
)
from pipecat_hedge.policies.hedge_policy import HedgePolicy
from pipecat_hedge.policies.race import Phase, Race

_DELAYS = st.one_of(st.none(), st.floats(0, 5))
_POLICIES = st.one_of(
    st.builds(HedgePolicy.race, st.integers(1, 4)),
    st.builds(HedgePolicy.after, _DELAYS, st.integers(1, 4)),
    st.builds(HedgePolicy.fallback, st.integers(1, 4)),
)


class RaceModel(RuleBasedStateMachine):
    """Facts in any order that a driver can produce, against what must always hold."""

    @initialize(policy=_POLICIES, lineup=st.lists(st.sampled_from("abc"), max_size=5))
    def begin(self, policy: HedgePolicy, lineup: list[str]) -> None:
        self.policy = policy
        self.lineup = lineup
        self.race = Race(lineup, policy.rule, attempts=policy.attempts)
        self.now = 0.0
        self.launched: list[str] = []
        self.live: set[int] = set()
        self.committed: int | None = None
        self.ended = False
        self.usable: set[int] = set()
        self._take(TurnStarted())

    def _take(self, fact: Fact) -> None:
        was_over = self.race.phase is Phase.OVER
        for order in self.race.handle(fact, self.now):
            assert not was_over, f"{order} after the end"
            match order:
                case Launch():
                    assert not isinstance(fact, Interrupted), "launched by an interruption"
                    assert self.committed is None, "launched beside a committed answer"
                    assert order.attempt == len(self.launched)
                    self.launched.append(order.provider)
                    self.live.add(order.attempt)
                case Commit():
                    assert self.committed is None, "committed twice"
                    assert order.attempt in self.live
                    assert order.attempt in self.usable, "committed what is not usable"
                    self.committed = order.attempt
                case Cancel():
                    assert order.attempt in self.live, "cancelled what is not live"
                    self.live.discard(order.attempt)
                case GiveUp():
                    assert not self.ended, "ended twice"
                    self.ended = True
        if isinstance(fact, Interrupted):
            self.ended = True
        if isinstance(fact, AttemptFinished) and fact.attempt == self.committed:
            self.ended = True

    @rule(secs=st.floats(0, 3))
    def time_passes(self, secs: float) -> None:
        self.now += secs
        if self.race.wake_at is not None and self.race.wake_at <= self.now:
            self._take(Woke())

    @precondition(lambda self: self.launched)
    @rule(data=st.data(), kind=st.sampled_from(["open", "token", "speak", "finish", "fail"]))
    def an_attempt_speaks(self, data: st.DataObject, kind: str) -> None:
        attempt = data.draw(st.integers(0, len(self.launched) - 1))
        if kind == "token":
            self.usable.add(attempt)
        if kind in ("finish", "fail"):
            self.live.discard(attempt)
        facts: dict[str, Fact] = {
            "open": AttemptOpened(attempt),
            "token": UsableToken(attempt),
            "speak": Speakable(attempt),
            "finish": AttemptFinished(attempt),
            "fail": AttemptFailed(attempt, AttemptError("server", "500")),
        }
        self._take(facts[kind])

    @rule()
    def the_caller_interrupts(self) -> None:
        self._take(Interrupted())

    @invariant()
    def requests_are_bounded(self) -> None:
        assert len(self.launched) <= min(self.policy.attempts, len(self.lineup))
        assert self.launched == self.lineup[: len(self.launched)]

    @invariant()
    def the_end_is_an_end(self) -> None:
        assert self.ended == (self.race.phase is Phase.OVER)
        if self.ended:
            assert not self.live, "an attempt was left running"
            assert self.race.wake_at is None

    @invariant()
    def somebody_is_being_waited_for(self) -> None:
        if self.race.phase in (Phase.WAITING, Phase.COMMITTED):
            assert self.live, "waiting for nobody"
        assert {a.number for a in self.race.attempts if a.outcome is None} == self.live


RaceModel.TestCase.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)
TestRaceModel = RaceModel.TestCase
