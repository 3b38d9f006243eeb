"""How many requests a provider may have in flight, found out as it goes."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.ending import LimitVerdict
from pipecat_hedge.errors import ConfigurationError
from pipecat_hedge.policies.concurrency_limit import ConcurrencyLimit

VERDICTS = get_args(LimitVerdict)


def rounds(
    it: ConcurrencyLimit, count: int, ttft_secs: float, begin: float = 0.0, most: int = 1000
) -> float:
    """So many rounds of as many requests as may be made at once, all answered; when they end."""
    now = begin
    for _ in range(count):
        taken = 0
        while taken < most and it.acquire(now):
            taken += 1
        for _ in range(taken):
            it.heard(ttft_secs, now + ttft_secs)
        now += ttft_secs + 0.4
        for _ in range(taken):
            it.release("answered", now, ttft_secs=ttft_secs, held_secs=ttft_secs + 0.4)
    return now


def busy_round(it: ConcurrencyLimit, begin: float) -> float:
    """Each that is in flight is answered, and replaced by as many as there is room for."""
    now = begin + 0.5
    for _ in range(it.in_flight):
        it.heard(0.4, now)
        it.release("answered", now, ttft_secs=0.4, held_secs=0.5)
        while it.acquire(now):
            pass
    while it.acquire(now):
        pass
    return now


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
    """To nine tenths of what was in flight, and again only after a second."""
    it = ConcurrencyLimit(at_first=100)
    for _ in range(40):
        assert it.acquire(0.0)
    for _ in range(10):
        it.release("busy", 0.1)
    assert it.limit(0.1) == 36
    for _ in range(10):
        it.release("timed_out", 1.2)
    assert it.limit(1.2) == 27


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
    """By one an answer until it is first cut, then by one a round; and not in an idle hour."""
    it = ConcurrencyLimit(at_first=10)
    now = rounds(it, 2, 0.3)
    assert 15 <= it.limit(now) <= 40
    for _ in range(10):
        assert it.acquire(now)
    for _ in range(10):
        it.release("busy", now)
    assert it.limit(now) == 9
    now = rounds(it, 5, 0.3, now + 60)
    assert 11 <= it.limit(now) <= 14
    before = it.limit(now)
    rounds(it, 100, 0.3, now, most=1)
    assert it.limit(now) == before


def test_slow_first_tokens_are_no_reason_to_grow_unless_they_are_usual() -> None:
    """Beyond a second the caller waits too long already."""
    it = ConcurrencyLimit(at_first=10)
    now = rounds(it, 3, 0.95, most=10)
    before = it.limit(now)
    now = rounds(it, 3, 1.2, now)
    assert it.limit(now) == before
    usual = ConcurrencyLimit(at_first=10)
    now = rounds(usual, 30, 1.2, most=4)
    now = rounds(usual, 2, 1.15, now)
    assert usual.limit(now) > 10


def test_a_queue_is_seen_before_it_answers() -> None:
    """Half of what is in flight is late: what was served lately is what is left in flight."""
    it = ConcurrencyLimit(at_first=40)
    now = rounds(it, 40, 0.4, most=5)
    for _ in range(20):
        assert it.acquire(now)
    assert it.late_secs < 1.5
    for _ in range(5):
        it.overdue(now, now + 1.5)
    assert not it.notice_late(9, now + 1.5)
    assert not it.notice_late(2, now + 1.5)
    assert it.notice_late(10, now + 1.5)
    assert it.limit(now + 1.5) <= 5
    assert it.cuts == 0, "a test is no finding"
    assert not it.notice_late(20, now + 2.0)  # what was done about it takes a moment


def test_late_first_tokens_show_a_queue_too() -> None:
    """Of requests that were sent since the last cut; and it grows again with caution."""
    it = ConcurrencyLimit(at_first=40)
    now = rounds(it, 40, 0.4, most=20)
    before = it.limit(now)
    now = rounds(it, 2, 3.0, now, most=20)
    low = it.limit(now)
    assert low < before / 3
    now = rounds(it, 20, 0.4, now)
    assert low < it.limit(now) < before / 2
    now = rounds(it, 60, 0.4, now + 60)
    assert it.limit(now) > 20


def test_who_is_slow_for_reasons_of_its_own_is_asked_as_much_as_before() -> None:
    """With hardly anything in flight it is late still: that is no queue."""
    it = ConcurrencyLimit(at_first=40)
    now = rounds(it, 40, 0.4, most=20)
    now = rounds(it, 3, 3.0, now, most=20)
    assert it.limit(now) < 10
    now = rounds(it, 20, 3.0, now, most=20)
    assert it.limit(now) >= 20
    assert it.late_secs > 3.0


def test_a_test_without_traffic_holds_nobody_back_the_next_morning() -> None:
    """As many as before may be in flight at once, and it grows as at first."""
    it = ConcurrencyLimit()
    now = rounds(it, 10, 0.4, most=12)
    for _ in range(12):
        assert it.acquire(now)
        it.overdue(now, now + 3.0)
    assert it.notice_late(12, now + 3.0)
    assert it.limit(now + 3.0) <= 6
    for _ in range(12):
        it.release("dropped", now + 3.1)  # the callers hang up
    morning = now + 40_000.0
    assert not it.notice_late(0, morning)
    assert it.limit(morning) == 12
    rounds(it, 1, 0.4, morning)
    assert it.limit(morning) == 16  # by one for each, while half of it is used
    assert not it.notice_late(0, morning)


def test_longer_prompts_are_compared_with_their_like() -> None:
    """What takes long because much has to be read is no queue."""
    it = ConcurrencyLimit(at_first=40)
    for second in range(50):
        for size, secs in (("short", 0.2), ("long", 2.9)):
            assert it.acquire(float(second))
            it.heard(secs, second + secs, size_class=size)
            it.release("answered", second + secs, ttft_secs=secs, held_secs=secs)
    assert it.limit(50.0) == 40
    assert it.cuts == 0


def test_below_the_target_no_queue_matters() -> None:
    """From 50 to 200 ms is four times as long, and still fine."""
    it = ConcurrencyLimit(at_first=40)
    now = rounds(it, 20, 0.05, most=10)
    before = it.limit(now)
    now = rounds(it, 20, 0.2, now, most=10)
    assert it.limit(now) == before
    assert it.late_secs == 0.5


def test_a_servers_own_word_takes_precedence_while_it_is_news() -> None:
    """In both directions, within the least and the most."""
    it = ConcurrencyLimit(at_first=10, most=50)
    it.believe(3, until=5.0)
    assert it.limit(4.0) == 3
    assert it.limit(5.0) == 10
    it.believe(0, until=9.0)
    assert it.limit(6.0) == 1
    it.believe(40, until=20.0)
    assert it.limit(10.0) == 40
    it.believe(99, until=20.0)
    assert it.limit(10.0) == 50


def test_nothing_is_guessed_while_a_server_tells() -> None:
    """Slow answers do not shrink the limit then; once it is silent they do."""
    it = ConcurrencyLimit(at_first=40)
    now = rounds(it, 20, 0.4, most=10)
    before = it.limit(now)
    it.believe(60, until=now + 10)
    assert not it.notice_late(5, now)
    rounds(it, 1, 3.0, now, most=20)
    assert it.limit(now + 10) == before
    now = rounds(it, 6, 30.0, now + 10, most=20)
    assert it.limit(now) < before


def test_a_rate_limit_is_counted_down() -> None:
    """So many are begun until then, in flight or over; at none left, none."""
    it = ConcurrencyLimit(at_first=10)
    it.allow(2, until=5.0, sent_at=0.0)
    for _ in range(2):
        assert it.acquire(1.0)
        it.release("answered", 1.0)
    assert not it.acquire(4.9)
    assert it.in_flight == 0
    assert it.reason(2.0) == "its rate limit used up for 3 s"
    assert it.acquire(5.0)


def test_newer_word_of_a_rate_limit_replaces_the_older() -> None:
    """More or fewer; a negative number is none."""
    it = ConcurrencyLimit(at_first=10)
    it.allow(0, until=60.0, sent_at=0.0)
    assert not it.acquire(1.0)
    it.allow(1, until=30.0, sent_at=1.0)
    assert it.acquire(2.0)
    assert not it.acquire(2.0)
    it.allow(-5, until=3.0, sent_at=2.0)
    assert not it.acquire(2.5)
    assert it.acquire(3.0)


def test_word_of_a_rate_limit_is_as_old_as_its_request() -> None:
    """An early request's answer began last: what it told was counted before the other came."""
    it = ConcurrencyLimit(at_first=10)
    it.allow(1, until=60.0, sent_at=5.0)
    it.allow(9, until=61.0, sent_at=4.0)
    assert it.acquire(7.0)
    assert not it.acquire(7.0)
    it.allow(2, until=62.0, sent_at=5.0)
    assert it.acquire(8.0)


