"""A caller made of aiortc: a microphone that plays recordings, ears that stamp what they hear.

Law: nothing here sleeps to wait for something. Every wait is for samples or messages, with a
deadline, and every time is the loop's, where a sample leaves the microphone or reaches the ear.
"""

from __future__ import annotations

import asyncio
import contextlib
import fractions
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import numpy as np
import numpy.typing as npt
from aioice import ice
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack
from av import AudioFrame

from pipecat_hedge.recordings import Recording, read_samples

__all__ = ["Caller", "Said"]

RATE = 48000
FRAME = RATE // 50  # 20 ms, what WebRTC sends in a packet
LOUD = 300  # of 32768: over the codec's noise, under any speech
HUSH_SECS = 0.3  # without a loud sample: the pause between two words is shorter
Samples = npt.NDArray[np.int16]
Message = dict[str, Any]
T = TypeVar("T")

CLIENT_READY = {
    "id": "ready",
    "label": "rtvi-ai",
    "type": "client-ready",
    "data": {"version": "2.2.0", "about": {"library": "caller"}},
}


@dataclass(frozen=True, slots=True)
class Said:
    """When a recording left the microphone, on the loop's clock.

    Parameters:
        began_at: Its first speech.
        ended_at: Its last speech.
    """

    began_at: float
    ended_at: float


class Microphone(MediaStreamTrack):
    """Sends frames on an absolute schedule: a recording if there is one, else faint noise.

    Noise because digital silence is nothing that a microphone sends, and detectors know it.
    """

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._noise = np.random.default_rng(0)
        self._queue: list[tuple[Samples, asyncio.Future[float]]] = []
        self._sent = 0
        self._began_at: float | None = None

    def play(self, frames: Samples) -> list[asyncio.Future[float]]:
        """Queue whole frames; each future gets the time at which its frame is sent.

        Args:
            frames: Shape ``(n, FRAME)``.
        """
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in frames]
        self._queue += zip(frames, futures, strict=True)
        return futures

    async def recv(self) -> AudioFrame:
        """The next 20 ms, when they are due."""
        loop = asyncio.get_running_loop()
        if self._began_at is None:
            self._began_at = loop.time()
        due = self._began_at + self._sent / RATE
        if (wait := due - loop.time()) > 0:
            await asyncio.sleep(wait)
        if self._queue:
            samples, sent = self._queue.pop(0)
            if not sent.done():
                sent.set_result(loop.time())
        else:
            samples = self._noise.integers(-8, 9, FRAME, dtype=np.int16)
        frame = AudioFrame.from_ndarray(samples[np.newaxis, :], layout="mono")
        frame.sample_rate = RATE
        frame.time_base = fractions.Fraction(1, RATE)
        frame.pts = self._sent
        self._sent += FRAME
        return frame


