"""The simulator on an event loop: its addresses, and how a request becomes an `Exchange`."""

import asyncio
import contextlib
import functools
import ipaddress
import math
import random
import re
import socket
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Self

import soundfile
import soxr
from aiohttp import web
from anyio import CapacityLimiter

from pipecat_hedge.providers import PROFILES, SIMULATED_HEADER
from pipecat_hedge.tools.simulator.behaviour import (
    Behaviour,
    BehaviourError,
    Drawn,
    Plan,
    checked_capacity,
    draw,
    override,
    parse_model,
    plan,
    read_conditions,
)
from pipecat_hedge.tools.simulator.deepgram import DeepgramSocket
from pipecat_hedge.tools.simulator.exchange import Exchange
from pipecat_hedge.tools.simulator.ledger import Ledger
from pipecat_hedge.tools.simulator.script import CALLER_LINES, Prompt
from pipecat_hedge.tools.simulator.speech import RATE, Samples, Transcripts
from pipecat_hedge.tools.simulator.voice_sound import Speech, Voice, spoken_text
from pipecat_hedge.tools.simulator.voices import (
    CartesiaSocket,
    DeepgramVoiceSocket,
    ElevenLabsSocket,
    VoiceSocket,
)
from pipecat_hedge.tools.simulator.wires import (
    AnthropicWire,
    GoogleWire,
    OpenAIWire,
    PromptError,
    SpeechWire,
    TranscriptionWire,
)

_MAX_BODY_BYTES = 64 * 2**20
_GOOGLE_CALL = re.compile(r"/models/(?P<model>.+):(?P<stream>stream)?[gG]enerateContent$")
_CREATED = 1735689600  # 2025-01-01, when every simulated model was "created"


class ProviderUrls(ABC):
    """A simulator's ``base_url`` for each SDK."""

    @property
    @abstractmethod
    def url(self) -> str:
        """``http://host:port``."""

    @property
    def openai_url(self) -> str:
        """The ``base_url`` for OpenAI's SDK and Pipecat's OpenAI services, of speech too."""
        return f"{self.url}/v1"

    @property
    def deepgram_url(self) -> str:
        """The ``base_url`` for Pipecat's Deepgram recogniser."""
        return self.url

    @property
    def deepgram_voice_url(self) -> str:
        """The ``base_url`` for Pipecat's Deepgram voice."""
        return self.url.replace("http", "ws", 1)

    @property
    def elevenlabs_url(self) -> str:
        """The ``url`` for Pipecat's ElevenLabs service."""
        return self.url.replace("http", "ws", 1)

    @property
    def cartesia_url(self) -> str:
        """The ``url`` for Pipecat's Cartesia service."""
        return f"{self.elevenlabs_url}/tts/websocket"

    @property
    def anthropic_url(self) -> str:
        """The ``base_url`` for Anthropic's SDK."""
        return self.url

    @property
    def google_url(self) -> str:
        """The ``base_url`` of ``HttpOptions`` for Google's SDK and Pipecat's Google service."""
        return self.url