def test_what_is_less_urgent_leaves_some_of_a_rate_limit_over() -> None:
    """As it does of the permits."""
    it = ConcurrencyLimit(at_first=10)
    it.allow(2, until=2.5, sent_at=0.0)
    assert not it.acquire(1.0, reserve=2)
    assert it.reason(1.0, reserve=2) == "a rate limit that allows 2 more within 1.5 s"
    assert it.acquire(1.0, reserve=1)
    assert not it.acquire(1.0, reserve=1)
    assert it.acquire(1.0)


def test_asking_takes_nothing() -> None:
    """And what there is to say is said in figures."""
    it = ConcurrencyLimit(at_first=2)
    for _ in range(5):
        assert it.is_free(0.0)
        assert it.is_free(0.0, reserve=1)
    assert not it.is_free(0.0, reserve=2)
    assert it.reason(0.0) == "0 of 2 requests in flight"
    assert it.acquire(0.0)
    assert it.acquire(0.0)
    assert not it.is_free(0.0)
    assert it.reason(0.0) == "2 of 2 requests in flight"


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


def test_a_limit_that_never_moved_begins_where_the_others_are() -> None:
    """And one that has moved by itself stays there."""
    it = ConcurrencyLimit(at_first=20, most=100)
    assert it.learned is None
    it.begin_with(7)
    assert (it.limit(0.0), it.learned) == (7, None)
    it.begin_with(5000)
    assert it.limit(0.0) == 100
    assert it.acquire(0.0)
    it.release("busy", 0.0)
    it.begin_with(7)
    assert (it.limit(0.0), it.learned, it.cuts) == (2, 2, 1)


