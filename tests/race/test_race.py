"""The race as tables: events with their times, and the commands that they cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pipecat_hedge.policy import HedgePolicy
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
    """Hedges at 0.6 s, has budget from ``until`` on, and replaces a stalled attempt."""

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
    "after: a provider that refuses hedges is skipped": (
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
    "after: a hedge that no provider takes is rechecked": (
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
    "a deferred hedge is rechecked and sent when there is room": (
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
    "after: a provider that refuses hedges replaces a failure": (
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
    "race: the first provider is used even if it refuses hedges": (
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
    "a blank answer is replaced": (
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
    "a blank answer waits for the others": (
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
    "the slots bound the requests though attempts are left": (
        HedgePolicy.race(5),
        "a",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, AttemptFailed(0, OVERLOADED), [Fail((("a", OVERLOADED),))]),
        ],
    ),
    "a provider listed twice may be used twice": (
        HedgePolicy.after(0.5),
        "aa",
        [(0.0, TurnStarted(), [A_PRIMARY]), (0.5, TimerFired(), [Launch(1, "a", "hedge")])],
    ),
    "no provider": (HedgePolicy.race(2), "", [(0.0, TurnStarted(), [Fail(())])]),
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
    "a permanent failure excludes its provider from the turn": (
        HedgePolicy.fallback(max_attempts=4),
        "aab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, AttemptFailed(0, REJECTED), [B_FAILURE]),
        ],
    ),
    "Retry-After excludes its provider from the turn": (
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
def test_each_event_causes_exactly_its_commands(
    policy: HedgePolicy, candidates: str, happenings: list[Happening]
) -> None:
    race = Race(
        [Slot(name) for name in candidates], rule_of(policy), max_attempts=policy.max_attempts
    )
    for now, event, commands in happenings:
        assert list(race.handle(event, now)) == list(commands), f"{event} at {now}"


@pytest.mark.parametrize(
    ("policy", "candidates", "happenings"), SENTENCE_SCENARIOS.values(), ids=SENTENCE_SCENARIOS
)
def test_first_sentence_commit_waits_for_a_sentence(
    policy: HedgePolicy, candidates: str, happenings: list[Happening]
) -> None:
    race = Race(
        [Slot(name) for name in candidates],
        rule_of(policy),
        max_attempts=policy.max_attempts,
        commit_on="first_sentence",
    )
    for now, event, commands in happenings:
        assert list(race.handle(event, now)) == list(commands), f"{event} at {now}"


class TestSilence:
    """Transitions caused by time alone."""

    @staticmethod
    def race(policy: HedgePolicy, candidates: str = "ab", **options: Any) -> Race:
        deadline_secs = options.pop("deadline_secs", None)
        slots = [Slot(name, **options) for name in candidates]
        race = Race(
            slots, rule_of(policy), max_attempts=policy.max_attempts, deadline_secs=deadline_secs
        )
        race.handle(TurnStarted(), 0.0)
        return race

    def test_fallback_replaces_a_stalled_first_attempt(self) -> None:
        race = self.race(HedgePolicy.fallback(), stall_secs=3.0)
        assert race.wake_at == 3.0
        assert race.handle(TimerFired(), 3.0) == (Launch(1, "b", "stall"),)
        commands = race.handle(UsableToken(0), 3.5)
        assert commands == (Commit(0, "first_token"), Cancel(1, "superseded"))

    def test_named_hedge_time_replaces_the_stall_limit(self) -> None:
        race = self.race(HedgePolicy.after(5.0), stall_secs=3.0)
        assert race.wake_at == 5.0
        assert race.handle(TimerFired(), 3.0) == ()

    def test_stalled_committed_answer_is_continued(self) -> None:
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

    def test_stalled_answer_is_kept_without_further_attempts(self) -> None:
        """Only its timeout ends it."""
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

    def test_last_continuation_is_kept_when_it_stalls(self) -> None:
        race = self.race(HedgePolicy.fallback(2), stall_secs=3.0, timeout_secs=30.0)
        race.handle(UsableToken(0), 1.0)
        assert race.handle(TimerFired(), 4.0)[-1] == Launch(1, "b", "stall")
        assert race.handle(TimerFired(), 7.0) == ()
        assert race.wake_at == 34.0
        assert race.handle(UsableToken(1), 33.0) == (Continue(1),)

    def test_earlier_continuation_may_win_after_a_later_launch(self) -> None:
        race = self.race(HedgePolicy.fallback(3), "abc", stall_secs=3.0, timeout_secs=30.0)
        race.handle(UsableToken(0), 1.0)
        race.handle(TimerFired(), 4.0)
        assert race.handle(TimerFired(), 7.0) == (Launch(2, "c", "stall"),)
        assert race.handle(UsableToken(1), 12.0) == (Continue(1), Cancel(2, "superseded"))

    def test_last_attempt_may_answer_late(self) -> None:
        race = self.race(HedgePolicy.race(1), stall_secs=3.0, timeout_secs=30.0)
        assert race.wake_at == 30.0
        assert race.handle(UsableToken(0), 20.0) == (Commit(0, "first_token"),)

    def test_silent_attempt_is_replaced_at_its_timeout(self) -> None:
        race = self.race(HedgePolicy.race(2), "abc", timeout_secs=10.0)
        assert race.wake_at == 10.0
        commands = race.handle(TimerFired(), 10.0)
        errors = (("a", TIMED_OUT), ("b", TIMED_OUT))
        assert commands == (Cancel(0, "stall"), Cancel(1, "stall"), Fail(errors))

    def test_deadline_fails_a_turn_without_answer(self) -> None:
        race = self.race(HedgePolicy.race(1), deadline_secs=4.0, timeout_secs=10.0)
        assert race.wake_at == 4.0
        errors = (("a", MISSED_DEADLINE),)
        assert race.handle(TimerFired(), 4.0) == (Cancel(0, "deadline"), Fail(errors))

    def test_deadline_does_not_cut_a_committed_answer(self) -> None:
        race = self.race(HedgePolicy.race(1), deadline_secs=4.0)
        race.handle(UsableToken(0), 3.9)
        assert race.wake_at is None
        assert race.handle(TimerFired(), 5.0) == ()

    def test_stalled_answer_with_tool_calls_is_complete(self) -> None:
        race = self.race(HedgePolicy.fallback(), stall_secs=3.0)
        race.handle(ToolsCalled(0), 1.0)
        assert race.handle(TimerFired(), 4.0) == (Cancel(0, "stall"),)
        assert race.phase is Phase.OVER
        assert race.attempts[0].outcome == "won"

    def test_tool_call_completes_without_further_attempts(self) -> None:
        for stall_secs, timeout_secs in ((3.0, 30.0), (None, 3.0)):
            policy = HedgePolicy.race(1)
            race = self.race(policy, stall_secs=stall_secs, timeout_secs=timeout_secs)
            race.handle(ToolsCalled(0), 1.0)
            assert race.wake_at == 4.0
            assert race.handle(TimerFired(), 4.0) == (Cancel(0, "stall"),)
            assert race.attempts[0].outcome == "won"

    def test_late_end_of_a_short_answer_is_no_stall(self) -> None:
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
def test_wake_at_is_set_only_while_time_decides(policy: HedgePolicy, wake_at: float | None) -> None:
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
def test_planned_names_the_next_attempt(policy: HedgePolicy, planned: InFlight | None) -> None:
    slots = [Slot("a", stall_secs=3.0), Slot("b", stall_secs=3.0)]
    race = Race(slots, rule_of(policy), max_attempts=policy.max_attempts)
    race.handle(TurnStarted(), 10.0)
    assert race.planned == planned
    race.handle(UsableToken(0), 10.1)
    race.handle(AttemptFinished(0), 10.2)
    assert race.planned is None


class Doubtful:
    """Hedges at 9 s and may decide anew every half second."""

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        if waiting.now >= 1.0:
            return LaunchDecision(waiting.now, "it has turned slow")
        return LaunchDecision(9.0, "saves little", ask_again_at=waiting.now + 0.5)


def test_rule_is_consulted_again_at_its_time() -> None:
    race = Race([Slot(name, stall_secs=3.0) for name in "ab"], Doubtful(), max_attempts=2)
    race.handle(TurnStarted(), 0.0)
    assert race.wake_at == 0.5
    assert race.planned == InFlight("b", 9.0, None)
    assert race.handle(TimerFired(), 0.5) == ()
    assert race.wake_at == 1.0
    assert race.handle(TimerFired(), 1.0) == (Launch(1, "b", "hedge", "it has turned slow"),)


def test_probed_provider_is_used_last_for_replacements() -> None:
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


def test_rejected_attempt_does_not_count_against_the_maximum() -> None:
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


def test_rejected_attempt_is_retried_at_once_when_alone() -> None:
    slots = [Slot(name, stall_secs=3.0) for name in "ab"]
    race = Race(slots, rule_of(HedgePolicy.after(0.6)), max_attempts=2)
    race.handle(TurnStarted(), 0.0)
    race.handle(AttemptOpened(0), 0.0)
    assert race.handle(TimerFired(), 0.6) == (Launch(1, "b", "hedge"),)
    assert race.handle(AttemptFailed(1, NO_ROOM), 0.7) == ()
    assert race.handle(AttemptFailed(0, REFUSED), 0.8) == (Launch(2, "b", "failure"),)
    expected = (("a", REFUSED), ("b", NO_ROOM), ("b", NO_ROOM))
    assert race.handle(AttemptFailed(2, NO_ROOM), 0.9) == (Fail(expected),)


def test_lone_rejected_request_is_retried_once() -> None:
    race = Race([Slot("a")], rule_of(HedgePolicy.after(0.6)), max_attempts=1)
    race.handle(TurnStarted(), 0.0)
    race.handle(AttemptOpened(0), 0.0)
    assert race.handle(AttemptFailed(0, NO_ROOM), 0.7) == (Launch(1, "a", "failure"),)
    expected = (("a", NO_ROOM), ("a", NO_ROOM))
    assert race.handle(AttemptFailed(1, NO_ROOM), 1.7) == (Fail(expected),)


def test_attempts_without_permit_do_not_keep_the_turn_open() -> None:
    slots = [Slot(name, stall_secs=3.0) for name in "abcde"]
    race = Race(slots, rule_of(HedgePolicy.fallback(max_attempts=3)), max_attempts=3)
    race.handle(TurnStarted(), 0.0)
    race.handle(AttemptOpened(0), 0.0)
    assert race.handle(TimerFired(), 3.0) == (Launch(1, "b", "stall"),)
    assert race.handle(AttemptFailed(0, REFUSED), 3.1) == (Launch(2, "c", "failure"),)
    assert race.handle(AttemptFailed(1, NO_ROOM), 4.0) == ()
    commands = race.handle(AttemptFailed(2, NO_ROOM), 4.1)
    assert commands == (Fail((("a", REFUSED), ("b", NO_ROOM), ("c", NO_ROOM))),)


def test_rejected_hedge_is_not_replaced() -> None:
    for is_sent in (False, True):
        race = Race([Slot(name) for name in "abc"], rule_of(HedgePolicy.after(0.6)), max_attempts=3)
        race.handle(TurnStarted(), 0.0)
        race.handle(AttemptOpened(0), 0.0)
        race.handle(TimerFired(), 0.6)
        if is_sent:
            race.handle(AttemptOpened(1), 0.6)
        assert race.handle(AttemptFailed(1, NO_ROOM), 0.7) == (Launch(2, "c", "hedge"),)
        assert race.attempts[2].reason == "hedge"


def test_refused_hedge_reports_its_reason_and_is_rechecked() -> None:
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


def test_committed_race_needs_no_timer() -> None:
    race = Race([Slot("a"), Slot("b")], rule_of(HedgePolicy.after(0.6)), max_attempts=2)
    race.handle(TurnStarted(), 0.0)
    race.handle(UsableToken(0), 0.1)
    assert race.wake_at is None
    assert race.handle(TimerFired(), 0.6) == ()


def test_attempts_record_their_times() -> None:
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
def test_impossible_event_raises_illegal_event(before: list[Event], event: Event) -> None:
    race = Race([Slot("a"), Slot("b")], rule_of(HedgePolicy.race(2)), max_attempts=2)
    for earlier in before:
        race.handle(earlier, 0.0)
    with pytest.raises(IllegalEvent, match=type(event).__name__):
        race.handle(event, 1.0)


class TestRetries:
    """When all have failed, transient failures are retried like the SDKs do."""

    BUSY = AttemptError("server", "503", is_transient=True)

    @staticmethod
    def race(*slots: Slot, **options: Any) -> Race:
        race = Race(slots, rule_of(HedgePolicy.fallback(2)), max_attempts=2, **options)
        race.handle(TurnStarted(), 0.0)
        return race

    def test_transient_failure_is_retried_after_a_pause(self) -> None:
        race = self.race(Slot("a", retries=2))
        assert race.handle(AttemptFailed(0, self.BUSY), 1.0) == ()
        assert race.wake_at == 1.5
        assert race.handle(TimerFired(), 1.4) == ()
        assert race.handle(TimerFired(), 1.5) == (Launch(1, "a", "failure"),)
        assert race.handle(AttemptFailed(1, self.BUSY), 2.0) == ()
        assert race.handle(TimerFired(), 3.0) == (Launch(2, "a", "failure"),)
        errors = (("a", self.BUSY),) * 3
        assert race.handle(AttemptFailed(2, self.BUSY), 4.0) == (Fail(errors),)

    def test_jitter_shortens_the_pause_by_a_quarter_at_most(self) -> None:
        race = self.race(Slot("a", retries=2), jitter=1.0)
        race.handle(AttemptFailed(0, self.BUSY), 1.0)
        assert race.wake_at == 1.375

    def test_retries_wait_until_all_others_have_failed(self) -> None:
        race = self.race(Slot("a", retries=2), Slot("b", retries=2))
        assert race.handle(AttemptFailed(0, self.BUSY), 0.1) == (Launch(1, "b", "failure"),)
        assert race.handle(AttemptFailed(1, self.BUSY), 0.2) == ()
        assert race.handle(TimerFired(), 0.7) == (Launch(2, "a", "failure"),)
        assert race.handle(AttemptFailed(2, self.BUSY), 0.8) == (Launch(3, "b", "failure"),)
        wrong = AttemptError("authentication", "401", permanent=True)
        assert race.handle(AttemptFailed(3, wrong), 0.9) == ()
        assert race.handle(TimerFired(), 1.9) == (Launch(4, "a", "failure"),)
        assert race.handle(UsableToken(4), 2.5) == (Commit(4, "first_token"),)

    def test_retry_waits_for_retry_after(self) -> None:
        race = self.race(Slot("a", retries=2))
        full = AttemptError("rate_limit", "429", retry_after_secs=2.0, is_transient=True)
        race.handle(AttemptFailed(0, full), 1.0)
        assert race.wake_at == 3.0
        race = self.race(Slot("a", retries=2))
        full = AttemptError("rate_limit", "429", retry_after_secs=90.0, is_transient=True)
        assert race.handle(AttemptFailed(0, full), 1.0) == (Fail((("a", full),)),)

    def test_deadline_ends_a_retry_pause(self) -> None:
        race = self.race(Slot("a", retries=2), deadline_secs=1.2)
        race.handle(AttemptFailed(0, self.BUSY), 1.0)
        assert race.wake_at == 1.2
        assert race.handle(TimerFired(), 1.2) == (Fail((("a", self.BUSY),)),)

    def test_interruption_ends_a_retry_pause(self) -> None:
        race = self.race(Slot("a", retries=2))
        race.handle(AttemptFailed(0, self.BUSY), 1.0)
        race.handle(Interrupted(), 1.2)
        assert race.phase is Phase.OVER
        assert race.wake_at is None