class Caller:
    """One call to a bot served by Pipecat's runner, over loopback alone.

    ::

        async with Caller("http://127.0.0.1:7860") as caller:
            said = await caller.say(recording)
            heard_at = await caller.heard_since(said.ended_at, timeout_secs=10)

    Args:
        url: The runner's address.
    """

    def __init__(self, url: str):
        self._url = url
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._microphone = Microphone()
        self._ear: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()
        self._loud: list[float] = []  # when the first loud sample of each frame came
        self._listened_at = 0.0
        self.messages: list[Message] = []

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(20):
                await self._connect()
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

    async def say(self, recording: Recording) -> Said:
        """Speak a recording to its end, in real time.

        Args:
            recording: From a manifest, which says where its speech begins and ends.
        """
        samples = read_samples(recording, RATE)
        frames = np.pad(samples, (0, -len(samples) % FRAME)).reshape(-1, FRAME)
        sent = await asyncio.gather(*self._microphone.play(frames))

        def time_of(secs: float) -> float:
            number = int(secs * RATE) // FRAME
            return sent[number] + secs - number * FRAME / RATE

        return Said(time_of(recording.speech_begins_secs), time_of(recording.speech_ends_secs))

    async def heard_since(self, at: float, *, timeout_secs: float) -> float:
        """Wait until the bot is heard.

        Args:
            at: Sounds before this time do not count.
            timeout_secs: How long to wait.

        Returns:
            When its first loud sample came.
        """

        def heard() -> float | None:
            return next((loud for loud in self._loud if loud >= at), None)

        return await self._until(heard, "a sound from the bot", timeout_secs)

    async def silence_since(self, at: float, *, timeout_secs: float) -> float:
        """Wait until the bot has been silent for longer than between two words.

        Args:
            at: Silence before this time does not count.
            timeout_secs: How long to wait.

        Returns:
            When its last loud sample came, or ``at`` if there was none since.
        """

        def fell_silent() -> float | None:
            last = max(at, self._loud[-1]) if self._loud else at
            return last if self._listened_at - last >= HUSH_SECS else None

        return await self._until(fell_silent, "silence from the bot", timeout_secs)

    async def message(
        self, what: str, wanted: Callable[[Message], bool], *, since: int = 0, timeout_secs: float
    ) -> Message:
        """Wait for a message over the data channel.

        Args:
            what: What is waited for, in words.
            wanted: Says whether a message is the one.
            since: How many of ``messages`` to pass over.
            timeout_secs: How long to wait.
        """

        def arrived() -> Message | None:
            return next(filter(wanted, self.messages[since:]), None)

        return await self._until(arrived, what, timeout_secs)

    # ---- inside

    async def _until(self, found: Callable[[], T | None], what: str, timeout_secs: float) -> T:
        try:
            async with asyncio.timeout(timeout_secs), self._news:
                while (value := found()) is None:
                    await self._news.wait()
                return value
        except TimeoutError:
            types = [message.get("type") for message in self.messages[-8:]]
            raise TimeoutError(
                f"{what} did not come within {timeout_secs} s; the last messages were {types}"
            ) from None

    async def _connect(self) -> None:
        connection = self._connection
        connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        @connection.on("track")
        def on_track(track: MediaStreamTrack) -> None:
            self._ear = asyncio.create_task(self._listen(track))

        @connection.on("connectionstatechange")
        def on_state() -> None:
            if connection.connectionState == "connected" and not connected.done():
                connected.set_result(None)

        connection.addTrack(self._microphone)
        channel = connection.createDataChannel("rtvi")

        @channel.on("open")
        def on_open() -> None:
            channel.send(json.dumps(CLIENT_READY))
            ready.set_result(None)

        @channel.on("message")
        async def on_message(text: str) -> None:
            async with self._news:
                self.messages.append(json.loads(text))
                self._news.notify_all()

        with _loopback_alone():
            await connection.setLocalDescription(await connection.createOffer())
        answer = await self._offer(connection.localDescription)
        await connection.setRemoteDescription(answer)
        await asyncio.gather(connected, ready)

    async def _offer(self, mine: RTCSessionDescription) -> RTCSessionDescription:
        offer = {"sdp": mine.sdp, "type": mine.type}
        async with (
            aiohttp.ClientSession(raise_for_status=True) as session,
            session.post(f"{self._url}/api/offer", json=offer) as response,
        ):
            answer = await response.json()
        return RTCSessionDescription(sdp=answer["sdp"], type=answer["type"])

    async def _listen(self, track: MediaStreamTrack) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(MediaStreamError):  # the end of the call
            while True:
                frame = await track.recv()
                assert isinstance(frame, AudioFrame)
                self._listened_at = loop.time()
                peaks = np.abs(frame.to_ndarray().astype(np.int32)).reshape(-1, 2).max(axis=1)
                async with self._news:
                    if (peaks > LOUD).any():
                        self._loud.append(self._listened_at + int((peaks > LOUD).argmax()) / RATE)
                    self._news.notify_all()

    async def _close(self) -> None:
        await self._connection.close()
        self._microphone.stop()
        if self._ear is not None:
            self._ear.cancel()
            await asyncio.gather(self._ear, return_exceptions=True)


@contextlib.contextmanager
def _loopback_alone() -> Iterator[None]:
    """Gather 127.0.0.1, which aioice leaves out, and nothing else."""
    addresses = ice.get_host_addresses
    ice.get_host_addresses = lambda use_ipv4, use_ipv6: ["127.0.0.1"]
    try:
        yield
    finally:
        ice.get_host_addresses = addresses