def test_a_refusal_of_a_request_that_was_alone_leaves_two() -> None:
    """Fewer at once would not have helped it; silence and slow answers go further."""
    it = ConcurrencyLimit(at_first=20)
    for second in range(20):
        assert it.acquire(float(second))
        it.release("busy", float(second))
    assert it.limit(20.0) == 2
    one = ConcurrencyLimit(at_first=1)
    assert one.acquire(0.0)
    one.release("busy", 0.0)
    assert one.limit(0.0) == 1


def test_a_refusal_of_another_process_cuts_it_once_a_second() -> None:
    """It is the same load, whoever was refused; told to others is only what was refused here."""
    it = ConcurrencyLimit(at_first=100)
    for _ in range(10):
        assert it.acquire(0.0)
    it.follow_cut(0.0)
    assert (it.limit(0.0), it.cuts) == (11, 0)
    for _ in range(8):
        it.release("answered", 0.5)
    it.follow_cut(0.5)
    assert it.limit(0.5) == 11
    it.follow_cut(1.0)
    assert (it.limit(1.0), it.cuts) == (3, 0)


def test_refusals_of_other_processes_leave_room_for_what_is_in_flight_here() -> None:
    """And for one more, however long they go on."""
    it = ConcurrencyLimit(at_first=8)
    for _ in range(3):
        assert it.acquire(0.0)
    for second in range(100):
        it.follow_cut(float(second))
    assert it.limit(100.0) == 4
    it = ConcurrencyLimit(at_first=2)
    for _ in range(2):
        assert it.acquire(0.0)
    it.follow_cut(0.0)
    assert it.limit(0.0) == 2  # never more than it was


