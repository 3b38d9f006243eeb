"""How many requests a provider may have in flight, found out as it goes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.errors import ConfigurationError
from pipecat_hedge.policies.concurrency_limit import ConcurrencyLimit


def rounds(it: ConcurrencyLimit, count: int, ttft_secs: float, now: float = 0.0) -> None:
    """So many rounds of as many requests as may be made at once, all answered."""
    for _ in range(count):
        taken = 0
        while it.acquire(now):
            taken += 1
        for _ in range(taken):
            it.release("answered", now, ttft_secs=ttft_secs)


def test_no_more_than_the_limit_are_in_flight() -> None:
    """A permit that is released may be taken again."""
    it = ConcurrencyLimit(at_first=2)
    assert [it.acquire(0.0) for _ in range(3)] == [True, True, False]
    it.release("answered", 0.0)
    assert it.acquire(0.0)
    assert it.in_flight == 2


def test_what_is_less_urgent_leaves_some_over() -> None:
    """Permits that are reserved are given only to who needs no reserve."""
    it = ConcurrencyLimit(at_first=3)
    assert it.acquire(0.0, reserve=2)
    assert not it.acquire(0.0, reserve=2)
    assert it.acquire(0.0)


def test_a_refusal_cuts_the_limit_once_for_all_that_were_sent_under_it() -> None:
    """A tenth, and again only after a second."""
    it = ConcurrencyLimit(at_first=100)
    for _ in range(30):
        assert it.acquire(0.0)
    for _ in range(10):
        it.release("busy", 0.1)
    assert it.limit(0.1) == 90
    for _ in range(10):
        it.release("timed_out", 1.2)
    assert it.limit(1.2) == 81


@pytest.mark.parametrize("verdict", ["failed", "dropped"])
def test_what_says_nothing_about_load_teaches_nothing(verdict: Any) -> None:
    """Neither a failure of another kind, nor an attempt that was ended by somebody else."""
    it = ConcurrencyLimit(at_first=10)
    rounds(it, 10, 0.3)
    before = it.limit(0.0)
    for _ in range(100):
        assert it.acquire(0.0)
        it.release(verdict, 0.0, ttft_secs=9.0)
    assert it.limit(0.0) == before


def test_it_grows_while_it_is_used() -> None:
    """An hour with one caller proves nothing."""
    it = ConcurrencyLimit(at_first=10)
    rounds(it, 10, 0.3)
    assert 13 <= it.limit(0.0) <= 21  # by less than one a round
    before = it.limit(0.0)
    for _ in range(1000):
        assert it.acquire(0.0)
        it.release("answered", 0.0, ttft_secs=0.3)
    assert it.limit(0.0) == before


def test_slow_first_tokens_are_no_reason_to_grow() -> None:
    """Beyond a second the caller waits too long already."""
    it = ConcurrencyLimit(at_first=10)
    rounds(it, 20, 1.2)
    assert it.limit(0.0) == 10


def test_a_queue_that_nobody_tells_of_shrinks_it() -> None:
    """First tokens that take three times as long as usual; and it recovers with them."""
    it = ConcurrencyLimit(at_first=40)
    rounds(it, 5, 0.4)
    before = it.limit(0.0)
    rounds(it, 5, 1.6)
    assert it.limit(0.0) < 0.85 * before
    low = it.limit(0.0)
    rounds(it, 10, 0.4)
    assert it.limit(0.0) > low


def test_longer_prompts_are_compared_with_their_like() -> None:
    """What takes long because much has to be read is no queue."""
    it = ConcurrencyLimit(at_first=40)
    for _ in range(50):
        for size, secs in (("short", 0.2), ("long", 0.9)):
            assert it.acquire(0.0)
            it.release("answered", 0.0, ttft_secs=secs, size_class=size)
    assert it.limit(0.0) == 40


def test_below_the_target_no_queue_matters() -> None:
    """From 50 to 200 ms is four times as long, and still fine."""
    it = ConcurrencyLimit(at_first=40)
    rounds(it, 5, 0.05)
    before = it.limit(0.0)
    rounds(it, 5, 0.2)
    assert it.limit(0.0) >= before


def test_a_providers_own_word_bounds_it_while_it_is_news() -> None:
    """From above, and never below the least."""
    it = ConcurrencyLimit(at_first=10)
    it.believe(3, until=5.0)
    assert it.limit(4.0) == 3
    assert it.limit(5.0) == 10
    it.believe(0, until=9.0)
    assert it.limit(6.0) == 1
    it.believe(99, until=20.0)
    assert it.limit(10.0) == 10


def test_a_permit_comes_back_once() -> None:
    """Releasing twice is a bug of the caller."""
    it = ConcurrencyLimit()
    assert it.acquire(0.0)
    it.release("dropped", 0.0)
    with pytest.raises(AssertionError, match="released twice"):
        it.release("dropped", 0.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"least": 0}, "least must be a whole number from 1"),
        ({"at_first": 2.5}, "at_first must be a whole number"),
        ({"at_first": 5, "most": 4}, "at_first must lie between least and most, 1 and 4"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    """Naming the field."""
    with pytest.raises(ConfigurationError, match=message):
        ConcurrencyLimit(**settings)


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["acquire", "answered", "failed", "busy", "timed_out", "dropped"]),
            st.floats(0, 3),
            st.floats(0.01, 30),
        ),
        max_size=200,
    ),
    at_first=st.integers(1, 20),
)
def test_in_flight_never_exceeds_the_limit_and_no_permit_leaks(steps: Any, at_first: int) -> None:
    """A limit that was cut lets nobody in until enough have come back."""
    it = ConcurrencyLimit(at_first=at_first, most=30)
    now, out = 0.0, 0
    for step, secs, ttft in steps:
        now += secs
        if step == "acquire":
            limit = it.limit(now)
            if it.acquire(now):
                out += 1
                assert out <= limit
            else:
                assert out >= limit
        elif out:
            it.release(step, now, ttft_secs=ttft)
            out -= 1
        assert it.in_flight == out
        assert 1 <= it.limit(now) <= 30
