"""The wire formats: OpenAI Chat Completions and transcriptions, Anthropic Messages, Google's.

A `Wire` parses a request's body and encodes events, complete answers and errors. Pure.
"""

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, ClassVar

from pipecat_hedge.tools.simulator.script import Prompt, Turn
from pipecat_hedge.tools.simulator.speech import RATE, Samples
from pipecat_hedge.tools.simulator.timeline import (
    Event,
    Finished,
    Garbage,
    InBandError,
    KeepAlive,
    Opened,
    Text,
    Thought,
    ToolArguments,
    ToolStart,
    tokenize,
)
from pipecat_hedge.tools.simulator.voice_sound import Speech

Json = dict[str, Any]

GARBAGE = b'{"id":"broken","choi'
"""The beginning of a JSON object."""


class PromptError(ValueError):
    """A request body that no provider would accept; the message names the field."""

    status = 400


@dataclass(frozen=True, slots=True)
class Transcription(Prompt):
    """A request for a transcript: the audio's length, and what is asked for besides the text."""

    secs: float = 0.0
    is_verbose: bool = False
    has_logprobs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken(Prompt):
    """A request for speech: its transcript's sound."""

    speech: Speech


class Wire(ABC):
    """One response in one provider's protocol.

    Args:
        prompt: The request.
        model: The model name in the response.
        number: The request's number, for its ids.
    """

    name: ClassVar[str]
    id_header: ClassVar[str] = "x-request-id"
    content_type: ClassVar[str] = "text/event-stream; charset=utf-8"
    """Of a stream."""
    in_band_status: ClassVar[int]
    """The status of an error in a stream that sets none."""

    def __init__(self, prompt: Prompt, model: str, number: int):
        self.prompt, self.model, self.number = prompt, model, number
        self.tokens = 0
        self.thoughts = 0

    @staticmethod
    @abstractmethod
    def read_prompt(body: Json, *, stream: bool) -> Prompt:
        """Parse a request body.

        Args:
            body: The JSON object.
            stream: Whether the address requests a stream, in protocols where it does.

        Raises:
            PromptError: If the provider would not accept it.
        """

    @classmethod
    def headers(cls, number: int) -> dict[str, str]:
        """Return the headers of every response to this request: its id."""
        return {cls.id_header: f"req_{number:08}"}

    @staticmethod
    @abstractmethod
    def error(status: int, message: str, number: int, retry_after_secs: float | None) -> Json:
        """Return the JSON body of an error.

        Args:
            status: The HTTP status.
            message: The message.
            number: The request's number, for its id.
            retry_after_secs: The time to retry after; None omits it.
        """

    @staticmethod
    def rate_limit_headers(left: Mapping[str, int], reset_secs: float) -> dict[str, str]:
        """Return the headers of a rate limit; empty if the protocol has none.

        Args:
            left: The remaining ``requests`` and ``tokens``.
            reset_secs: The time until the limits are reset.
        """
        return {}

    def encode(self, event: Event) -> bytes:
        """Encode one event of a stream; may be empty."""
        self._count(event)
        return self._encode(event)

    def whole(self, events: list[Event]) -> bytes:
        """Encode an answer that is not streamed."""
        text, arguments, tool, reason = "", "", None, "stop"
        for event in events:
            self._count(event)
            match event:
                case Text():
                    text += event.text
                case ToolStart():
                    tool = event.name
                case ToolArguments():
                    arguments += event.text
                case Finished():
                    reason = event.reason
                case _:
                    pass
        return dumps(self._whole(text, tool, arguments, reason))

    @abstractmethod
    def _encode(self, event: Event) -> bytes: ...

    @abstractmethod
    def _whole(self, text: str, tool: str | None, arguments: str, reason: str) -> Json: ...

    def _in_band(self, error: InBandError) -> Json:
        status = error.status or self.in_band_status
        return self.error(status, error_message(status), self.number, None)

    def _count(self, event: Event) -> None:
        self.tokens += isinstance(event, Text | ToolArguments)
        self.thoughts += isinstance(event, Thought)