def test_who_has_recovered_is_given_twice_as_much_with_each_round() -> None:
    """From where it was cut to, with no caution; what is usual is kept."""
    it = ConcurrencyLimit(at_first=100)
    now = rounds(it, 20, 0.4, most=20)
    usual = it.late_secs
    for second in range(60):
        assert it.acquire(now + second)
        it.release("timed_out", now + second + 0.5)
    now += 60
    assert it.limit(now) == 2
    it.recover(now)
    seen = [it.limit(now := busy_round(it, now)) for _ in range(6)]
    assert seen == [2, 4, 8, 16, 32, 64]
    assert it.late_secs == pytest.approx(usual, rel=0.05)


def test_who_has_recovered_begins_with_a_quarter_of_what_was_usual() -> None:
    """However low it was cut, and whether it was refused before or silent; nobody begins higher."""
    it = ConcurrencyLimit()
    now = rounds(it, 40, 0.4, most=40)
    for cut in range(200):
        it.in_flight = 1
        it.release("timed_out", now + 2.0 * cut)
    assert it.limit(now + 400.0) <= 2
    it.recover(now + 400.0)
    assert it.limit(now + 400.0) == pytest.approx(0.25 * 40 / 2, abs=1.5)
    fresh = ConcurrencyLimit(at_first=7)
    fresh.recover(1.0)
    assert fresh.limit(1.0) == 7


def test_who_has_recovered_grows_no_further_than_it_is_used() -> None:
    """To twice what is in flight at most: there is nothing to begin a flood with."""
    it = ConcurrencyLimit(at_first=100)
    it.follow_cut(0.0)
    it.recover(60.0)
    rounds(it, 100, 0.4, 60.0, most=6)
    assert it.limit(200.0) == 12


def test_refusals_after_a_recovery_cut_it() -> None:
    """Its own at once; those of others once they may know of it."""
    it = ConcurrencyLimit(at_first=40)
    it.recover(100.0)
    for _ in range(20):
        assert it.acquire(101.0)
    it.follow_cut(111.9)
    assert it.limit(111.9) == 40
    it.release("busy", 111.9)
    assert it.limit(111.9) == 18
    it = ConcurrencyLimit(at_first=40)
    it.recover(100.0)
    it.follow_cut(112.0)
    assert it.limit(112.0) == 2
    now = rounds(it, 3, 0.4, 112.0)
    assert it.limit(now) == 2  # and caution is back


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["acquire", *VERDICTS, "believe", "allow", "recover", "follow_cut"]),
            st.floats(0, 3),
            st.floats(0.01, 30),
            st.integers(0, 40),
        ),
        max_size=200,
    ),
    at_first=st.integers(1, 20),
    reserve=st.integers(0, 3),
)
def test_in_flight_never_exceeds_the_limit_and_no_permit_leaks(
    steps: Any, at_first: int, reserve: int
) -> None:
    """Neither the limit nor what is left of a rate limit; what was asked is what is given."""
    it = ConcurrencyLimit(at_first=at_first, most=30)
    now, out, more, until = 0.0, 0, 0, 0.0
    for step, secs, ttft, number in steps:
        now += secs
        if step == "acquire":
            limit, free = it.limit(now), it.is_free(now, reserve=reserve)
            has_rate = now >= until or more > reserve
            assert free == (out + reserve < limit and has_rate)
            assert it.acquire(now, reserve=reserve) == free
            if free:
                out, more = out + 1, more - 1
        elif step == "believe":
            it.believe(number, now + ttft)
        elif step == "allow":
            it.allow(number, now + ttft, sent_at=now)
            more, until = number, now + ttft
        elif step == "recover":
            before = it.limit(now)
            it.recover(now)
            assert it.limit(now) == before
        elif step == "follow_cut":
            it.follow_cut(now)
        elif out:
            it.release(step, now, ttft_secs=ttft)
            out -= 1
        assert it.in_flight == out
        assert 1 <= it.limit(now) <= 30
        assert it.reason(now)
