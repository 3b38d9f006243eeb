"""A server's queue: who is served, who waits, and who leaves."""

from __future__ import annotations

import asyncio
import random

import pytest

from pipecat_hedge.tools.simulator.capacity import Capacity

pytestmark = pytest.mark.virtual_time


class Guests:
    """Requests that take a second each, and what they saw."""

    def __init__(self, limit: int | None):
        self.capacity = Capacity(limit)
        self.began: dict[str, float] = {}
        self.most = 0

    def come(self, name: str, secs: float = 1.0) -> asyncio.Task[None]:
        return asyncio.create_task(self._come(name, secs), name=name)

    async def _come(self, name: str, secs: float) -> None:
        async with self.capacity.place():
            self.began[name] = asyncio.get_running_loop().time()
            self.most = max(self.most, self.capacity.busy)
            await asyncio.sleep(secs)


async def test_served_in_order():
    """Two at once; the others in the order in which they came, each when a place is free."""
    guests = Guests(2)
    began = asyncio.get_running_loop().time()
    tasks = [guests.come(name) for name in "abcde"]
    await asyncio.gather(*tasks)
    assert {name: at - began for name, at in guests.began.items()} == pytest.approx(
        {"a": 0, "b": 0, "c": 1, "d": 1, "e": 2}
    )
    assert list(guests.began) == list("abcde")
    assert (guests.most, guests.capacity.busy, guests.capacity.waiting) == (2, 0, 0)


async def test_nobody_jumps_the_queue():
    """Who comes when a place has just become free goes behind those who wait."""
    guests = Guests(1)
    tasks = [guests.come("a"), guests.come("b")]
    await asyncio.sleep(1)  # the end of a, in this very step
    tasks.append(guests.come("late"))
    await asyncio.gather(*tasks)
    assert list(guests.began) == ["a", "b", "late"]


async def test_one_that_leaves_makes_room():
    """Whether it was being served or waited; those behind it move up at once."""
    guests = Guests(1)
    served, waits, last = guests.come("served", 9), guests.come("waits"), guests.come("last")
    await asyncio.sleep(0.5)
    waits.cancel()
    await asyncio.sleep(0)
    assert guests.capacity.waiting == 1
    served.cancel()
    left = asyncio.get_running_loop().time()
    await last
    assert guests.began["last"] == left
    assert "waits" not in guests.began
    await asyncio.gather(served, waits, return_exceptions=True)
    assert guests.capacity.busy == 0


async def test_one_that_is_called_and_leaves():
    """Its place goes to the next, though it was given already."""
    guests = Guests(1)
    first, called, last = guests.come("first", 9), guests.come("called"), guests.come("last")
    await asyncio.sleep(0.5)
    first.cancel()
    await asyncio.sleep(0)  # first is gone, and called has the place without knowing it yet
    called.cancel()
    await asyncio.wait_for(last, 2)
    assert list(guests.began) == ["first", "last"]
    await asyncio.gather(first, called, return_exceptions=True)
    assert (guests.capacity.busy, guests.capacity.waiting) == (0, 0)


async def test_more_places_and_fewer():
    """More are filled at once; with fewer nobody is thrown out."""
    guests = Guests(1)
    tasks = [guests.come(name) for name in "abcd"]
    await asyncio.sleep(0)
    guests.capacity.limit = 3
    assert guests.capacity.busy == 3
    guests.capacity.limit = 1
    assert guests.capacity.busy == 3
    await asyncio.sleep(0.5)
    assert list(guests.began) == ["a", "b", "c"]
    guests.capacity.limit = None
    await asyncio.gather(*tasks)
    assert guests.capacity.busy == 0


@pytest.mark.parametrize("seed", range(20))
async def test_never_more_than_the_limit(seed: int):
    """Whoever comes, leaves and is thrown out when: never over the limit, and nothing leaks."""
    rng = random.Random(seed)
    guests = Guests(3)
    tasks: list[asyncio.Task[None]] = []
    for number in range(60):
        tasks.append(guests.come(str(number), rng.random()))
        if rng.random() < 0.4:
            rng.choice(tasks).cancel()
        if rng.random() < 0.5:
            await asyncio.sleep(rng.random() / 2)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert guests.most == 3
    assert (guests.capacity.busy, guests.capacity.waiting) == (0, 0)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "3"])
async def test_no_limit_at_all(limit: object):
    """What is no number of places is an error that names the field."""
    with pytest.raises(ValueError, match="capacity: expected a whole number, 1 or more"):
        Capacity(limit)  # pyright: ignore[reportArgumentType]
