"""The three official SDKs behind one face, so that a test can be written once for all wires."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from anthropic import AsyncAnthropic
from google import genai
from google.genai import types
from openai import AsyncOpenAI

from pipecat_hedge.tools.simulator import Simulator

BOOK_TABLE = {
    "type": "object",
    "properties": {"party_size": {"type": "integer"}, "time": {"type": "string"}},
}


@dataclass
class Answer:
    """What an SDK made of a response."""

    text: str = ""
    thoughts: str = ""
    tools: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    reason: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    pieces: list[str] = field(default_factory=list)


class Sdk(Protocol):
    """An SDK's client that streams and asks."""

    name: str

    def stream(self, model: str, text: str, *, tools: tuple[str, ...] = ()) -> AsyncIterator[str]:
        """Text pieces as they come; `answer` is filled meanwhile."""
        ...

    async def ask(self, model: str, text: str, *, tools: tuple[str, ...] = ()) -> Answer:
        """A whole answer."""
        ...

    async def close(self) -> None: ...

    answer: Answer


async def drain(stream: AsyncIterator[str]) -> str:
    """All of a stream's text."""
    return "".join([piece async for piece in stream])


class OpenAISdk:
    name = "openai"

    def __init__(self, sim: Simulator):
        self.client: Any = AsyncOpenAI(api_key="any", base_url=sim.openai_url, max_retries=0)
        self.answer = Answer()

    def _request(self, model: str, text: str, tools: tuple[str, ...]) -> dict[str, Any]:
        declared = [
            {"type": "function", "function": {"name": name, "parameters": BOOK_TABLE}}
            for name in tools
        ]
        extra = {"tools": declared} if tools else {}
        return {"model": model, "messages": [{"role": "user", "content": text}], **extra}

    async def stream(
        self, model: str, text: str, *, tools: tuple[str, ...] = ()
    ) -> AsyncIterator[str]:
        self.answer = answer = Answer()
        arguments, name = "", None
        response = await self.client.chat.completions.create(
            **self._request(model, text, tools),
            stream=True,
            stream_options={"include_usage": True},
        )
        async with response:  # leaving a loop early does not close it
            async for chunk in response:
                if chunk.usage:
                    answer.input_tokens = chunk.usage.prompt_tokens
                    answer.output_tokens = chunk.usage.completion_tokens
                for choice in chunk.choices:
                    answer.reason = choice.finish_reason or answer.reason
                    answer.thoughts += getattr(choice.delta, "reasoning_content", None) or ""
                    for call in choice.delta.tool_calls or ():
                        name = call.function.name or name
                        arguments += call.function.arguments or ""
                    if choice.delta.content:
                        yield choice.delta.content
        if name:
            answer.tools.append((name, json.loads(arguments)))

    async def ask(self, model: str, text: str, *, tools: tuple[str, ...] = ()) -> Answer:
        response = await self.client.chat.completions.create(**self._request(model, text, tools))
        message = response.choices[0].message
        calls = [
            (c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ()
        ]
        return Answer(
            text=message.content or "",
            tools=calls,
            reason=response.choices[0].finish_reason,
            input_tokens=response.usage.prompt_tokens,
            output_tokens=response.usage.completion_tokens,
        )

    async def close(self) -> None:
        await self.client.close()


class AnthropicSdk:
    name = "anthropic"

    def __init__(self, sim: Simulator):
        self.client: Any = AsyncAnthropic(api_key="any", base_url=sim.anthropic_url, max_retries=0)
        self.answer = Answer()

    def _request(self, model: str, text: str, tools: tuple[str, ...]) -> dict[str, Any]:
        declared = [{"name": name, "input_schema": BOOK_TABLE} for name in tools]
        extra = {"tools": declared} if tools else {}
        messages = [{"role": "user", "content": text}]
        return {"model": model, "messages": messages, "max_tokens": 1000, **extra}

    async def stream(
        self, model: str, text: str, *, tools: tuple[str, ...] = ()
    ) -> AsyncIterator[str]:
        self.answer = answer = Answer()
        arguments, name = "", None
        response = await self.client.messages.create(
            **self._request(model, text, tools), stream=True
        )
        async with response:
            async for event in response:
                match event.type:
                    case "message_start":
                        answer.input_tokens = event.message.usage.input_tokens
                    case "content_block_start" if event.content_block.type == "tool_use":
                        name = event.content_block.name
                    case "content_block_delta" if event.delta.type == "text_delta":
                        yield event.delta.text
                    case "content_block_delta" if event.delta.type == "thinking_delta":
                        answer.thoughts += event.delta.thinking
                    case "content_block_delta" if event.delta.type == "input_json_delta":
                        arguments += event.delta.partial_json
                    case "message_delta":
                        answer.reason = event.delta.stop_reason
                        answer.output_tokens = event.usage.output_tokens
                    case _:
                        pass
        if name:
            answer.tools.append((name, json.loads(arguments)))

    async def ask(self, model: str, text: str, *, tools: tuple[str, ...] = ()) -> Answer:
        response = await self.client.messages.create(**self._request(model, text, tools))
        return Answer(
            text="".join(b.text for b in response.content if b.type == "text"),
            tools=[(b.name, b.input) for b in response.content if b.type == "tool_use"],
            reason=response.stop_reason,
            input_tokens=response.usage.input_tokens,
            output_tokens=response.usage.output_tokens,
        )

    async def close(self) -> None:
        await self.client.close()


# Loading the machine's certificates takes longer than a test, and nothing here is encrypted.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class GoogleSdk:
    name = "google"

    def __init__(self, sim: Simulator):
        # One attempt: without retry options the SDK sleeps 1 to 10 s and tries again after a reset.
        options = types.HttpOptions(
            base_url=sim.google_url,
            retry_options=types.HttpRetryOptions(attempts=1),
            client_args={"verify": _NO_TLS},
            async_client_args={"ssl": _NO_TLS},
        )
        self.client: Any = genai.Client(api_key="any", http_options=options)
        self.answer = Answer()

    def _request(self, model: str, text: str, tools: tuple[str, ...]) -> dict[str, Any]:
        declared = [
            types.FunctionDeclaration(name=name, parameters_json_schema=BOOK_TABLE)
            for name in tools
        ]
        config = types.GenerateContentConfig(
            tools=[types.Tool(function_declarations=declared)] if tools else None,
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        )
        return {"model": model, "contents": text, "config": config}

    async def stream(
        self, model: str, text: str, *, tools: tuple[str, ...] = ()
    ) -> AsyncIterator[str]:
        self.answer = answer = Answer()
        response = await self.client.aio.models.generate_content_stream(
            **self._request(model, text, tools)
        )
        try:
            async for chunk in response:
                for piece in self._take(chunk, answer):
                    yield piece
        finally:
            await response.aclose()

    async def ask(self, model: str, text: str, *, tools: tuple[str, ...] = ()) -> Answer:
        answer = Answer()
        response = await self.client.aio.models.generate_content(
            **self._request(model, text, tools)
        )
        answer.text = "".join(self._take(response, answer))
        return answer

    def _take(self, chunk: types.GenerateContentResponse, answer: Answer) -> list[str]:
        pieces: list[str] = []
        if chunk.usage_metadata:
            answer.input_tokens = chunk.usage_metadata.prompt_token_count or 0
            answer.output_tokens = chunk.usage_metadata.candidates_token_count or 0
        for candidate in chunk.candidates or ():
            answer.reason = candidate.finish_reason.value if candidate.finish_reason else None
            for part in (candidate.content.parts if candidate.content else None) or ():
                if part.function_call:
                    answer.tools.append(
                        (part.function_call.name or "", part.function_call.args or {})
                    )
                elif part.thought:
                    answer.thoughts += part.text or ""
                elif part.text:
                    pieces.append(part.text)
        return pieces

    async def close(self) -> None:
        await self.client.aio.aclose()
        self.client.close()


SDKS = {"openai": OpenAISdk, "anthropic": AnthropicSdk, "google": GoogleSdk}
