"""A chat completion's chunks, put right for Pipecat's loop, which reads the plainest kind only.

What is said is left as it is. Reasoning is taken out, wherever the server puts it, and told as
thoughts. Tool calls are collected and handed on whole at the end, one in a chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from openai import APIError, AsyncStream
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import (
    Choice,
    ChoiceDelta,
    ChoiceDeltaToolCall,
    ChoiceDeltaToolCallFunction,
)
from pipecat.frames.frames import (
    Frame,
    LLMThoughtEndFrame,
    LLMThoughtStartFrame,
    LLMThoughtTextFrame,
)

from pipecat_hedge.race.errors import HedgeError
from pipecat_hedge.race.usable import InlineThought
from pipecat_hedge.vllm.tool_pieces import ToolPieces

__all__ = ["AnswerCutOff", "ChatStream"]


class AnswerCutOff(HedgeError):
    """An answer that ended before it had said or called anything, or before it was meant to."""


_ENDED_BY_THE_SERVER = (None, "abort", "error")
"""A vLLM that is told to stop ends its streams in good order, with ``abort``; where something in
between cuts the connection, no reason comes at all."""


class ChatStream:
    """Iterates over the chunks of one answer. Closing it closes the request."""

    def __init__(
        self,
        chunks: AsyncStream[ChatCompletionChunk],
        push: Callable[[Frame], Awaitable[None]],
        began: Callable[[], None],
        tool_began: Callable[[], Awaitable[None]],
        closed: Callable[[], None],
        failed: Callable[[APIError], Exception],
    ):
        """Read an answer.

        Args:
            chunks: What the server sends.
            push: Takes the thoughts' frames.
            began: Told when the answer has begun.
            tool_began: Told when a tool call has begun.
            closed: Told when the request is closed.
            failed: Puts what the client raises in mid-answer into better words.
        """
        self._chunks = chunks
        self._push = push
        self._began = began
        self._tool_began = tool_began
        self._closed = closed
        self._failed = failed
        self._inline = InlineThought()
        self._is_thinking = False
        self._tools: ToolPieces | None = None
        self._last: ChatCompletionChunk | None = None
        self._is_empty = True
        self._finish_reason: str | None = None
        self._rest: deque[ChatCompletionChunk] | None = None

    def __aiter__(self) -> ChatStream:
        return self

    async def __anext__(self) -> ChatCompletionChunk:
        """The next chunk.

        Raises:
            AnswerCutOff: If the answer reached its limit of tokens with nothing to show, or was
                ended by the server.
            MalformedToolCall: If the answer ended inside a tool call.
        """
        if self._rest is None:
            try:
                chunk = await self._chunks.__anext__()
            except StopAsyncIteration:
                self._rest = await self._finish()
            except APIError as error:
                explained = self._failed(error)
                if explained is error:
                    raise
                raise explained from error
            else:
                if self._last is None:
                    self._began()
                self._last = chunk
                for choice in chunk.choices or ():
                    self._finish_reason = choice.finish_reason or self._finish_reason
                    if choice.delta:  # pyright: ignore[reportUnnecessaryComparison]
                        await self._put_right(choice.delta)
                return chunk
        if not self._rest:
            raise StopAsyncIteration
        return self._rest.popleft()

    async def close(self) -> None:
        """Close the request, wherever the answer is."""
        try:
            await self._chunks.close()
        finally:
            self._closed()

    async def _put_right(self, delta: ChoiceDelta) -> None:
        reasoning = getattr(delta, "reasoning", None) or getattr(delta, "reasoning_content", None)
        if reasoning:
            await self._think(reasoning)
        if delta.content:
            thought, answer = self._inline.feed(delta.content)
            if thought:
                await self._think(thought)
            if answer:
                self._is_empty = False
                await self._end_thought()
            delta.content = answer or None
        if delta.tool_calls:
            await self._collect(delta.tool_calls)
            delta.tool_calls = None

    async def _collect(self, pieces: list[ChoiceDeltaToolCall]) -> None:
        await self._end_thought()
        if self._tools is None:
            self._tools = ToolPieces()
            await self._tool_began()
        for piece in pieces:
            function = piece.function
            index: Any = piece.index  # some servers leave it out
            self._tools.feed(
                index=index,
                id=piece.id,
                name=function and function.name,
                arguments=function and function.arguments,
            )

    async def _think(self, text: str) -> None:
        if not self._is_thinking:
            self._is_thinking = True
            await self._push(LLMThoughtStartFrame())
        await self._push(LLMThoughtTextFrame(text))

    async def _end_thought(self) -> None:
        if self._is_thinking:
            self._is_thinking = False
            await self._push(LLMThoughtEndFrame())

    async def _finish(self) -> deque[ChatCompletionChunk]:
        await self._end_thought()
        if self._finish_reason in _ENDED_BY_THE_SERVER:
            raise AnswerCutOff(
                "the server ended the answer before its time, as it does when it is being stopped"
            )
        rest: deque[ChatCompletionChunk] = deque()
        if held := self._inline.finish():
            rest.append(self._chunk(ChoiceDelta(content=held)))
        calls = () if self._tools is None else self._tools.finish(lambda: f"call_{uuid4().hex}")
        for index, call in enumerate(calls):
            function = ChoiceDeltaToolCallFunction(name=call.name, arguments=call.arguments)
            whole = ChoiceDeltaToolCall(index=index, id=call.id, function=function, type="function")
            rest.append(self._chunk(ChoiceDelta(tool_calls=[whole])))
        if self._finish_reason == "length" and self._is_empty and not rest:
            raise AnswerCutOff(
                "the answer reached its limit of tokens before it said anything, in its reasoning "
                "or in a tool call: raise max_tokens"
            )
        return rest

    def _chunk(self, delta: ChoiceDelta) -> ChatCompletionChunk:
        last = self._last
        assert last is not None, "there is nothing to hand on of an answer without chunks"
        choice = Choice(index=0, delta=delta, finish_reason=None)
        return last.model_copy(update={"choices": [choice], "usage": None})