class OpenAIWire(Wire):
    """The protocol of ``/v1/chat/completions``."""

    name = "openai"
    in_band_status = 500
    _roles: ClassVar = {"system": "instructions", "developer": "instructions", "function": "tool"}
    # Type and code (402 and 529 as in compatible servers).
    _errors: ClassVar[dict[int, tuple[str, str | None]]] = {
        400: ("invalid_request_error", None),
        401: ("invalid_request_error", "invalid_api_key"),
        402: ("insufficient_quota", "insufficient_balance"),
        403: ("invalid_request_error", "permission_denied"),
        404: ("invalid_request_error", "model_not_found"),
        422: ("invalid_request_error", "unprocessable_entity"),
        429: ("requests", "rate_limit_exceeded"),
        503: ("server_error", "service_unavailable"),
        529: ("overloaded_error", "overloaded"),
    }

    def __init__(self, prompt: Prompt, model: str, number: int):
        super().__init__(prompt, model, number)
        self._created = int(time.time())

    @staticmethod
    def read_prompt(body: Json, *, stream: bool) -> Prompt:
        """Parse a chat completion request."""
        roles = OpenAIWire._roles
        turns = [
            Turn(roles.get(role := str(message.get("role")), role), _text(message.get("content")))
            for message in _messages(body, "messages")
        ]
        tools = () if body.get("tool_choice") == "none" else body.get("tools") or ()
        functions = [tool.get("function") for tool in tools]
        max_tokens = _count(body, "max_completion_tokens") or _count(body, "max_tokens")
        return Prompt(
            turns=tuple(turns),
            tools=tuple(str(each.get("name")) for each in functions if isinstance(each, dict)),
            stream=bool(body.get("stream")),
            max_tokens=max_tokens,
            include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        )

    @staticmethod
    def error(status: int, message: str, number: int, retry_after_secs: float | None) -> Json:
        """Return an error in OpenAI's format."""
        kind, code = OpenAIWire._errors.get(status, ("server_error", None))
        error = {"message": message, "type": kind, "param": None, "code": code}
        return {"error": error}

    @staticmethod
    def rate_limit_headers(left: Mapping[str, int], reset_secs: float) -> dict[str, str]:
        """Return ``x-ratelimit-*``."""
        headers: dict[str, str] = {}
        for kind, count in left.items():
            headers[f"x-ratelimit-remaining-{kind}"] = str(count)
            headers[f"x-ratelimit-reset-{kind}"] = _duration(reset_secs)
        return headers

    def _encode(self, event: Event) -> bytes:
        match event:
            case Opened():
                return self._chunk({"role": "assistant", "content": "", "refusal": None})
            case Text(text):
                return self._chunk({"content": text})
            case Thought(text):
                return self._chunk({"reasoning_content": text})
            case ToolStart(name):
                return self._chunk({"tool_calls": [{"index": 0, **self._call(name, "")}]})
            case ToolArguments(text):
                return self._chunk({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})
            case KeepAlive():
                return b": keep-alive\n\n" + self._chunk({"role": "assistant", "content": ""})
            case InBandError():
                return _sse(self._in_band(event))
            case Garbage():
                return b"data: " + GARBAGE + b"\n\n"
            case Finished(reason):
                last = self._chunk({}, reason)
                if self.prompt.include_usage:
                    last += _sse(self._object("chat.completion.chunk", [], usage=self._usage()))
                return last + b"data: [DONE]\n\n"

    def _whole(self, text: str, tool: str | None, arguments: str, reason: str) -> Json:
        message: Json = {"role": "assistant", "content": text, "refusal": None}
        if tool is not None:
            message |= {"content": None, "tool_calls": [self._call(tool, arguments)]}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        return self._object("chat.completion", [choice], usage=self._usage())

    def _call(self, name: str, arguments: str) -> Json:
        function = {"name": name, "arguments": arguments}
        return {"id": f"call_{self.number:08}", "type": "function", "function": function}

    def _chunk(self, delta: Json, reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        usage = {"usage": None} if self.prompt.include_usage else {}
        return _sse(self._object("chat.completion.chunk", [choice], **usage))

    def _object(self, kind: str, choices: list[Json], **fields: Any) -> Json:
        return {
            "id": f"chatcmpl-{self.number:08}",
            "object": kind,
            "created": self._created,
            "model": self.model,
            "service_tier": "default",
            "system_fingerprint": "fp_simulated",
            "choices": choices,
            **fields,
        }

    def _usage(self) -> Json:
        prompt_tokens, completion_tokens = self.prompt.input_tokens, self.tokens + self.thoughts
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": self.thoughts, "audio_tokens": 0},
        }


