"""Which part of a fleet's sum is others'."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.fleet.fleet_latency import GENERATION, FleetLatency
from pipecat_hedge.policy.latency_sketch import LatencyCounts
from pipecat_hedge.policy.shared_store import Place, Sum


def counts(**times: int) -> LatencyCounts:
    """So many answers at 0.1 s, 0.2 s and so on, as ``t1=5, t2=3``."""
    made = LatencyCounts()
    for name, count in times.items():
        for _ in range(count):
            made.add("0", int(name[1:]) / 10, censored=False)
    return made


def summed(*parts: LatencyCounts) -> LatencyCounts:
    total = LatencyCounts()
    for part in parts:
        total.merge(part)
    return total


def others(it: FleetLatency) -> list[tuple[int, float]]:
    """How many observations there are of each generation, and their weight."""
    return [
        (sum(sketch.count for sketch in each.parts.values()), weight) for each, weight in it.others
    ]


def test_what_it_has_added_itself_is_not_others() -> None:
    """It has those observations already."""
    it = FleetLatency()
    mine, theirs = counts(t1=5), counts(t1=2, t2=7)
    it.added(mine, Place("e", 0))
    assert not it.found(Sum(Place("e", 0), 14, summed(mine, theirs)))
    assert it.others[0][0].fields() == theirs.fields()


def test_a_new_generation_takes_over_as_it_fills() -> None:
    """Of the one before as much is used as it lacks."""
    it = FleetLatency()
    it.added(counts(t1=10), Place("e", 3))
    it.found(Sum(Place("e", 3), GENERATION, counts(t1=50)))
    assert others(it) == [(40, 1.0), (0, 0.0)]
    it.found(Sum(Place("e", 4), GENERATION // 4, counts(t2=8), counts(t1=60)))
    assert others(it) == [(8, 1.0), (50, 0.75)]
    it.found(Sum(Place("e", 6), 5, counts(t3=5), counts(t2=9)))
    it.added(counts(t3=1), Place("e", 6))
    it.found(Sum(Place("e", 6), 6, counts(t3=6), counts(t2=9)))
    assert others(it)[0] == (5, 1.0)


def test_what_the_store_has_lost_is_added_again() -> None:
    """Whether it is empty, or somebody else has begun anew."""
    for found_empty in (True, False):
        it = FleetLatency()
        it.added(counts(t1=5), Place("old", 0))
        it.found(Sum(Place("old", 0), 9, counts(t1=9)))
        it.added(counts(t2=3), Place("old", 0))
        if found_empty:
            again = it.lost()
            assert it.place is None
        else:
            it.added(counts(t3=1), Place("new", 0))
            again = it.found(Sum(Place("new", 0), 2, counts(t3=2)))
            assert others(it)[0] == (1, 1.0)
        assert again.fields() == counts(t1=5, t2=3).fields()
        assert not it.lost() or not found_empty


def test_after_a_change_only_what_is_seen_from_then_on_counts() -> None:
    """The sum as it is found next is what does not; its own part comes off once, not twice."""
    it = FleetLatency()
    it.added(counts(t1=5), Place("e", 0))
    it.found(Sum(Place("e", 0), 100, counts(t1=100)))
    assert others(it)[0] == (95, 1.0)
    it.forget()
    assert it.others == []
    assert it.wants == 0
    it.found(Sum(Place("e", 0), 103, counts(t1=103)))
    assert others(it)[0] == (0, 1.0)
    it.added(counts(t9=2), Place("e", 0))
    it.found(Sum(Place("e", 0), 115, summed(counts(t1=103), counts(t9=12))))
    assert it.others[0][0].fields() == counts(t9=10).fields()
    before = summed(counts(t1=103), counts(t9=20))
    it.found(Sum(Place("e", 1), 4, counts(t9=4), before))
    assert [count for count, _ in others(it)] == [4, 18]
    it.found(Sum(Place("e", 2), 7, counts(t9=7), counts(t9=30)))
    assert [count for count, _ in others(it)] == [7, 30]


def test_a_sum_is_read_again_when_a_few_hundredths_are_new() -> None:
    """Curves are not made anew for each observation."""
    it = FleetLatency()
    assert it.wants == 4
    it.found(Sum(Place("e", 0), 3200, counts(t1=1)))
    assert it.wants == 3300
    assert (it.place, it.count) == (Place("e", 0), 3200)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6)), max_size=60), st.integers())
def test_whoever_adds_when_each_sees_what_the_others_added(
    added: list[tuple[int, int]], seed: int
) -> None:
    """Within the two generations that are kept, for three processes that read at any time."""
    rng = random.Random(seed)
    fleet = [FleetLatency() for _ in range(3)]
    sums = {0: LatencyCounts()}
    by: dict[tuple[int, int], int] = {}
    number = count = 0
    for who, many in added:
        if count >= 20:
            number, count = number + 1, 0
            sums[number] = LatencyCounts()
        sums[number].merge(counts(**{f"t{who + 1}": many}))
        count += many
        by[who, number] = by.get((who, number), 0) + many
        fleet[who].added(counts(**{f"t{who + 1}": many}), Place("e", number))
        reads = rng.randrange(3)
        before = sums.get(number - 1, LatencyCounts())
        fleet[reads].found(Sum(Place("e", number), count, sums[number], before))
        for (each, _), generation in zip(fleet[reads].others, (number, number - 1), strict=True):
            expected = {
                f"t{other + 1}": by.get((other, generation), 0)
                for other in range(3)
                if other != reads
            }
            assert each.fields() == pytest.approx(counts(**expected).fields())
