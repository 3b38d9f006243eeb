"""Deepgram's ``/v1/listen``: one socket of a streaming recogniser.

Utterances end by Deepgram's ``Finalize`` or the endpointing silence. Messages keep their order: a
late final holds back those after it, as on a slow server.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import WSMsgType, web

from pipecat_hedge.tools.simulator.behaviour import Drawn
from pipecat_hedge.tools.simulator.ledger import Ledger, LedgerEntry
from pipecat_hedge.tools.simulator.speech import WORD_SECS, Listener, Samples, Sound

Json = dict[str, Any]

_ENDPOINTING_SECS = 0.5  # unless asked for; a VAD's stop after 0.2 s comes first, with Finalize
_IDLE_SECS = 10.0  # without audio and KeepAlive
_WORDS_BEFORE_BREAK = 2
_BREAKS = ("1008", "cut")
_NO_FINAL = ("silent", "never_final", "half_open", "stops_reading")


class DeepgramSocket:
    """Serves one socket; it changes with the utterance that is heard, and whether it is dead.

    Args:
        request: The request for a WebSocket.
        entry: Its entry in the ledger.
        ledger: The ledger.
        begin: Returns what is drawn for an utterance that begins, and its text if it is scripted.
        recognize: Returns what audio says, if it is not scripted.

    Raises:
        ValueError: If a query parameter is not accepted; names it.
    """

    def __init__(
        self,
        request: web.Request,
        entry: LedgerEntry,
        ledger: Ledger,
        begin: Callable[[], tuple[Drawn, str | None]],
        recognize: Callable[[Samples], Awaitable[str]],
    ):
        query = request.query
        self._request, self._entry, self._ledger = request, entry, ledger
        self._begin, self._recognize = begin, recognize
        self._listener = Listener(
            int(query.get("sample_rate", "16000")),
            query.get("encoding", "linear16"),
            _secs(query.get("endpointing"), _ENDPOINTING_SECS),
            _secs(query.get("utterance_end_ms"), float("inf")),
        )
        self._sends_interims = query.get("interim_results") == "true"
        self._sends_starts = query.get("vad_events") == "true"
        self._loop = asyncio.get_running_loop()
        self._ws = web.WebSocketResponse(autoping=False, autoclose=False)
        self._out: asyncio.Queue[tuple[float, Json | int]] = asyncio.Queue()
        self._drawn: Drawn | None = None
        self._text: str | None = None
        self._is_dead = False

    async def serve(self) -> web.WebSocketResponse:
        """Serve until either side closes."""
        self._ws.headers["dg-request-id"] = self._request_id
        await self._ws.prepare(self._request)
        self._entry.status, self._entry.headers_secs = 101, self._ledger.clock()
        self._ledger.announce()
        sender = asyncio.create_task(self._send())
        try:
            await self._receive()
            if self._ws.close_code is None:  # the sender is closing
                await sender
        finally:
            sender.cancel()
            await asyncio.wait([sender])
        return self._ws

    @property
    def _request_id(self) -> str:
        return f"00000000-0000-4000-8000-{self._entry.id:012}"

    @property
    def _fault(self) -> str | None:
        """The fault of the utterance, or of the last one."""
        return self._drawn.fault_name if self._drawn else None

    # ---- in

    async def _receive(self) -> None:
        while True:
            try:
                message = await self._ws.receive(timeout=_IDLE_SECS)
            except TimeoutError:
                self._close(1011)
                continue
            match message.type:
                case WSMsgType.BINARY:
                    for sound in self._listener.hear(message.data):
                        await self._on(sound)
                case WSMsgType.TEXT:
                    await self._command(json.loads(message.data))
                case WSMsgType.PING if not self._is_dead:
                    await self._ws.pong(message.data)
                case WSMsgType.CLOSE if self._is_dead:
                    await self._loop.create_future()
                case WSMsgType.CLOSE:
                    await self._ws.close()
                    self._ledger.ended(self._entry, "completed")
                    return
                case WSMsgType.CLOSING | WSMsgType.CLOSED | WSMsgType.ERROR:
                    return
                case _:
                    pass

    async def _command(self, command: Json) -> None:
        match command.get("type"):
            case "Finalize":
                if self._listener.in_utterance:
                    await self._end(from_finalize=True)
                elif self._fault not in _NO_FINAL:
                    self._put(self._results("", is_final=True, from_finalize=True))
            case "CloseStream":
                if self._listener.in_utterance:
                    await self._end()
                about = {"request_id": self._request_id, "created": "2025-01-01T00:00:00.000Z"}
                length = {"duration": self._listener.audio_secs, "channels": 1}
                fixed = {"type": "Metadata", "transaction_key": "deprecated", "sha256": "0" * 64}
                self._put({**fixed, **about, **length})
                self._close(1000)
            case _:  # KeepAlive
                pass

    async def _on(self, sound: Sound) -> None:
        listener = self._listener
        match sound:
            case Sound.BEGAN:
                self._drawn, self._text = self._begin()
                self._entry.utterances += 1
                self._entry.fault = self._fault
                self._ledger.announce()
                if self._fault == "stops_reading":
                    await self._stop_reading(self._drawn.delay_secs)
                self._is_dead = self._is_dead or self._fault == "half_open"
                if self._sends_starts:
                    began = {"timestamp": listener.began_secs, "channel": [0, 1]}
                    self._put({"type": "SpeechStarted", **began})
            case Sound.WORD if self._fault in _BREAKS:
                if listener.speech_secs >= _WORDS_BEFORE_BREAK * WORD_SECS:
                    await self._break()
            case Sound.WORD if self._sends_interims:
                self._put(self._results(await self._said(is_final=False), is_final=False))
            case Sound.ENDED:
                await self._end()
            case Sound.GAP:
                last = {"last_word_end": listener.last_word_secs, "channel": [0, 1]}
                self._put({"type": "UtteranceEnd", **last})
            case _:
                pass

    async def _end(self, *, from_finalize: bool = False) -> None:
        """End the utterance, and send what its fault leaves of its final."""
        drawn, text = self._drawn, await self._said(is_final=True)
        assert drawn is not None
        words = text.split()
        half = len(words) // 2 if self._fault == "two_finals" else 0
        delay_secs = drawn.delay_secs if self._fault == "late" or half else 0.0
        if self._fault in _BREAKS:
            await self._break()
        elif self._fault not in _NO_FINAL:
            if half:
                first = self._results(" ".join(words[:half]), is_final=True)
                self._put(first, drawn.ttft_secs)
            last = self._results(" ".join(words[half:]), is_final=True, from_finalize=from_finalize)
            self._put(last, drawn.ttft_secs + delay_secs)
        self._listener.end()

    async def _said(self, *, is_final: bool) -> str:
        if self._text is None:
            return await self._recognize(self._listener.samples)
        words = self._text.split()
        return " ".join(
            words if is_final else words[: round(self._listener.speech_secs / WORD_SECS)]
        )

    async def _stop_reading(self, secs: float) -> None:
        transport = self._request.transport
        assert isinstance(transport, asyncio.Transport)
        # A small buffer, so that the client's is full after seconds of audio, not minutes.
        sock = transport.get_extra_info("socket")
        size = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        transport.pause_reading()
        await asyncio.sleep(secs)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        transport.resume_reading()

    async def _break(self) -> None:
        if self._fault == "1008":
            self._close(1008)
            return
        assert self._request.transport is not None
        self._request.transport.close()
        self._ledger.ended(self._entry, "failed")
        await self._loop.create_future()  # cancelled when the connection is lost

    # ---- out

    def _put(self, message: Json, delay_secs: float = 0.0) -> None:
        if not self._is_dead and self._fault != "silent":
            self._out.put_nowait((self._loop.time() + delay_secs, message))

    def _close(self, code: int) -> None:
        if not self._is_dead:
            self._out.put_nowait((0.0, code))

    async def _send(self) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                due, message = await self._out.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                if isinstance(message, int):
                    self._ledger.ended(self._entry, "completed" if message == 1000 else "failed")
                    await self._ws.close(code=message, message=_REASONS[message])
                    return
                await self._ws.send_str(json.dumps(message))
                if message["type"] == "Results" and message["channel"]["alternatives"][0]["words"]:
                    self._entry.finals += message["is_final"]
                    self._entry.interims += not message["is_final"]
                    self._ledger.announce()

    def _results(self, text: str, *, is_final: bool, from_finalize: bool = False) -> Json:
        listener, words = self._listener, text.split()
        start = listener.began_secs
        step = (listener.last_word_secs - start) / max(1, len(words))
        timed = [
            {
                "word": word,
                "punctuated_word": word,
                "confidence": 0.99,
                "start": start + n * step,
                "end": start + (n + 1) * step,
            }
            for n, word in enumerate(words)
        ]
        return {
            "type": "Results",
            "channel_index": [0, 1],
            "start": start,
            "duration": listener.audio_secs - start,
            "is_final": is_final,
            "speech_final": is_final and not from_finalize,
            "from_finalize": from_finalize,
            "channel": {"alternatives": [{"transcript": text, "confidence": 0.99, "words": timed}]},
            "metadata": {
                "request_id": self._request_id,
                "model_info": {"name": self._entry.profile, "version": "simulated", "arch": "nova"},
                "model_uuid": self._request_id,
            },
        }


_REASONS = {
    1000: b"",
    1008: b"DATA-0000: the simulated fault 1008",
    1011: b"NET-0001: no audio and no KeepAlive for 10 s",
}


def _secs(milliseconds: str | None, default: float) -> float:
    if milliseconds is None or milliseconds == "true":
        return default
    return float("inf") if milliseconds == "false" else int(milliseconds) / 1000