class TranscriptionWire(OpenAIWire):
    """The protocol of ``/v1/audio/transcriptions``: the answer is the transcript."""

    name = "openai-stt"

    @staticmethod
    def read_prompt(body: Json, *, stream: bool) -> Prompt:
        """Parse a form's fields, with the ``audio`` of its file and what it says."""
        audio: Samples | None = body.get("audio")
        if audio is None:
            raise PromptError("file: expected an audio file")
        if body.get("stream") == "true":
            raise PromptError("stream: transcripts are not streamed here")
        return Transcription(
            (),
            stream=False,
            transcript=body["transcript"],
            secs=len(audio) / RATE,
            is_verbose=body.get("response_format") == "verbose_json",
            has_logprobs=body.get("include[]") == "logprobs",
        )

    def _whole(self, text: str, tool: str | None, arguments: str, reason: str) -> Json:
        prompt = self.prompt
        assert isinstance(prompt, Transcription)
        found: Json = {"text": text}
        if prompt.is_verbose:
            segment = {"id": 0, "seek": 0, "start": 0.0, "end": prompt.secs, "text": text}
            segment |= {"tokens": [], "temperature": 0.0, "avg_logprob": -0.1}
            segment |= {"compression_ratio": 1.0, "no_speech_prob": 0.01}
            found |= {"language": "english", "duration": prompt.secs, "segments": [segment]}
        if prompt.has_logprobs:
            found["logprobs"] = [{"token": token, "logprob": -0.1} for token in tokenize(text)]
        return found | {"usage": {"type": "duration", "seconds": math.ceil(prompt.secs)}}


class SpeechWire(OpenAIWire):
    """The protocol of ``/v1/audio/speech``: the answer is a stream of samples."""

    name = "openai-tts"
    content_type = "audio/pcm"
    rate: ClassVar = 24_000

    @staticmethod
    def read_prompt(body: Json, *, stream: bool) -> Prompt:
        """Parse a request, with the ``speech`` of its input."""
        if "speech" not in body:
            raise PromptError("input: expected a text")
        if body.get("response_format") != "pcm":
            raise PromptError("response_format: expected 'pcm'")
        return Spoken((), transcript=body["transcript"], speech=body["speech"])

    def _encode(self, event: Event) -> bytes:
        assert isinstance(self.prompt, Spoken)
        return self.prompt.speech.take(event) if isinstance(event, Text) else b""


