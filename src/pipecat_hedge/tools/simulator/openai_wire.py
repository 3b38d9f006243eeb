"""OpenAI Chat Completions: requests, streamed chunks, whole completions, errors."""

import time
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

_ROLES = {"system": "instructions", "developer": "instructions", "function": "tool"}

# Type and code of the error, as OpenAI gives them (402 and 529: as compatible servers do).
_ERRORS: dict[int, tuple[str, str | None]] = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    402: ("insufficient_quota", "insufficient_balance"),
    403: ("invalid_request_error", "permission_denied"),
    404: ("invalid_request_error", "model_not_found"),
    422: ("invalid_request_error", "unprocessable_entity"),
    429: ("requests", "rate_limit_exceeded"),
    500: ("server_error", None),
    503: ("server_error", "service_unavailable"),
    529: ("overloaded_error", "overloaded"),
}


class OpenAIEncoder:
    """Writes one chat completion."""

    def __init__(self, prompt: Prompt, model: str, number: int):
        """Initialize the encoder.

        Args:
            prompt: What the request asks.
            model: The model name to answer with.
            number: The request's number in the ledger.
        """
        self._prompt = prompt
        self._number = number
        self._model = model
        self._created = int(time.time())
        self._written = 0
        base = self._base("chat.completion.chunk")
        if prompt.include_usage:
            base["usage"] = None
        # Everything of a text chunk but the text, so that a token costs one small dump.
        head, tail = dumps(base)[:-1], b'},"logprobs":null,"finish_reason":null}]}\n\n'
        self._head = b"data: " + head + b',"choices":[{"index":0,"delta":{'
        self._tail = tail

    @property
    def headers(self) -> dict[str, str]:
        """The request's id."""
        return {"x-request-id": f"req_{self._number:08}"}

    def encode(self, event: Event) -> bytes:
        """One chunk, or the chunks of the end."""
        match event:
            case Text(text):
                self._written += 1
                return self._delta(b'"content":', dumps(text))
            case Opened():
                return self._delta(b'"role":"assistant","content":', b'"","refusal":null')
            case Thought(text):
                self._written += 1
                return self._delta(b'"reasoning_content":', dumps(text))
            case ToolStart(name):
                function = {"name": name, "arguments": ""}
                call = {"index": 0, "id": self._call_id, "type": "function", "function": function}
                return self._delta(b'"tool_calls":', dumps([call]))
            case ToolArguments(text):
                self._written += 1
                call = {"index": 0, "function": {"arguments": text}}
                return self._delta(b'"tool_calls":', dumps([call]))
            case KeepAlive():
                return b": keep-alive\n\n" + self._delta(b'"role":"assistant","content":', b'""')
            case InBandError(status):
                return b"data: " + dumps(_error_body(status or 500, None)) + b"\n\n"
            case Garbage():
                return GARBAGE
            case Finished(reason):
                return self._end(reason)

    def whole(self, events: list[Event]) -> bytes:
        """A whole chat completion."""
        text = "".join(event.text for event in events if isinstance(event, Text))
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        reason = "stop"
        for event in events:
            if isinstance(event, ToolStart):
                arguments = "".join(e.text for e in events if isinstance(e, ToolArguments))
                function = {"name": event.name, "arguments": arguments}
                call = {"id": self._call_id, "type": "function", "function": function}
                message |= {"content": None, "tool_calls": [call]}
            elif isinstance(event, Finished):
                reason = event.reason
        self._written = len(events) - 1
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        return dumps({**self._base("chat.completion"), "choices": [choice], "usage": self._usage()})

    @property
    def _call_id(self) -> str:
        return f"call_{self._number:08}"

    def _base(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self._number:08}",
            "object": kind,
            "created": self._created,
            "model": self._model,
            "service_tier": "default",
            "system_fingerprint": "fp_simulated",
        }

    def _delta(self, field: bytes, value: bytes) -> bytes:
        return self._head + field + value + self._tail

    def _usage(self) -> dict[str, Any]:
        prompt_tokens = self._prompt.input_tokens
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self._written,
            "total_tokens": prompt_tokens + self._written,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
        }

    def _end(self, reason: str) -> bytes:
        chunk = self._base("chat.completion.chunk")
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason}
        usage_field = {"usage": None} if self._prompt.include_usage else {}
        parts = [{**chunk, **usage_field, "choices": [choice]}]
        if self._prompt.include_usage:
            parts.append({**chunk, "choices": [], "usage": self._usage()})
        return b"".join(b"data: " + dumps(part) + b"\n\n" for part in parts) + b"data: [DONE]\n\n"


class OpenAIWire:
    """The protocol of ``/v1/chat/completions``."""

    name = "openai"

    def read_prompt(self, body: dict[str, Any], *, stream: bool) -> Prompt:
        """What a chat completion request asks.

        Args:
            body: The JSON object of the request.
            stream: Unused; the body says it.

        Raises:
            PromptError: If ``messages`` is missing or not a list.
        """
        messages = required_list(body, "messages")
        if not messages:
            raise PromptError("messages: expected at least one message")
        turns = tuple(
            Turn(
                _ROLES.get(role := str(message.get("role")), role), text_of(message.get("content"))
            )
            for message in messages
        )
        tools = () if body.get("tool_choice") == "none" else body.get("tools") or ()
        return Prompt(
            turns=turns,
            tools=tuple(
                str(tool["function"].get("name"))
                for tool in tools
                if isinstance(tool, dict) and isinstance(tool.get("function"), dict)
            ),
            stream=bool(body.get("stream")),
            max_tokens=optional_count(body, "max_completion_tokens")
            or optional_count(body, "max_tokens"),
            include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
            input_tokens=estimate_tokens(turn.text for turn in turns),
        )

    def encoder(self, prompt: Prompt, model: str, number: int) -> OpenAIEncoder:
        """A writer for one chat completion."""
        return OpenAIEncoder(prompt, model, number)

    def error(
        self, status: int, message: str | None, number: int, retry_after_secs: float | None = None
    ) -> HttpError:
        """An error as OpenAI answers it."""
        headers = {"x-request-id": f"req_{number:08}", **retry_after_header(retry_after_secs)}
        return HttpError(status, _error_body(status, message), headers)

    def rate_limit_headers(self, rate_limit: RateLimit) -> dict[str, str]:
        """A rate limit as OpenAI and those who are compatible tell of it."""
        headers: dict[str, str] = {}
        left = {"requests": rate_limit.requests_left, "tokens": rate_limit.tokens_left}
        for what, count in left.items():
            if count is not None:
                headers[f"x-ratelimit-remaining-{what}"] = str(count)
                headers[f"x-ratelimit-reset-{what}"] = _duration(rate_limit.reset_secs)
        return headers


def _duration(secs: float) -> str:
    """A duration as Go writes it: ``120ms``, ``1.5s``, ``6m0s``."""
    if secs < 1:
        return f"{secs * 1000:g}ms"
    minutes, rest = divmod(secs, 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{rest:g}s"


def _error_body(status: int, message: str | None) -> dict[str, Any]:
    kind, code = _ERRORS.get(status, ("server_error", None))
    text = message or MESSAGES.get(status, "Error (simulated).")
    return {"error": {"message": text, "type": kind, "param": None, "code": code}}
