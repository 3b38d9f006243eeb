"""A proxy in front of upstreams, and clients of it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import anthropic
import openai

from pipecat_hedge.service import ProviderStats
from pipecat_hedge.tools.proxy import ProxyServer, ProxySettings

PATHS = {"anthropic": "/v1/messages", "openai": "/v1/chat/completions"}
START_SECS = 30.0  # imports are slow where the cores are busy
HELLO: Any = [{"role": "user", "content": "Are you open?"}]


@asynccontextmanager
async def proxy(*upstreams: str | tuple[str, str], **options: Any) -> AsyncIterator[ProxyServer]:
    """A proxy with a model for each wire, named as the wire.

    Args:
        upstreams: Their addresses, with the model to ask for, or ``m``.
        options: Further settings; those under ``model`` are the models', those under ``upstream``
            are the upstreams'.
    """
    of_model = {"policy": "fallback(probes=False)", **options.pop("model", {})}
    of_upstream = options.pop("upstream", {})
    named = [(each, "m") if isinstance(each, str) else each for each in upstreams]
    models = {
        wire: {
            "wire": wire,
            "upstreams": [
                {
                    "name": f"{wire} {number}",
                    "base_url": url + ("" if wire == "anthropic" else "/v1"),
                    "model": model,
                    **of_upstream,
                }
                for number, (url, model) in enumerate(named)
            ],
            **of_model,
        }
        for wire in PATHS
    }
    settings = ProxySettings.model_validate({"listen": "127.0.0.1:0", "models": models, **options})
    async with ProxyServer(settings, ProviderStats()) as server:
        yield server


def url_of(server: ProxyServer) -> str:
    return f"http://127.0.0.1:{server.port}"


@asynccontextmanager
async def proxied(*upstreams: str | tuple[str, str], **options: Any) -> AsyncIterator[str]:
    """The address of a proxy; see ``proxy``."""
    async with proxy(*upstreams, **options) as server:
        yield url_of(server)


class ProxyProcess:
    """``pipecat-hedge proxy`` in a process of its own.

    Args:
        path: Its settings.
        stats: Where it keeps what it learns.
        stderr: Where its log goes, as in ``asyncio.subprocess``; None is that of the tests.

    Attributes:
        url: Its address, after ``start``.
        process: The process, after ``start``.
    """

    def __init__(self, path: Path, *, stats: str = "off", stderr: int | None = None):
        self.url = ""
        self._path, self._stderr = path, stderr
        self._env = {**os.environ, "PIPECAT_HEDGE_STATS": stats}

    async def start(self) -> None:
        command = [sys.executable, "-m", "pipecat_hedge.cli", "proxy", str(self._path)]
        self.process = await asyncio.create_subprocess_exec(
            *command, env=self._env, stdout=asyncio.subprocess.PIPE, stderr=self._stderr
        )
        assert self.process.stdout is not None
        try:
            line = await asyncio.wait_for(self.process.stdout.readline(), START_SECS)
            self.url = line.decode().split(": ", 1)[1].strip()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> int:
        """Stop it as a restart does, and return its exit status."""
        if self.process.returncode is None:
            self.process.terminate()
        return await self.process.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def asking(wire: str, *, stream: bool, **more: Any) -> dict[str, Any]:
    """The body of a request."""
    return {"model": wire, "messages": HELLO, "stream": stream, "max_tokens": 99, **more}


@asynccontextmanager
async def sdk(wire: str, url: str, key: str = "any") -> AsyncIterator[Any]:
    """The SDK of a wire."""
    if wire == "anthropic":
        client: Any = anthropic.AsyncAnthropic(api_key=key, base_url=url, max_retries=0)
    else:
        client = openai.AsyncOpenAI(api_key=key, base_url=f"{url}/v1", max_retries=0)
    async with client:
        yield client


class Client:
    """Asks through the SDK of a wire, in a few words."""

    def __init__(self, wire: str, client: Any):
        self.wire, self.sdk = wire, client

    async def pieces(self, **options: Any) -> AsyncIterator[str]:
        """The text of a stream as it comes."""
        if self.wire == "anthropic":
            async with self.sdk.messages.stream(
                model=self.wire, max_tokens=99, messages=HELLO, **options
            ) as stream:
                async for text in stream.text_stream:
                    yield text
        else:
            async for chunk in await self.sdk.chat.completions.create(
                model=self.wire, messages=HELLO, stream=True, **options
            ):
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content

    async def stream(self, **options: Any) -> str:
        """The text of a stream."""
        return "".join([text async for text in self.pieces(**options)])

    async def whole(self) -> str:
        """The text of an answer that is not streamed."""
        if self.wire == "anthropic":
            message = await self.sdk.messages.create(model=self.wire, max_tokens=99, messages=HELLO)
            return message.content[0].text
        answer = await self.sdk.chat.completions.create(model=self.wire, messages=HELLO)
        return answer.choices[0].message.content


@asynccontextmanager
async def client_of(wire: str, url: str, key: str = "any") -> AsyncIterator[Client]:
    """A client of a proxy."""
    async with sdk(wire, url, key) as client:
        yield Client(wire, client)