class AnthropicWire(Wire):
    """The protocol of ``/v1/messages``.

    A content block opens with its first fragment and ends when one of another kind opens.
    """

    name = "anthropic"
    id_header = "request-id"
    in_band_status = 529
    _error_types: ClassVar = {
        400: "invalid_request_error",
        401: "authentication_error",
        402: "billing_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        422: "invalid_request_error",
        429: "rate_limit_error",
        529: "overloaded_error",
    }
    _reasons: ClassVar = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

    def __init__(self, prompt: Prompt, model: str, number: int):
        super().__init__(prompt, model, number)
        self._block: str | None = None
        self._index = -1

    @staticmethod
    def read_prompt(body: Json, *, stream: bool) -> Prompt:
        """Parse a message request."""
        messages = _messages(body, "messages")
        max_tokens = _count(body, "max_tokens")
        if max_tokens is None:
            raise PromptError("max_tokens: Field required")
        turns = [Turn("instructions", _text(body.get("system")))]
        for message in messages:
            turns += _anthropic_turns(message)
        may_call = (body.get("tool_choice") or {}).get("type") != "none"
        tools = (body.get("tools") or ()) if may_call else ()
        return Prompt(
            turns=tuple(turns),
            tools=tuple(str(tool.get("name")) for tool in tools),
            stream=bool(body.get("stream")),
            max_tokens=max_tokens,
        )

    @staticmethod
    def error(status: int, message: str, number: int, retry_after_secs: float | None) -> Json:
        """Return an error in Anthropic's format."""
        kind = AnthropicWire._error_types.get(status, "api_error")
        error = {"type": kind, "message": message}
        return {"type": "error", "error": error, "request_id": f"req_{number:08}"}

    @staticmethod
    def rate_limit_headers(left: Mapping[str, int], reset_secs: float) -> dict[str, str]:
        """Return ``anthropic-ratelimit-*``, with the reset as a time of day in whole seconds."""
        headers: dict[str, str] = {}
        at = datetime.fromtimestamp(int(time.time()) + math.ceil(reset_secs), UTC)
        for kind, count in left.items():
            for limit in ("input-tokens", "tokens") if kind == "tokens" else (kind,):
                headers[f"anthropic-ratelimit-{limit}-remaining"] = str(count)
                headers[f"anthropic-ratelimit-{limit}-reset"] = f"{at:%Y-%m-%dT%H:%M:%SZ}"
        return headers

    def _encode(self, event: Event) -> bytes:
        match event:
            case Opened():
                return self._event("message_start", message=self._object([], None, 1))
            case Text(text):
                opened = self._open({"type": "text", "text": ""})
                return opened + self._delta({"type": "text_delta", "text": text})
            case Thought(text):
                opened = self._open({"type": "thinking", "thinking": "", "signature": ""})
                return opened + self._delta({"type": "thinking_delta", "thinking": text})
            case ToolStart(name):
                return self._open(self._call(name, {}))
            case ToolArguments(text):
                return self._delta({"type": "input_json_delta", "partial_json": text})
            case KeepAlive():
                return self._event("ping")
            case InBandError():
                return _sse(self._in_band(event), "error")
            case Garbage():
                return b"event: content_block_delta\ndata: " + GARBAGE + b"\n\n"
            case Finished(reason):
                delta = {"stop_reason": self._reasons[reason], "stop_sequence": None}
                usage = {"output_tokens": self.tokens + self.thoughts}
                ended = self._event("message_delta", delta=delta, usage=usage)
                return self._close() + ended + self._event("message_stop")

    def _whole(self, text: str, tool: str | None, arguments: str, reason: str) -> Json:
        content: list[Json] = [{"type": "text", "text": text}] if text else []
        if tool is not None:
            content.append(self._call(tool, json.loads(arguments)))
        return self._object(content, self._reasons[reason], self.tokens)

    def _call(self, name: str, arguments: Json) -> Json:
        number = f"toolu_{self.number:08}"
        return {"type": "tool_use", "id": number, "name": name, "input": arguments}

    def _object(self, content: list[Json], reason: str | None, output_tokens: int) -> Json:
        return {
            "id": f"msg_{self.number:08}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": {
                "input_tokens": self.prompt.input_tokens,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": output_tokens,
                "service_tier": "standard",
            },
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        return _sse({"type": kind, **fields}, kind)

    def _delta(self, delta: Json) -> bytes:
        return self._event("content_block_delta", index=self._index, delta=delta)

    def _open(self, block: Json) -> bytes:
        if self._block == block["type"]:
            return b""
        closed = self._close()
        self._block = block["type"]
        self._index += 1
        opened = self._event("content_block_start", index=self._index, content_block=block)
        return closed + opened + (self._event("ping") if self._index == 0 else b"")

    def _close(self) -> bytes:
        block, self._block = self._block, None
        if block is None:
            return b""
        signature = b""
        if block == "thinking":
            signature = self._delta({"type": "signature_delta", "signature": "c2ltdWxhdGVk"})
        return signature + self._event("content_block_stop", index=self._index)


def _anthropic_turns(message: Json) -> list[Turn]:
    """Convert a message to turns: tool results are part of user messages."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    results = [
        Turn("tool", _text(block.get("content")))
        for block in blocks
        if block.get("type") == "tool_result"
    ]
    return [*results, *_turns(str(message.get("role")), content, or_empty=not results)]


class GoogleWire(Wire):
    """The protocol of ``/v1beta/models/{model}:streamGenerateContent``.

    Gemini sends a function call complete, so its fragments are held until the end of the answer.
    """

    name = "google"
    in_band_status = 503
    # Google's canonical names; the statuses that Google never sends (402, 422, 529) are UNKNOWN.
    _status_names: ClassVar = {
        400: "INVALID_ARGUMENT",
        401: "UNAUTHENTICATED",
        403: "PERMISSION_DENIED",
        404: "NOT_FOUND",
        429: "RESOURCE_EXHAUSTED",
        500: "INTERNAL",
        503: "UNAVAILABLE",
    }

    def __init__(self, prompt: Prompt, model: str, number: int):
        super().__init__(prompt, model, number)
        self._tool: str | None = None
        self._arguments = ""

    @staticmethod
    def read_prompt(body: Json, *, stream: bool) -> Prompt:
        """Parse a content request."""
        instructions = _text((body.get("systemInstruction") or {}).get("parts"))
        turns = [turn for content in _messages(body, "contents") for turn in _google_turns(content)]
        return Prompt(
            turns=(Turn("instructions", instructions), *turns),
            tools=tuple(
                str(declared.get("name"))
                for tool in body.get("tools") or ()
                for declared in tool.get("functionDeclarations") or ()
            ),
            stream=stream,
            max_tokens=_count(body.get("generationConfig") or {}, "maxOutputTokens"),
        )

    @staticmethod
    def error(status: int, message: str, number: int, retry_after_secs: float | None) -> Json:
        """Return an error in Google's format."""
        name = GoogleWire._status_names.get(status, "UNKNOWN")
        error: Json = {"code": status, "message": message, "status": name}
        if retry_after_secs is not None:
            kind = "type.googleapis.com/google.rpc.RetryInfo"
            error["details"] = [{"@type": kind, "retryDelay": f"{retry_after_secs:g}s"}]
        return {"error": error}

    def _encode(self, event: Event) -> bytes:
        match event:
            case Text(text):
                return self._chunk([{"text": text}])
            case Thought(text):
                return self._chunk([{"text": text, "thought": True}])
            case ToolStart(name):
                self._tool = name
                return b""
            case ToolArguments(text):
                self._arguments += text
                return b""
            case Opened():
                return b""
            case KeepAlive():
                # A chunk without candidates. Google's SDK parses every line as data, so no comment.
                return self._sse(self._object())
            case InBandError():
                return self._sse(self._in_band(event))
            case Garbage():
                return b"data: " + GARBAGE + b"\n\n"
            case Finished(reason):
                return self._chunk(self._calls(self._tool, self._arguments), reason)

    def _whole(self, text: str, tool: str | None, arguments: str, reason: str) -> Json:
        parts = [{"text": text}] if text else []
        return self._object(parts + self._calls(tool, arguments), reason)

    def _calls(self, tool: str | None, arguments: str) -> list[Json]:
        if tool is None:
            return []
        call = {"id": f"call_{self.number:08}", "name": tool, "args": json.loads(arguments)}
        return [{"functionCall": call}]

    def _chunk(self, parts: list[Json], reason: str | None = None) -> bytes:
        return self._sse(self._object(parts, reason))

    def _object(self, parts: list[Json] | None = None, reason: str | None = None) -> Json:
        """Return a response; without parts it has no candidates."""
        candidates: Json = {}
        if parts is not None:
            candidate: Json = {"content": {"role": "model"}, "index": 0}
            if parts:
                candidate["content"]["parts"] = parts
            if reason is not None:
                candidate["finishReason"] = "MAX_TOKENS" if reason == "length" else "STOP"
            candidates = {"candidates": [candidate]}
        thoughts = {"thoughtsTokenCount": self.thoughts} if self.thoughts else {}
        usage = {
            "promptTokenCount": self.prompt.input_tokens,
            "candidatesTokenCount": self.tokens,
            "totalTokenCount": self.prompt.input_tokens + self.tokens + self.thoughts,
            **thoughts,
        }
        ids = {"modelVersion": self.model, "responseId": f"resp_{self.number:08}"}
        return {**candidates, "usageMetadata": usage, **ids}

    def _sse(self, value: Json) -> bytes:
        return b"data: " + dumps(value) + b"\r\n\r\n"


def _google_turns(content: Json) -> list[Turn]:
    parts = content.get("parts") or []
    results = [part["functionResponse"] for part in parts if "functionResponse" in part]
    if results and not _text(parts):
        return [Turn("tool", json.dumps(results))]
    role = str(content.get("role") or "user")
    return _turns("assistant" if role == "model" else role, parts)


WIRES: dict[str, type[Wire]] = {wire.name: wire for wire in (OpenAIWire, AnthropicWire, GoogleWire)}
"""Every wire format by its name."""


def dumps(value: Any) -> bytes:
    """Encode compact JSON in UTF-8; lone surrogates become ``?``."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def _sse(value: Json, event: str | None = None) -> bytes:
    name = b"" if event is None else b"event: %b\n" % event.encode()
    return name + b"data: " + dumps(value) + b"\n\n"


def error_message(status: int) -> str:
    """Return the message of a simulated error."""
    phrase = "Overloaded" if status == 529 else HTTPStatus(status).phrase
    return f"{phrase} (simulated)."


def _duration(secs: float) -> str:
    """Format a duration like Go: ``120ms``, ``1.5s``, ``6m0s``."""
    if secs < 1:
        return f"{secs * 1000:g}ms"
    minutes, rest = divmod(secs, 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{rest:g}s"


def _text(content: Any) -> str:
    """Return the text of a message's content: a string, or the text of a list of blocks."""
    return " ".join(_texts(content))


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    blocks = content if isinstance(content, list) else []
    texts = [block.get("text") for block in blocks if isinstance(block, dict)]
    return [text for text in texts if isinstance(text, str)]


def _turns(role: str, content: Any, *, or_empty: bool = True) -> list[Turn]:
    """Convert a message's texts to turns.

    Clients merge consecutive messages of the user into one of several blocks.
    """
    texts = _texts(content) if role == "user" else [_text(content)]
    turns = [Turn(role, text) for text in texts if text]
    return turns or ([Turn(role, "")] if or_empty else [])


def _messages(body: Json, field: str) -> list[Json]:
    """Return a list of at least one object from a request body."""
    value = body.get(field)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise PromptError(f"{field}: expected a list of objects")
    if not value:
        raise PromptError(f"{field}: expected at least one")
    return value


def _count(body: Json, field: str) -> int | None:
    """Return a whole number of at least 1 from a request body; None if absent."""
    value = body.get(field)
    if value is not None and (not isinstance(value, int) or value < 1):
        raise PromptError(f"{field}: expected a whole number of at least 1")
    return value
