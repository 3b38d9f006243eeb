"""A bad line: what is lost and late is as scripted, and only sound is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pipecat_hedge import HedgeError
from pipecat_hedge.tools.replay.network import Network, impair

pytestmark = pytest.mark.virtual_time

SOUND, CONTROL, HANDSHAKE = b"\x80\x60sound", b"\x80\xc8report", b"\x16\x03hello"


class Line:
    """What a connection sends into, and what came out at which time."""

    def __init__(self, network: Network):
        self.came: list[tuple[float, bytes]] = []
        self._ice = SimpleNamespace(send=self._send)
        sender = SimpleNamespace(
            transport=SimpleNamespace(transport=SimpleNamespace(_connection=self._ice))
        )
        connection: Any = SimpleNamespace(getTransceivers=lambda: [SimpleNamespace(sender=sender)])
        impair(connection, network)

    async def _send(self, data: bytes) -> None:
        self.came.append((asyncio.get_running_loop().time(), data))

    async def send(self, data: bytes, times: int = 1) -> None:
        for _ in range(times):
            await self._ice.send(data)


async def test_packets_of_sound_are_lost() -> None:
    """As many as scripted, the same ones every time; nothing else is."""
    kept: list[int] = []
    for _ in range(2):
        line = Line(Network(loss=0.2, seed=7))
        await line.send(SOUND, 2000)
        await line.send(CONTROL, 100)
        await line.send(HANDSHAKE, 100)
        await asyncio.sleep(1)
        kept.append(sum(data == SOUND for _, data in line.came))
        assert sum(data != SOUND for _, data in line.came) == 200
    assert kept[0] == kept[1] == pytest.approx(1600, abs=60)


async def test_packets_of_sound_are_late() -> None:
    """By up to the jitter, and out of order; control packets are not."""
    line = Line(Network(jitter_secs=0.05))
    begun = asyncio.get_running_loop().time()
    await line.send(SOUND, 500)
    await line.send(CONTROL)
    assert [data for _, data in line.came] == [CONTROL]
    await asyncio.sleep(1)
    delays = [at - begun for at, data in line.came if data == SOUND]
    assert len(delays) == 500
    assert 0 <= min(delays) < 0.005
    assert 0.045 < max(delays) <= 0.05


async def test_a_good_line_is_left_alone() -> None:
    """Everything at once."""
    line = Line(Network())
    await line.send(SOUND, 10)
    assert len(line.came) == 10


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"loss": 1.0}, "loss must be a share"),
        ({"loss": "0.1"}, "loss must be a share from 0 to below 1, got '0.1'"),
        ({"jitter_secs": -0.1}, "jitter_secs must be from 0"),
        ({"jitter_secs": None}, "jitter_secs must be from 0 to 1 s, got None"),
        ({"seed": 0.5}, "seed must be a whole number, got 0.5"),
    ],
)
def test_lines_that_cannot_be(fields: dict[str, Any], told: str) -> None:
    """The error names the field."""
    with pytest.raises(HedgeError, match=told):
        Network(**fields)
