"""One call to a bot over WebRTC: connection, audio, messages, and a simulated bad network.

Every wait is for audio or messages, with a deadline; nothing sleeps. Times are the event loop's,
when a sample leaves the sender or reaches the receiver.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
import numpy as np
from aioice import ice
from aiortc import InvalidStateError, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack
from av import AudioFrame

from pipecat_hedge.race import ConfigurationError, HedgeError, TaskScope
from pipecat_hedge.tools.replay.audio import FRAME, RATE, Utterance
from pipecat_hedge.tools.replay.rtvi import Message
from pipecat_hedge.tools.replay.tracks import PAUSE_SECS, AudioReceiver, AudioSender

T = TypeVar("T")

CONNECT_SECS, OFFER_SECS, CLOSE_SECS = 20.0, 15.0, 5.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HUNG_UP = "the bot has hung up"
_CLIENT_READY = {
    "id": "ready",
    "label": "rtvi-ai",
    "type": "client-ready",
    "data": {"version": "2.2.0", "about": {"library": "pipecat-hedge"}},
}


class CallError(HedgeError):
    """A call failed, or the bot did not answer; the message has the remedy."""


class NoAnswer(CallError):
    """The awaited reaction of the bot did not come in time."""


class HungUp(CallError):
    """The bot ended the call."""


def check_secs(name: str, secs: float, *, zero: str | None = None) -> None:
    """Check that an argument is a positive number of seconds.

    Args:
        name: The argument's name.
        secs: Its value.
        zero: The meaning of 0, if allowed.

    Raises:
        ConfigurationError: If it is not; the message names the argument.
    """
    if zero is not None and not secs >= 0:
        raise ConfigurationError(f"{name} must not be negative, got {secs}: 0 {zero}")
    if zero is None and not secs > 0:
        raise ConfigurationError(f"{name} must be positive, got {secs}")


# ---- the network

_RTP = range(128, 192)
"""First bytes of media packets (RFC 7983)."""
_RTCP = range(192, 224)
"""Second bytes that make them control packets (RFC 5761)."""


@dataclass(frozen=True, slots=True)
class Network:
    """A bad network, seeded. It affects only the caller's audio on its way to the bot.

    Parameters:
        loss: The share of lost packets, from 0 to below 1.
        jitter_secs: The maximum of the uniform delay of each packet, from 0 to 1 s; later packets
            may overtake it.
        seed: The same seed gives the same losses and delays.

    Raises:
        ConfigurationError: If a field is invalid; the message names it.
    """

    loss: float = 0.0
    jitter_secs: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1:
            raise ConfigurationError(f"loss must be a share from 0 to below 1, got {self.loss}")
        if not 0 <= self.jitter_secs <= 1:
            raise ConfigurationError(f"jitter_secs must be from 0 to 1 s, got {self.jitter_secs}")


def impair(connection: RTCPeerConnection, network: Network) -> None:
    """Simulate a bad network under a connection's first transceiver.

    Args:
        connection: A negotiated connection.
        network: Loss and jitter.
    """
    if not network.loss and not network.jitter_secs:
        return
    rng = random.Random(network.seed)
    transport: Any = connection.getTransceivers()[0].sender.transport.transport
    send = transport._connection.send
    loop = asyncio.get_running_loop()

    def send_now(data: bytes) -> None:
        # Without a task: aioice sends the datagram before its first suspension.
        step = send(data)
        with contextlib.suppress(StopIteration, ConnectionError):  # the call may have ended
            step.send(None)
        step.close()

    async def send_impaired(data: bytes) -> None:
        is_media = len(data) > 1 and data[0] in _RTP and data[1] not in _RTCP
        if not is_media:
            await send(data)
        elif rng.random() >= network.loss:
            loop.call_later(rng.uniform(0.0, network.jitter_secs), send_now, data)

    transport._connection.send = send_impaired


_usual_addresses = ice.get_host_addresses
_loopback_users = 0


@contextlib.contextmanager
def loopback_only() -> Iterator[None]:
    """Offer only 127.0.0.1 in the whole process; by default aioice excludes it."""
    global _loopback_users
    _loopback_users += 1
    ice.get_host_addresses = lambda use_ipv4, use_ipv6: ["127.0.0.1"]
    try:
        yield
    finally:
        _loopback_users -= 1
        if not _loopback_users:
            ice.get_host_addresses = _usual_addresses


# ---- the call


@dataclass(frozen=True, slots=True)
class SpeechTimes:
    """When a recording was sent, on the loop's clock.

    Parameters:
        began_at: The first speech.
        ended_at: The last speech.
    """

    began_at: float
    ended_at: float


class Caller:
    """One call to a bot with a SmallWebRTC endpoint, as Pipecat's runner serves it.

    Example::

        async with Caller("http://127.0.0.1:7860") as caller:
            speech = await caller.say(utterance)
            audible_at = await caller.wait_until_audible(speech.ended_at, timeout_secs=10)

    Attributes:
        sender: The caller's audio.
        receiver: The bot's audio.
        messages: The bot's messages over the data channel (RTVI), each with ``received_at`` added,
            on the loop's clock.
    """

    def __init__(self, url: str, *, network: Network | None = None):
        """Prepare a call; it is made when entered.

        Args:
            url: The bot's address, such as ``http://127.0.0.1:7860``; ``/api/offer`` is added if it
                has no path.
            network: Loss and jitter.

        Raises:
            ConfigurationError: If it is not an address.
        """
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"url must be like http://127.0.0.1:7860, got {url!r}")
        self._offer_url = url if parts.path.strip("/") else f"{url.rstrip('/')}/api/offer"
        self._is_local = parts.hostname in _LOOPBACK
        self._network = network or Network()
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._scope = TaskScope()
        self.sender = AudioSender()
        self.receiver = AudioReceiver()
        self.messages: list[Message] = []

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(CONNECT_SECS):
                await self._connect()
        except TimeoutError:
            await self._close()
            raise CallError(
                f"{self._offer_url} accepted the offer, but the connection was not established "
                f"within {CONNECT_SECS:g} s: is UDP blocked?"
            ) from None
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await self._close()

    async def say(self, utterance: Utterance) -> SpeechTimes:
        """Play a recording to its end, in real time.

        Raises:
            HungUp: If the bot hangs up before its end.
        """
        if self._is_over:
            raise HungUp(_HUNG_UP)
        samples = utterance.samples
        frames = np.pad(samples, (0, -len(samples) % FRAME)).reshape(-1, FRAME)
        sent = await asyncio.gather(*self.sender.play(frames))

        def time_of(sample: int) -> float:
            return sent[sample // FRAME] + sample % FRAME / RATE

        return SpeechTimes(time_of(utterance.speech_begins), time_of(utterance.speech_ends))

    async def wait_until_audible(self, at: float, *, timeout_secs: float) -> float:
        """Wait for a sound of the bot.

        Args:
            at: Sounds before this time do not count.
            timeout_secs: The longest wait.

        Returns:
            The time of its first loud sample.

        Raises:
            NoAnswer: If the bot stays silent.
        """
        return await self.until(
            lambda: self.receiver.loud_since(at),
            f"the bot was silent for {timeout_secs:g} s",
            timeout_secs,
        )

    async def wait_until_silent(self, at: float, *, timeout_secs: float) -> float:
        """Wait until the bot has been silent for longer than a pause between words.

        Args:
            at: Silence before this time does not count.
            timeout_secs: The longest wait.

        Returns:
            The time of its last loud sample, or ``at`` if there was none since.

        Raises:
            NoAnswer: If the bot does not stop speaking.
        """

        def fell_silent() -> float | None:
            last = self.receiver.last_loud(at)
            return last if self.receiver.received_at - last >= PAUSE_SECS else None

        return await self.until(
            fell_silent, f"the bot went on speaking for {timeout_secs:g} s", timeout_secs
        )

    async def message(
        self, what: str, wanted: Callable[[Message], bool], *, since: int = 0, timeout_secs: float
    ) -> Message:
        """Wait for a message over the data channel.

        Args:
            what: The message's description, for the error.
            wanted: Whether a message is the wanted one.
            since: The number of ``messages`` to skip.
            timeout_secs: The longest wait.

        Raises:
            NoAnswer: If it does not come.
        """
        return await self.until(
            lambda: next(filter(wanted, self.messages[since:]), None),
            f"{what} did not come in {timeout_secs:g} s",
            timeout_secs,
        )

    async def until(self, found: Callable[[], T | None], failure: str, timeout_secs: float) -> T:
        """Wait for a condition, which is checked after each audio frame and message.

        Args:
            found: Returns the result, or None while the condition does not hold.
            failure: The error's message on a timeout.
            timeout_secs: The longest wait.

        Raises:
            NoAnswer: If it does not hold in time.
            HungUp: If the bot ends the call.
        """
        try:
            async with asyncio.timeout(timeout_secs), self.receiver.changed:
                while (value := found()) is None:
                    if self._is_over:
                        raise HungUp(_HUNG_UP)
                    await self.receiver.changed.wait()
                return value
        except TimeoutError:
            types = [message.get("type") for message in self.messages[-8:]]
            last = f"; its last messages were {', '.join(map(str, types))}" if types else ""
            raise NoAnswer(f"{failure}{last}") from None

    # ---- inside

    @property
    def _is_over(self) -> bool:
        return self._connection.connectionState in ("closed", "failed")

    async def _connect(self) -> None:
        connection = self._connection
        loop = asyncio.get_running_loop()

        async def notify() -> None:
            async with self.receiver.changed:
                self.receiver.changed.notify_all()

        @connection.on("track")
        def on_track(track: MediaStreamTrack) -> None:
            self._scope.start(self._receive(track), name="audio receiver")

        @connection.on("connectionstatechange")
        async def on_state() -> None:
            if self._is_over:
                self.sender.fail(HungUp(_HUNG_UP))
            await notify()

        connection.addTrack(self.sender)
        channel = connection.createDataChannel("rtvi")

        @channel.on("open")
        async def on_open() -> None:
            channel.send(json.dumps(_CLIENT_READY))
            await notify()

        @channel.on("message")
        async def on_message(text: str) -> None:
            with contextlib.suppress(ValueError):  # not every bot sends RTVI messages
                message = json.loads(text)
                if isinstance(message, dict) and isinstance(message.get("type"), str):
                    self.messages.append({**message, "received_at": loop.time()})
                    await notify()

        with loopback_only() if self._is_local else contextlib.nullcontext():
            await connection.setLocalDescription(await connection.createOffer())
        answer = await self._offer(connection.localDescription)
        try:
            await connection.setRemoteDescription(answer)
        except (ValueError, AttributeError, TypeError, IndexError, InvalidStateError) as e:
            raise CallError(
                f"{self._offer_url} is not a SmallWebRTC endpoint: its answer is not a session "
                f"description for the offer ({e})"
            ) from e

        def is_ready() -> bool | None:
            is_connected = connection.connectionState == "connected"
            return True if is_connected and channel.readyState == "open" else None

        await self.until(is_ready, "the connection was not established", CONNECT_SECS)
        impair(connection, self._network)

    async def _offer(self, description: RTCSessionDescription) -> RTCSessionDescription:
        url = self._offer_url
        offer = {"sdp": description.sdp, "type": description.type}
        try:
            async with (
                asyncio.timeout(OFFER_SECS),
                aiohttp.ClientSession() as session,
                session.post(url, json=offer) as response,
            ):
                if response.status != 200:
                    body = " ".join((await response.text(errors="replace")).split())[:200]
                    raise CallError(
                        f"{url} rejected the offer with {response.status}: is it a bot with a "
                        "SmallWebRTC endpoint, and not busy with another caller?"
                        + (f" Its response: {body}" if body else "")
                    )
                answer = await response.json(content_type=None)
            return RTCSessionDescription(sdp=answer["sdp"], type=answer["type"])
        except TimeoutError:
            raise CallError(
                f"{url} did not answer the offer within {OFFER_SECS:g} s: does the bot hang?"
            ) from None
        except aiohttp.ClientError as e:
            raise CallError(f"nothing answers at {url}: start the bot first ({e})") from e
        except (KeyError, TypeError, ValueError) as e:
            raise CallError(f"{url} is not a SmallWebRTC endpoint: its answer has no sdp") from e

    async def _receive(self, track: MediaStreamTrack) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(MediaStreamError):  # the end of the call
            while True:
                frame = await track.recv()
                assert isinstance(frame, AudioFrame)
                await self.receiver.receive(frame, loop.time())

    async def _close(self) -> None:
        # A test's timeout may be raised inside one of aiortc's own tasks; closing would then wait
        # for that task for ever.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECS):
                await self._connection.close()
        self.sender.stop()
        await self._scope.close()
