"""A queue is told from a provider that is slow, by all who ask it together."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.queue_test import NO_COUNTS, Found, QueueTests, TestCounts


def begun(others: int = 0, *, flying: int = 12, served: float = 6.0) -> QueueTests:
    """A test that began at 0 and counts what is sent from 2 s on."""
    it = QueueTests()
    it.others = others
    limit = it.begin(flying, served, 0.0, is_known=False)
    assert limit == served / 2 / (1 + others)
    return it


def hear(it: QueueTests, now: float, *, late: bool, sent_at: float | None = None) -> Found | None:
    sent_at = now - 0.5 if sent_at is None else sent_at
    return it.heard(1.6 if late else 0.0, sent_at, now, is_late=late, was_overdue=False)


def test_who_is_in_time_again_had_a_queue() -> None:
    """Ten requests in time; what was served before may be in flight again."""
    it = begun()
    ends = [hear(it, 3.0 + n, late=False) for n in range(10)]
    assert ends[:-1] == [None] * 9
    assert ends[-1] == Found("queue", 6.0)
    assert not it.is_on
    assert it.counts == TestCounts(1, 10, 0, 10, 0.0)


def test_who_is_late_still_is_slow() -> None:
    """Five requests; as much as before may be in flight, and what they took is usual."""
    it = begun()
    ends = [hear(it, 3.0 + n, late=True) for n in range(5)]
    assert ends[:-1] == [None] * 4
    found = ends[-1]
    assert found is not None
    assert (found.verdict, found.limit, round(found.late, 3)) == ("slow", 12.0, 1.6)


def test_what_was_sent_before_the_queue_had_drained_says_nothing() -> None:
    """However late it was."""
    it = begun()
    for _ in range(20):
        assert hear(it, 5.0, late=True, sent_at=1.9) is None
    assert it.counts == TestCounts(begun=1)


def test_a_test_without_traffic_ends_with_nothing_found() -> None:
    """When its time is over, asked by whomever; and nothing keeps the next one back."""
    for ask in (QueueTests.run_out, lambda it, now: it.hear_others(NO_COUNTS, now)):
        it = begun()
        assert it.run_out(14.9) is None
        assert ask(it, 15.0) == Found("nothing", 12.0)
        assert not it.is_on
        assert it.is_due(15.0, is_plain=False)
    assert begun().run_out(40_000.0) == Found("nothing", 12.0)
    assert QueueTests().run_out(1.0) is None


def test_what_little_was_counted_decides_when_the_time_is_over() -> None:
    """Whoever asks first."""
    it = begun()
    assert hear(it, 4.0, late=False) is None
    assert it.run_out(14.9) is None
    assert it.run_out(40_000.0) == Found("queue", 6.0)


def test_who_does_not_answer_at_all_is_not_slow() -> None:
    """Until somebody has been answered; a request that was overdue counts once."""
    it = begun()
    for _ in range(30):
        assert it.overdue(20.0) is None
    found = it.heard(0.1, 19.0, 21.0, is_late=True, was_overdue=True)
    assert found == Found("slow", 12.0, 0.1)
    assert it.counts.late == 30


def test_processes_find_out_together() -> None:
    """Each has one request late, and knows it when the others have told."""
    fleet = [begun(others=4) for _ in range(5)]
    for it in fleet:
        assert hear(it, 3.0, late=True) is None
    told = [it.counts for it in fleet]
    for number, it in enumerate(fleet):
        others = sum((each for n, each in enumerate(told) if n != number), NO_COUNTS)
        found = it.hear_others(others.since(TestCounts(begun=4)), 4.0)
        assert found is not None
        assert found.verdict == "slow"


def test_who_began_later_is_waited_for() -> None:
    """And what others count before one's own queue has drained is not taken."""
    it = begun(others=3)
    assert it.hear_others(TestCounts(1, 0, 9, 9, 9.0), 1.5) is None
    assert not it.has(2.9)
    assert it.has(3.0)
    assert it.hear_others(TestCounts(late=4), 3.5) is None  # all that counts, and not enough


def test_in_the_end_the_likelier_is_believed() -> None:
    """Where what is heard is neither the one nor the other."""
    for late, verdict in ((1, "queue"), (2, "slow")):
        it = begun()
        for n in range(late):
            assert hear(it, 4.0 + n, late=True) is None
        assert [hear(it, 8.0, late=False) for _ in range(2)] == [None, None]
        found = hear(it, 15.0, late=False)
        assert found is not None
        assert found.verdict == verdict


def test_one_process_alone_is_not_believed() -> None:
    """Three within three seconds are; its own network may be what is slow."""
    it = QueueTests()
    assert not it.is_believed(1, 0.0)
    assert not it.is_believed(1, 2.0)
    assert it.is_believed(1, 3.0)
    assert not it.is_believed(0, 3.5)
    assert not it.is_believed(1, 6.0)
    assert it.is_believed(3, 60.0)


def test_there_is_a_rest_after_a_test() -> None:
    """Shorter for who is plainly late; none while there is one."""
    it = begun()
    assert not it.is_due(100.0, is_plain=True)
    for n in range(10):
        hear(it, 3.0 + n / 10, late=False)
    assert not it.is_due(13.0, is_plain=True)
    assert it.is_due(14.0, is_plain=True)
    assert not it.is_due(60.0, is_plain=False)
    assert it.is_due(64.0, is_plain=False)
    it.begin(1, 1.0, 70.0, is_known=True)
    it.drop()
    assert not it.is_on
    assert it.hear_others(TestCounts(late=99), 99.0) is None


def test_what_was_in_flight_in_a_good_hour_is_remembered_while_a_queue_is_known() -> None:
    """So that a slow hour after a crowd need not grow from one."""
    it = begun(flying=40)
    for n in range(10):
        hear(it, 3.0 + n / 10, late=False)
    it.begin(1, 1.0, 20.0, is_known=True)
    found = None
    for _ in range(5):
        found = hear(it, 23.0, late=True)
    assert found is not None
    assert (found.verdict, found.limit) == ("slow", 40.0)


@given(seed=st.integers(0, 2**32), is_slow=st.booleans(), processes=st.integers(1, 8))
def test_it_is_seldom_wrong(seed: int, is_slow: bool, processes: int) -> None:
    """A provider that is three times as slow has three of four late, a short queue one of ten."""
    wrong = 0
    for n in range(40):
        dice = random.Random(f"{seed} {n}")
        found, it = None, begun(others=processes - 1)
        now = 3.0
        while found is None:
            now += 0.5 / processes
            found = hear(it, now, late=dice.random() < (0.75 if is_slow else 0.1), sent_at=2.5)
        wrong += found.verdict != ("slow" if is_slow else "queue")
    assert wrong <= 6


@given(counts=st.lists(st.builds(TestCounts, *[st.integers(0, 9)] * 4, st.integers(-9, 9))))
def test_nothing_is_lost_or_counted_twice(counts: Any) -> None:
    """What is added since the last time, each time, is all."""
    total, heard, last = NO_COUNTS, NO_COUNTS, NO_COUNTS
    for each in counts:
        total += each
        heard += total.since(last)
        last = total
    assert heard == total
