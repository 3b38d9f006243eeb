"""What work is left undone when an event loop cannot keep up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policies.overload import FRESH_SECS, SAMPLES, Overload
from pipecat_hedge.work import TIERS, WORK_CLASSES, Tier, WorkClass

EVERY_SECS = 0.1
IN_ORDER: list[tuple[WorkClass, Tier]] = [
    ("background", "standard"),
    ("hedge", "standard"),
    ("rescue", "standard"),
    ("tool_follow_up", "standard"),
    ("primary", "economy"),
    ("primary", "standard"),
]
"""The first is shed first."""


def behind(lag_secs: float, it: Overload | None = None, times: int = 2 * SAMPLES) -> Overload:
    """A loop that is so far behind for a while; the last sample is at the time 0."""
    it = it or Overload()
    for number in range(times):
        it.sample(lag_secs, 0.0, number * 1e-6)
    return it


def shed(it: Overload, now: float = 0.0) -> int:
    """How many kinds of work are shed, in their order."""
    found = [it.sheds(work, tier, now) is not None for work, tier in IN_ORDER]
    assert found == sorted(found, reverse=True)
    return sum(found)


@pytest.mark.parametrize(
    ("lag_secs", "kinds"),
    [(0.0, 0), (0.035, 0), (0.05, 1), (0.1, 2), (0.16, 3), (0.21, 4), (0.31, 5), (0.4, 6), (9, 6)],
)
def test_the_further_behind_the_more_is_shed(lag_secs: float, kinds: int) -> None:
    """The least urgent first; and it is said why."""
    it = behind(lag_secs)
    assert shed(it) == kinds
    if kinds:
        assert it.sheds("warm_up", "standard", 0.0) == f"the event loop is {lag_secs:.2f} s behind"


@pytest.mark.parametrize("lag_secs", [0.5, 60.0])
def test_a_premium_callers_turn_is_never_shed(lag_secs: float) -> None:
    """None of its parts is; its hedges are, as everybody's."""
    it = behind(lag_secs)
    for work in WORK_CLASSES:
        reason = it.sheds(work, "premium", 0.0)
        assert (reason is None) == (work in ("primary", "tool_follow_up", "rescue"))


def test_one_long_step_sheds_only_what_can_always_wait() -> None:
    """And only while it is among the last samples."""
    it = behind(0.0)
    it.sample(0.5, 0.0, 1.0)
    assert shed(it, 1.0) == 1
    assert it.sheds("warm_up", "premium", 1.0) == "the event loop is 0.10 s behind"
    behind(0.0, it, SAMPLES)
    assert shed(it, 1.0) == 0


def test_who_is_shed_is_admitted_again_at_half_the_lag() -> None:
    """In between it stays as it was, whichever way one came there."""
    it = behind(0.3)
    assert shed(it) == 5
    assert shed(behind(0.13, it)) == 5
    assert shed(behind(0.12, it)) == 4
    assert shed(behind(0.08, it)) == 3
    assert shed(behind(0.06, it)) == 2
    assert shed(behind(0.03, it)) == 1
    assert shed(behind(0.01, it)) == 0
    assert shed(behind(0.03, it)) == 0


def test_a_core_that_is_used_up_sheds_what_can_wait() -> None:
    """However long it lasts, as long as nobody is late; and ends a tenth below."""
    it = Overload()
    counts = [shed(it)]
    for number in range(100):
        it.sample(0.0, 1.0, number * EVERY_SECS)
        counts.append(shed(it, number * EVERY_SECS))
    assert sorted(set(counts)) == [0, 1]
    assert counts.index(1) == 19  # some two seconds: less is a burst
    now = 100 * EVERY_SECS
    reason = it.sheds("warm_up", "premium", now)
    assert reason == "the event loop's thread uses 100% of a core"
    for share, kinds in ((0.8, 1), (0.7, 0), (0.8, 0)):
        for _ in range(100):
            it.sample(0.0, share, now)
        assert shed(it, now) == kinds


def test_old_samples_count_for_nothing() -> None:
    """A watch that has stopped sheds nobody, and begins afresh."""
    it = behind(0.3)
    fresh_secs = FRESH_SECS + 2 * 0.3
    assert shed(it, fresh_secs) == 5
    assert shed(it, fresh_secs + 0.1) == 0
    it.sample(0.0, 0.0, 60.0)
    assert shed(it, 60.0) == 0


def test_a_loop_that_is_far_behind_is_looked_at_less_often() -> None:
    """Its samples are seconds apart, and not old for that."""
    it, now = Overload(), 0.0
    for _ in range(SAMPLES):
        now += EVERY_SECS + 6.0
        it.sample(6.0, 0.0, now)
    assert shed(it, now) == 6
    assert shed(it, now + 6.0) == 6


STEPS = st.lists(
    st.tuples(st.floats(0, 2) | st.floats(0, 0.1), st.floats(0, 1), st.floats(0, 5)), max_size=60
)


@given(steps=STEPS, waited_secs=st.floats(0, 10))
def test_nobody_is_admitted_before_who_matters_more(steps: Any, waited_secs: float) -> None:
    """Of a tier no lower class while a higher is shed; of a class no lower tier."""
    it, now = Overload(), 0.0
    for lag_secs, core_share, secs in steps:
        now += lag_secs + secs
        it.sample(lag_secs, core_share, now)
        later = now + waited_secs
        shed = {
            (work, tier): it.sheds(work, tier, later) is not None
            for work in WORK_CLASSES
            for tier in TIERS
        }
        for (work, tier), is_shed in shed.items():
            if is_shed:
                for lower in WORK_CLASSES[WORK_CLASSES.index(work) :]:
                    assert shed[lower, tier] or {work, lower} == {"warm_up", "background"}
                for lower in TIERS[TIERS.index(tier) :]:
                    assert shed[work, lower]
        assert shed["warm_up", "standard"] == shed["background", "standard"]
        assert not shed["primary", "premium"]
        if later > now + FRESH_SECS + 2 * lag_secs:
            assert not any(shed.values())
