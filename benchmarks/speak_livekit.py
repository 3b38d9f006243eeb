"""LiveKit Agents' classes, as an `AgentSession` uses them."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from livekit.agents import APIConnectOptions, function_tool
from livekit.agents.llm import LLM, ChatContext, FallbackAdapter
from livekit.plugins import openai

from benchmarks.harness import Ask, Heard, NewCaller, main
from benchmarks.sections import PROVIDERS, Section


@function_tool
async def book_table(people: int, time: str, name: str) -> None:
    """Books a table."""


@asynccontextmanager
async def peer(kind: str, url: str, section: Section) -> AsyncIterator[NewCaller]:
    """An adapter for each call: LiveKit runs each in a process of its own."""

    def llm() -> LLM:
        llms: list[LLM] = [
            openai.LLM(model=model, base_url=url, api_key="any") for model in PROVIDERS
        ]
        return llms[0] if kind == "bare" else FallbackAdapter(llms)

    @asynccontextmanager
    async def new_caller() -> AsyncIterator[Ask]:
        answers = llm()

        async def ask(heard: Heard) -> None:
            context = ChatContext.empty()
            context.add_message(role="user", content=heard.prompt)
            tools = [book_table] if section.has_tools else []
            options = APIConnectOptions()  # what an AgentSession gives, if its user gives nothing
            async with answers.chat(chat_ctx=context, tools=tools, conn_options=options) as stream:
                async for chunk in stream:
                    if chunk.delta and chunk.delta.content:
                        heard.say(chunk.delta.content)
                    for call in chunk.delta.tool_calls if chunk.delta else ():
                        heard.call(call.name, json.loads(call.arguments))

        yield ask
        await answers.aclose()

    yield new_caller


if __name__ == "__main__":
    logging.disable()
    main(peer)
