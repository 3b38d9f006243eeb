"""Sockets of voices: Cartesia's ``/tts/websocket``, ElevenLabs' ``multi-stream-input``, Deepgram's.

A word is sent at once, with its time; the words of a text come as the tokens of a model's answer.
"""

import asyncio
import base64
import contextlib
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from aiohttp import WSMsgType, web

from pipecat_hedge.tools.simulator.behaviour import Plan, parse_model
from pipecat_hedge.tools.simulator.ledger import Ledger, LedgerEntry, Outcome
from pipecat_hedge.tools.simulator.timeline import ErrorStatus, InBandError, Signal, Text
from pipecat_hedge.tools.simulator.voice_sound import Speech
from pipecat_hedge.tools.simulator.wires import error_message

Json = dict[str, Any]
Begin = Callable[[str, str, int], Awaitable[tuple[Plan, Speech]]]
"""Returns how a text is served and its sound, from the model, the text and the sample rate."""


@dataclass(eq=False)
class Context:
    """Texts that are spoken one after another.

    Parameters:
        id: Its name on the socket.
        entry: Its entry in the ledger.
        rate: Of its audio, in Hz.
        previous: The context that was begun before it.
        waiting: Text that is not spoken yet, because more may follow.
        texts: What is to be spoken; None is the end.
        sent_secs: Audio sent.
        ends_at: When its end may be told, in the loop's time.
        is_silent: Whether nothing more comes of it.
        fault: The fault of the text that is spoken.
        task: Speaks the texts.
    """

    id: str
    entry: LedgerEntry
    rate: int
    previous: str
    waiting: str = ""
    texts: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue[str | None])
    sent_secs: float = 0.0
    ends_at: float = 0.0
    is_silent: bool = False
    fault: str | None = None
    task: asyncio.Task[None] | None = None

    @property
    def label(self) -> str:
        """The name that its words have."""
        return self.previous if self.fault == "wrong_context" else self.id