class Simulator(ProviderUrls):
    """Providers on loopback: LLMs of three protocols, recognisers of two, voices of four; one port.

    ::

        async with Simulator(port=0, seed=1) as sim:
            llm = OpenAILLMService(api_key="any", base_url=sim.openai_url, ...)

    Args:
        port: The port, 0 to 65535; 0 picks a free one.
        host: The address to listen on.
        seed: The n-th request to a model name gets the same draw for the same seed.
        capacity: The number of concurrent requests. Others wait in order of arrival, and their
            times begin when they are served. None is no limit.
        transcripts: What recognisers hear: see `Transcripts`.
        voice: Returns the sound of a text, at 16 kHz, mono, 16 bit. None spells words in tones.
        voice_script: How a model's n-th text is spoken, such as ``?fault=late&delay=2``; empty: as
            usual. From the beginning again at its end.

    Raises:
        ValueError: If the port or the capacity is out of range.
        OSError: On entering, if the address is not available; names it and the remedy.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        seed: int = 0,
        capacity: int | None = None,
        transcripts: Callable[[Samples], str] | Iterable[str] = CALLER_LINES,
        voice: Voice | None = None,
        voice_script: Iterable[str] = (),
    ):
        if not isinstance(port, int) or not 0 <= port <= 65535:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"port: expected a number from 0 to 65535, got {port!r}")
        self._wanted_port = port
        self._host = host
        self._seed = seed
        self._default_capacity = checked_capacity(capacity)
        self._transcripts = Transcripts(transcripts)
        self._voice, self._voice_script = voice, Transcripts(voice_script)
        for keys in self._transcripts.all_keys + self._voice_script.all_keys:
            override(parse_model("fixed"), keys)
        self._sockets: dict[str, socket.socket] = {}
        self._ledger: Ledger | None = None

    async def __aenter__(self) -> Self:
        sock = self._socket("serving", self._wanted_port)
        sock.listen(1024)
        loop = asyncio.get_running_loop()
        started = loop.time()
        self._ledger = Ledger(lambda: loop.time() - started)
        self._capacity = CapacityLimiter(self._default_capacity or math.inf)
        # By model name or region; those of "" apply to every model, then those of its region.
        self._conditions: dict[str, dict[str, Any]] = {}
        self._overrides: dict[str, dict[str, Any]] = {}
        self._requests: Counter[str] = Counter()
        self._serving: set[asyncio.Task[Any]] = set()
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._openai),
                web.post("/v1/audio/transcriptions", self._transcribe),
                web.get("/v1/listen", self._deepgram),
                web.post("/v1/audio/speech", self._speech),
                web.get("/v1/speak", functools.partial(self._speak, DeepgramVoiceSocket)),
                web.get("/tts/websocket", functools.partial(self._speak, CartesiaSocket)),
                web.get(
                    "/v1/text-to-speech/{_}/multi-stream-input",
                    functools.partial(self._speak, ElevenLabsSocket),
                ),
                web.post("/v1/messages", self._anthropic),
                web.post("/v1beta/models/{call:.+}", self._google),
                web.get("/v1/models", self._get_models),
                web.get("/ledger", self._get_ledger),
                web.delete("/ledger", self._delete_ledger),
                web.get("/simulator/conditions", self._get_conditions),
                web.post("/simulator/conditions", self._post_conditions),
                web.route("*", "/{path:.*}", self._unknown),
            ]
        )
        app.on_response_prepare.append(_mark)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        await self._runner.setup()
        await web.SockSite(self._runner, sock).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop serving; open requests count as failed."""
        for entry in self.ledger.open:
            self.ledger.ended(entry, "failed")
        for task in self._serving:
            task.cancel()
        await self._runner.cleanup()
        for sock in self._sockets.values():
            sock.close()

    @property
    def port(self) -> int:
        """The port on which it listens."""
        _ = self.ledger  # raises if it is not running
        return self._sockets["serving"].getsockname()[1]

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return self._url(self.port)

    @property
    def ledger(self) -> Ledger:
        """The record of every request."""
        if self._ledger is None:
            raise RuntimeError("the simulator is not running: use it in an async with statement")
        return self._ledger

    @property
    def refused_url(self) -> str:
        """An address that refuses connections. Append ``/v1`` for OpenAI's SDK."""
        # Bound but not listening: the kernel answers with RST, and the port stays taken.
        return self._url(self._socket("refused").getsockname()[1])

    @property
    def hanging_url(self) -> str:
        """An address whose connections are never established. Append ``/v1`` for OpenAI's SDK."""
        sock = self._socket("hanging")
        if "hanging_fill" not in self._sockets:
            # With a backlog of 0 Linux completes one handshake, used by this connection, and
            # drops every later SYN, as a firewall does.
            sock.listen(0)
            self._sockets["hanging_fill"] = socket.create_connection(sock.getsockname()[:2])
        return self._url(sock.getsockname()[1])

    async def wait_idle(self, timeout_secs: float = 5.0) -> None:
        """Wait until no request is open.

        Raises:
            TimeoutError: If requests are still open after ``timeout_secs``; names them.
        """
        await self.ledger.wait_until(lambda ledger: not ledger.open, timeout_secs)

    def behaviour_of(self, body: dict[str, Any]) -> str:
        """How to serve a request: its model's name. A subclass may decide otherwise.

        A voice's is asked for with ``model`` and ``input``, as in a request for speech. Of Google's
        protocol the address names the model, and always decides.
        """
        return _model_in(body)

    def _socket(self, name: str, port: int = 0) -> socket.socket:
        """Return the bound socket of that name, created on first use."""
        if name in self._sockets:
            return self._sockets[name]
        sock = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((self._host, port))
        except OSError as error:
            sock.close()
            why = f"is not available ({error.strerror}): choose another (0: a free one)"
            raise OSError(error.errno, f"port {port} on {self._host} {why}") from None
        self._sockets[name] = sock
        return sock

    def _url(self, port: int) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{port}"

    async def _openai(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(Exchange(request, OpenAIWire, self.ledger))

    async def _anthropic(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(Exchange(request, AnthropicWire, self.ledger))

    async def _google(self, request: web.Request) -> web.StreamResponse:
        # The raw path: a model's values stay URL-encoded until they are parsed.
        found = _GOOGLE_CALL.search(request.rel_url.raw_path)
        if found is None:
            return await self._unknown(request)
        exchange = Exchange(request, GoogleWire, self.ledger)
        model = found["model"].replace("%40", "@").replace("%3D", "=").replace("%2C", ",")
        exchange.entry.model, exchange.entry.stream = model, found["stream"] is not None
        return await self._serve(exchange)

    async def _transcribe(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(Exchange(request, TranscriptionWire, self.ledger))

    async def _deepgram(self, request: web.Request) -> web.StreamResponse:
        entry = self.ledger.arrived("deepgram")
        entry.model, entry.stream = sys.intern(request.query.get("model", "nova-3")), True
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            entry.profile = parse_model(entry.model).profile.name
            begin = functools.partial(self._utterance, entry.model)
            return await DeepgramSocket(request, entry, self.ledger, begin, self._recognize).serve()
        except ValueError as error:  # a BehaviourError is one
            entry.status = 400
            self.ledger.ended(entry, "failed")
            return web.json_response({"err_code": "Bad Request", "err_msg": str(error)}, status=400)
        finally:
            self._serving.discard(task)
            self.ledger.ended(entry, "aborted")

    def _utterance(self, model: str) -> tuple[Drawn, str | None]:
        """Return what is drawn for a model's next utterance, and its text if it is scripted."""
        behaviour, text = self._scripted(self._transcripts, model)
        return draw(behaviour, self._rng(model)), behaviour.answer or text

    def _scripted(self, script: Transcripts, model: str) -> tuple[Behaviour, str | None]:
        """Return how a model's next utterance or text is served, and the script's text."""
        keys, text = script.next(model)
        behaviour = parse_model(model)
        behaviour = override(behaviour, keys) if keys else behaviour
        return self._in_conditions(behaviour, model), text

    async def _speech(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(Exchange(request, SpeechWire, self.ledger))

    async def _speak(self, kind: type[VoiceSocket], request: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            return await kind(request, self.ledger, self._begin_text).serve()
        except ValueError as error:  # a BehaviourError is one
            return _error(400, str(error))
        finally:
            self._serving.discard(task)

    async def _begin_text(self, model: str, text: str, rate: int) -> tuple[Plan, Speech]:
        """Return how a model's next text is spoken, and its sound."""
        model = self.behaviour_of({"model": model, "input": text})
        behaviour, _ = self._scripted(self._voice_script, model)
        text = behaviour.answer or spoken_text(text)
        speech = await self._sound(text, rate)
        return plan(behaviour, Prompt((), transcript=text), self._rng(model)), speech

    async def _sound(self, text: str, rate: int) -> Speech:
        if self._voice is None:
            return Speech(text, rate)
        return await asyncio.to_thread(Speech, text, rate, self._voice)

    async def _recognize(self, samples: Samples) -> str:
        assert self._transcripts.recognize is not None
        return await asyncio.to_thread(self._transcripts.recognize, samples)

    def _in_conditions(self, behaviour: Behaviour, model: str) -> Behaviour:
        for name in ("", _of_region(behaviour.region), model):
            behaviour = behaviour.model_copy(update=self._overrides.get(name, {}))
        return behaviour

    def _traced(self, behaviour: Behaviour, model: str) -> Behaviour:
        """Return the behaviour with the latency that the request has in its trace, if any."""
        if behaviour.trace is None:
            return behaviour
        turn, number = behaviour.turn, 0
        if turn is None:
            turn = self._next(f"{model} in its trace")
        else:
            number = self._next(f"{model} in turn {turn}")
        secs = behaviour.trace[turn % len(behaviour.trace)]
        return behaviour.model_copy(update={"ttft": secs[min(number, len(secs) - 1)]})

    def _next(self, name: str) -> int:
        number = self._requests[name]
        self._requests[name] += 1
        return number

    def _rng(self, model: str) -> random.Random:
        """Return the random numbers of a model's next request or utterance."""
        return random.Random(f"{self._seed} {model} {self._next(model)}")

    async def _serve(self, exchange: Exchange) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with contextlib.suppress(ConnectionError):
                return await self._answer(exchange)
            # The socket is closing; the cancellation that follows ends this task.
            await asyncio.get_running_loop().create_future()
            raise AssertionError("unreachable")
        except asyncio.CancelledError:
            exchange.abort()
            raise
        finally:
            self._serving.discard(task)
            self.ledger.ended(exchange.entry, "failed")

    async def _answer(self, exchange: Exchange) -> web.StreamResponse:
        entry, wire = exchange.entry, exchange.wire
        try:
            if is_upload := wire is TranscriptionWire:
                body = await _upload(exchange.request)
            else:
                body = await _json_body(exchange.request)
            # Interned: the ledger keeps the name of each of its 100,000 requests.
            entry.model = sys.intern(entry.model or self.behaviour_of(body))
            behaviour = parse_model(entry.model)
            entry.profile = behaviour.profile.name
            if is_upload and "audio" in body:
                behaviour, text = self._scripted(self._transcripts, entry.model)
                body["transcript"] = await self._recognize(body["audio"]) if text is None else text
            elif wire is SpeechWire and "input" in body:
                behaviour, _ = self._scripted(self._voice_script, entry.model)
                entry.characters = len(body["input"])
                body["transcript"] = behaviour.answer or spoken_text(body["input"])
                body["speech"] = await self._sound(body["transcript"], SpeechWire.rate)
            prompt = wire.read_prompt(body, stream=entry.stream)
            text = prompt.user_texts[-1] if prompt.user_texts else ""
            if re.match(r"\?[a-z_]+=", text):
                behaviour = override(behaviour, text[1:].strip())
        except (BehaviourError, PromptError) as error:
            return exchange.reject(error.status, str(error))
        except (AttributeError, KeyError, TypeError) as error:
            return exchange.reject(400, f"the body does not have the shape of a request: {error}")
        entry.stream, entry.prompt_tokens = prompt.stream, prompt.input_tokens
        rng = self._rng(entry.model)
        async with self._capacity:
            behaviour = self._traced(self._in_conditions(behaviour, entry.model), entry.model)
            planned = plan(behaviour, prompt, rng)
            entry.fault = planned.fault.name if planned.fault else None
            self.ledger.announce()
            exchange.limit_headers = wire.rate_limit_headers(behaviour.limits_left, behaviour.reset)
            return await exchange.play(planned, wire(prompt, behaviour.profile.name, entry.id))

    async def _get_models(self, request: web.Request) -> web.Response:
        """List the models in a form that is valid for OpenAI and Anthropic."""
        data = [
            {
                "id": name,
                "object": "model",
                "created": _CREATED,
                "owned_by": "simulator",
                "type": "model",
                "display_name": name,
                "created_at": "2025-01-01T00:00:00Z",
            }
            for name in PROFILES
        ]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"], "has_more": False}
        return web.json_response({"object": "list", "data": data, **ends})

    async def _get_ledger(self, request: web.Request) -> web.Response:
        try:
            wait_secs = float(request.query.get("wait", "0"))
        except ValueError:
            return _error(400, "wait: expected a number of seconds")
        if wait_secs > 0:
            with contextlib.suppress(TimeoutError):  # the response shows the open requests
                await self.ledger.wait_until(lambda ledger: not ledger.open, wait_secs)
        return web.json_response(self.ledger.as_dict())

    async def _delete_ledger(self, request: web.Request) -> web.Response:
        self.ledger.clear()
        return web.json_response(self.ledger.as_dict())

    async def _get_conditions(self, request: web.Request) -> web.Response:
        return web.json_response(self._conditions.get(_scope(request), {}))

    def set_conditions(self, model: str = "", **conditions: Any) -> None:
        """Change how requests and utterances are served from now on, regardless of their models.

        Args:
            model: The name of the model whose requests they are; empty for all models.
            **conditions: A model's keys, such as ``fault="hang"``; they replace the previous ones.

        Raises:
            BehaviourError: If one of them is unknown.
        """
        overrides = read_conditions(conditions)
        self._conditions[model], self._overrides[model] = conditions, overrides

    async def _post_conditions(self, request: web.Request) -> web.Response:
        if not is_loopback(request.remote):
            return _error(403, "conditions can be set from this machine only")
        scope, model = _scope(request), request.query.get("model", "")
        try:
            conditions = await _json_body(request)
            overrides = read_conditions(conditions)
            if model:
                parse_model(model)
            if scope and "capacity" in overrides:
                raise BehaviourError("capacity: all models share it, leave out the model")
        except (BehaviourError, PromptError) as error:
            return _error(400, str(error))
        if not scope:
            capacity = overrides.pop("capacity", self._default_capacity)
            self._capacity.total_tokens = capacity or math.inf
        self._conditions[scope], self._overrides[scope] = conditions, overrides
        return web.json_response(conditions)

    async def _unknown(self, request: web.Request) -> web.Response:
        return _error(
            404,
            f"unknown address {request.method} {request.path}; known: POST /v1/chat/completions, "
            "POST /v1/audio/transcriptions, GET /v1/listen, POST /v1/audio/speech, GET /v1/speak, "
            "GET /tts/websocket, GET /v1/text-to-speech/{voice}/multi-stream-input, "
            "POST /v1/messages, "
            "POST /v1beta/models/{model}:streamGenerateContent, "
            "GET /v1/models, GET and DELETE /ledger, GET and POST /simulator/conditions",
        )


async def _mark(_: web.Request, response: web.StreamResponse) -> None:
    response.headers[SIMULATED_HEADER] = "1"


async def _json_body(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError:
        raise PromptError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise PromptError("the body is not a JSON object")
    return body


async def _upload(request: web.Request) -> dict[str, Any]:
    """Return a form's fields, and its file as samples: ``audio``."""
    fields: dict[str, Any] = dict(await request.post())
    if isinstance(file := fields.get("file"), web.FileField):
        try:
            with file.file:
                samples, rate = soundfile.read(file.file, dtype="int16", always_2d=True)
        except soundfile.SoundFileError:
            raise PromptError("file: not an audio file that can be read") from None
        fields["audio"] = soxr.resample(samples[:, 0], rate, RATE)
    return fields


def _model_in(body: dict[str, Any]) -> str:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise PromptError("model: expected the name of a model")
    return model


def is_loopback(address: str | None) -> bool:
    """Whether a client's address is loopback."""
    return address is not None and ipaddress.ip_address(address).is_loopback


def _scope(request: web.Request) -> str:
    """What the conditions of a request apply to: a model, a region, or everything."""
    return request.query.get("model") or _of_region(request.query.get("region"))


def _of_region(region: str | None) -> str:
    return f"region {region}" if region else ""


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)
