"""A response with one reader or several."""

from __future__ import annotations

import asyncio

import pytest

from pipecat_hedge.tools.proxy.response import MAX_UNREAD_BYTES, Reader, Response

pytestmark = pytest.mark.virtual_time


async def read_all(reader: Reader) -> bytes:
    found = b""
    while (chunk := await reader.next(1.0)) is not None:
        found += chunk
    return found


async def written(response: Response) -> None:
    response.begin(200, {"a": "b"})
    for number in range(5):
        await response.write(str(number).encode())
        await asyncio.sleep(1.0)
    response.end()


async def test_late_readers_get_the_beginning() -> None:
    response = Response(keeps=True, abandoned=lambda: None)

    async def join(after_secs: float) -> bytes:
        await asyncio.sleep(after_secs)
        async with response.reading() as reader:
            assert await reader.begun(1.0)
            return await read_all(reader)

    *found, _ = await asyncio.gather(join(0.0), join(2.5), join(9.0), written(response))
    assert found == [b"01234"] * 3


async def test_the_last_reader_s_leaving_is_noted() -> None:
    left: list[str] = []
    response = Response(keeps=True, abandoned=lambda: left.append("all"))
    async with response.reading():
        async with response.reading():
            pass
        assert left == []
    assert left == ["all"]


async def test_leaving_after_the_end_is_nothing() -> None:
    response = Response(keeps=False, abandoned=lambda: pytest.fail("left"))
    async with response.reading() as reader:
        response.begin(200, {})
        response.end()
        assert await reader.next(1.0) is None


async def test_an_upstream_waits_for_a_slow_reader() -> None:
    response = Response(keeps=False, abandoned=lambda: None)
    response.begin(200, {})
    writing = asyncio.gather(*(response.write(bytes(MAX_UNREAD_BYTES // 2)) for _ in range(3)))
    async with response.reading() as reader:
        await asyncio.sleep(5.0)
        assert not writing.done()
        assert len(await reader.next(1.0) or b"") == 3 * (MAX_UNREAD_BYTES // 2)
        await writing


async def test_silence_is_told_from_the_end() -> None:
    response = Response(keeps=False, abandoned=lambda: None)
    async with response.reading() as reader:
        assert not await reader.begun(1.0)
        response.begin(200, {})
        assert await reader.next(1.0) == b""
        response.end()
        assert await reader.next(1.0) is None