class VoiceSocket(ABC):
    """Serves one socket; it changes with its contexts, and whether it is dead.

    Args:
        request: The request for a WebSocket.
        ledger: The ledger; it gets an entry for the socket, and one for each context.
        begin: Returns how a text is served, and its sound.

    Raises:
        ValueError: If a query parameter is not accepted; names it.
    """

    wire: ClassVar[str]
    at_once: ClassVar[int] = 1000
    """Contexts that are spoken at the same time."""
    end_gives_up: ClassVar[bool] = False
    """Whether a client that has sent a context's end waits for nothing more if it is silent."""

    def __init__(self, request: web.Request, ledger: Ledger, begin: Begin):
        self._request, self._ledger, self._begin = request, ledger, begin
        self._loop = asyncio.get_running_loop()
        self._ws = web.WebSocketResponse(autoping=False, autoclose=False)
        self._contexts: dict[str, Context] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._turn = asyncio.Semaphore(self.at_once)
        self._last_id = "none"
        self._closing: asyncio.Task[bool] | None = None
        self._is_dead = False

    async def serve(self) -> web.WebSocketResponse:
        """Serve until either side closes."""
        entry = self._entry = self._ledger.arrived(f"{self.wire} socket")
        entry.stream = True
        try:
            await self._ws.prepare(self._request)
            entry.status, entry.headers_secs = 101, self._ledger.clock()
            self._ledger.announce()
            await self._receive()
            if self._closing:
                await self._closing
            self._ledger.ended(entry, "completed")
        finally:
            self._end_all("aborted")
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        return self._ws

    # ---- in

    async def _receive(self) -> None:
        while True:
            message = await self._ws.receive()
            match message.type:
                case WSMsgType.TEXT:
                    try:
                        await self._on(json.loads(message.data))
                    except (AttributeError, KeyError, TypeError, ValueError) as error:
                        self._close(1008, str(error))
                case WSMsgType.PING if not self._is_dead:
                    await self._ws.pong(message.data)
                case WSMsgType.CLOSE if self._is_dead:
                    await self._loop.create_future()
                case WSMsgType.CLOSE:
                    await self._ws.close()
                    return
                case WSMsgType.CLOSING | WSMsgType.CLOSED | WSMsgType.ERROR:
                    return
                case _:
                    pass

    def _open(self, name: str, model: str, rate: int) -> Context:
        """Return the context of that name, begun now if there is none."""
        if name in self._contexts:
            return self._contexts[name]
        profile = parse_model(model).profile.name
        entry = self._ledger.arrived(self.wire)
        entry.model, entry.profile, entry.stream = sys.intern(model), profile, True
        context = self._contexts[name] = Context(name, entry, rate, self._last_id)
        self._last_id = name
        context.task = asyncio.create_task(self._speak(context))
        self._tasks.add(context.task)
        context.task.add_done_callback(self._tasks.discard)
        return context

    def _add(self, context: Context, text: str, *, is_whole: bool = True) -> None:
        """Speak a text, or keep it until it is whole."""
        context.entry.characters += len(text)
        context.waiting += text
        if is_whole and context.waiting.strip():
            context.texts.put_nowait(context.waiting)
            context.waiting = ""

    def _finish(self, context: Context) -> None:
        """End a context when all of its texts are spoken."""
        self._add(context, "")
        context.texts.put_nowait(None)

    def _cancel(self, context: Context, outcome: Outcome = "aborted") -> None:
        """End a context now."""
        assert context.task is not None
        context.task.cancel()
        self._ended(context, outcome)

    # ---- out

    async def _speak(self, context: Context) -> None:
        with contextlib.suppress(ConnectionError):
            async with self._turn:
                while (text := await context.texts.get()) is not None:
                    if not context.is_silent:
                        await self._say(context, text)
                if context.is_silent:
                    if not self.end_gives_up:
                        await self._loop.create_future()
                    self._ended(context, "aborted")
                    return
                await asyncio.sleep(max(0.0, context.ends_at - self._loop.time()))
                await self._send(self._done(context))
                self._ended(context, "completed")

    async def _say(self, context: Context, text: str) -> None:
        entry = context.entry
        plan, speech = await self._begin(entry.model, text, context.rate)
        context.fault = plan.fault.name if plan.fault else None
        entry.fault = context.fault or entry.fault
        context.is_silent = self._is_dead
        self._ledger.announce()
        if self._is_dead:
            return
        began = self._loop.time()
        for step in plan.steps:
            if step.act is Signal.END:
                context.ends_at = max(context.ends_at, began + step.at_secs)
                return
            await asyncio.sleep(max(0.0, began + step.at_secs - self._loop.time()))
            match step.act:
                case Text():
                    audio = speech.take(step.act)
                    secs = len(audio) / 2 / context.rate
                    for message in self._word(context, step.act.text, secs, audio):
                        await self._send(message)
                    context.sent_secs += secs
                    entry.tokens_sent += not step.act.text.isspace()
                    if step.act.is_answer and entry.first_token_secs is None:
                        entry.first_token_secs = self._ledger.clock()
                    self._ledger.announce()
                case ErrorStatus(status) | InBandError(status):
                    await self._failed(context, status or 500)
                case Signal.SILENCE:
                    context.is_silent = True
                    self._is_dead = self._is_dead or context.fault == "half_open"
                    return
                case Signal.CUT | Signal.RESET if context.fault != "1008":
                    assert self._request.transport is not None
                    self._end_all("failed")
                    self._request.transport.close()
                case Signal.CUT:
                    self._close(1008, "the simulated fault 1008")
                case _:
                    pass
        await self._loop.create_future()  # cancelled with the socket, or the context

    async def _failed(self, context: Context, status: int) -> None:
        self._close(1008, error_message(status))

    async def _send(self, message: Json | bytes) -> None:
        if self._is_dead:
            return
        if isinstance(message, bytes):
            await self._ws.send_bytes(message)
        else:
            await self._ws.send_str(json.dumps(message))

    def _close(self, code: int, reason: str = "") -> None:
        if not self._is_dead and self._closing is None:
            self._end_all("completed" if code == 1000 else "failed")
            closes = self._ws.close(code=code, message=reason.encode()[:120])
            self._closing = asyncio.create_task(closes)
            self._tasks.add(self._closing)

    def _ended(self, context: Context, outcome: Outcome) -> None:
        if self._contexts.get(context.id) is context:
            del self._contexts[context.id]
        self._ledger.ended(context.entry, outcome)

    def _end_all(self, outcome: Outcome) -> None:
        """End the socket, and the contexts in it: those that are not spoken are given up."""
        for context in [*self._contexts.values()]:
            self._ended(context, "aborted" if outcome == "completed" else outcome)
        self._ledger.ended(self._entry, outcome)

    # ---- the protocol

    @abstractmethod
    async def _on(self, message: Json) -> None:
        """Take in a message."""

    @abstractmethod
    def _word(self, context: Context, word: str, secs: float, audio: bytes) -> list[Json | bytes]:
        """Return the messages of a word, which begins after `Context.sent_secs`."""

    @abstractmethod
    def _done(self, context: Context) -> Json:
        """Return the message of a context's end."""


class CartesiaSocket(VoiceSocket):
    """Cartesia's ``/tts/websocket``."""

    wire = "cartesia"

    async def _on(self, message: Json) -> None:
        name = str(message["context_id"])
        if message.get("cancel"):
            if name in self._contexts:
                self._cancel(self._contexts[name])
            return
        form = message["output_format"]
        if (form["container"], form["encoding"]) != ("raw", "pcm_s16le"):
            raise ValueError(f"output_format: expected raw pcm_s16le, got {form}")
        context = self._open(name, message["model_id"], int(form["sample_rate"]))
        self._add(context, message["transcript"])
        if not message.get("continue"):
            self._finish(context)

    def _word(self, context: Context, word: str, secs: float, audio: bytes) -> list[Json | bytes]:
        start = context.sent_secs
        times = {"words": [word.strip()], "start": [start], "end": [start + secs]}
        timed = self._message("timestamps", context.label, word_timestamps=times)
        chunk = self._message("chunk", context.label, data=base64.b64encode(audio).decode())
        return [chunk] if context.fault == "no_timestamps" or not word.strip() else [timed, chunk]

    def _done(self, context: Context) -> Json:
        return self._message("done", context.id, done=True, status_code=200)

    async def _failed(self, context: Context, status: int) -> None:
        error = {"error": error_message(status), "done": True, "status_code": status}
        await self._send(self._message("error", context.id, **error))
        self._cancel(context, "failed")

    def _message(self, kind: str, name: str, **fields: Any) -> Json:
        fixed = {"type": kind, "done": False, "status_code": 206, "context_id": name}
        return fixed | fields


