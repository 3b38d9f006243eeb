"""Converts the chunks of a chat completion to the simple form that Pipecat's loop reads.

Answer text passes unchanged. Reasoning becomes thought frames, in whatever field the server sends
it. Tool calls are assembled and emitted complete at the end, one per chunk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from openai import APIConnectionError, APIError, APIStatusError, AsyncStream
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import (
    Choice,
    ChoiceDelta,
    ChoiceDeltaToolCall,
    ChoiceDeltaToolCallFunction,
)
from pipecat.frames.frames import LLMThoughtEndFrame, LLMThoughtStartFrame, LLMThoughtTextFrame
from pipecat.services.llm_service import LLMService

from pipecat_hedge.race.errors import HedgeError
from pipecat_hedge.race.usable import InlineThought
from pipecat_hedge.service.wires import ABORTED, is_object, thought_in
from pipecat_hedge.vllm.errors import explain
from pipecat_hedge.vllm.server import VLLMServer


class AnswerCutOff(HedgeError):
    """An answer ended before its first text or tool call, or before its end."""


class MalformedToolCall(HedgeError):
    """A tool call without its name, or without complete arguments."""


class ChatStream:
    """The chunks of one answer, with the interface of the OpenAI client's stream."""

    def __init__(
        self,
        chunks: AsyncStream[ChatCompletionChunk],
        llm: LLMService[Any],
        server: VLLMServer,
        in_flight: ExitStack,
    ):
        """Wrap a stream.

        Args:
            chunks: The server's stream.
            llm: The service, which pushes the thought frames.
            server: The server, marked as down if it reports a failure in mid-answer.
            in_flight: Closed with the request.
        """
        self._chunks = chunks
        self._llm = llm
        self._server = server
        self._in_flight = in_flight
        self._inline = InlineThought()
        self._is_thinking = False
        self._has_text = False
        self._tools = ToolPieces()

    async def __aiter__(self) -> AsyncIterator[ChatCompletionChunk]:
        """Yield the chunks.

        Raises:
            AnswerCutOff: If the answer reached ``max_tokens`` without text or a tool call, or the
                server ended it.
            MalformedToolCall: If the answer ended inside a tool call.
            VLLMError: If the server reports a failure in mid-answer.
        """
        last: ChatCompletionChunk | None = None
        finish_reason: str | None = None
        try:
            while (chunk := await anext(self._chunks, None)) is not None:
                last = chunk
                for choice in chunk.choices or ():
                    finish_reason = choice.finish_reason or finish_reason
                    if choice.delta:  # pyright: ignore[reportUnnecessaryComparison]
                        await self._simplify(choice.delta)
                yield chunk
        except APIError as error:
            if isinstance(error, APIStatusError | APIConnectionError):
                raise
            explained = explain(error, self._server.base_url, None)
            self._server.mark_down("failed in mid-answer", str(explained))
            raise explained from error
        await self._end_thought()
        if last is None or finish_reason is None or finish_reason in ABORTED:
            raise AnswerCutOff("the server ended the answer early, as when it is stopped")
        held = self._inline.finish()
        calls = self._tools.finish()
        if finish_reason == "length" and not (self._has_text or held or calls):
            raise AnswerCutOff(
                "the answer reached max_tokens before its first text or tool call: raise max_tokens"
            )
        deltas = [ChoiceDelta(content=held)] if held else []
        deltas += [ChoiceDelta(tool_calls=[call]) for call in calls]
        for delta in deltas:
            choice = Choice(index=0, delta=delta, finish_reason=None)
            yield last.model_copy(update={"choices": [choice], "usage": None})

    async def close(self) -> None:
        """Close the request at any point of the answer."""
        try:
            await self._chunks.close()
        finally:
            self._in_flight.close()

    async def _simplify(self, delta: ChoiceDelta) -> None:
        """Keep only answer text in a delta."""
        if thought := thought_in(dict(delta)):
            await self._think(thought)
        if delta.content:
            inline, answer = self._inline.feed(delta.content)
            if inline:
                await self._think(inline)
            if answer:
                self._has_text = True
                await self._end_thought()
            delta.content = answer or None
        if delta.tool_calls:
            await self._end_thought()
            await self._llm.stop_ttfat_metrics()  # Pipecat gets the call only when complete
            for piece in delta.tool_calls:
                self._tools.feed(piece)
            delta.tool_calls = None

    async def _think(self, text: str) -> None:
        if not self._is_thinking:
            self._is_thinking = True
            await self._llm.push_frame(LLMThoughtStartFrame())
        await self._llm.push_frame(LLMThoughtTextFrame(text))

    async def _end_thought(self) -> None:
        if self._is_thinking:
            self._is_thinking = False
            await self._llm.push_frame(LLMThoughtEndFrame())


@dataclass(slots=True)
class _Call:
    index: int | None
    id: str | None = None
    name: str = ""
    arguments: str = ""

    def is_complete(self) -> bool:
        return bool(self.name) and is_object(self.arguments)


class ToolPieces:
    """Assembles an answer's tool calls from streamed pieces.

    By the protocol, ``index`` separates the calls, and the first piece of each has its id and name.
    Some servers use one index for two calls, send the id late or never, or repeat the name in each
    piece. So a new call begins with another id, with another index, or with a name after complete
    arguments. A call without an id gets one.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def feed(self, piece: ChoiceDeltaToolCall) -> None:
        """Add the next piece."""
        function = piece.function or ChoiceDeltaToolCallFunction()
        call = self._call_of(piece.index, piece.id, function.name)
        call.id = piece.id or call.id
        if function.name and function.name != call.name and not call.arguments:
            call.name += function.name
        call.arguments += function.arguments or ""

    def _call_of(self, index: int | None, id: str | None, name: str | None) -> _Call:
        if id:
            for call in self._calls:
                if call.id == id:
                    return call
        same = [call for call in self._calls if index is None or call.index == index]
        latest = same[-1] if same else None
        if (
            latest is None
            or (id and latest.id)
            or (name and latest.arguments and latest.is_complete())
        ):
            latest = _Call(index)
            self._calls.append(latest)
        return latest

    def finish(self) -> list[ChoiceDeltaToolCall]:
        """End the answer.

        Returns:
            The complete calls, in the order in which they began.

        Raises:
            MalformedToolCall: If one has no name, or its arguments are not a JSON object.
        """
        whole: list[ChoiceDeltaToolCall] = []
        for index, call in enumerate(self._calls):
            arguments = call.arguments.strip() or "{}"
            if not call.name:
                raise MalformedToolCall("a tool call has no tool name")
            if not is_object(arguments):
                raise MalformedToolCall(
                    f"the call of {call.name} has arguments that are not a JSON object, as in a "
                    "truncated answer: raise max_tokens if that limit was reached"
                )
            function = ChoiceDeltaToolCallFunction(name=call.name, arguments=arguments)
            id = call.id or f"call_{uuid4().hex}"
            whole.append(
                ChoiceDeltaToolCall(index=index, id=id, function=function, type="function")
            )
        return whole
