"""The bounded capacity."""

from __future__ import annotations

import asyncio
import random

import pytest

from pipecat_hedge.tools.simulator.conditions import Capacity


class Requests:
    """Requests that take a second each, and when they were served."""

    def __init__(self, limit: int | None):
        self.capacity = Capacity(limit)
        self.began: dict[str, float] = {}
        self.most = 0
        self._started = asyncio.get_running_loop().time()

    def send(self, name: str, secs: float = 1.0) -> asyncio.Task[None]:
        return asyncio.create_task(self._serve(name, secs), name=name)

    async def _serve(self, name: str, secs: float) -> None:
        async with self.capacity.place():
            self.began[name] = asyncio.get_running_loop().time() - self._started
            self.most = max(self.most, self.capacity.busy)
            await asyncio.sleep(secs)

    @property
    def left(self) -> tuple[int, int]:
        return self.capacity.busy, self.capacity.waiting


@pytest.mark.virtual_time
async def test_requests_are_served_in_order() -> None:
    """Two at once, the others as places become free; a late one waits behind the queue."""
    requests = Requests(2)
    tasks = [requests.send(name) for name in "abcd"]
    await asyncio.sleep(1)
    tasks.append(requests.send("e"))
    await asyncio.gather(*tasks)
    assert requests.began == pytest.approx({"a": 0, "b": 0, "c": 1, "d": 1, "e": 2})
    assert (requests.most, requests.left) == (2, (0, 0))


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
    assert requests.left == (0, 0)


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
@pytest.mark.parametrize("seed", range(5))
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
    assert (requests.most, requests.left) == (3, (0, 0))
