"""LiveKit Agents' classes, as an `AgentSession` uses them."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from livekit import rtc
from livekit.agents import APIConnectOptions, function_tool, stt, tts
from livekit.agents.llm import LLM, ChatContext, FallbackAdapter
from livekit.plugins import cartesia, deepgram, openai

from benchmarks.harness import PIECE, RATE, Ask, Heard, NewCaller, main, speech
from benchmarks.sections import PROVIDERS, RECOGNISERS, SPEAKERS, Section

OPTIONS = APIConnectOptions()
"""What an `AgentSession` gives, if its user gives nothing."""
TUNED: dict[str, Any] = {"tuned": {"attempt_timeout": 1.0, "retry_on_chunk_sent": True}}
TUNED_TTS: dict[str, Any] = {"tuned": {"max_retry_per_tts": 0}}
"""Options of the adapters, for kinds that are not as they come."""


@function_tool
async def book_table(people: int, time: str, name: str) -> None:
    """Books a table."""


@asynccontextmanager
async def peer(kind: str, url: str, section: Section) -> AsyncIterator[NewCaller]:
    """Objects for each call: LiveKit runs each in a process of its own."""
    what, _, how = kind.partition(" ")
    async with aiohttp.ClientSession() as session:

        @asynccontextmanager
        async def new_caller() -> AsyncIterator[Ask]:
            if what == "llm":
                llms: list[LLM] = [
                    openai.LLM(model=model, base_url=url, api_key="any") for model in PROVIDERS
                ]
                llm = FallbackAdapter(llms, **TUNED.get(how, {})) if how else llms[0]
                yield functools.partial(chat, llm)
            elif what == "tts":
                root = url.removesuffix("/v1")
                voices: list[tts.TTS] = [
                    cartesia.TTS(model=model, base_url=root, api_key="any", http_session=session)
                    for model in SPEAKERS
                ]
                voice = tts.FallbackAdapter(voices, **TUNED_TTS.get(how, {})) if how else voices[0]
                options = APIConnectOptions(timeout=2.0) if how == "tuned" else OPTIONS
                yield functools.partial(speak, voice, options)
            else:
                ears: list[stt.STT] = [
                    deepgram.STT(
                        model=model, base_url=f"{url}/listen", api_key="any", http_session=session
                    )
                    for model in RECOGNISERS
                ]
                ear = stt.FallbackAdapter(ears) if how else ears[0]
                async with ear.stream(conn_options=OPTIONS) as stream:
                    yield functools.partial(listen, stream)

        yield new_caller


async def chat(llm: LLM, heard: Heard) -> None:
    """Ask a model."""
    context = ChatContext.empty()
    context.add_message(role="user", content=heard.prompt)
    tools = [book_table] if heard.section.has_tools else []
    async with llm.chat(chat_ctx=context, tools=tools, conn_options=OPTIONS) as stream:
        async for chunk in stream:
            if chunk.delta and chunk.delta.content:
                heard.say(chunk.delta.content)
            for call in chunk.delta.tool_calls if chunk.delta else ():
                heard.call(call.name, json.loads(call.arguments))


async def speak(voice: tts.TTS, options: APIConnectOptions, heard: Heard) -> None:
    """Have a sentence spoken."""
    async with voice.stream(conn_options=options) as stream:
        stream.push_text(heard.prompt)
        stream.end_input()
        async for audio in stream:
            heard.sound(audio.frame.data.tobytes(), audio.frame.sample_rate)


async def listen(stream: stt.RecognizeStream, heard: Heard) -> None:
    """Speak, and wait for what is understood."""

    async def hear(piece: bytes, is_speech: bool) -> None:
        stream.push_frame(rtc.AudioFrame(piece, RATE, 1, PIECE))

    speaking = asyncio.create_task(speech(hear, heard))
    try:
        async for event in stream:
            if event.type == stt.SpeechEventType.FINAL_TRANSCRIPT:
                heard.say(event.alternatives[0].text)
                return
    finally:
        speaking.cancel()


if __name__ == "__main__":
    logging.disable()
    main(peer)
