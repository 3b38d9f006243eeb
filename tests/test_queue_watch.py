"""What first tokens tell of a queue, and what is done about it."""

from __future__ import annotations

import pytest

from pipecat_hedge.queue_test import TestCounts
from pipecat_hedge.queue_watch import FewerOrMore, QueueWatch


def used_to(secs: float = 0.5, count: int = 96) -> QueueWatch:
    """Somebody who knows first tokens of so many seconds, and that four are served at once."""
    it = QueueWatch()
    for n in range(count):
        assert hear(it, secs, n / 10) is None
        it.answered(1.0, n / 10 + 0.4)
    for n in range(8):
        it.answered(1.0, 98.5 + n / 10)
    return it


def hear(it: QueueWatch, secs: float, sent_at: float) -> FewerOrMore | None:
    return it.heard(secs, 20, sent_at + secs, size_class=None, was_overdue=False, is_told=False)


def make_late(it: QueueWatch, count: int = 5, sent_at: float = 98.5) -> None:
    """So many requests have been silent for too long."""
    assert [it.overdue(sent_at, sent_at + 1.0) for _ in range(count)] == [None] * count


def test_a_queue_is_suspected_and_tested() -> None:
    """When half of what is in flight is late; half of what is served is left, and then tested."""
    it = used_to()
    make_late(it)
    assert it.notice_late(9, 20, 99.5) is None
    assert it.notice_late(2, 3, 99.5) is None
    order = it.notice_late(10, 20, 99.5)
    assert order is not None
    assert order.why == "test"
    assert 1.0 <= order.limit <= 2.0
    assert it.notice_late(10, 20, 100.9) is None  # while it is tested
    ends = [hear(it, 0.5, 102.0 + n / 10) for n in range(10)]
    assert ends[-1] is not None
    assert ends[-1].why == "tested"
    again = [hear(it, 0.8, 110.0 + n / 10) for n in range(12)]  # not late, but a queue is known
    assert "queue" in [each.why for each in again if each is not None]


@pytest.mark.parametrize("in_time", [0, 4])
def test_what_stays_in_flight_is_no_queue_while_others_are_in_time(in_time: int) -> None:
    """Slow ones pile up where a tail is long; five late in a row are not chance any more."""
    it = used_to()
    make_late(it, 4)
    for n in range(in_time):
        assert hear(it, 0.5, 98.6 + n / 10) is None
    assert it.notice_late(10, 20, 99.5) is None
    make_late(it, 1)
    assert (it.notice_late(10, 20, 99.5) is None) == bool(in_time)


def test_a_late_request_counts_once() -> None:
    """Also where it is heard in the end; and not at all if it was sent before the last cut."""
    it = used_to()
    make_late(it, 4)
    for _ in range(4):
        told = it.heard(2.0, 20, 100.5, size_class=None, was_overdue=True, is_told=False)
        assert told is None
    assert it.notice_late(10, 20, 100.5) is None
    it.cut_at = 102.0
    make_late(it, 9, sent_at=101.9)
    assert it.notice_late(10, 20, 104.0) is None


def test_who_is_twice_as_slow_is_left_in_peace() -> None:
    """That is no emergency, and a test would make callers wait."""
    it = used_to()
    assert [hear(it, 1.0, 100.0 + n) for n in range(200)] == [None] * 200


def test_who_is_slow_is_usual_soon() -> None:
    """After a test of five requests."""
    it = used_to()
    orders = [hear(it, 3.0, 100.0 + n / 10) for n in range(5)]
    assert orders[-1] is not None
    assert orders[-1].why == "test"
    ends = [hear(it, 3.0, 106.0 + n / 10) for n in range(5)]
    assert ends[-1] == FewerOrMore("slow", 20.0)
    assert it.late_secs > 3.0
    assert [hear(it, 3.0, 120.0 + n) for n in range(50)] == [None] * 50


def test_a_request_counts_before_it_is_heard() -> None:
    """As soon as it is late, if it is one of the test's."""
    it = used_to()
    make_late(it)
    assert it.notice_late(10, 20, 100.0) is not None
    for _ in range(9):
        assert it.overdue(101.0, 103.5) is None
    for _ in range(5):
        assert it.overdue(102.0, 103.5) is None
    assert it.tested == TestCounts(begun=1, late=5)


@pytest.mark.parametrize(("is_full", "begun", "joins"), [(True, 1, True), (False, 1, False)])
def test_who_is_held_back_joins_a_test(is_full: bool, begun: int, joins: bool) -> None:
    """Who is not waits for more of them to begin one; nobody joins who has nothing in flight."""
    it = used_to()
    counts = TestCounts(begun=begun)
    assert it.hear_tests(7, counts, 0, 100.0, is_full=is_full) is None
    order = it.hear_tests(7, counts, 5, 101.0, is_full=is_full)
    assert (order is not None) == joins
    order = it.hear_tests(7, counts, 5, 102.0, is_full=is_full)
    assert (order is not None) != joins
    assert it.is_testing
    assert (it.tested, it.others) == (TestCounts(), 7)  # it is not told on


def test_a_known_queue_is_known_as_long_as_anybody_sees_it() -> None:
    """And is forgotten with an outage."""
    it = used_to()
    make_late(it)
    assert it.notice_late(10, 20, 100.0) is not None
    for n in range(10):
        hear(it, 0.5, 102.0 + n / 10)
    for minute in range(3):
        it.hear_cut(150.0 + 50 * minute)
    late = [hear(it, 0.8, 280.0 + n / 10) for n in range(12)]
    assert any(late)
    it.forget(300.0)
    assert not it.is_testing
    assert [hear(it, 0.8, 301.0 + n / 10) for n in range(12)] == [None] * 12
