"""Conditions, the bounded capacity and the counts of arrivals."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from pipecat_hedge.tools.simulator import BehaviourError
from pipecat_hedge.tools.simulator.conditions import Capacity, read_conditions
from pipecat_hedge.tools.simulator.timeline import FAULTS


def test_conditions_are_keys_and_capacity() -> None:
    fields = read_conditions({"fault": "429", "rate": 0.3, "ttft": "2", "args": {"a": 1}})
    assert fields == {"fault": FAULTS["429"], "rate": 0.3, "ttft": 2, "args": {"a": 1}}
    assert read_conditions({"capacity": None}) == {"capacity": None}
    assert read_conditions({}) == {}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tftt": 1}, "tftt: unknown key; known keys: ttft, headers.*, capacity"),
        ({"rate": 2}, "rate: expected share of requests"),
        ({"rate": None}, "rate: expected share of requests"),
        ({"slow": "inf"}, "slow: expected a factor"),
        ({"fault": "oops"}, "fault: unknown fault 'oops'"),
        ({"capacity": 0}, "capacity: expected a whole number"),
        ({"capacity": "3"}, "capacity: expected a whole number"),
    ],
)
def test_bad_condition_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(BehaviourError, match=message):
        read_conditions(values)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "3"])
def test_bad_capacity_is_named(limit: Any) -> None:
    with pytest.raises(ValueError, match="capacity: expected a whole number, 1 or more"):
        Capacity(limit)


class Requests:
    """Requests that take a second each, and when they were served."""

    def __init__(self, limit: int | None):
        self.capacity = Capacity(limit)
        self.began: dict[str, float] = {}
        self.most = 0

    def send(self, name: str, secs: float = 1.0) -> asyncio.Task[None]:
        return asyncio.create_task(self._serve(name, secs), name=name)

    async def _serve(self, name: str, secs: float) -> None:
        async with self.capacity.place():
            self.began[name] = asyncio.get_running_loop().time()
            self.most = max(self.most, self.capacity.busy)
            await asyncio.sleep(secs)


@pytest.mark.virtual_time
async def test_requests_are_served_in_order() -> None:
    """Two at once, the others as places become free; a late one waits behind the queue."""
    requests = Requests(2)
    began = asyncio.get_running_loop().time()
    tasks = [requests.send(name) for name in "abcd"]
    await asyncio.sleep(1)
    tasks.append(requests.send("e"))
    await asyncio.gather(*tasks)
    assert {name: at - began for name, at in requests.began.items()} == pytest.approx(
        {"a": 0, "b": 0, "c": 1, "d": 1, "e": 2}
    )
    assert (requests.most, requests.capacity.busy, requests.capacity.waiting) == (2, 0, 0)


@pytest.mark.virtual_time
async def test_a_cancelled_request_makes_room() -> None:
    """While it waits, while it is served, and between being admitted and running."""
    requests = Requests(1)
    served, waits, admitted, last = (requests.send(n, 9) for n in ("a", "b", "c", "d"))
    await asyncio.sleep(0.5)
    waits.cancel()
    await asyncio.sleep(0)
    assert requests.capacity.waiting == 2
    served.cancel()
    await asyncio.sleep(0)  # the third request has the place and does not know it yet
    admitted.cancel()
    await asyncio.wait_for(last, 10)
    assert list(requests.began) == ["a", "d"]
    await asyncio.gather(served, waits, admitted, return_exceptions=True)
    assert (requests.capacity.busy, requests.capacity.waiting) == (0, 0)


@pytest.mark.virtual_time
async def test_limit_can_change() -> None:
    """A higher one is filled at once; a lower one ends no request."""
    requests = Requests(1)
    tasks = [requests.send(name) for name in "abcd"]
    await asyncio.sleep(0)
    requests.capacity.limit = 3
    assert requests.capacity.busy == 3
    requests.capacity.limit = 1
    await asyncio.sleep(0.5)
    assert list(requests.began) == ["a", "b", "c"]
    requests.capacity.limit = None
    await asyncio.gather(*tasks)
    assert requests.capacity.busy == 0


@pytest.mark.virtual_time
@pytest.mark.parametrize("seed", range(10))
async def test_never_more_than_the_limit(seed: int) -> None:
    rng = random.Random(seed)
    requests = Requests(3)
    tasks: list[asyncio.Task[None]] = []
    for number in range(60):
        tasks.append(requests.send(str(number), rng.random()))
        if rng.random() < 0.4:
            rng.choice(tasks).cancel()
        if rng.random() < 0.5:
            await asyncio.sleep(rng.random() / 2)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert requests.most == 3
    assert (requests.capacity.busy, requests.capacity.waiting) == (0, 0)
