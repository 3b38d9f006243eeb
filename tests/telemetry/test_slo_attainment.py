"""How well a promise is kept: the windows count what they say, in whatever order they are told."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.telemetry.slo_attainment import (
    SLOTS,
    WINDOWS_SECS,
    Attainment,
    SloStatus,
    WindowCount,
)

Event = tuple[float, bool]

DAYS = 5 * 86_400.0
TIMES = st.one_of(
    st.floats(0.0, 2 * DAYS),
    st.floats(0.0, 400.0),  # many in the shortest window
    st.integers(0, 200).map(lambda n: n * 5.0),  # on the borders of slots
)
EVENTS = st.lists(st.tuples(TIMES, st.booleans()), max_size=60)


def told(events: Sequence[Event]) -> Attainment:
    attainment = Attainment()
    for at, kept in events:
        attainment.record(kept, at)
    return attainment


def between(events: Sequence[Event], since: float, until: float) -> tuple[int, int]:
    """Turns and bad ones after ``since``, up to ``until``."""
    found = [kept for at, kept in events if since < at <= until]
    return len(found), found.count(False)


# ---- what is counted


@given(EVENTS, TIMES)
def test_each_window_holds_the_turns_of_its_last_sixty_slots(
    events: list[Event], later: float
) -> None:
    """Exactly, as a count of all that ever happened says, at any time after them."""
    now = max((at for at, _ in events), default=0.0) + later
    for count, window_secs in zip(told(events).counts(now), WINDOWS_SECS, strict=True):
        width = window_secs / SLOTS
        latest = now // width
        kept = [k for at, k in events if latest - SLOTS < at // width <= latest]
        assert count == WindowCount(window_secs, len(kept), kept.count(False))


@given(EVENTS, TIMES)
def test_a_window_is_never_longer_than_it_says_and_hardly_shorter(
    events: list[Event], later: float
) -> None:
    """By no more than a sixtieth."""
    now = max((at for at, _ in events), default=0.0) + later
    for count in told(events).counts(now):
        least = between(events, now - count.window_secs * (1 - 1 / SLOTS), now)
        most = between(events, math.nextafter(now - count.window_secs, -math.inf), now)
        assert least[0] <= count.turns <= most[0]
        assert least[1] <= count.bad <= most[1]


@given(EVENTS, st.randoms(use_true_random=False), st.lists(st.integers(0, 2), min_size=60))
def test_the_sum_of_parts_is_the_whole_in_any_order(
    events: list[Event], rng: object, parts: list[int]
) -> None:
    """Three processes that were told of some each, in any order, have seen what one would have."""
    whole = told(events)
    shuffled = list(enumerate(events))
    rng.shuffle(shuffled)  # pyright: ignore[reportAttributeAccessIssue]
    shares = [told([e for n, e in shuffled if parts[n] == part]) for part in range(3)]
    merged = Attainment()
    for share in shares:
        merged.merge(share)
    other_way = Attainment()
    for share in reversed(shares):
        other_way.merge(share)
    for now in (0.0, 300.0, DAYS, 2 * DAYS, 3 * DAYS):
        assert merged.counts(now) == other_way.counts(now) == whole.counts(now)


@given(EVENTS)
def test_memory_does_not_grow(events: list[Event]) -> None:
    """Sixty slots a window, whatever happens."""
    attainment = told(events)
    for ring in attainment._rings:
        assert len(ring._turns) == len(ring._bad) == len(ring._when) == SLOTS


def test_what_comes_too_late_for_its_slot_is_left_out() -> None:
    """Nothing that is newer is lost for it."""
    attainment = told([(1000.0, True), (1000.0 - 300.0, False)])
    five_minutes, hour, *_ = attainment.counts(1000.0)
    assert (five_minutes.turns, five_minutes.bad) == (1, 0)
    assert (hour.turns, hour.bad) == (2, 1)


# ---- what it says


def status(*windows: WindowCount, share: float = 0.95) -> SloStatus:
    return SloStatus("standard", "ttft", 0.8, share, windows)


def test_attainment_budget_and_burn() -> None:
    """Of 200 turns ten may be bad; 5 bad ones spend half, 20 twice as much as there is."""
    half, twice = WindowCount(300.0, 200, 5), WindowCount(3600.0, 200, 20)
    assert half.attainment == pytest.approx(0.975)
    assert half.burn(0.95) == pytest.approx(0.5)
    assert half.budget_left(0.95) == pytest.approx(0.5)
    assert twice.budget_left(0.95) == pytest.approx(-1.0)
    both = status(half, twice)
    assert both.attainment == pytest.approx(0.9)
    assert both.budget_left == pytest.approx(-1.0)
    assert both.burns == pytest.approx((0.5, 2.0))


def test_without_turns_nothing_is_known_and_nothing_is_spent() -> None:
    """None is not 0, and not 100 %."""
    quiet = status(WindowCount(300.0, 0, 0))
    assert (quiet.attainment, quiet.budget_left, quiet.burns) == (None, 1.0, (None,))


@given(EVENTS, st.floats(0.01, 0.99))
def test_the_budget_is_left_exactly_while_the_promise_is_kept(
    events: list[Event], share: float
) -> None:
    """Less than nothing is left only where fewer than the share were good."""
    for count in told(events).counts(2 * DAYS):
        left, attained = count.budget_left(share), count.attainment
        assert left <= 1.0
        if attained is not None:
            assert (left >= -1e-9) == (attained >= share - 1e-9 * (1 - share))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=2))
def test_two_processes_together(parts: list[tuple[int, int]]) -> None:
    """Their counts add up."""
    one, other = (WindowCount(300.0, good + bad, bad) for good, bad in parts)
    assert one.plus(other) == other.plus(one)
    assert one.plus(other).bad == one.bad + other.bad


# ---- what is refused


@pytest.mark.parametrize("windows", [(), (0.0,), (-1.0, 5.0), (math.inf,), (math.nan,)])
def test_windows_that_cannot_be_are_refused(windows: tuple[float, ...]) -> None:
    """With what to write."""
    with pytest.raises(ConfigurationError, match=r"windows_secs must be .*: write \(300, 3600\)"):
        Attainment(windows)


def test_other_windows_do_not_add_up() -> None:
    """Five minutes are no hour."""
    with pytest.raises(ConfigurationError, match="windows_secs differ"):
        Attainment((300,)).merge(Attainment((3600,)))
