"""The race as tables: what happened when, and what is to be done about it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

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
    Order,
    Speakable,
    TurnStarted,
    UsableToken,
    Woke,
)
from pipecat_hedge.policies.hedge_policy import HedgePolicy
from pipecat_hedge.policies.race import EMPTY_ANSWER, IllegalFact, Phase, Race

OVERLOADED = AttemptError("server", "529 overloaded")
REFUSED = AttemptError("connectivity", "connection refused")

Happening = tuple[float, Fact, Sequence[Order]]

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
            (0.6, Woke(), [B_HEDGE]),
            (0.9, UsableToken(0), [Commit(0, "first_token"), Cancel(1, "superseded")]),
        ],
    ),
    "after: waking early launches nothing": (
        HedgePolicy.after(0.6),
        "ab",
        [(0.0, TurnStarted(), [A_PRIMARY]), (0.5, Woke(), []), (0.6, Woke(), [B_HEDGE])],
    ),
    "after: opening the request is no sign of life": (
        HedgePolicy.after(0.6),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.5, AttemptOpened(0), []),
            (0.6, Woke(), [B_HEDGE]),
        ],
    ),
    "after: each further attempt counts from the launch of the one before": (
        HedgePolicy.after(1.0, attempts=3),
        "abc",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (1.0, Woke(), [B_HEDGE]),
            (1.5, Woke(), []),
            (2.0, Woke(), [Launch(2, "c", "hedge")]),
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
            (60.0, Woke(), []),
            (61.0, AttemptFailed(0, REFUSED), [B_FAILURE]),
        ],
    ),
    "fallback: the next one only on failure": (
        HedgePolicy.fallback(),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (60.0, Woke(), []),
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
            (0.2, AttemptFinished(0), [GiveUp((("a", EMPTY_ANSWER), ("b", REFUSED)))]),
        ],
    ),
    "attempts bounds the requests though providers are left": (
        HedgePolicy.fallback(attempts=1),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, AttemptFailed(0, OVERLOADED), [GiveUp((("a", OVERLOADED),))]),
        ],
    ),
    "the lineup bounds the requests though attempts are left": (
        HedgePolicy.race(5),
        "a",
        [
            (0.0, TurnStarted(), [A_PRIMARY]),
            (0.1, AttemptFailed(0, OVERLOADED), [GiveUp((("a", OVERLOADED),))]),
        ],
    ),
    "a provider that stands twice may be asked twice": (
        HedgePolicy.after(0.5),
        "aa",
        [(0.0, TurnStarted(), [A_PRIMARY]), (0.5, Woke(), [Launch(1, "a", "hedge")])],
    ),
    "nobody to ask": (HedgePolicy.race(2), "", [(0.0, TurnStarted(), [GiveUp(())])]),
    "an interruption cancels everything in flight": (
        HedgePolicy.race(2),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY, B_HEDGE]),
            (0.1, Interrupted(), [Cancel(0, "interrupted"), Cancel(1, "interrupted")]),
            (0.2, UsableToken(0), []),
            (0.3, AttemptFailed(1, OVERLOADED), []),
            (0.4, Woke(), []),
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
    "a committed answer that breaks off ends the turn": (
        HedgePolicy.race(2),
        "ab",
        [
            (0.0, TurnStarted(), [A_PRIMARY, B_HEDGE]),
            (0.1, UsableToken(0), [Commit(0, "first_token"), Cancel(1, "superseded")]),
            (0.2, AttemptFailed(0, REFUSED), [GiveUp((("a", REFUSED),))]),
        ],
    ),
}


@pytest.mark.parametrize(("policy", "lineup", "happenings"), SCENARIOS.values(), ids=SCENARIOS)
def test_scenario(policy: HedgePolicy, lineup: str, happenings: list[Happening]) -> None:
    """Each fact draws exactly the orders that stand beside it."""
    race = Race(list(lineup), policy.rule, attempts=policy.attempts)
    for now, fact, orders in happenings:
        assert list(race.handle(fact, now)) == list(orders), f"{fact} at {now}"


@pytest.mark.parametrize(
    ("policy", "wake_at"),
    [
        (HedgePolicy.race(2), None),
        (HedgePolicy.after(0.6), 10.6),
        (HedgePolicy.after(None), None),
        (HedgePolicy.after(0.6, attempts=1), None),
        (HedgePolicy.fallback(), None),
    ],
)
def test_it_asks_to_be_woken_only_when_time_alone_decides(
    policy: HedgePolicy, wake_at: float | None
) -> None:
    """``wake_at`` is when the next attempt is due, and None when nothing is."""
    race = Race(["a", "b"], policy.rule, attempts=policy.attempts)
    race.handle(TurnStarted(), 10.0)
    assert race.wake_at == wake_at


def test_once_committed_it_need_not_be_woken() -> None:
    """A winner leaves nothing to wait for."""
    race = Race(["a", "b"], HedgePolicy.after(0.6).rule, attempts=2)
    race.handle(TurnStarted(), 0.0)
    race.handle(UsableToken(0), 0.1)
    assert race.wake_at is None
    assert race.handle(Woke(), 0.6) == ()


def test_it_remembers_what_each_attempt_did() -> None:
    """Reports are made from the times that the race was told."""
    race = Race(["a", "b"], HedgePolicy.after(0.6).rule, attempts=2)
    race.handle(TurnStarted(), 10.0)
    race.handle(AttemptOpened(0), 10.01)
    race.handle(Woke(), 10.6)
    race.handle(UsableToken(1), 10.7)
    race.handle(Speakable(1), 10.8)
    race.handle(UsableToken(1), 10.9)
    race.handle(Speakable(1), 11.0)
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
    assert race.commit_reason == "first_token"
    assert race.started_at == 10.0
    assert race.phase is Phase.OVER


@pytest.mark.parametrize(
    ("before", "fact"),
    [
        ([], Woke()),
        ([], UsableToken(0)),
        ([TurnStarted()], TurnStarted()),
        ([TurnStarted()], UsableToken(7)),
        ([TurnStarted()], UsableToken(-1)),
        ([TurnStarted(), Interrupted()], TurnStarted()),
    ],
)
def test_what_cannot_happen_is_refused(before: list[Fact], fact: Fact) -> None:
    """A fact without a row in the table is a bug of the driver, and says so."""
    race = Race(["a", "b"], HedgePolicy.race(2).rule, attempts=2)
    for earlier in before:
        race.handle(earlier, 0.0)
    with pytest.raises(IllegalFact, match=type(fact).__name__):
        race.handle(fact, 1.0)
