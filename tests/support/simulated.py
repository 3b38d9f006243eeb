"""Pipecat's services on the simulator, one for each wire format, and what an attempt posts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from anthropic import AsyncAnthropic
from google.genai import types
from pipecat.frames.frames import LLMTextFrame, LLMThoughtTextFrame
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.google.llm import GoogleLLMService
from pipecat.services.llm_service import LLMService
from pipecat.services.openai.llm import OpenAILLMService

from pipecat_hedge.race import AttemptError
from pipecat_hedge.race.driver import AttemptSink
from pipecat_hedge.service.service_adapter import Piece, ToolCalls
from pipecat_hedge.tools.simulator import Simulator, SimulatorProcess
from tests.service.builders import racing
from tests.support.line import Line

WIRES = ("openai", "anthropic", "google")


def simulated(
    wire: str, sim: Simulator | SimulatorProcess | None, behaviour: str, *, url: str | None = None
) -> LLMService[Any]:
    """A service whose model name is ``behaviour``, as ``fixed@ttft=0.05,fault=529``.

    With ``url`` its requests go there, and not to the simulator.
    """
    if url is None:
        assert sim is not None
        url = sim.url
    if wire == "openai":
        settings = OpenAILLMService.Settings(model=behaviour)
        return OpenAILLMService(api_key="any", base_url=f"{url}/v1", settings=settings)
    if wire == "anthropic":
        return anthropic(AsyncAnthropic(api_key="any", base_url=url), behaviour)
    if wire == "google":
        retries = types.HttpRetryOptions(attempts=1)  # as the README advises
        return GoogleLLMService(
            api_key="any",
            http_options=types.HttpOptions(base_url=url, retry_options=retries),
            settings=GoogleLLMService.Settings(model=behaviour),
        )
    raise ValueError(f"wire must be one of {WIRES}, got {wire!r}")


def anthropic(client: AsyncAnthropic, behaviour: str) -> AnthropicLLMService:
    """Anthropic's service over a client of the test's own."""
    settings = AnthropicLLMService.Settings(model=behaviour)
    return AnthropicLLMService(api_key="any", client=client, settings=settings)


async def close(*llms: LLMService[Any]) -> None:
    """Close the connections that the services' clients keep; Pipecat leaves them open."""
    for llm in llms:
        client: Any = llm._client  # pyright: ignore[reportAttributeAccessIssue]
        if client is None:  # some services let go of it in cleanup
            continue
        if isinstance(llm, GoogleLLMService):
            await client.aio.aclose()
            client.close()
        else:
            await client.close()


@asynccontextmanager
async def line_to(*members: LLMService[Any], **options: Any) -> AsyncIterator[Line]:
    """A line to a race of the members as providers a, b and c; their clients are closed."""
    try:
        async with Line(racing(*members, **options)) as line:
            yield line
    finally:
        await close(*members)


@dataclass
class PostedPieces(AttemptSink[Piece]):
    """Collects what one attempt of a service posts."""

    usable: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    thought: str = ""
    text: str = ""
    errors: list[AttemptError] = field(default_factory=list[AttemptError])

    async def opened(self) -> None: ...

    async def speakable(self) -> None: ...

    def finished(self) -> None: ...

    async def piece(self, piece: Piece, *, usable: bool) -> None:
        if isinstance(piece, LLMThoughtTextFrame):
            self.thought += piece.text
        elif isinstance(piece, LLMTextFrame):
            self.text += piece.text
            if usable:
                self.usable.append(("text", piece.text))

    async def tools(self, piece: Piece) -> None:
        assert isinstance(piece, ToolCalls)
        calls = ", ".join(f"{call.function_name} {call.arguments}" for call in piece.calls)
        self.usable.append(("tools", calls))

    def failed(self, error: AttemptError) -> None:
        self.errors.append(error)


async def never_called(*_: object) -> None:
    """A tool that must not run."""
    raise AssertionError("a tool ran although no attempt was committed")
