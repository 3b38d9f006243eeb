"""Whether a provider has turned slow, compared with what was usual for it."""

from __future__ import annotations

import random

import pytest

from pipecat_hedge.policy.slow_period import RECOVERED, SLOW, SlowPeriod, late_secs
from pipecat_hedge.policy.survival import SurvivalCurve
from pipecat_hedge.race import Attempt, Slot

LATE_AFTER = 1.0


def sent(
    slow_period: SlowPeriod, now: float = 0.0, late_after: float | None = LATE_AFTER
) -> Attempt:
    attempt = Attempt(0, Slot("a"), "primary", now)
    slow_period.sent(attempt, late_after)
    return attempt


def answer(slow_period: SlowPeriod, *all_secs: float) -> SlowPeriod:
    """One attempt after the other is answered."""
    for secs in all_secs:
        attempt = sent(slow_period)
        attempt.first_token_at, attempt.outcome = secs, "won"
        slow_period.ended(attempt, secs, LATE_AFTER, has_answered=True)
    return slow_period


def slow() -> SlowPeriod:
    slow_period = answer(SlowPeriod(), *[2.0] * SLOW)
    assert slow_period.is_on
    return slow_period


def test_five_late_answers_are_a_spell() -> None:
    slow_period = answer(SlowPeriod(), *[2.0] * (SLOW - 1))
    assert (slow_period.is_on, slow_period.is_suspected) == (False, True)
    answer(slow_period, 2.0)
    assert slow_period.is_on


def test_an_answer_in_time_takes_one_step_back() -> None:
    """Below the beginning there are none."""
    slow_period = answer(SlowPeriod(), *[0.5] * 50, *[2.0] * (SLOW - 1), 0.5)
    assert not answer(slow_period, 2.0).is_on
    assert answer(slow_period, 2.0).is_on


def test_two_answers_in_time_end_a_spell() -> None:
    slow_period = slow()
    assert answer(slow_period, *[0.5] * (RECOVERED - 1)).is_on
    assert not answer(slow_period, 0.5).is_on


def test_a_late_answer_between_them_does_not() -> None:
    assert answer(slow(), 0.5, 2.0, 0.5).is_on


def test_an_attempt_is_late_while_it_is_still_silent() -> None:
    """It is not waited for, and counts once, whenever it is answered."""
    slow_period = SlowPeriod()
    attempts = [sent(slow_period, now=n / 10) for n in range(SLOW)]
    slow_period.look(LATE_AFTER + 0.3)
    assert not slow_period.is_on
    for _ in range(3):
        slow_period.look(LATE_AFTER + 0.35)
        assert not slow_period.is_on
    slow_period.look(LATE_AFTER + 0.5)
    assert slow_period.is_on
    for attempt in attempts:
        slow_period.ended(attempt, 3.0, LATE_AFTER, has_answered=True)
    assert not answer(slow_period, *[0.5] * RECOVERED).is_on


def test_an_attempt_that_was_cancelled_in_time_tells_nothing() -> None:
    """One that was cancelled late does, and one that failed does not."""
    slow_period = SlowPeriod()
    for _ in range(3 * SLOW):
        slow_period.ended(sent(slow_period), 0.9, LATE_AFTER, has_answered=False)
        slow_period.forget(failed := sent(slow_period))
        failed.outcome = "failed"
    slow_period.look(99.0)
    assert not slow_period.is_suspected
    for _ in range(SLOW):
        slow_period.ended(sent(slow_period), 1.1, LATE_AFTER, has_answered=False)
    assert slow_period.is_on


def test_without_a_usual_time_no_attempt_is_late() -> None:
    slow_period = SlowPeriod()
    for _ in range(2 * SLOW):
        attempt = sent(slow_period, late_after=None)
        slow_period.look(99.0)
        slow_period.ended(attempt, 99.0, None, has_answered=True)
    assert not slow_period.is_suspected


@pytest.mark.parametrize("share", [0.0, 0.2, 0.25])
def test_chance_is_no_spell(share: float) -> None:
    """As many late answers as in calm, or a few more where a model thinks."""
    rng = random.Random(3)
    slow_period, on = SlowPeriod(), 0
    for _ in range(4000):
        was_on = slow_period.is_on
        answer(slow_period, 2.0 if rng.random() < share else 0.5)
        on += slow_period.is_on and not was_on
    assert on <= 12


def test_the_level_is_the_median_of_late_attempts() -> None:
    """Those that are still silent count for as long as they have been so."""
    slow_period = answer(SlowPeriod(), 2.0, 9.0, 4.0)
    sent(slow_period, now=10.0)
    sent(slow_period, now=10.0)
    slow_period.look(11.5)
    assert slow_period.is_on
    assert slow_period.level_secs(11.5) == 2.0
    assert slow_period.level_secs(16.0) == 6.0


def test_late_is_clearly_more_than_the_median() -> None:
    """The p80, unless the spread is so narrow that chance differs by as much."""
    wide = SurvivalCurve.of([0.5, 1.0, 3.0, 9.0], [1.0, 0.5, 0.2, 0.0], 1.0)
    assert late_secs(wide) == pytest.approx(3.0, rel=0.2)
    narrow = SurvivalCurve.of([0.99, 1.0, 1.01], [1.0, 0.5, 0.0], 0.1)
    assert late_secs(narrow) == pytest.approx(1.4, rel=0.05)
    quick = SurvivalCurve.of([0.049, 0.05, 0.051], [1.0, 0.5, 0.0], 0.01)
    assert late_secs(quick) == pytest.approx(0.15, rel=0.05)


@pytest.mark.parametrize(("budget", "every"), [(0.1, 14), (0.05, 27), (0.001, 100)])
def test_the_budget_says_how_often_it_is_tried(budget: float, every: int) -> None:
    slow_period = slow()
    turns = [n for n in range(1, 401) if slow_period.is_probes_turn(budget)]
    assert turns == list(range(every, 401, every))


def test_an_answer_in_time_is_followed_up_at_once() -> None:
    slow_period = slow()
    assert not slow_period.is_probes_turn(0.1)
    answer(slow_period, 0.5)
    assert slow_period.is_probes_turn(0.1)
