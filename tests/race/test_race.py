"""The race as tables: what happened when, and what is to be done about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.race.attempt import EMPTY_ANSWER, MISSED_DEADLINE, STALLED, TIMED_OUT
from pipecat_hedge.race.errors import SHED, AttemptError
from pipecat_hedge.race.events import (
    AttemptFailed,
    AttemptFinished,
    AttemptOpened,
    Cancel,
    Command,
    Commit,
    Continue,
    Event,
    Fail,
    HedgeEligibilityChanged,
    InFlight,
    Interrupted,
    Launch,
    LaunchDecision,
    SentenceReady,
    Slot,
    StreamBroken,
    TimerFired,
    ToolsCalled,
    TurnStarted,
    UsableToken,
    Waiting,
)
from pipecat_hedge.race.race import IllegalEvent, Phase, Race
from tests.race.rules import rule_of

OVERLOADED = AttemptError("server", "529 overloaded")
REFUSED = AttemptError("connectivity", "connection refused")
REJECTED = AttemptError("authentication", "no such key", permanent=True)
BUSY = AttemptError("rate_limit", "too many requests", retry_after_secs=20)


@dataclass(frozen=True)
class PutOff:
    """Would hedge at 0.6 s, has room for it from ``until`` on, and cannot wait for ever."""

    until: float
    silent_at: float

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        if waiting.now < 0.6 or waiting.now >= self.until:
            return LaunchDecision(0.6, "saves 2 s")
        return LaunchDecision(self.silent_at, "put off", is_put_off=True)


Happening = tuple[float, Event, Sequence[Command]]

A_PRIMARY = Launch(0, "a", "primary")
B_HEDGE = Launch(1, "b", "hedge")
B_FAILURE = Launch(1, "b", "failure")

SCENARIOS: dict[str, tuple[HedgePolicy, str, list[Happening]]] = {
    "race: both at once, the first usable token wins and the other is cancelled": (
        HedgePolicy.race(2),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY, B_HEDGE]),
            (0.1, AttemptOpened(0), []),
            (0.2, UsableToken(1), [Commit(1, "first_token"), Cancel(0, "superseded")]),
            (0.3, UsableToken(1), []),
            (0.4, AttemptFinished(1), []),
        ],
    ),
    "race: a failure is not an answer; the slow one wins": (
        HedgePolicy.race(2),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY, B_HEDGE]),
            (0.1, AttemptFailed(0, OVERLOADED), []),
            (2.0, UsableToken(1), [Commit(1, "first_token")]),
            (2.1, AttemptFinished(1), []),
        ],
    ),
    "race: an answer that ends empty is a failure": (
        HedgePolicy.race(2),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY, B_HEDGE]),
            (0.1, AttemptFinished(0), []),
            (2.0, UsableToken(1), [Commit(1, "first_token")]),
        ],
    ),
    "race: a failed attempt is replaced from the bench": (
        HedgePolicy.race(3),
        "abcd",
        [
            (0.0, TurnStarted(), [A_PRIMARY, B_HEDGE, Launch(2, "c", "hedge")]),
            (0.1, AttemptFailed(0, OVERLOADED), []),
            (0.2, UsableToken(2), [Commit(2, "first_token"), Cancel(1, "superseded")]),
        ],
    ),
    "after: the second one only when the first has been silent that long": (
        HedgePolicy.after(0.6),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.6, TimerFired(), [B_HEDGE]),
            (0.9, UsableToken(0), [Commit(0, "first_token"), Cancel(1, "superseded")]),
        ],
    ),
    "after: who refuses hedges is passed over": (
        HedgePolicy.after(0.6),
        "abc",
        [
            (0.0, HedgeEligibilityChanged({"b": "has a queue of 3"}), []),
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.6, TimerFired(), [Launch(1, "c", "hedge")]),
            (0.7, AttemptFailed(0, REFUSED), []),
            (0.8, AttemptFailed(1, REFUSED), [Fail((("a", REFUSED), ("c", REFUSED)))]),
        ],
    ),
    "after: a hedge that nobody takes is asked for again": (
        HedgePolicy.after(0.6),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.6, HedgeEligibilityChanged({"b": "has a queue of 3"}), []),
            (0.6, TimerFired(), []),
            (0.7, TimerFired(), []),
            (0.7, HedgeEligibilityChanged({}), []),
            (0.8, TimerFired(), [B_HEDGE]),
        ],
    ),
    "a hedge that is put off is asked for again, and sent when there is room": (
        HedgePolicy(rule=PutOff(until=0.75, silent_at=3.0), name="put off"),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.6, TimerFired(), []),
            (0.7, TimerFired(), []),
            (0.8, TimerFired(), [B_HEDGE]),
        ],
    ),
    "a hedge that is put off for too long replaces what is silent": (
        HedgePolicy(rule=PutOff(until=9.0, silent_at=0.75), name="put off"),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.6, TimerFired(), []),
            (0.7, TimerFired(), []),
            (0.75, TimerFired(), [Launch(1, "b", "stall")]),
        ],
    ),
    "after: who refuses hedges replaces a failure all the same": (
        HedgePolicy.after(0.6),
        "ab",
        [
            (0.0, HedgeEligibilityChanged({"b": "has a queue of 3"}), []),
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, AttemptFailed(0, REFUSED), [B_FAILURE]),
        ],
    ),
    "after: a failure is replaced by the least reluctant": (
        HedgePolicy.after(0.6),
        "abc",
        [
            (0.0, HedgeEligibilityChanged({"b": "is down", "c": "is full"}, {"b": 2}), []),
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, AttemptFailed(0, REFUSED), [Launch(1, "c", "failure")]),
        ],
    ),
    "race: the first one is asked even if it refuses hedges": (
        HedgePolicy.race(2),
        "ab",
        [
            (0.0, HedgeEligibilityChanged({"a": "has a queue of 3", "b": "is down"}), []),
            (0.0, TurnStarted(), [A_PRIMARY]),
        ],
    ),
    "after: waking early launches nothing": (
        HedgePolicy.after(0.6),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.5, TimerFired(), []),
            (0.6, TimerFired(), [B_HEDGE]),
        ],
    ),
    "after: opening the request is no sign of life": (
        HedgePolicy.after(0.6),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.5, AttemptOpened(0), []),
            (0.6, TimerFired(), [B_HEDGE]),
        ],
    ),
    "after: each further attempt counts from the launch of the one before": (
        HedgePolicy.after(1.0, max_attempts=3),
        "abc",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (1.0, TimerFired(), [B_HEDGE]),
            (1.5, TimerFired(), []),
            (2.0, TimerFired(), [Launch(2, "c", "hedge")]),
        ],
    ),
    "after: a failure launches the next at once, without the delay": (
        HedgePolicy.after(5.0),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, AttemptFailed(0, OVERLOADED), [B_FAILURE]),
            (0.2, UsableToken(1), [Commit(1, "first_token")]),
        ],
    ),
    "after(0) is a race": (
        HedgePolicy.after(0),
        "ab",
        [(0.0, TurnStarted(), [A_PRIMARY, B_HEDGE])],
    ),
    "after(None) is a fallback": (
        HedgePolicy.after(None),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (60.0, TimerFired(), []),
            (61.0, AttemptFailed(0, REFUSED), [B_FAILURE]),
        ],
    ),
    "fallback: the next one only on failure": (
        HedgePolicy.fallback(),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (60.0, TimerFired(), []),
            (61.0, AttemptFinished(0), [B_FAILURE]),
            (61.5, UsableToken(1), [Commit(1, "first_token")]),
            (62.0, AttemptFinished(1), []),
        ],
    ),
    "all failed: one GiveUp with every cause, in the order of launch": (
        HedgePolicy.race(2),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY, B_HEDGE]),
            (0.1, AttemptFailed(1, REFUSED), []),
            (0.2, AttemptFailed(0, OVERLOADED), [Fail((("a", OVERLOADED), ("b", REFUSED)))]),
        ],
    ),
    "an answer without a word is replaced": (
        HedgePolicy.fallback(2),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, AttemptFinished(0), [B_FAILURE]),
            (0.2, UsableToken(1), [Commit(1, "first_token")]),
        ],
    ),
    "a second one is meant": (
        HedgePolicy.fallback(3),
        "abc",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, AttemptFinished(0), [B_FAILURE]),
            (0.2, AttemptFinished(1), [Commit(1, "silence")]),
        ],
    ),
    "so is the only one": (
        HedgePolicy.race(2),
        "a",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, AttemptFinished(0), [Commit(0, "silence")]),
        ],
    ),
    "so is one whose replacement fails": (
        HedgePolicy.fallback(2),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, AttemptFinished(0), [B_FAILURE]),
            (0.2, AttemptFailed(1, REFUSED), [Commit(0, "silence")]),
        ],
    ),
    "an answer without a word waits for the others": (
        HedgePolicy.race(2),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY, B_HEDGE]),
            (0.1, AttemptFinished(0), []),
            (0.2, UsableToken(1), [Commit(1, "first_token")]),
        ],
    ),
    "attempts bounds the requests though providers are left": (
        HedgePolicy.fallback(max_attempts=1),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, AttemptFailed(0, OVERLOADED), [Fail((("a", OVERLOADED),))]),
        ],
    ),
    "the lineup bounds the requests though attempts are left": (
        HedgePolicy.race(5),
        "a",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, AttemptFailed(0, OVERLOADED), [Fail((("a", OVERLOADED),))]),
        ],
    ),
    "a provider that stands twice may be asked twice": (
        HedgePolicy.after(0.5),
        "aa",
        [(0.0, TurnStarted(), [A_PRIMARY]), (0.5, TimerFired(), [Launch(1, "a", "hedge")])],
    ),
    "nobody to ask": (HedgePolicy.race(2), "", [(0.0, TurnStarted(), [Fail(())])]),
    "an interruption cancels everything in flight": (
        HedgePolicy.race(2),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY, B_HEDGE]),
            (0.1, Interrupted(), [Cancel(0, "interrupted"), Cancel(1, "interrupted")]),
            (0.2, UsableToken(0), []),
            (0.3, AttemptFailed(1, OVERLOADED), []),
            (0.4, TimerFired(), []),
            (0.5, Interrupted(), []),
        ],
    ),
    "an interruption of a committed answer cancels it": (
        HedgePolicy.race(2),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY, B_HEDGE]),
            (0.1, UsableToken(0), [Commit(0, "first_token"), Cancel(1, "superseded")]),
            (0.2, Interrupted(), [Cancel(0, "interrupted")]),
        ],
    ),
    "what a cancelled attempt still says is ignored": (
        HedgePolicy.race(2),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY, B_HEDGE]),
            (0.1, UsableToken(0), [Commit(0, "first_token"), Cancel(1, "superseded")]),
            (0.1, UsableToken(1), []),
            (0.1, AttemptFailed(1, OVERLOADED), []),
            (0.1, AttemptFinished(1), []),
            (0.2, AttemptFinished(0), []),
        ],
    ),
    "a committed answer that breaks off ends the turn if no attempt is left": (
        HedgePolicy.race(2),
        "abc",
        [
            (0.0, TurnStarted(), [A_PRIMARY, B_HEDGE]),
            (0.1, UsableToken(0), [Commit(0, "first_token"), Cancel(1, "superseded")]),
            (0.2, AttemptFailed(0, REFUSED), [StreamBroken(0), Fail((("a", REFUSED),))]),
        ],
    ),
    "a committed answer that breaks off is continued by the next": (
        HedgePolicy.fallback(),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, UsableToken(0), [Commit(0, "first_token")]),
            (0.2, AttemptFailed(0, REFUSED), [StreamBroken(0), B_FAILURE]),
            (0.5, UsableToken(1), [Continue(1)]),
            (0.6, UsableToken(1), []),
            (0.7, AttemptFinished(1), []),
        ],
    ),
    "a rescue that fails too is replaced, and at last given up": (
        HedgePolicy.fallback(max_attempts=3),
        "abc",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, UsableToken(0), [Commit(0, "first_token")]),
            (0.2, AttemptFailed(0, REFUSED), [StreamBroken(0), B_FAILURE]),
            (0.3, AttemptFinished(1), [Launch(2, "c", "failure")]),
            (
                0.4,
                AttemptFailed(2, OVERLOADED),
                [Fail((("a", REFUSED), ("b", EMPTY_ANSWER), ("c", OVERLOADED)))],
            ),
        ],
    ),
    "an interruption during a rescue cancels the rescuer": (
        HedgePolicy.fallback(),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, UsableToken(0), [Commit(0, "first_token")]),
            (0.2, AttemptFailed(0, REFUSED), [StreamBroken(0), B_FAILURE]),
            (0.3, Interrupted(), [Cancel(1, "interrupted")]),
        ],
    ),
    "an answer that has called its tools is complete, however it ends": (
        HedgePolicy.fallback(),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, ToolsCalled(0), [Commit(0, "tool_call")]),
            (0.2, AttemptFailed(0, REFUSED), []),
        ],
    ),
    "who rejects a request for good is not asked a second time in the turn": (
        HedgePolicy.fallback(max_attempts=4),
        "aab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, AttemptFailed(0, REJECTED), [B_FAILURE]),
        ],
    ),
    "who asks to be left alone is, within the turn": (
        HedgePolicy.fallback(max_attempts=4),
        "aab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, AttemptFailed(0, BUSY), [B_FAILURE]),
        ],
    ),
}

SENTENCE_SCENARIOS: dict[str, tuple[HedgePolicy, str, list[Happening]]] = {
    "a token does not commit, a sentence does": (
        HedgePolicy.race(2),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY, B_HEDGE]),
            (0.1, UsableToken(0), []),
            (0.2, UsableToken(1), []),
            (0.3, SentenceReady(1), [Commit(1, "first_sentence"), Cancel(0, "superseded")]),
        ],
    ),
    "a stream that starts on time and then dribbles loses": (
        HedgePolicy.after(0.6),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.5, UsableToken(0), []),
            (0.6, TimerFired(), []),
            (1.1, TimerFired(), [B_HEDGE]),
            (1.5, UsableToken(1), []),
            (1.6, SentenceReady(1), [Commit(1, "first_sentence"), Cancel(0, "superseded")]),
        ],
    ),
    "an answer without a whole sentence wins by ending": (
        HedgePolicy.race(2),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY, B_HEDGE]),
            (0.1, UsableToken(0), []),
            (5.0, AttemptFinished(0), [Commit(0, "whole_answer"), Cancel(1, "superseded")]),
        ],
    ),
    "a cut before the first sentence is a failure and leaves nothing behind": (
        HedgePolicy.fallback(),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, UsableToken(0), []),
            (0.2, AttemptFailed(0, REFUSED), [B_FAILURE]),
            (0.3, UsableToken(1), []),
            (0.4, SentenceReady(1), [Commit(1, "first_sentence")]),
        ],
    ),
    "a complete tool call commits at once": (
        HedgePolicy.race(2),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY, B_HEDGE]),
            (0.1, UsableToken(1), []),
            (0.2, ToolsCalled(0), [Commit(0, "tool_call"), Cancel(1, "superseded")]),
        ],
    ),
    "a rescuer takes over with its first sentence": (
        HedgePolicy.fallback(),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, UsableToken(0), []),
            (0.2, SentenceReady(0), [Commit(0, "first_sentence")]),
            (0.3, AttemptFailed(0, REFUSED), [StreamBroken(0), B_FAILURE]),
            (0.4, UsableToken(1), []),
            (0.5, SentenceReady(1), [Continue(1)]),
        ],
    ),
}


@pytest.mark.parametrize(("policy", "candidates", "happenings"), SCENARIOS.values(), ids=SCENARIOS)
def test_scenario(policy: HedgePolicy, candidates: str, happenings: list[Happening]) -> None:
    """Each fact draws exactly the orders that stand beside it."""
    race = Race(
        [Slot(name) for name in candidates], rule_of(policy), max_attempts=policy.max_attempts
    )
    for now, event, commands in happenings:
        assert list(race.handle(event, now)) == list(commands), f"{event} at {now}"


@pytest.mark.parametrize(
    ("policy", "candidates", "happenings"), SENTENCE_SCENARIOS.values(), ids=SENTENCE_SCENARIOS
)
def test_scenario_with_late_commit(
    policy: HedgePolicy, candidates: str, happenings: list[Happening]
) -> None:
    """Until audio is out, switching is free: an attempt must have a sentence to win."""
    race = Race(
        [Slot(name) for name in candidates],
        rule_of(policy),
        max_attempts=policy.max_attempts,
        commit_on="first_sentence",
    )
    for now, event, commands in happenings:
        assert list(race.handle(event, now)) == list(commands), f"{event} at {now}"


class TestSilence:
    """What time alone brings about."""

    @staticmethod
    def race(policy: HedgePolicy, candidates: str = "ab", **options: Any) -> Race:
        deadline_secs = options.pop("deadline_secs", None)
        slots = [Slot(name, **options) for name in candidates]
        race = Race(
            slots, rule_of(policy), max_attempts=policy.max_attempts, deadline_secs=deadline_secs
        )
        race.handle(TurnStarted(), 0.0)
        return race

    def test_fallback_asks_the_next_when_the_first_has_stalled(self) -> None:
        """The silent one may still win: nothing is out yet."""
        race = self.race(HedgePolicy.fallback(), stall_secs=3.0)
        assert race.wake_at == 3.0
        assert race.handle(TimerFired(), 3.0) == (Launch(1, "b", "stall"),)
        commands = race.handle(UsableToken(0), 3.5)
        assert commands == (Commit(0, "first_token"), Cancel(1, "superseded"))

    def test_a_rule_that_names_a_time_is_not_overruled_by_the_stall(self) -> None:
        """after(5) is five seconds, though a stall is three."""
        race = self.race(HedgePolicy.after(5.0), stall_secs=3.0)
        assert race.wake_at == 5.0
        assert race.handle(TimerFired(), 3.0) == ()

    def test_a_committed_answer_that_stalls_is_taken_over(self) -> None:
        """Its request is closed, and it is said to have stalled."""
        race = self.race(HedgePolicy.fallback(), stall_secs=3.0)
        race.handle(UsableToken(0), 1.0)
        race.handle(UsableToken(0), 2.0)
        assert race.wake_at is not None
        assert race.wake_at <= 5.0
        assert race.handle(TimerFired(), race.wake_at) == ()
        assert race.wake_at == 5.0
        assert race.handle(TimerFired(), 5.0) == (
            Cancel(0, "stall"),
            StreamBroken(0),
            Launch(1, "b", "stall"),
        )
        assert race.attempts[0].error == STALLED
        assert race.handle(UsableToken(1), 5.5) == (Continue(1),)

    def test_an_answer_that_falls_silent_is_waited_for_where_no_attempt_is_left(self) -> None:
        """It may go on; only its time-out ends it."""
        race = self.race(HedgePolicy.race(1), stall_secs=3.0, timeout_secs=30.0)
        race.handle(UsableToken(0), 1.0)
        assert race.handle(TimerFired(), 4.0) == ()
        assert race.handle(UsableToken(0), 20.0) == ()
        assert race.handle(TimerFired(), 31.0) == ()
        assert race.wake_at == 50.0
        errors = (("a", TIMED_OUT),)
        assert race.handle(TimerFired(), 50.0) == (
            Cancel(0, "stall"),
            StreamBroken(0),
            Fail(errors),
        )

    def test_the_last_rescuer_is_waited_for(self) -> None:
        race = self.race(HedgePolicy.fallback(2), stall_secs=3.0, timeout_secs=30.0)
        race.handle(UsableToken(0), 1.0)
        assert race.handle(TimerFired(), 4.0)[-1] == Launch(1, "b", "stall")
        assert race.handle(TimerFired(), 7.0) == ()
        assert race.wake_at == 34.0
        assert race.handle(UsableToken(1), 33.0) == (Continue(1),)

    def test_an_earlier_rescuer_may_answer_after_a_later_one_was_asked(self) -> None:
        race = self.race(HedgePolicy.fallback(3), "abc", stall_secs=3.0, timeout_secs=30.0)
        race.handle(UsableToken(0), 1.0)
        race.handle(TimerFired(), 4.0)
        assert race.handle(TimerFired(), 7.0) == (Launch(2, "c", "stall"),)
        assert race.handle(UsableToken(1), 12.0) == (Continue(1), Cancel(2, "superseded"))

    def test_an_attempt_that_nobody_can_take_over_is_waited_for_until_it_answers(self) -> None:
        """Before the commit a late answer is better than none."""
        race = self.race(HedgePolicy.race(1), stall_secs=3.0, timeout_secs=30.0)
        assert race.wake_at == 30.0
        assert race.handle(UsableToken(0), 20.0) == (Commit(0, "first_token"),)

    def test_a_silent_attempt_fails_at_its_time_out_and_is_replaced(self) -> None:
        """A turn whose every request hangs comes to an end."""
        race = self.race(HedgePolicy.race(2), "abc", timeout_secs=10.0)
        assert race.wake_at == 10.0
        commands = race.handle(TimerFired(), 10.0)
        errors = (("a", TIMED_OUT), ("b", TIMED_OUT))
        assert commands == (Cancel(0, "stall"), Cancel(1, "stall"), Fail(errors))

    def test_the_deadline_ends_a_turn_without_an_answer(self) -> None:
        """Whoever is still silent then is closed, and nobody else is asked."""
        race = self.race(HedgePolicy.race(1), deadline_secs=4.0, timeout_secs=10.0)
        assert race.wake_at == 4.0
        errors = (("a", MISSED_DEADLINE),)
        assert race.handle(TimerFired(), 4.0) == (Cancel(0, "deadline"), Fail(errors))

    def test_the_deadline_is_met_by_the_commit(self) -> None:
        """A long answer is not cut by it."""
        race = self.race(HedgePolicy.race(1), deadline_secs=4.0)
        race.handle(UsableToken(0), 3.9)
        assert race.wake_at is None
        assert race.handle(TimerFired(), 5.0) == ()

    def test_a_stalled_answer_that_has_called_tools_is_complete(self) -> None:
        """Its request is closed, and nobody needs to take over."""
        race = self.race(HedgePolicy.fallback(), stall_secs=3.0)
        race.handle(ToolsCalled(0), 1.0)
        assert race.handle(TimerFired(), 4.0) == (Cancel(0, "stall"),)
        assert race.phase is Phase.OVER
        assert race.attempts[0].outcome == "won"

    def test_it_is_complete_too_where_no_attempt_is_left(self) -> None:
        """At whichever of the two times comes first: nothing more is needed of it."""
        for stall_secs, timeout_secs in ((3.0, 30.0), (None, 3.0)):
            policy = HedgePolicy.race(1)
            race = self.race(policy, stall_secs=stall_secs, timeout_secs=timeout_secs)
            race.handle(ToolsCalled(0), 1.0)
            assert race.wake_at == 4.0
            assert race.handle(TimerFired(), 4.0) == (Cancel(0, "stall"),)
            assert race.attempts[0].outcome == "won"

    def test_a_late_end_of_a_short_answer_is_no_stall(self) -> None:
        """An answer that wins by ending is over, however long its last token is ago."""
        slots = [Slot(name, stall_secs=3.0) for name in "ab"]
        rule = rule_of(HedgePolicy.fallback())
        race = Race(slots, rule, max_attempts=1, commit_on="first_sentence")
        race.handle(TurnStarted(), 0.0)
        race.handle(UsableToken(0), 1.0)
        assert race.handle(AttemptFinished(0), 9.0) == (Commit(0, "whole_answer"),)
        assert race.phase is Phase.OVER
        assert race.attempts[0].speakable_at == 9.0


@pytest.mark.parametrize(
    ("policy", "wake_at"),
    [
        (HedgePolicy.race(2), None),
        (HedgePolicy.after(0.6), 10.6),
        (HedgePolicy.after(None), None),
        (HedgePolicy.after(0.6, max_attempts=1), None),
        (HedgePolicy.fallback(), None),
    ],
)
def test_it_asks_to_be_woken_only_when_time_alone_decides(
    policy: HedgePolicy, wake_at: float | None
) -> None:
    """``wake_at`` is when the next attempt is due, and None when nothing is."""
    race = Race([Slot("a"), Slot("b")], rule_of(policy), max_attempts=policy.max_attempts)
    race.handle(TurnStarted(), 10.0)
    assert race.wake_at == wake_at


@pytest.mark.parametrize(
    ("policy", "planned"),
    [
        (HedgePolicy.after(0.6), InFlight("b", 10.6, None)),
        (HedgePolicy.after(None), InFlight("b", 13.0, None)),
        (HedgePolicy.race(2), None),
        (HedgePolicy.after(0.6, max_attempts=1), None),
    ],
)
def test_it_tells_whom_it_will_ask_next(policy: HedgePolicy, planned: InFlight | None) -> None:
    """A hedge or the replacement of a silent one, if nothing happens before; none at the end."""
    slots = [Slot("a", stall_secs=3.0), Slot("b", stall_secs=3.0)]
    race = Race(slots, rule_of(policy), max_attempts=policy.max_attempts)
    race.handle(TurnStarted(), 10.0)
    assert race.planned == planned
    race.handle(UsableToken(0), 10.1)
    race.handle(AttemptFinished(0), 10.2)
    assert race.planned is None


class Doubtful:
    """Would hedge at 9 s, and may know better every half second."""

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        if waiting.now >= 1.0:
            return LaunchDecision(waiting.now, "it has turned slow")
        return LaunchDecision(9.0, "saves little", ask_again_at=waiting.now + 0.5)


def test_a_rule_is_asked_again_when_it_wants_to_be() -> None:
    """What it says then holds; until then what is planned is the later time."""
    race = Race([Slot(name, stall_secs=3.0) for name in "ab"], Doubtful(), max_attempts=2)
    race.handle(TurnStarted(), 0.0)
    assert race.wake_at == 0.5
    assert race.planned == InFlight("b", 9.0, None)
    assert race.handle(TimerFired(), 0.5) == ()
    assert race.wake_at == 1.0
    assert race.handle(TimerFired(), 1.0) == (Launch(1, "b", "hedge", "it has turned slow"),)


def test_nobody_relies_on_who_is_only_tried() -> None:
    """It is a hedge in its turn, and stands in for another when there is nobody else at all."""
    slots = [Slot(name) for name in "abc"]
    rule = rule_of(HedgePolicy.after(0.6))
    race = Race(slots, rule, max_attempts=3, probe="b")
    race.handle(HedgeEligibilityChanged({"b": "is busy", "c": "is busy"}), 0.0)
    race.handle(TurnStarted(), 0.0)
    assert race.handle(AttemptFailed(0, REFUSED), 0.1) == (Launch(1, "c", "failure"),)
    assert race.handle(AttemptFailed(1, REFUSED), 0.2) == (Launch(2, "b", "failure"),)
    race = Race(slots, rule, max_attempts=3, probe="b")
    race.handle(TurnStarted(), 0.0)
    assert race.handle(TimerFired(), 0.6) == (Launch(1, "b", "hedge"),)


NO_ROOM = AttemptError(SHED, "no room within 1 s")


def test_what_found_no_room_costs_nothing_beside_others() -> None:
    """It was never a request: it is tried again, as often as there is none, by the same rules."""
    slots = [Slot(name, stall_secs=3.0, timeout_secs=30.0) for name in "ab"]
    race = Race(slots, rule_of(HedgePolicy.fallback(max_attempts=2)), max_attempts=2)
    race.handle(TurnStarted(), 0.0)
    race.handle(AttemptOpened(0), 0.0)
    assert race.handle(TimerFired(), 3.0) == (Launch(1, "b", "stall"),)
    assert race.handle(AttemptFailed(1, NO_ROOM), 4.0) == ()
    assert race.wake_at == 5.0
    assert race.handle(TimerFired(), 5.0) == (Launch(2, "b", "stall"),)
    assert race.handle(AttemptFailed(2, NO_ROOM), 5.0) == (), "at once: the second is kept"
    assert race.handle(TimerFired(), 5.9) == ()
    assert race.handle(TimerFired(), 6.0) == (Launch(3, "b", "stall"),)
    assert race.handle(UsableToken(3), 6.5) == (
        Commit(3, "first_token"),
        Cancel(0, "superseded"),
    )


def test_who_found_no_room_is_asked_again_at_once_when_nobody_else_is_left() -> None:
    """And once only: without room the turn is over then."""
    slots = [Slot(name, stall_secs=3.0) for name in "ab"]
    race = Race(slots, rule_of(HedgePolicy.after(0.6)), max_attempts=2)
    race.handle(TurnStarted(), 0.0)
    race.handle(AttemptOpened(0), 0.0)
    assert race.handle(TimerFired(), 0.6) == (Launch(1, "b", "hedge"),)
    assert race.handle(AttemptFailed(1, NO_ROOM), 0.7) == ()
    assert race.handle(AttemptFailed(0, REFUSED), 0.8) == (Launch(2, "b", "failure"),)
    told = (("a", REFUSED), ("b", NO_ROOM), ("b", NO_ROOM))
    assert race.handle(AttemptFailed(2, NO_ROOM), 0.9) == (Fail(told),)


def test_a_lonely_request_without_room_is_tried_once_more() -> None:
    """And then the turn is over: so it has an end."""
    race = Race([Slot("a")], rule_of(HedgePolicy.after(0.6)), max_attempts=1)
    race.handle(TurnStarted(), 0.0)
    race.handle(AttemptOpened(0), 0.0)
    assert race.handle(AttemptFailed(0, NO_ROOM), 0.7) == (Launch(1, "a", "failure"),)
    told = (("a", NO_ROOM), ("a", NO_ROOM))
    assert race.handle(AttemptFailed(1, NO_ROOM), 1.7) == (Fail(told),)


def test_those_that_only_wait_for_room_do_not_keep_each_other_waiting() -> None:
    """Nothing is on its way: when each has found none in its time the turn is over."""
    slots = [Slot(name, stall_secs=3.0) for name in "abcde"]
    race = Race(slots, rule_of(HedgePolicy.fallback(max_attempts=3)), max_attempts=3)
    race.handle(TurnStarted(), 0.0)
    race.handle(AttemptOpened(0), 0.0)
    assert race.handle(TimerFired(), 3.0) == (Launch(1, "b", "stall"),)
    assert race.handle(AttemptFailed(0, REFUSED), 3.1) == (Launch(2, "c", "failure"),)
    assert race.handle(AttemptFailed(1, NO_ROOM), 4.0) == ()
    commands = race.handle(AttemptFailed(2, NO_ROOM), 4.1)
    assert commands == (Fail((("a", REFUSED), ("b", NO_ROOM), ("c", NO_ROOM))),)


def test_a_hedge_without_room_is_not_replaced_as_if_somebody_had_failed() -> None:
    """Whether it was sent or not: its turn has another under way, and the rule asks again."""
    for is_sent in (False, True):
        race = Race([Slot(name) for name in "abc"], rule_of(HedgePolicy.after(0.6)), max_attempts=3)
        race.handle(TurnStarted(), 0.0)
        race.handle(AttemptOpened(0), 0.0)
        race.handle(TimerFired(), 0.6)
        if is_sent:
            race.handle(AttemptOpened(1), 0.6)
        assert race.handle(AttemptFailed(1, NO_ROOM), 0.7) == (Launch(2, "c", "hedge"),)
        assert race.attempts[2].reason == "hedge"


def test_a_refused_hedge_says_why_and_when_to_look_again() -> None:
    """The report has the reason, silence is still replaced, and what is planned is who would be."""
    slots = [Slot(name, stall_secs=3.0) for name in "ab"]
    race = Race(slots, rule_of(HedgePolicy.after(0.6)), max_attempts=2)
    race.handle(HedgeEligibilityChanged({"b": "has a queue of 3"}), 0.0)
    race.handle(TurnStarted(), 0.0)
    assert race.wake_at == 0.6
    assert race.handle(TimerFired(), 0.6) == ()
    assert race.launch_reason == "no hedge: b has a queue of 3"
    assert race.wake_at == pytest.approx(0.7)
    assert race.planned == InFlight("b", 3.0, None)
    assert race.handle(TimerFired(), 3.0) == (Launch(1, "b", "stall"),)


def test_once_committed_it_need_not_be_woken() -> None:
    """A winner leaves nothing to wait for."""
    race = Race([Slot("a"), Slot("b")], rule_of(HedgePolicy.after(0.6)), max_attempts=2)
    race.handle(TurnStarted(), 0.0)
    race.handle(UsableToken(0), 0.1)
    assert race.wake_at is None
    assert race.handle(TimerFired(), 0.6) == ()


def test_it_remembers_what_each_attempt_did() -> None:
    """Reports are made from the times that the race was told."""
    race = Race([Slot("a"), Slot("b")], rule_of(HedgePolicy.after(0.6)), max_attempts=2)
    race.handle(TurnStarted(), 10.0)
    race.handle(AttemptOpened(0), 10.01)
    race.handle(TimerFired(), 10.6)
    race.handle(UsableToken(1), 10.7)
    race.handle(SentenceReady(1), 10.8)
    race.handle(UsableToken(1), 10.9)
    race.handle(SentenceReady(1), 11.0)
    race.handle(AttemptFinished(1), 11.5)
    slow, fast = race.attempts
    assert (slow.outcome, slow.opened_at, slow.first_token_at, slow.ended_at) == (
        "superseded",
        10.01,
        None,
        10.7,
    )
    assert (fast.outcome, fast.launched_at, fast.first_token_at) == ("won", 10.6, 10.7)
    assert (fast.speakable_at, fast.last_token_at, fast.ended_at) == (10.8, 10.9, 11.5)
    assert race.winner is fast
    assert race.launch_reason is not None
    assert race.commit_reason == "first_token"
    assert race.started_at == 10.0
    assert race.phase is Phase.OVER


@pytest.mark.parametrize(
    ("before", "event"),
    [
        ([], TimerFired()),
        ([], UsableToken(0)),
        ([TurnStarted()], TurnStarted()),
        ([TurnStarted()], UsableToken(7)),
        ([TurnStarted()], UsableToken(-1)),
        ([TurnStarted(), Interrupted()], TurnStarted()),
    ],
)
def test_what_cannot_happen_is_refused(before: list[Event], event: Event) -> None:
    """A fact without a row in the table is a bug of the driver, and says so."""
    race = Race([Slot("a"), Slot("b")], rule_of(HedgePolicy.race(2)), max_attempts=2)
    for earlier in before:
        race.handle(earlier, 0.0)
    with pytest.raises(IllegalEvent, match=type(event).__name__):
        race.handle(event, 1.0)


class TestRetries:
    """A lineup of which everybody has failed begins anew, as their SDKs would have."""

    BUSY = AttemptError("server", "503", is_transient=True)

    @staticmethod
    def race(*slots: Slot, **options: Any) -> Race:
        race = Race(slots, rule_of(HedgePolicy.fallback(2)), max_attempts=2, **options)
        race.handle(TurnStarted(), 0.0)
        return race

    def test_one_that_fails_in_passing_is_asked_again_after_a_pause(self) -> None:
        """Half a second, then a whole one; then the turn has failed."""
        race = self.race(Slot("a", retries=2))
        assert race.handle(AttemptFailed(0, self.BUSY), 1.0) == ()
        assert race.wake_at == 1.5
        assert race.handle(TimerFired(), 1.4) == ()
        assert race.handle(TimerFired(), 1.5) == (Launch(1, "a", "failure"),)
        assert race.handle(AttemptFailed(1, self.BUSY), 2.0) == ()
        assert race.handle(TimerFired(), 3.0) == (Launch(2, "a", "failure"),)
        errors = (("a", self.BUSY),) * 3
        assert race.handle(AttemptFailed(2, self.BUSY), 4.0) == (Fail(errors),)

    def test_chance_shortens_the_pause(self) -> None:
        """By a quarter at most, so that not everybody comes back at once."""
        race = self.race(Slot("a", retries=2), jitter=1.0)
        race.handle(AttemptFailed(0, self.BUSY), 1.0)
        assert race.wake_at == 1.375

    def test_everybody_else_is_asked_first(self) -> None:
        """In the second round as well, and at once; who has failed for good is not asked again."""
        race = self.race(Slot("a", retries=2), Slot("b", retries=2))
        assert race.handle(AttemptFailed(0, self.BUSY), 0.1) == (Launch(1, "b", "failure"),)
        assert race.handle(AttemptFailed(1, self.BUSY), 0.2) == ()
        assert race.handle(TimerFired(), 0.7) == (Launch(2, "a", "failure"),)
        assert race.handle(AttemptFailed(2, self.BUSY), 0.8) == (Launch(3, "b", "failure"),)
        wrong = AttemptError("authentication", "401", permanent=True)
        assert race.handle(AttemptFailed(3, wrong), 0.9) == ()
        assert race.handle(TimerFired(), 1.9) == (Launch(4, "a", "failure"),)
        assert race.handle(UsableToken(4), 2.5) == (Commit(4, "first_token"),)

    def test_the_pause_that_a_provider_asks_for_is_kept(self) -> None:
        race = self.race(Slot("a", retries=2))
        full = AttemptError("rate_limit", "429", retry_after_secs=2.0, is_transient=True)
        race.handle(AttemptFailed(0, full), 1.0)
        assert race.wake_at == 3.0
        race = self.race(Slot("a", retries=2))
        full = AttemptError("rate_limit", "429", retry_after_secs=90.0, is_transient=True)
        assert race.handle(AttemptFailed(0, full), 1.0) == (Fail((("a", full),)),)

    def test_the_deadline_ends_the_pause(self) -> None:
        race = self.race(Slot("a", retries=2), deadline_secs=1.2)
        race.handle(AttemptFailed(0, self.BUSY), 1.0)
        assert race.wake_at == 1.2
        assert race.handle(TimerFired(), 1.2) == (Fail((("a", self.BUSY),)),)

    def test_a_caller_who_speaks_ends_the_pause(self) -> None:
        race = self.race(Slot("a", retries=2))
        race.handle(AttemptFailed(0, self.BUSY), 1.0)
        race.handle(Interrupted(), 1.2)
        assert race.phase is Phase.OVER
        assert race.wake_at is None
