"""Peers that are asked as OpenAI's SDK is: the SDK, hedge-python, LiteLLM's router, and proxies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from benchmarks.harness import Ask, Heard, NewCaller, main
from benchmarks.sections import ARGUMENTS, TOOL, Section

PARAMETERS = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ARGUMENTS},
}
TOOLS = [{"type": "function", "function": {"name": TOOL, "parameters": PARAMETERS}}]


@asynccontextmanager
async def peer(kind: str, url: str, section: Section) -> AsyncIterator[NewCaller]:
    """One client for all calls of the process."""
    async with AsyncExitStack() as stack:
        if kind.startswith("router"):
            from litellm import Router

            models = [
                {
                    "model_name": name,
                    "litellm_params": {
                        "model": f"openai/{name}",
                        "api_base": url,
                        "api_key": "any",
                    },
                }
                for name in ("a", "b")
            ]
            tuned: dict[str, Any] = {"stream_timeout": 1.0, "num_retries": 0}
            options = tuned if kind == "router tuned" else {}
            router = Router(model_list=models, fallbacks=[{"a": ["b"]}], **options)
            create: Any = router.acompletion
        else:
            from openai import AsyncOpenAI

            options = {}
            if kind == "hedge-python":
                import httpx
                from hedge import HedgeConfig
                from hedge.transport import HedgedHttpxTransport

                transport = HedgedHttpxTransport(config=HedgeConfig(percentile=0.95))
                options["http_client"] = httpx.AsyncClient(transport=transport)
            client = AsyncOpenAI(api_key="any", base_url=url, **options)
            create = (await stack.enter_async_context(client)).chat.completions.create

        async def ask(heard: Heard) -> None:
            messages = [{"role": "user", "content": heard.prompt}]
            more = {"tools": TOOLS} if section.has_tools else {}
            await listen(await create(model="a", messages=messages, stream=True, **more), heard)

        @asynccontextmanager
        async def new_caller() -> AsyncIterator[Ask]:
            yield ask

        yield new_caller


async def listen(stream: Any, heard: Heard) -> None:
    """Read an answer; a tool call counts when its stream says that it is whole."""
    name = arguments = ""
    async for chunk in stream:
        for choice in chunk.choices:
            if choice.delta.content:
                heard.say(choice.delta.content)
            for call in choice.delta.tool_calls or ():
                name += call.function.name or ""
                arguments += call.function.arguments or ""
            if choice.finish_reason and name:
                heard.call(name, json.loads(arguments))


if __name__ == "__main__":
    main(peer)
