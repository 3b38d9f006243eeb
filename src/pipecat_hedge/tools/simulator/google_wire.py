"""Google Gemini ``generateContent`` and ``streamGenerateContent``: requests, chunks, errors.

Gemini sends a function call whole, so its fragments are held back until the end of the answer; a
connection that is cut inside a call has sent nothing of it.
"""

import json
from typing import Any

from pipecat_hedge.tools.simulator.prompt import (
    Prompt,
    PromptError,
    Turn,
    estimate_tokens,
    optional_count,
    required_list,
    text_of,
)
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
)
from pipecat_hedge.tools.simulator.wire import (
    GARBAGE,
    MESSAGES,
    HttpError,
    RateLimit,
    dumps,
    retry_after_header,
)

# Google's canonical names; the statuses that Google never sends (402, 422, 529) are UNKNOWN.
_STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}

_ROLES = {"model": "assistant"}


class GoogleEncoder:
    """Writes one response, chunk by chunk or whole."""

    def __init__(self, prompt: Prompt, model: str, number: int):
        """Initialize the encoder.

        Args:
            prompt: What the request asks.
            model: The model name to answer with.
            number: The request's number in the ledger.
        """
        self._prompt = prompt
        self._number = number
        self._base = {"modelVersion": model, "responseId": f"resp_{number:08}"}
        self._written = 0
        self._thought = 0
        self._tool: str | None = None
        self._arguments = ""
        base = dumps({"usageMetadata": self._usage(), **self._base})[1:]
        self._head = b'data: {"candidates":[{"content":{"parts":[{"text":'
        self._tail = b'}],"role":"model"},"index":0}],' + base + b"\r\n\r\n"

    @property
    def headers(self) -> dict[str, str]:
        """What Google adds to every response."""
        return {"x-content-type-options": "nosniff"}

    def encode(self, event: Event) -> bytes:
        """One chunk; nothing for what Gemini does not send."""
        match event:
            case Text(text):
                self._written += 1
                return self._head + dumps(text) + self._tail
            case Thought(text):
                self._thought += 1
                return self._head + dumps(text) + b',"thought":true' + self._tail
            case ToolStart(name):
                self._tool = name
                return b""
            case ToolArguments(text):
                self._written += 1
                self._arguments += text
                return b""
            case Opened():
                return b""
            case KeepAlive():
                # A chunk without candidates. Not a comment: Google's SDK takes every line for data.
                return _sse({"usageMetadata": self._usage(), **self._base})
            case InBandError(status):
                return _sse(_error_body(status or 503, None, None))
            case Garbage():
                return GARBAGE
            case Finished(reason):
                return _sse(self._last(self._tool_parts(), reason))

    def whole(self, events: list[Event]) -> bytes:
        """A whole response."""
        for event in events:
            if isinstance(event, Text | ToolStart | ToolArguments):
                self.encode(event)
        text = "".join(event.text for event in events if isinstance(event, Text))
        reason = next((e.reason for e in events if isinstance(e, Finished)), "stop")
        parts = ([{"text": text}] if text else []) + self._tool_parts()
        return dumps(self._last(parts, reason))

    def _usage(self) -> dict[str, Any]:
        prompt_tokens = self._prompt.input_tokens
        thoughts = {"thoughtsTokenCount": self._thought} if self._thought else {}
        return {
            "promptTokenCount": prompt_tokens,
            "candidatesTokenCount": self._written,
            "totalTokenCount": prompt_tokens + self._written + self._thought,
            **thoughts,
        }

    def _tool_parts(self) -> list[dict[str, Any]]:
        if self._tool is None:
            return []
        call = {"name": self._tool, "args": json.loads(self._arguments)}
        return [{"functionCall": {"id": f"call_{self._number:08}", **call}}]

    def _last(self, parts: list[dict[str, Any]], reason: str) -> dict[str, Any]:
        content = {"parts": parts, "role": "model"} if parts else {"role": "model"}
        finish = "MAX_TOKENS" if reason == "length" else "STOP"
        candidate = {"content": content, "finishReason": finish, "index": 0}
        return {"candidates": [candidate], "usageMetadata": self._usage(), **self._base}


class GoogleWire:
    """The protocol of ``/v1beta/models/{model}:streamGenerateContent``."""

    name = "google"

    def read_prompt(self, body: dict[str, Any], *, stream: bool) -> Prompt:
        """What a content request asks.

        Args:
            body: The JSON object of the request.
            stream: Whether the address asks for a stream.

        Raises:
            PromptError: If ``contents`` is missing or not a list.
        """
        contents = required_list(body, "contents")
        if not contents:
            raise PromptError("contents: contents is not specified")
        turns = tuple(_turn(content) for content in contents)
        system = body.get("systemInstruction") or {}
        tools = body.get("tools") or ()
        config = body.get("generationConfig") or {}
        instructions = text_of(system.get("parts")) if isinstance(system, dict) else ""
        return Prompt(
            turns=turns,
            tools=tuple(
                str(declared.get("name"))
                for tool in tools
                for declared in tool.get("functionDeclarations") or ()
            ),
            stream=stream,
            max_tokens=optional_count(config, "maxOutputTokens"),
            include_usage=True,
            input_tokens=estimate_tokens([instructions, *(turn.text for turn in turns)]),
        )

    def encoder(self, prompt: Prompt, model: str, number: int) -> GoogleEncoder:
        """A writer for one response."""
        return GoogleEncoder(prompt, model, number)

    def error(
        self, status: int, message: str | None, number: int, retry_after_secs: float | None = None
    ) -> HttpError:
        """An error as Google answers it."""
        headers = retry_after_header(retry_after_secs)
        return HttpError(status, _error_body(status, message, retry_after_secs), headers)

    def rate_limit_headers(self, rate_limit: RateLimit) -> dict[str, str]:
        """Nothing: Google does not tell."""
        return {}


def _turn(content: dict[str, Any]) -> Turn:
    parts = content.get("parts") or []
    role = str(content.get("role") or "user")
    results = [part["functionResponse"] for part in parts if "functionResponse" in part]
    text = text_of(parts)
    if results and not text:
        return Turn("tool", json.dumps(results))
    return Turn(_ROLES.get(role, role), text)


def _error_body(status: int, message: str | None, retry_after_secs: float | None) -> dict[str, Any]:
    text = message or MESSAGES.get(status, "Error (simulated).")
    error: dict[str, Any] = {
        "code": status,
        "message": text,
        "status": _STATUS_NAMES.get(status, "UNKNOWN"),
    }
    if retry_after_secs is not None:
        kind = "type.googleapis.com/google.rpc.RetryInfo"
        error["details"] = [{"@type": kind, "retryDelay": f"{retry_after_secs:g}s"}]
    return {"error": error}


def _sse(value: dict[str, Any]) -> bytes:
    return b"data: " + dumps(value) + b"\r\n\r\n"
