"""The race as tables: events with their times, and the commands that they cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

import pytest

from pipecat_hedge.policy import HedgePolicy
from pipecat_hedge.race import (
    AttemptError,
    InFlight,
    Launch,
    LaunchDecision,
    Race,
    Slot,
    Waiting,
)
from pipecat_hedge.race.attempt import STALLED, TIMED_OUT
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
    LaunchRule,
    Progressed,
    SentenceReady,
    StreamBroken,
    TimerFired,
    ToolsCalled,
    TurnConfirmed,
    TurnStarted,
    UsableToken,
)

NOT_CONNECTED = AttemptError("connectivity", "connection refused")
UNWANTED = AttemptError("invalid_request", "400", permanent=True, is_of_prompt=True)
REJECTED = AttemptError("authentication", "no such key", permanent=True)
TRANSIENT = AttemptError("server", "503", is_transient=True)
FULL = HedgeEligibilityChanged({}, full=frozenset("b"))

PRIMARY = Launch(0, "a", "primary")
HEDGE = Launch(1, "b", "hedge")
REPLACEMENT = Launch(1, "b", "failure")
SILENCE = Launch(1, "b", "silence")
STALL = Launch(1, "b", "stall")
B_BUSY = HedgeEligibilityChanged({"b": "has a queue of 3"})

FAILED = Fail((("a", TRANSIENT), ("c", UNWANTED)))

Step: TypeAlias = tuple[float, Event, *tuple[Command, ...]]
"""When an event comes, the event, and the commands that it causes."""


@dataclass(frozen=True)
class Setup:
    """A race and what it launches when the turn starts."""

    policy: HedgePolicy
    candidates: str = "ab"
    commit_on: CommitOn = "first_token"
    stall_secs: float | None = None
    timeout_secs: float | None = None
    late_secs: float = 0.0
    retries: int = 0
    deadline_secs: float | None = None
    jitter: float = 0.0
    is_speculative: bool = False
    rejection_secs: float | None = None
    starts: Sequence[Command] = (PRIMARY,)

    def race(self) -> Race:
        """A race that has not started; these policies need no statistics."""
        rule = cast("LaunchRule", self.policy.rule)
        return Race(
            [
                Slot(
                    name,
                    self.stall_secs,
                    self.stall_secs,
                    self.timeout_secs,
                    self.late_secs,
                    self.retries,
                )
                for name in self.candidates
            ],
            rule,
            max_attempts=self.policy.max_attempts,
            commit_on=self.commit_on,
            deadline_secs=self.deadline_secs,
            jitter=self.jitter,
            is_speculative=self.is_speculative,
            rejection_secs=self.rejection_secs,
        )

    def play(self, *steps: Step) -> Race:
        """Play some steps. A timer that causes something must have been asked for."""
        race = self.race()
        for now, event, *commands in ((0.0, TurnStarted(), *self.starts), *steps):
            wake_at = race.wake_at
            assert list(race.handle(event, now)) == commands, f"{event} at {now}"
            if commands and isinstance(event, TimerFired):
                assert wake_at is not None
                assert wake_at <= now
        return race


@dataclass(frozen=True)
class PutOff:
    """Hedges at 0.6 s, has budget from ``until`` on."""

    until: float

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        if waiting.now < 0.6 or waiting.now >= self.until:
            return LaunchDecision(0.6, "saves 2 s")
        return LaunchDecision(None, "put off", is_put_off=True)


RACE = Setup(HedgePolicy.race(2), starts=(PRIMARY, HEDGE))
AFTER = Setup(HedgePolicy.after(0.6))
FALLBACK = Setup(HedgePolicy.fallback())
THREE = Setup(HedgePolicy.fallback(3), "abc")
BY_SENTENCE = replace(FALLBACK, commit_on="first_sentence")
IMPATIENT = replace(FALLBACK, stall_secs=3.0)
OF_THREE = Setup(HedgePolicy.after(0.6, max_attempts=3), "abc")
RETRYING = replace(FALLBACK, candidates="a", retries=2)
REJECTING = replace(RACE, stall_secs=3.0, rejection_secs=0.0)
LAST = Setup(HedgePolicy.race(1), stall_secs=3.0, timeout_secs=30.0)

SCENARIOS: dict[str, tuple[Setup, *tuple[Step, ...]]] = {
    # ---- which attempt wins
    "an empty answer waits for the others": (
        RACE,
        (0.1, AttemptFinished(0)),
        (2.0, UsableToken(1), Commit(1, "first_token")),
    ),
    "two empty answers are meant": (
        THREE,
        (0.1, AttemptFinished(0), REPLACEMENT),
        (0.2, AttemptFinished(1), Commit(1, "silence")),
    ),
    "so is the only one": (
        replace(RACE, candidates="a", starts=(PRIMARY,)),
        (0.1, AttemptFinished(0), Commit(0, "silence")),
    ),
    "so is one whose replacement fails": (
        FALLBACK,
        (0.1, AttemptFinished(0), REPLACEMENT),
        (0.2, AttemptFailed(1, NOT_CONNECTED), Commit(0, "silence")),
    ),
    "a sentence commits, a token does not": (
        replace(AFTER, commit_on="first_sentence"),
        (0.5, UsableToken(0)),
        (0.6, TimerFired()),
        (1.1, TimerFired(), HEDGE),
        (1.5, UsableToken(1)),
        (1.6, SentenceReady(1), Commit(1, "first_sentence"), Cancel(0, "superseded")),
    ),
    "a complete tool call commits at once": (
        replace(RACE, commit_on="first_sentence"),
        (0.1, UsableToken(1)),
        (0.2, ToolsCalled(0), Commit(0, "tool_call"), Cancel(1, "superseded")),
    ),
    # ---- when to launch
    "a further hedge counts from the launch before": (
        Setup(HedgePolicy.after(1.0, max_attempts=3), "abc"),
        (1.0, TimerFired(), HEDGE),
        (1.5, TimerFired()),
        (2.0, TimerFired(), Launch(2, "c", "hedge")),
    ),
    "a hedge that no provider takes is rechecked": (
        AFTER,
        (0.6, B_BUSY),
        (0.6, TimerFired()),
        (0.7, HedgeEligibilityChanged({})),
        (0.8, TimerFired(), HEDGE),
    ),
    # ---- how a turn ends
    "no provider fails the turn": (replace(RACE, candidates="", starts=(Fail(()),)),),
    "a deadline does not cut a committed answer": (
        replace(FALLBACK, deadline_secs=4.0),
        (3.9, UsableToken(0), Commit(0, "first_token")),
        (5.0, TimerFired()),
    ),
    # ---- a committed answer that breaks off
    "a broken answer without further attempts fails": (
        Setup(HedgePolicy.race(1), "abc"),
        (0.1, UsableToken(0), Commit(0, "first_token")),
        (0.2, AttemptFailed(0, NOT_CONNECTED), StreamBroken(0), Fail((("a", NOT_CONNECTED),))),
    ),
    "an attempt that has lost takes none from the rescue": (
        Setup(HedgePolicy.race(2), "abc", starts=(PRIMARY, HEDGE)),
        (0.1, UsableToken(0), Commit(0, "first_token"), Cancel(1, "superseded")),
        (0.2, AttemptFailed(0, NOT_CONNECTED), StreamBroken(0), Launch(2, "c", "failure")),
    ),
    "its provider continues the answer if it is the only other one": (
        RACE,
        (0.1, UsableToken(0), Commit(0, "first_token"), Cancel(1, "superseded")),
        (0.2, AttemptFailed(0, NOT_CONNECTED), StreamBroken(0), Launch(2, "b", "failure")),
        (0.5, UsableToken(2), Continue(2)),
        (
            *(0.6, AttemptFailed(2, NOT_CONNECTED), StreamBroken(2)),
            Fail((("a", NOT_CONNECTED), ("b", NOT_CONNECTED))),
        ),
    ),
    "a pause in an answer is waited for beside one that has lost": (
        replace(RACE, stall_secs=3.0),
        (0.1, UsableToken(0), Commit(0, "first_token"), Cancel(1, "superseded")),
        (3.1, TimerFired(), Launch(2, "b", "stall")),
        (5.0, UsableToken(0), Cancel(2, "superseded")),
        (8.0, TimerFired()),  # once each, however often the answer pauses
        (30.0, AttemptFinished(0)),
    ),
    "a silent answer is continued by the first to go on": (
        IMPATIENT,
        (1.0, UsableToken(0), Commit(0, "first_token")),
        (4.0, TimerFired(), STALL),
        (4.5, UsableToken(1), Cancel(0, "stall"), StreamBroken(0), Continue(1)),
    ),
    "its own next word needs no whole sentence": (
        replace(IMPATIENT, commit_on="first_sentence"),
        (1.0, UsableToken(0)),
        (1.1, SentenceReady(0), Commit(0, "first_sentence")),
        (4.1, TimerFired(), STALL),
        (4.5, UsableToken(1)),
        (4.6, UsableToken(0), Cancel(1, "superseded")),
        (5.0, AttemptFinished(0)),
    ),
    "it may end while another is asked": (
        IMPATIENT,
        (1.0, UsableToken(0), Commit(0, "first_token")),
        (4.0, TimerFired(), STALL),
        (4.5, AttemptFinished(0), Cancel(1, "superseded")),
    ),
    "it may break off while another is asked": (
        IMPATIENT,
        (1.0, UsableToken(0), Commit(0, "first_token")),
        (4.0, TimerFired(), STALL),
        (4.5, AttemptFailed(0, NOT_CONNECTED), StreamBroken(0)),
        (5.0, UsableToken(1), Continue(1)),
    ),
    "after a pause that was waited for it may still break off": (
        IMPATIENT,
        (1.0, UsableToken(0), Commit(0, "first_token")),
        (4.0, TimerFired(), STALL),
        (4.5, UsableToken(0), Cancel(1, "superseded")),
        (5.0, AttemptFailed(0, NOT_CONNECTED), StreamBroken(0), Launch(2, "b", "failure")),
        (5.5, UsableToken(2), Continue(2)),
    ),
    "when the other fails it is waited for as long as another would be": (
        IMPATIENT,
        (1.0, UsableToken(0), Commit(0, "first_token")),
        (4.0, TimerFired(), STALL),
        (4.5, AttemptFailed(1, NOT_CONNECTED)),
        (6.9, TimerFired()),
        (6.9, UsableToken(0)),
        (9.8, TimerFired()),
        (9.9, AttemptFinished(0)),
    ),
    "and then ends": (
        IMPATIENT,
        (1.0, UsableToken(0), Commit(0, "first_token")),
        (4.0, TimerFired(), STALL),
        (4.5, AttemptFailed(1, NOT_CONNECTED)),
        (
            *(13.0, TimerFired(), Cancel(0, "stall"), StreamBroken(0)),
            Fail((("a", STALLED), ("b", NOT_CONNECTED))),
        ),
    ),
    "so it does when both are silent": (
        IMPATIENT,
        (1.0, UsableToken(0), Commit(0, "first_token")),
        (4.0, TimerFired(), STALL),
        (
            *(13.0, TimerFired(), Cancel(0, "stall"), StreamBroken(0), Cancel(1, "stall")),
            Fail((("a", STALLED), ("b", TIMED_OUT))),
        ),
    ),
    "an answer whose end is marked is whole though its stream stays open": (
        IMPATIENT,
        (1.0, UsableToken(0), Commit(0, "first_token")),
        (4.0, Progressed(0, 1.2, is_whole=True)),
        (4.2, TimerFired(), Cancel(0, "stall")),
    ),
    "one that is not committed yet has not failed by that": (
        replace(IMPATIENT, commit_on="first_sentence"),
        (1.0, UsableToken(0)),
        (4.0, Progressed(0, 1.2, is_whole=True)),
        (4.2, TimerFired(), SILENCE),
        (9.0, AttemptFinished(0), Commit(0, "whole_answer"), Cancel(1, "superseded")),
    ),
    # ---- silence
    "a stalled first attempt gets company and may still win": (
        IMPATIENT,
        (3.0, TimerFired(), SILENCE),
        (3.5, UsableToken(0), Commit(0, "first_token"), Cancel(1, "superseded")),
    ),
    "a stalled answer is kept without further attempts": (
        LAST,
        (1.0, UsableToken(0), Commit(0, "first_token")),
        (4.0, TimerFired()),
        (20.0, UsableToken(0)),
        (49.9, TimerFired()),
        (50.0, TimerFired(), Cancel(0, "stall"), StreamBroken(0), Fail((("a", TIMED_OUT),))),
    ),
    "a broken answer ends when its last continuation is silent": (
        replace(IMPATIENT, timeout_secs=30.0),
        (1.0, UsableToken(0), Commit(0, "first_token")),
        (1.5, AttemptFailed(0, NOT_CONNECTED), StreamBroken(0), REPLACEMENT),
        (4.4, TimerFired()),
        (4.5, TimerFired(), Cancel(1, "stall"), Fail((("a", NOT_CONNECTED), ("b", TIMED_OUT)))),
    ),
    "so it does without a stall limit": (
        FALLBACK,
        (1.0, UsableToken(0), Commit(0, "first_token")),
        (1.5, AttemptFailed(0, NOT_CONNECTED), StreamBroken(0), REPLACEMENT),
        (4.5, TimerFired(), Cancel(1, "stall"), Fail((("a", NOT_CONNECTED), ("b", TIMED_OUT)))),
    ),
    "but not while its continuation makes progress": (
        IMPATIENT,
        (1.0, UsableToken(0), Commit(0, "first_token")),
        (1.5, AttemptFailed(0, NOT_CONNECTED), StreamBroken(0), REPLACEMENT),
        (4.5, Progressed(1, 4.0)),
        (4.5, TimerFired()),
        (6.9, UsableToken(1), Continue(1)),
    ),
    "an earlier continuation may win after a later launch": (
        replace(THREE, stall_secs=3.0, timeout_secs=30.0),
        (1.0, UsableToken(0), Commit(0, "first_token")),
        (4.0, TimerFired(), STALL),
        (7.0, TimerFired(), Launch(2, "c", "stall")),
        (
            *(9.0, UsableToken(1), Cancel(0, "stall"), StreamBroken(0), Continue(1)),
            Cancel(2, "superseded"),
        ),
    ),
    "a stalled answer with tool calls is complete": (
        IMPATIENT,
        (1.0, ToolsCalled(0), Commit(0, "tool_call")),
        (4.0, TimerFired(), Cancel(0, "stall")),
    ),
    "so is the last attempt's after its stall limit": (
        LAST,
        (1.0, ToolsCalled(0), Commit(0, "tool_call")),
        (4.0, TimerFired(), Cancel(0, "stall")),
    ),
    "so is the last attempt's after its timeout": (
        replace(LAST, stall_secs=None, timeout_secs=3.0),
        (1.0, ToolsCalled(0), Commit(0, "tool_call")),
        (4.0, TimerFired(), Cancel(0, "stall")),
    ),
    "the late end of a short answer is no stall": (
        replace(LAST, commit_on="first_sentence"),
        (1.0, UsableToken(0)),
        (9.0, AttemptFinished(0), Commit(0, "whole_answer")),
    ),
    # ---- a turn that sheds, without room
    "a hedge waits for room": (
        AFTER,
        (0.1, FULL),
        (0.6, TimerFired()),
        (0.7, HedgeEligibilityChanged({})),
        (0.7, TimerFired(), HEDGE),
    ),
    "a failure without room ends the turn": (
        AFTER,
        (0.1, FULL),
        (0.3, AttemptFailed(0, NOT_CONNECTED), Fail((("a", NOT_CONNECTED),))),
    ),
    "a failure is replaced where there is room": (
        OF_THREE,
        (0.1, FULL),
        (0.3, AttemptFailed(0, NOT_CONNECTED), Launch(1, "c", "failure")),
    ),
    "a request is repeated without room": (
        RETRYING,
        (0.1, HedgeEligibilityChanged({}, full=frozenset("a"))),
        (1.0, AttemptFailed(0, TRANSIENT)),
        (1.5, TimerFired(), Launch(1, "a", "failure")),
    ),
    # ---- when all have failed, transient failures are retried as the SDKs do
    "transient failures are retried after growing pauses": (
        RETRYING,
        (1.0, AttemptFailed(0, TRANSIENT)),
        (1.4, TimerFired()),
        (1.5, TimerFired(), Launch(1, "a", "failure")),
        (2.0, AttemptFailed(1, TRANSIENT)),
        (2.9, TimerFired()),
        (3.0, TimerFired(), Launch(2, "a", "failure")),
        (4.0, AttemptFailed(2, TRANSIENT), Fail((("a", TRANSIENT),) * 3)),
    ),
    "retries wait until all others have failed": (
        replace(FALLBACK, retries=2),
        (0.1, AttemptFailed(0, TRANSIENT), REPLACEMENT),
        (0.2, AttemptFailed(1, TRANSIENT)),
        (0.7, TimerFired(), Launch(2, "a", "failure")),
        (0.8, AttemptFailed(2, TRANSIENT), Launch(3, "b", "failure")),
        (0.9, AttemptFailed(3, REJECTED)),
        (1.9, TimerFired(), Launch(4, "a", "failure")),
        (2.5, UsableToken(4), Commit(4, "first_token")),
    ),
    "a deadline ends a retry's pause": (
        replace(RETRYING, deadline_secs=1.2),
        (1.0, AttemptFailed(0, TRANSIENT)),
        (1.2, TimerFired(), Fail((("a", TRANSIENT),))),
    ),
    # ---- providers ineligible for hedges
    "a provider ineligible for hedges is skipped": (
        replace(AFTER, candidates="abc"),
        (0.1, B_BUSY),
        (0.6, TimerFired(), Launch(1, "c", "hedge")),
        (0.7, AttemptFailed(0, NOT_CONNECTED), Launch(2, "b", "failure")),
        (0.8, AttemptFailed(1, NOT_CONNECTED)),
        (
            0.9,
            AttemptFailed(2, NOT_CONNECTED),
            Fail(tuple((name, NOT_CONNECTED) for name in "acb")),
        ),
    ),
    "it replaces a failure": (
        AFTER,
        (0.1, B_BUSY),
        (0.1, AttemptFailed(0, NOT_CONNECTED), REPLACEMENT),
    ),
    "the least reluctant replaces a failure": (
        OF_THREE,
        (0.1, HedgeEligibilityChanged({"b": "is down", "c": "is full"}, {"b": 2})),
        (0.1, AttemptFailed(0, NOT_CONNECTED), Launch(1, "c", "failure")),
    ),
    "the most reluctant replaces failures last": (
        OF_THREE,
        (0.1, HedgeEligibilityChanged({"b": "is busy", "c": "is busy"}, {"b": 1})),
        (0.1, AttemptFailed(0, NOT_CONNECTED), Launch(1, "c", "failure")),
        (0.2, AttemptFailed(1, NOT_CONNECTED), Launch(2, "b", "failure")),
    ),
    "but before one that is unhealthy": (
        OF_THREE,
        (0.1, HedgeEligibilityChanged({"c": "is full"}, {"b": 1, "c": 3})),
        (0.1, AttemptFailed(0, NOT_CONNECTED), REPLACEMENT),
    ),
    "a reluctant one gets a hedge in its turn": (
        OF_THREE,
        (0.1, HedgeEligibilityChanged({}, {"b": 1})),
        (0.6, TimerFired(), HEDGE),
    ),
    # ---- hedges that the budget puts off
    "a deferred hedge is sent when there is budget": (
        Setup(HedgePolicy(rule=PutOff(until=0.75), name="put off"), stall_secs=3.0),
        (0.6, TimerFired()),
        (0.7, TimerFired()),
        (0.8, TimerFired(), HEDGE),
    ),
    # ---- silence
    "a silent attempt gets company although the budget puts it off": (
        Setup(HedgePolicy(rule=PutOff(until=9.0), name="put off"), stall_secs=0.75),
        (0.6, TimerFired()),
        (0.7, TimerFired()),
        (0.75, TimerFired(), SILENCE),
    ),
    "and before a rule's later time": (
        Setup(HedgePolicy.after(5.0), stall_secs=3.0),
        (3.0, TimerFired(), SILENCE),
    ),
    "one that answers others is slow": (
        IMPATIENT,
        (3.0, HedgeEligibilityChanged({}, slow=frozenset("a"))),
        (3.0, TimerFired()),
        (6.0, TimerFired(), SILENCE),
    ),
    "a tool call that is on its way is no silence": (
        IMPATIENT,
        (3.0, Progressed(0, 2.5, is_call=True)),
        (3.0, TimerFired()),
        (5.5, TimerFired(), SILENCE),
    ),
    "reasoning is": (
        IMPATIENT,
        (3.0, Progressed(0, 2.5)),
        (3.0, TimerFired(), SILENCE),
    ),
    "silent attempts do not count against the maximum": (
        replace(IMPATIENT, candidates="abc"),
        (3.0, TimerFired(), SILENCE),
        (6.0, TimerFired(), Launch(2, "c", "silence")),
        (9.0, TimerFired()),
    ),
    "unless that is 1": (
        Setup(HedgePolicy.fallback(1), "ab", stall_secs=3.0),
        (3.0, TimerFired()),
    ),
    "silence counts from the confirmed end of the turn": (
        replace(IMPATIENT, is_speculative=True),
        (3.0, TimerFired()),
        (4.0, TurnConfirmed()),
        (7.0, TimerFired(), SILENCE),
    ),
    # ---- failures before the first token do not count
    "each provider is asked when all before have failed": (
        replace(FALLBACK, candidates="abc"),
        (0.1, AttemptFailed(0, REJECTED), REPLACEMENT),
        (0.2, AttemptFailed(1, REJECTED), Launch(2, "c", "failure")),
        (0.5, UsableToken(2), Commit(2, "first_token")),
    ),
    "also with a maximum of 1": (
        Setup(HedgePolicy.fallback(1), "ab"),
        (0.1, AttemptFailed(0, REJECTED), REPLACEMENT),
    ),
    "instances are no further providers": (
        replace(FALLBACK, candidates="aaa"),
        (0.1, AttemptFailed(0, NOT_CONNECTED), Launch(1, "a", "failure")),
        (0.2, AttemptFailed(1, NOT_CONNECTED), Fail((("a", NOT_CONNECTED),) * 2)),
    ),
    # ---- a transient failure beside a live attempt
    "a failed request is repeated beside a late one": (
        replace(IMPATIENT, retries=2, late_secs=2.0),
        (3.0, TimerFired(), SILENCE),
        (3.1, AttemptFailed(1, TRANSIENT)),
        (3.5, TimerFired()),
        (3.6, TimerFired(), Launch(2, "b", "failure")),
        (3.9, UsableToken(2), Commit(2, "first_token"), Cancel(0, "superseded")),
    ),
    "not before it is late": (
        replace(RACE, retries=2, late_secs=1.8),
        (0.1, AttemptFailed(1, TRANSIENT)),
        (1.0, TimerFired()),
        (1.8, TimerFired(), Launch(2, "b", "failure")),
        (1.9, AttemptFailed(2, TRANSIENT)),
        (2.9, TimerFired(), Launch(3, "b", "failure")),
        (3.0, AttemptFailed(3, TRANSIENT)),
        (60.0, TimerFired()),
    ),
    "a rejected prompt waits for the silent until the guard's time": (
        REJECTING,
        (0.1, AttemptFailed(1, UNWANTED)),
        (3.0, TimerFired()),
        (3.1, TimerFired(), Cancel(0, "superseded"), Fail((("b", UNWANTED),))),
    ),
    "so does an empty answer": (
        REJECTING,
        (0.1, AttemptFinished(1)),
        (3.1, TimerFired(), Cancel(0, "superseded"), Commit(1, "silence")),
    ),
    "the guard's time counts from the rejection": (
        replace(FALLBACK, stall_secs=3.0, rejection_secs=0.0),
        (3.0, TimerFired(), SILENCE),
        (3.1, AttemptFailed(1, UNWANTED)),
        (6.0, TimerFired()),
        (6.1, TimerFired(), Cancel(0, "superseded"), Fail((("b", UNWANTED),))),
    ),
    "it is also the last word beside two silent ones": (
        replace(THREE, stall_secs=3.0, rejection_secs=0.0),
        (0.1, AttemptFailed(0, UNWANTED), REPLACEMENT),
        (3.1, TimerFired(), Launch(2, "c", "silence")),
        (
            6.1,
            TimerFired(),
            Cancel(1, "superseded"),
            Cancel(2, "superseded"),
            Fail((("a", UNWANTED),)),
        ),
    ),
    "where nothing of an answer is seen while it is written, it waits longer": (
        replace(REJECTING, rejection_secs=10.0),
        (0.1, AttemptFailed(1, UNWANTED)),
        (3.1, TimerFired()),
        (10.1, TimerFired(), Cancel(0, "superseded"), Fail((("b", UNWANTED),))),
    ),
    "after a hedge that no loop has time for, too": (
        replace(AFTER, stall_secs=3.0, rejection_secs=0.0),
        (0.6, B_BUSY),
        (0.6, TimerFired()),
        (3.0, TimerFired(), SILENCE),
        (3.1, AttemptFailed(1, UNWANTED)),
        (6.0, TimerFired()),
        (6.1, TimerFired(), Cancel(0, "superseded"), Fail((("b", UNWANTED),))),
    ),
    "what makes progress is not silent": (
        REJECTING,
        (0.1, AttemptFailed(1, UNWANTED)),
        (2.0, Progressed(0, 2.0)),
        (3.0, TimerFired()),
        (4.0, UsableToken(0), Commit(0, "first_token")),
    ),
    "nor is it ended after any other failure": (
        REJECTING,
        (0.1, AttemptFailed(1, REJECTED)),
        (9.0, TimerFired()),
        (9.1, UsableToken(0), Commit(0, "first_token")),
    ),
    "nor before a request is repeated": (
        replace(REJECTING, retries=1, candidates="abc", stall_secs=0.3, starts=(PRIMARY, HEDGE)),
        (0.0, AttemptFailed(0, TRANSIENT), Launch(2, "c", "failure")),
        (0.1, AttemptFailed(2, UNWANTED)),
        (0.3, TimerFired()),
        (0.5, TimerFired(), Launch(3, "a", "failure")),
        (0.8, TimerFired(), Cancel(1, "superseded"), Cancel(3, "superseded"), FAILED),
    ),
    "nor at all without a bound": (
        replace(REJECTING, rejection_secs=None),
        (0.1, AttemptFailed(1, UNWANTED)),
        (9.0, UsableToken(0), Commit(0, "first_token")),
    ),
    "nor before its Retry-After": (
        replace(RACE, retries=2, late_secs=0.5),
        (0.1, AttemptFailed(1, replace(TRANSIENT, retry_after_secs=2.0))),
        (2.0, TimerFired()),
        (2.1, TimerFired(), Launch(2, "b", "failure")),
    ),
}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_each_event_causes_exactly_its_commands(scenario: tuple[Setup, *tuple[Step, ...]]) -> None:
    setup, *steps = scenario
    setup.play(*steps)


@pytest.mark.parametrize(
    ("setup", "event", "wake_at", "planned"),
    [
        (RACE, None, None, None),
        (AFTER, None, 0.6, InFlight("b", 0.6, None)),
        (Setup(HedgePolicy.after(0.6, max_attempts=1)), None, None, None),
        (replace(AFTER, stall_secs=0.5), None, 0.5, InFlight("b", 0.5, None)),
        (replace(AFTER, candidates="aa"), None, 0.6, InFlight("a", 0.6, None)),
        (AFTER, UsableToken(0), None, None),
        (FALLBACK, None, None, None),
        (Setup(HedgePolicy.after(None), stall_secs=3.0), None, 3.0, InFlight("b", 3.0, None)),
        (LAST, None, 30.0, None),
        (replace(LAST, deadline_secs=4.0), None, 4.0, None),
        (replace(LAST, deadline_secs=4.0), UsableToken(0), 31.0, None),
        (RETRYING, AttemptFailed(0, TRANSIENT), 1.5, None),
        (replace(RETRYING, jitter=1.0), AttemptFailed(0, TRANSIENT), 1.375, None),
        (RETRYING, AttemptFailed(0, replace(TRANSIENT, retry_after_secs=2.0)), 3.0, None),
        (RETRYING, AttemptFailed(0, replace(TRANSIENT, retry_after_secs=90.0)), None, None),
    ],
)
def test_wake_at_and_planned_follow_the_events(
    setup: Setup, event: Event | None, wake_at: float | None, planned: InFlight | None
) -> None:
    race = setup.race()
    race.handle(TurnStarted(), 0.0)
    if event is not None:
        race.handle(event, 1.0)
    assert (race.wake_at, race.planned) == (wake_at, planned)


def test_ineligible_hedge_reports_its_reason_and_is_rechecked() -> None:
    race = replace(AFTER, stall_secs=3.0).play((0.0, B_BUSY), (0.6, TimerFired()))
    assert race.launch_reason == "no hedge: b has a queue of 3"
    assert race.wake_at == pytest.approx(0.7)
    assert race.planned == InFlight("b", 3.0, None)
    assert race.handle(TimerFired(), 3.0) == (SILENCE,)


def test_provider_ineligible_for_hedges_starts_the_turn() -> None:
    race = RACE.race()
    race.handle(HedgeEligibilityChanged({"a": "has a queue of 3", "b": "is down"}), 0.0)
    assert race.handle(TurnStarted(), 0.0) == (PRIMARY,)


@pytest.mark.parametrize(
    ("setup", "event", "ending", "outcome", "error"),
    [
        (IMPATIENT, ToolsCalled(0), TimerFired(), "won", None),
        (BY_SENTENCE, UsableToken(0), AttemptFinished(0), "won", None),
    ],
)
def test_ended_attempt_records_its_outcome(
    setup: Setup, event: Event, ending: Event, outcome: str, error: AttemptError | None
) -> None:
    race = setup.race()
    for now, each in ((0.0, TurnStarted()), (1.0, event), (9.0, ending)):
        race.handle(each, now)
    assert (race.attempts[0].outcome, race.attempts[0].error) == (outcome, error)
    assert race.attempts[0].speakable_at == (9.0 if setup is BY_SENTENCE else None)
