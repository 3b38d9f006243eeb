"""Anthropic Messages: requests, streamed events, whole messages, errors."""

import json
import math
import time
from datetime import UTC, datetime
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

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class AnthropicEncoder:
    """Writes one message; a content block opens with its first piece and the next one closes it."""

    def __init__(self, prompt: Prompt, model: str, number: int):
        """Initialize the encoder.

        Args:
            prompt: What the request asks.
            model: The model name to answer with.
            number: The request's number in the ledger.
        """
        self._prompt = prompt
        self._model = model
        self._number = number
        self._block: str | None = None
        self._index = -1
        self._written = 0

    @property
    def headers(self) -> dict[str, str]:
        """The request's id."""
        return {"request-id": f"req_{self._number:08}"}

    def encode(self, event: Event) -> bytes:
        """One event, with the events that open and close its content block."""
        match event:
            case Text(text):
                opened = self._enter("text", {"type": "text", "text": ""})
                return opened + self._delta(b'"text_delta","text":', text)
            case Opened():
                return _sse("message_start", message=self._message([], None, 1))
            case Thought(text):
                block = {"type": "thinking", "thinking": "", "signature": ""}
                opened = self._enter("thinking", block)
                return opened + self._delta(b'"thinking_delta","thinking":', text)
            case ToolStart(name):
                block = {"type": "tool_use", "id": self._call_id, "name": name, "input": {}}
                return self._enter("tool_use", block)
            case ToolArguments(text):
                return self._delta(b'"input_json_delta","partial_json":', text)
            case KeepAlive():
                return _sse("ping")
            case InBandError(status):
                return _sse("error", **_error_fields(status or 529, None))
            case Garbage():
                return b"event: content_block_delta\n" + GARBAGE
            case Finished(reason):
                delta = {"stop_reason": _STOP_REASONS[reason], "stop_sequence": None}
                usage = {"output_tokens": self._written}
                ended = _sse("message_delta", delta=delta, usage=usage)
                return self._leave() + ended + _sse("message_stop")

    def whole(self, events: list[Event]) -> bytes:
        """A whole message."""
        text = "".join(event.text for event in events if isinstance(event, Text))
        content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        reason = None
        for event in events:
            if isinstance(event, ToolStart):
                arguments = "".join(e.text for e in events if isinstance(e, ToolArguments))
                block = {"type": "tool_use", "id": self._call_id, "name": event.name}
                content.append({**block, "input": json.loads(arguments)})
            elif isinstance(event, Finished):
                reason = _STOP_REASONS[event.reason]
        return dumps(self._message(content, reason, len(events) - 1))

    @property
    def _call_id(self) -> str:
        return f"toolu_{self._number:08}"

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, output_tokens: int
    ) -> dict[str, Any]:
        return {
            "id": f"msg_{self._number:08}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": {
                "input_tokens": self._prompt.input_tokens,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": output_tokens,
                "service_tier": "standard",
            },
        }

    def _enter(self, kind: str, block: dict[str, Any]) -> bytes:
        """Close the block before and open one of another kind; nothing within the same block."""
        if self._block == kind:
            return b""
        left = self._leave()
        self._block = kind
        self._index += 1
        opened = _sse("content_block_start", index=self._index, content_block=block)
        return left + opened + (_sse("ping") if self._index == 0 else b"")

    def _leave(self) -> bytes:
        if self._block is None:
            return b""
        signature = b""
        if self._block == "thinking":
            signed = {"type": "signature_delta", "signature": "c2ltdWxhdGVk"}
            signature = _sse("content_block_delta", index=self._index, delta=signed)
        self._block = None
        return signature + _sse("content_block_stop", index=self._index)

    def _delta(self, kind: bytes, text: str) -> bytes:
        self._written += 1
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":%b%b}}\n\n' % (self._index, kind, dumps(text))
        )


class AnthropicWire:
    """The protocol of ``/v1/messages``."""

    name = "anthropic"

    def read_prompt(self, body: dict[str, Any], *, stream: bool) -> Prompt:
        """What a message request asks.

        Args:
            body: The JSON object of the request.
            stream: Unused; the body says it.

        Raises:
            PromptError: If ``messages`` or ``max_tokens`` is missing or of the wrong type.
        """
        messages = required_list(body, "messages")
        if not messages:
            raise PromptError("messages: at least one message is required")
        max_tokens = optional_count(body, "max_tokens")
        if max_tokens is None:
            raise PromptError("max_tokens: Field required")
        turns = tuple(turn for message in messages for turn in _turns(message))
        system = text_of(body.get("system"))
        choice = body.get("tool_choice")
        has_tools = not (isinstance(choice, dict) and choice.get("type") == "none")
        tools = (body.get("tools") or ()) if has_tools else ()
        return Prompt(
            turns=turns,
            tools=tuple(str(tool.get("name")) for tool in tools if isinstance(tool, dict)),
            stream=bool(body.get("stream")),
            max_tokens=max_tokens,
            include_usage=True,
            input_tokens=estimate_tokens([system, *(turn.text for turn in turns)]),
        )

    def encoder(self, prompt: Prompt, model: str, number: int) -> AnthropicEncoder:
        """A writer for one message."""
        return AnthropicEncoder(prompt, model, number)

    def error(
        self, status: int, message: str | None, number: int, retry_after_secs: float | None = None
    ) -> HttpError:
        """An error as Anthropic answers it."""
        request_id = f"req_{number:08}"
        headers = {"request-id": request_id, **retry_after_header(retry_after_secs)}
        fields = _error_fields(status, message)
        return HttpError(status, {"type": "error", **fields, "request_id": request_id}, headers)

    def rate_limit_headers(self, rate_limit: RateLimit) -> dict[str, str]:
        """A rate limit as Anthropic tells of it, in whole seconds of the time of day."""
        headers: dict[str, str] = {}
        at = datetime.fromtimestamp(int(time.time()) + math.ceil(rate_limit.reset_secs), UTC)
        left = {
            "requests": rate_limit.requests_left,
            "input-tokens": rate_limit.tokens_left,
            "tokens": rate_limit.tokens_left,
        }
        for what, count in left.items():
            if count is not None:
                headers[f"anthropic-ratelimit-{what}-remaining"] = str(count)
                headers[f"anthropic-ratelimit-{what}-reset"] = f"{at:%Y-%m-%dT%H:%M:%SZ}"
        return headers


def _turns(message: dict[str, Any]) -> list[Turn]:
    """A message as turns: tool results come inside messages of the user."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    results = [
        Turn("tool", text_of(block.get("content")))
        for block in blocks
        if isinstance(block, dict) and block.get("type") == "tool_result"
    ]
    text = text_of(content)
    role = str(message.get("role"))
    return [*results, Turn(role, text)] if text or not results else results


def _error_fields(status: int, message: str | None) -> dict[str, Any]:
    text = message or MESSAGES.get(status, "Error (simulated).")
    return {"error": {"type": _ERROR_TYPES.get(status, "api_error"), "message": text}}


def _sse(event: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.encode(), dumps({"type": event, **fields}))