class ElevenLabsSocket(VoiceSocket):
    """ElevenLabs' ``/v1/text-to-speech/{voice}/multi-stream-input``."""

    wire = "elevenlabs"
    end_gives_up = True
    _most_contexts = 5  # of a socket, as the documentation says
    _schedule_chars = 120  # without auto mode: the first of the default chunk_length_schedule

    def __init__(self, request: web.Request, ledger: Ledger, begin: Begin):
        super().__init__(request, ledger, begin)
        query = request.query
        self._model = query.get("model_id", "eleven_flash_v2_5")
        self._is_auto = query.get("auto_mode") == "true"
        kind, _, rate = query.get("output_format", "pcm_24000").partition("_")
        if kind != "pcm":
            raise ValueError(f"output_format: expected pcm and a rate, got {kind!r}")
        self._rate = int(rate)
        parse_model(self._model)

    async def _on(self, message: Json) -> None:
        if message.get("close_socket"):
            self._close(1000)
            return
        if (name := message.get("context_id")) is None:  # keeps the connection
            return
        is_new = name not in self._contexts
        if is_new and (message.get("close_context") or message.get("flush")):
            return
        if is_new and len(self._contexts) == self._most_contexts:
            raise ValueError(f"more than {self._most_contexts} contexts are open")
        if not is_new and "voice_settings" in message:
            raise ValueError("voice_settings: only in a context's first message")
        context = self._open(name, self._model, self._rate)
        text = message.get("text", "")
        if text.strip():
            is_enough = len(context.waiting + text) >= self._schedule_chars
            self._add(context, text, is_whole=self._is_auto or is_enough)
        if message.get("flush"):
            self._add(context, "")
        if message.get("close_context"):
            self._finish(context)

    async def _say(self, context: Context, text: str) -> None:
        await super()._say(context, text.rstrip() + " ")  # a blank ends a word

    def _word(self, context: Context, word: str, secs: float, audio: bytes) -> list[Json | bytes]:
        count, length = max(1, len(word.strip())), round(secs * 1000)
        blank = len(word) - len(word.lstrip())
        # A blank takes no time, so that a word begins with its sound.
        starts = [max(0, n - blank) * length // count for n in range(len(word))]
        ends = [*starts[1:], length]
        alignment = {
            "chars": list(word),
            "charStartTimesMs": starts,
            "charDurationsMs": [end - start for start, end in zip(starts, ends, strict=True)],
        }
        timed = {"alignment": alignment, "normalizedAlignment": alignment}
        message = {"audio": base64.b64encode(audio).decode(), "contextId": context.label}
        return [message if context.fault == "no_timestamps" else message | timed]

    def _done(self, context: Context) -> Json:
        return {"isFinal": True, "contextId": context.id}


class DeepgramVoiceSocket(VoiceSocket):
    """Deepgram's ``/v1/speak``: one context after another, and none has a name."""

    wire = "deepgram-tts"
    at_once = 1

    def __init__(self, request: web.Request, ledger: Ledger, begin: Begin):
        super().__init__(request, ledger, begin)
        query = request.query
        self._model = query.get("model", "aura-2-thalia-en")
        self._rate = int(query.get("sample_rate", "24000"))
        self._flushes = 0
        if query.get("encoding", "linear16") != "linear16":
            raise ValueError(f"encoding: expected linear16, got {query['encoding']!r}")
        parse_model(self._model)

    async def _on(self, message: Json) -> None:
        match message["type"]:
            case "Speak":
                context = self._open(str(self._flushes), self._model, self._rate)
                text = context.waiting + message["text"]
                self._add(
                    context, message["text"], is_whole=text.rstrip().endswith((".", "!", "?"))
                )
            case "Flush":
                self._finish(self._open(str(self._flushes), self._model, self._rate))
                self._flushes += 1
            case "Clear":
                for context in [*self._contexts.values()]:
                    self._cancel(context)
                await self._send({"type": "Cleared", "sequence_id": self._flushes})
            case "Close":
                self._close(1000)
            case _:
                pass

    def _word(self, context: Context, word: str, secs: float, audio: bytes) -> list[Json | bytes]:
        return [audio] if audio else []

    def _done(self, context: Context) -> Json:
        return {"type": "Flushed", "sequence_id": int(context.id)}
