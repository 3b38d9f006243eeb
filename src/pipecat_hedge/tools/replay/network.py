"""A bad line, on the caller's side: packets of sound that are lost or late, as scripted.

What is lost and by how much the rest is delayed is drawn from a seed, so that a run can be had
again. Only media is touched, in the direction from the caller to the bot.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiortc import RTCPeerConnection

from pipecat_hedge.race.errors import ConfigurationError

__all__ = ["Network", "check_network", "impair"]

_RTP = range(128, 192)
"""First bytes of media packets (RFC 7983)."""
_RTCP = range(192, 224)
"""Second bytes that make them control packets (RFC 5761)."""


@dataclass(frozen=True, slots=True)
class Network:
    """How bad the line is.

    Parameters:
        loss: The share of packets that are lost, from 0 to below 1.
        jitter_secs: Each packet is delayed by up to so much, evenly, in seconds; later ones may
            overtake it.
        seed: The same seed gives the same line.
    """

    loss: float = 0.0
    jitter_secs: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ConfigurationError: If a field cannot work; the message names it.
        """
        if not (_is_number(self.loss) and 0 <= self.loss < 1):
            raise ConfigurationError(f"loss must be a share from 0 to below 1, got {self.loss!r}")
        if not (_is_number(self.jitter_secs) and 0 <= self.jitter_secs <= 1):
            raise ConfigurationError(f"jitter_secs must be from 0 to 1 s, got {self.jitter_secs!r}")
        if not isinstance(self.seed, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"seed must be a whole number, got {self.seed!r}")


def check_network(network: object) -> None:
    """Refuse what is no line.

    Args:
        network: A ``Network``, or None for a good line.

    Raises:
        ConfigurationError: If it is neither.
    """
    if network is not None and not isinstance(network, Network):
        raise ConfigurationError(
            f"network must be a {__name__}.Network, such as Network(loss=0.05, "
            f"jitter_secs=0.03), got {network!r}"
        )


def impair(connection: RTCPeerConnection, network: Network) -> None:
    """Put a bad line under a connection's first transceiver.

    Args:
        connection: One that has been negotiated.
        network: How bad.
    """
    if not network.loss and not network.jitter_secs:
        return
    rng = random.Random(network.seed)
    ice: Any = connection.getTransceivers()[0].sender.transport.transport
    send = ice._connection.send
    loop = asyncio.get_running_loop()

    async def unreliable(data: bytes) -> None:
        is_media = len(data) > 1 and data[0] in _RTP and data[1] not in _RTCP
        if not is_media:
            await send(data)
        elif rng.random() >= network.loss:
            loop.call_later(rng.uniform(0.0, network.jitter_secs), _post, send, data)

    ice._connection.send = unreliable


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _post(send: Any, data: bytes) -> None:
    """Send without a task: aioice hands a datagram to the socket before its first pause."""
    step = send(data)
    with suppress(StopIteration, ConnectionError):  # the call may have ended meanwhile
        step.send(None)
    step.close()
