"""The three official SDKs behind one face, so that a test is written once for all wire formats."""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from anthropic import AsyncAnthropic
from google import genai
from google.genai import types
from openai import AsyncOpenAI

from pipecat_hedge.tools.simulator import Simulator

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"party_size": {"type": "integer"}, "time": {"type": "string"}},
}
# Loading the machine's certificates takes longer than a test, and nothing here is encrypted.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass
class Answer:
    """What an SDK read; ``calls`` are tool calls whose arguments are fragments of JSON."""

    text: str = ""
    thoughts: str = ""
    calls: dict[str, str] = field(default_factory=dict)
    reason: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def tools(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls.items()]

    def add_call(self, name: str | None, arguments: str) -> None:
        name = name or next(iter(self.calls))
        self.calls[name] = self.calls.get(name, "") + arguments


class Ask(NamedTuple):
    """What is asked of a model."""

    model: str
    text: str = "do you deliver"
    tools: tuple[str, ...] = ()
    limit: int | None = None


class Sdk:
    """A client: `stream` yields text as it comes, `ask` waits for a whole answer."""

    name: str
    client: Any

    def __init__(self) -> None:
        self.answer = Answer()

    async def send(self, ask: Ask, *, stream: bool) -> Any:
        raise NotImplementedError

    def read(self, chunk: Any) -> Iterator[str]:
        """Yield a chunk's text; note the rest in `answer`. A whole answer is one chunk."""
        raise NotImplementedError

    async def stream(self, *ask: Any) -> AsyncIterator[str]:
        self.answer = Answer()
        response = await self.send(Ask(*ask), stream=True)
        is_generator = self.name == "google"
        async with contextlib.aclosing(response) if is_generator else response:
            async for chunk in response:
                for piece in self.read(chunk):
                    self.answer.text += piece
                    yield piece

    async def ask(self, *ask: Any, **options: Any) -> Answer:
        self.answer = Answer()
        response = await self.send(Ask(*ask, **options), stream=False)
        self.answer.text = "".join(self.read(response))
        return self.answer

    async def close(self) -> None:
        await self.client.close()


class OpenAISdk(Sdk):
    name = "openai"

    def __init__(self, sim: Simulator):
        super().__init__()
        self.client = AsyncOpenAI(api_key="any", base_url=sim.openai_url, max_retries=0)

    async def send(self, ask: Ask, *, stream: bool) -> Any:
        declared = [
            {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
            for name in ask.tools
        ]
        options = {"stream_options": {"include_usage": True}} if stream else {}
        return await self.client.chat.completions.create(
            model=ask.model,
            messages=[{"role": "user", "content": ask.text}],
            stream=stream,
            max_completion_tokens=ask.limit,
            **({"tools": declared} if ask.tools else {}),
            **options,
        )

    def read(self, chunk: Any) -> Iterator[str]:
        if chunk.usage:
            self.answer.input_tokens = chunk.usage.prompt_tokens
            self.answer.output_tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            part = getattr(choice, "delta", None) or choice.message
            self.answer.reason = choice.finish_reason or self.answer.reason
            self.answer.thoughts += getattr(part, "reasoning_content", None) or ""
            for call in part.tool_calls or ():
                self.answer.add_call(call.function.name, call.function.arguments or "")
            if part.content:
                yield part.content


class AnthropicSdk(Sdk):
    name = "anthropic"

    def __init__(self, sim: Simulator):
        super().__init__()
        self.client = AsyncAnthropic(api_key="any", base_url=sim.anthropic_url, max_retries=0)

    async def send(self, ask: Ask, *, stream: bool) -> Any:
        return await self.client.messages.create(
            model=ask.model,
            messages=[{"role": "user", "content": ask.text}],
            stream=stream,
            max_tokens=ask.limit or 1000,
            tools=[{"name": name, "input_schema": PARAMETERS} for name in ask.tools],
        )

    def read(self, chunk: Any) -> Iterator[str]:
        answer = self.answer
        match chunk.type:
            case "message" | "message_start":
                message = chunk if chunk.type == "message" else chunk.message
                answer.input_tokens = message.usage.input_tokens
                answer.output_tokens = message.usage.output_tokens
                answer.reason = message.stop_reason
                for block in message.content:
                    if block.type == "text":
                        yield block.text
                    else:
                        answer.add_call(block.name, json.dumps(block.input))
            case "content_block_start" if chunk.content_block.type == "tool_use":
                answer.add_call(chunk.content_block.name, "")
            case "content_block_delta" if chunk.delta.type == "text_delta":
                yield chunk.delta.text
            case "content_block_delta" if chunk.delta.type == "thinking_delta":
                answer.thoughts += chunk.delta.thinking
            case "content_block_delta" if chunk.delta.type == "input_json_delta":
                answer.add_call(None, chunk.delta.partial_json)
            case "message_delta":
                answer.reason = chunk.delta.stop_reason
                answer.output_tokens = chunk.usage.output_tokens
            case _:
                pass


class GoogleSdk(Sdk):
    name = "google"

    def __init__(self, sim: Simulator):
        super().__init__()
        # One attempt: without retry options the SDK sleeps 1 to 10 s and tries again after a reset.
        options = types.HttpOptions(
            base_url=sim.google_url,
            retry_options=types.HttpRetryOptions(attempts=1),
            client_args={"verify": _NO_TLS},
            async_client_args={"ssl": _NO_TLS},
        )
        self.client = genai.Client(api_key="any", http_options=options)

    async def send(self, ask: Ask, *, stream: bool) -> Any:
        declared = [
            types.FunctionDeclaration(name=name, parameters_json_schema=PARAMETERS)
            for name in ask.tools
        ]
        config = types.GenerateContentConfig(
            tools=[types.Tool(function_declarations=declared)] if ask.tools else None,
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
            max_output_tokens=ask.limit,
        )
        models = self.client.aio.models
        send = models.generate_content_stream if stream else models.generate_content
        return await send(model=ask.model, contents=ask.text, config=config)

    def read(self, chunk: Any) -> Iterator[str]:
        if usage := chunk.usage_metadata:
            self.answer.input_tokens = usage.prompt_token_count or 0
            self.answer.output_tokens = usage.candidates_token_count or 0
        for candidate in chunk.candidates or ():
            self.answer.reason = candidate.finish_reason and candidate.finish_reason.value
            for part in (candidate.content and candidate.content.parts) or ():
                if part.function_call:
                    self.answer.add_call(
                        part.function_call.name, json.dumps(part.function_call.args)
                    )
                elif part.thought:
                    self.answer.thoughts += part.text or ""
                elif part.text:
                    yield part.text

    async def close(self) -> None:
        await self.client.aio.aclose()
        self.client.close()


SDKS = {"openai": OpenAISdk, "anthropic": AnthropicSdk, "google": GoogleSdk}
