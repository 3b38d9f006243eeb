"""A response that is kept for several clients. What one client gets is in ``tests/live``."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from pipecat_hedge.tools.proxy import response as module
from pipecat_hedge.tools.proxy.response import Reader, Response

pytestmark = pytest.mark.virtual_time


class Client:
    """A reader that takes its time for each piece."""

    def __init__(self, response: Response, pause_secs: float = 0.0):
        self.place, self.found, self._pause_secs = 0, b"", pause_secs
        self._response = response
        response.add(cast(Reader, self))

    async def read(self) -> bytes:
        response = self._response
        while True:
            chunk, place = response.read(self.place)
            if chunk:
                await asyncio.sleep(self._pause_secs)
                self.found, self.place = self.found + chunk, place
                response.notify()
            elif response.is_over:
                break
            else:
                await response.changes(1.0)
        response.leave(cast(Reader, self))
        return self.found


async def written(response: Response, size: int = 1) -> None:
    response.begin(200, {"a": "b"})
    for number in range(5):
        await response.write(str(number).encode() * size)
        await asyncio.sleep(1.0)
    response.end()


async def test_late_readers_get_the_beginning() -> None:
    response = Response(keeps=True)

    async def join(after_secs: float) -> bytes:
        await asyncio.sleep(after_secs)
        return await Client(response).read()

    *found, _ = await asyncio.gather(join(0.0), join(2.5), join(9.0), written(response))
    assert found == [b"01234"] * 3
    assert response.body == b"01234"


async def test_the_last_reader_s_leaving_is_noted() -> None:
    left: list[str] = []
    response = Response(keeps=True, abandoned=lambda: left.append("all"))
    one, other = cast(Any, Client(response)), cast(Any, Client(response))
    response.leave(one)
    assert left == []
    response.leave(other)
    assert left == ["all"]


async def test_leaving_after_the_end_is_nothing() -> None:
    response = Response(keeps=True, abandoned=lambda: pytest.fail("left"))
    client = cast(Any, Client(response))
    response.begin(200, {})
    response.end()
    response.leave(client)


async def test_a_long_response_waits_for_its_slowest_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 1000)
    response = Response(keeps=True)
    fast, slow = Client(response), Client(response, pause_secs=5.0)
    most = 0

    async def watch() -> None:
        nonlocal most
        while not response.is_over:
            most = max(most, len(response.body))
            await asyncio.sleep(0.1)

    *found, _, _ = await asyncio.gather(
        fast.read(), slow.read(), written(response, size=600), watch()
    )
    assert found[0] == found[1] == b"".join(str(n).encode() * 600 for n in range(5))
    assert most <= 1600
    assert not response.has_all
