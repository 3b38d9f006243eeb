"""The limit of a provider's requests in flight."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Hashable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.providers.concurrency_limit import (
    OPEN_BOUNDS,
    SESSIONS,
    SHED_BOUNDS,
    ConcurrencyLimit,
    LimitBounds,
)
from pipecat_hedge.providers.verdict import Verdict

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
CEILING = OPEN_BOUNDS.ceiling
MANY = 20
"""Requests that end a round, of whatever size."""


class Limit(ConcurrencyLimit):
    """A limit whose requests are numbers."""

    def __init__(self, in_flight: int = 0):
        super().__init__()
        self.numbers = itertools.count()
        self.out: list[int] = []
        self.send(in_flight, now=0.0)

    def send(self, count: int, *, now: float, sessions: int = MANY) -> None:
        """Send requests now, from several sessions in turn."""
        for number in range(count):
            request = next(self.numbers)
            self.acquire(request, now, session=number % sessions)
            self.out.append(request)

    def end(self, verdict: Verdict, now: float) -> None:
        """End the latest request."""
        self.release(self.out.pop(), verdict, now)

    def answer(
        self,
        *secs: float,
        now: float,
        sessions: int = MANY,
        size: Hashable = None,
        bounds: LimitBounds = OPEN_BOUNDS,
        lag_secs: float = 0.0,
    ) -> None:
        """Record first tokens now and end their requests."""
        requests: list[tuple[int, float]] = []
        for number, each in enumerate(sorted(secs, reverse=True)):
            request = next(self.numbers)
            self.acquire(request, now - each, session=number % sessions, bounds=bounds)
            requests.append((request, each))
        for request, each in requests:
            self.record_first_token(request, each, now, size_class=size, lag_secs=lag_secs)
        for request, _ in requests:
            self.release(request, "answered", now)


def measured(in_flight: int = 80, secs: float = 0.4) -> Limit:
    """A provider with a typical time and some requests in flight."""
    it = Limit(in_flight)
    for request in it.out:
        it.record_first_token(request, secs, secs)
    for second in range(1, 31):
        it.answer(*[secs] * MANY, now=float(second))
    return it


# ---- inferred


@pytest.mark.parametrize(
    ("typical_secs", "secs", "sessions", "shrinks"),
    [
        pytest.param(0.4, [0.75] * MANY, MANY, False, id="under twice the typical time"),
        pytest.param(0.4, [0.85] * MANY, MANY, True, id="over twice the typical time"),
        pytest.param(0.4, [60.0] * MANY, MANY, True, id="hanging"),
        pytest.param(0.05, [0.45] * MANY, MANY, False, id="late, but fast"),
        pytest.param(0.4, [8.0] * MANY, SESSIONS - 1, False, id="of few sessions"),
        pytest.param(0.4, [8.0] * MANY, SESSIONS, True, id="of enough sessions"),
        pytest.param(0.4, [0.4, 0.4, 0.4, 16.0, 16.0] * 4, MANY, False, id="a heavy tail"),
    ],
)
def test_late_round_of_several_sessions_shrinks_the_limit(
    typical_secs: float, secs: list[float], sessions: int, shrinks: bool
) -> None:
    it = measured(secs=typical_secs)
    it.answer(*secs, now=100.0, sessions=sessions)
    assert it.limit(100.0) == (25 if shrinks else CEILING)
    assert it.has_room(it.limit(100.0)) is not shrinks
    assert not it.is_rejecting(100.0), "slowness is no rejection"


def test_late_requests_count_before_their_first_token() -> None:
    it = measured(in_flight=20)
    it.send(60, now=100.0)
    assert it.has_room(it.limit(100.7))
    it.send(1, now=101.0)
    assert it.limit(101.0) < 40


def test_times_are_compared_within_a_size_class() -> None:
    it = measured()
    it.answer(*[1.5] * MANY, now=100.0, size="long", sessions=1)
    for second in range(101, 130):
        it.answer(*[1.5] * MANY, now=float(second), size="long")
    assert it.limit(130.0) == CEILING


def test_calm_rounds_grow_a_used_limit() -> None:
    it = measured()
    it.answer(*[8.0] * MANY, now=100.0)
    low = it.limit(100.0)
    for second in range(102, 162):
        it.answer(*[0.4] * MANY, now=float(second))
    grown = it.limit(162.0)
    assert grown >= 4 * low
    while it.out:
        it.end("answered", 162.0)
    for second in range(163, 263):
        it.answer(0.4, now=float(second))
    assert it.limit(263.0) == grown


def test_next_round_starts_after_a_cut_shows() -> None:
    it = measured(in_flight=400)
    limits: list[int] = []
    for now in (100.0, 100.5, 103.0):
        it.answer(*[8.0] * MANY, now=now)
        limits.append(it.limit(now))
        while it.in_flight > limits[0] and now > 100.0:
            it.end("answered", 101.0)
    assert limits == [105, 105, 26]


@pytest.mark.parametrize("bounds", [OPEN_BOUNDS, SHED_BOUNDS, LimitBounds(3, 30)])
def test_limit_stays_at_the_floor(bounds: LimitBounds) -> None:
    it, now = Limit(), 0.0
    for secs in [0.4] * 40 + [8.0 * 1.5**number for number in range(40)]:
        now += 1000.0
        it.answer(*[secs] * MANY, now=now, bounds=bounds)
    assert it.limit(now, bounds) == bounds.floor
    for _ in range(40):
        now += 10.0
        it.answer(*[0.4] * MANY, now=now, bounds=bounds)
    assert it.limit(now, bounds) > bounds.floor


def test_lasting_slowness_becomes_typical() -> None:
    it = measured(in_flight=40)
    for second in range(200):
        it.answer(*[1.6] * MANY, now=100.0 + second)
    assert it.limit(300.0) > 40


# ---- stated by the provider


def test_rejection_cuts_the_limit_by_a_tenth() -> None:
    it = Limit(in_flight=50)
    for verdict in VERDICTS:
        if verdict != "busy":
            it.end(verdict, 0.1)
    assert it.limit(0.1) == CEILING, "no other end changes the limit"
    while it.in_flight > 40:
        it.end("answered", 0.1)
    for _ in range(10):
        it.end("busy", 0.1)
    assert [it.limit(now) for now in (0.1, 5.1, 60.0, 60.1)] == [36, 41, 95, CEILING]


def test_rejections_keep_requests_below_what_the_provider_takes() -> None:
    """It takes 20 at a time; callers want half as many again."""
    it, rng = Limit(), random.Random(1)
    ends: list[tuple[float, int]] = []
    now, sent, rejected = 0.0, 0, 0
    while now < 300.0:
        now += rng.expovariate(30.0)
        while ends and ends[0][0] <= now:
            at, request = heapq.heappop(ends)
            it.release(request, "answered", at)
        if not it.has_room(it.limit(now)):
            continue
        request, sent = next(it.numbers), sent + 1
        it.acquire(request, now, session=sent % MANY)
        if len(ends) == 20:
            it.release(request, "busy", now)
            rejected += 1
        else:
            heapq.heappush(ends, (now + rng.uniform(0.5, 1.5), request))
    print(f"{rejected} of {sent} rejected")
    assert rejected < 0.05 * sent
    assert sent - rejected > 0.85 * 20 * 300  # it has hardly less to do


def test_callers_keep_two_requests_despite_rejections() -> None:
    it = Limit()
    for second in range(20):
        it.send(1, now=float(second))
        it.end("busy", float(second))
    assert it.limit(19.0) == 0
    assert not it.has_room(it.limit(19.0))
    taken = [it.is_rejecting(19.0)]
    for _ in range(2):
        it.send(1, now=19.0)
        taken.append(it.is_rejecting(19.0))
    assert taken == [False, False, True]
    assert not it.is_rejecting(80.0), "that was too long ago"


def test_reported_queue_overrides_the_inferred_limit() -> None:
    it = measured()
    it.set_queue(60, until=105.0)
    it.answer(*[8.0] * MANY, now=100.0)
    assert (it.limit(104.9), it.limit(105.0)) == (60, CEILING)
    it.set_queue(-3, until=105.0)
    assert it.limit(104.0) == 0
    it.set_queue(5000, until=105.0)
    assert it.limit(104.0) == CEILING


# ---- room


STEPS = st.tuples(
    st.sampled_from(["acquire", "first token", "queue", "recover", *VERDICTS]),
    st.floats(0, 3),
    st.floats(0.01, 30),
    st.integers(-2, 40),
)


@given(
    st.lists(STEPS, max_size=200),
    st.sampled_from([OPEN_BOUNDS, SHED_BOUNDS, LimitBounds(3, 30)]),
)
def test_limit_keeps_its_bounds_and_leaks_no_permit(steps: Any, bounds: LimitBounds) -> None:
    it, now, stated_until = Limit(), 0.0, 0.0
    for step, secs, more_secs, number in steps:
        now += secs
        if step == "acquire":
            it.send(1, now=now, sessions=10**6)
        elif step == "first token" and it.out:
            it.record_first_token(it.out[number % len(it.out)], more_secs, now)
        elif step == "queue":
            it.set_queue(number, now + more_secs)
            stated_until = max(stated_until, now + more_secs)
        elif step == "recover":
            it.recover()
        elif it.out and step in VERDICTS:
            it.end(step, now)
            stated_until = max(stated_until, now + 60.0 if step == "busy" else 0.0)
        assert it.in_flight == len(it.out)
        least = 0 if now < stated_until else bounds.floor
        assert least <= it.limit(now, bounds) <= bounds.ceiling
        assert not (it.has_room(it.limit(now, bounds)) and it.in_flight >= it.limit(now, bounds))


def test_answers_in_time_count_though_the_loop_is_late() -> None:
    """Three of ten are late, as are three of ten that are read at once: the limit stays."""
    it = measured()
    for second in range(100, 110):
        it.answer(*[0.3] * 14, *[3.0] * 6, now=float(second), lag_secs=0.3)
    assert it.limit(120.0) == measured().limit(120.0)
