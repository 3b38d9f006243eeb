"""A caller made of aiortc: a microphone that plays recordings, ears that stamp what they hear.

Law: nothing here sleeps to wait for something. Every wait is for samples or messages, with a
deadline, and every time is the loop's, where a sample leaves the microphone or reaches the ear.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar
from urllib.parse import urlsplit

import aiohttp
import numpy as np
from aiortc import (
    InvalidStateError,
    RTCConfiguration,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack
from av import AudioFrame

from pipecat_hedge.race.errors import ConfigurationError, HedgeError
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.tools.replay.ear import HUSH_SECS, AudioReceiver
from pipecat_hedge.tools.replay.loopback import LOOPBACK_ALONE
from pipecat_hedge.tools.replay.microphone import AudioSender
from pipecat_hedge.tools.replay.network import Network, impair
from pipecat_hedge.tools.replay.sound import FRAME, RATE, Utterance

__all__ = ["CallError", "Caller", "HungUp", "Message", "Said"]

Message: TypeAlias = dict[str, Any]
T = TypeVar("T")

CONNECT_SECS, OFFER_SECS = 20.0, 15.0
CLOSE_SECS = 5.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HUNG_UP = "the bot has hung up"
_READY = {
    "id": "ready",
    "label": "rtvi-ai",
    "type": "client-ready",
    "data": {"version": "2.2.0", "about": {"library": "pipecat-hedge"}},
}


class CallError(HedgeError):
    """A call that could not be made, or a bot that did not answer; the message has the remedy."""


class HungUp(CallError):
    """The bot has ended the call."""


@dataclass(frozen=True, slots=True)
class Said:
    """When a recording left the microphone, on the loop's clock.

    Parameters:
        began_at: Its first speech.
        ended_at: Its last speech.
    """

    began_at: float
    ended_at: float


class Caller:
    """One call to a bot with a SmallWebRTC endpoint, as Pipecat's runner serves it.

    Example::

        async with Caller("http://127.0.0.1:7860") as caller:
            said = await caller.say(utterance)
            heard_at = await caller.heard_since(said.ended_at, timeout_secs=10)

    Attributes:
        microphone: What the caller speaks into.
        ear: What was heard.
        messages: The bot's messages over the data channel (RTVI), each with ``received_at`` added:
            when it came, on the loop's clock.
    """

    def __init__(self, url: str, *, network: Network | None = None):
        """Prepare a call; it is made when the caller is entered.

        Args:
            url: The bot's address, such as ``http://127.0.0.1:7860``; ``/api/offer`` is added if
                it has no path.
            network: How bad the line is.

        Raises:
            ConfigurationError: If the address is none.
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
        self.microphone = AudioSender()
        self.ear = AudioReceiver()
        self.messages: list[Message] = []

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(CONNECT_SECS):
                await self._connect()
        except TimeoutError:
            await self._close()
            raise CallError(
                f"{self._offer_url} accepted the offer, but no connection came about within "
                f"{CONNECT_SECS:g} s: is UDP open between here and there?"
            ) from None
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    async def say(self, utterance: Utterance) -> Said:
        """Speak a recording to its end, in real time.

        Args:
            utterance: The recording.

        Raises:
            HungUp: If the bot hangs up before its end.
        """
        if self._is_over:
            raise HungUp(_HUNG_UP)
        samples = utterance.samples
        frames = np.pad(samples, (0, -len(samples) % FRAME)).reshape(-1, FRAME)
        sent = await asyncio.gather(*self.microphone.play(frames))

        def time_of(sample: int) -> float:
            number = sample // FRAME
            return sent[number] + (sample - number * FRAME) / RATE

        return Said(time_of(utterance.speech_begins), time_of(utterance.speech_ends))

    async def heard_since(self, at: float, *, timeout_secs: float) -> float:
        """Wait until the bot is heard.

        Args:
            at: Sounds before this time do not count.
            timeout_secs: How long to wait.

        Returns:
            When its first loud sample came.

        Raises:
            CallError: If it is silent for so long.
        """
        return await self.until(
            lambda: self.ear.loud_since(at),
            f"the bot was silent for {timeout_secs:g} s",
            timeout_secs,
        )

    async def silence_since(
        self, at: float, *, timeout_secs: float, hush_secs: float = HUSH_SECS
    ) -> float:
        """Wait until the bot has been silent for longer than between two words.

        Args:
            at: Silence before this time does not count.
            timeout_secs: How long to wait.
            hush_secs: How long silence must last to count as one.

        Returns:
            When its last loud sample came, or ``at`` if there was none since.

        Raises:
            CallError: If it goes on speaking for so long.
        """

        def fell_silent() -> float | None:
            last = self.ear.last_loud(at)
            return last if self.ear.heard_at - last >= hush_secs else None

        return await self.until(
            fell_silent, f"the bot went on speaking for {timeout_secs:g} s", timeout_secs
        )

    async def message(
        self, what: str, wanted: Callable[[Message], bool], *, since: int = 0, timeout_secs: float
    ) -> Message:
        """Wait for a message over the data channel.

        Args:
            what: What is waited for, in words.
            wanted: Says whether a message is the one.
            since: How many of ``messages`` to pass over.
            timeout_secs: How long to wait.

        Raises:
            CallError: If it does not come.
        """

        def arrived() -> Message | None:
            return next(filter(wanted, self.messages[since:]), None)

        return await self.until(arrived, f"{what} did not come in {timeout_secs:g} s", timeout_secs)

    async def until(self, found: Callable[[], T | None], failure: str, timeout_secs: float) -> T:
        """Wait until something is so; it is looked at whenever sound or a message has come.

        Args:
            found: What is waited for, or None as long as it is not there.
            failure: What to say if it does not come.
            timeout_secs: How long to wait.

        Raises:
            CallError: If it does not come, or the bot hangs up.
        """
        try:
            async with asyncio.timeout(timeout_secs), self.ear.heard:
                while (value := found()) is None:
                    if self._is_over:
                        raise HungUp(_HUNG_UP)
                    await self.ear.heard.wait()
                return value
        except TimeoutError:
            types = [message.get("type") for message in self.messages[-8:]]
            last = f"; its last messages were {', '.join(map(str, types))}" if types else ""
            raise CallError(f"{failure}{last}") from None

    # ---- inside

    @property
    def _is_over(self) -> bool:
        return self._connection.connectionState in ("closed", "failed")

    async def _connect(self) -> None:
        connection = self._connection
        loop = asyncio.get_running_loop()

        @connection.on("track")
        def on_track(track: MediaStreamTrack) -> None:
            self._scope.start(self._listen(track), name="ear")

        @connection.on("connectionstatechange")
        async def on_state() -> None:
            if self._is_over:
                self.microphone.drop(HungUp(_HUNG_UP))
            async with self.ear.heard:
                self.ear.heard.notify_all()

        connection.addTrack(self.microphone)
        channel = connection.createDataChannel("rtvi")

        @channel.on("open")
        async def on_open() -> None:
            channel.send(json.dumps(_READY))
            async with self.ear.heard:
                self.ear.heard.notify_all()

        @channel.on("message")
        async def on_message(text: str) -> None:
            with contextlib.suppress(ValueError):  # not every bot speaks RTVI
                message = json.loads(text)
                if isinstance(message, dict) and isinstance(message.get("type"), str):
                    async with self.ear.heard:
                        self.messages.append({**message, "received_at": loop.time()})
                        self.ear.heard.notify_all()

        with LOOPBACK_ALONE if self._is_local else contextlib.nullcontext():
            await connection.setLocalDescription(await connection.createOffer())
        answer = await self._offer(connection.localDescription)
        try:
            await connection.setRemoteDescription(answer)
        except (ValueError, AttributeError, TypeError, IndexError, InvalidStateError) as e:
            raise CallError(
                f"{self._offer_url} is no SmallWebRTC endpoint: its answer is no session "
                f"description that fits the offer ({e})"
            ) from e

        def is_ready() -> bool | None:
            is_connected = connection.connectionState == "connected"
            return True if is_connected and channel.readyState == "open" else None

        await self.until(is_ready, "no connection came about", CONNECT_SECS)
        impair(connection, self._network)

    async def _offer(self, mine: RTCSessionDescription) -> RTCSessionDescription:
        offer = {"sdp": mine.sdp, "type": mine.type}
        url = self._offer_url
        try:
            async with (
                asyncio.timeout(OFFER_SECS),
                aiohttp.ClientSession() as session,
                session.post(url, json=offer) as response,
            ):
                if response.status != 200:
                    said = " ".join((await response.text(errors="replace")).split())[:200]
                    raise CallError(
                        f"{url} refused the offer with {response.status}: is it a bot with a "
                        "SmallWebRTC endpoint, and not busy with another caller?"
                        + (f" It said: {said}" if said else "")
                    )
                answer = await response.json(content_type=None)
            return RTCSessionDescription(sdp=answer["sdp"], type=answer["type"])
        except TimeoutError:
            raise CallError(
                f"{url} did not answer the offer within {OFFER_SECS:g} s: does the bot hang?"
            ) from None
        except aiohttp.ClientError as e:
            raise CallError(f"nobody answers at {url}: start the bot first ({e})") from e
        except (KeyError, TypeError, ValueError) as e:
            raise CallError(f"{url} is no SmallWebRTC endpoint: its answer has no sdp") from e

    async def _listen(self, track: MediaStreamTrack) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(MediaStreamError):  # the end of the call
            while True:
                frame = await track.recv()
                assert isinstance(frame, AudioFrame)
                await self.ear.take(frame, loop.time())

    async def _close(self) -> None:
        # A test's time limit may have been raised in the middle of one of aiortc's own tasks, for
        # whose end closing then waits for ever.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECS):
                await self._connection.close()
        self.microphone.stop()
        await self._scope.close()
