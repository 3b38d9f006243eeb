"""Pipecat's services on the simulator, one for each wire format."""

from __future__ import annotations

from typing import Any

from anthropic import AsyncAnthropic
from google.genai import types
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.google.llm import GoogleLLMService
from pipecat.services.llm_service import LLMService
from pipecat.services.openai.llm import OpenAILLMService

from pipecat_hedge.tools.simulator import Simulator

WIRES = ("openai", "anthropic", "google")


def simulated(
    wire: str, sim: Simulator, behaviour: str, *, url: str | None = None
) -> LLMService[Any]:
    """A service whose model name is ``behaviour``, as ``fixed@ttft=0.05,fault=529``.

    With ``url`` it asks there and not the simulator's own address.
    """
    if wire == "openai":
        return OpenAILLMService(
            api_key="any",
            base_url=f"{url or sim.url}/v1",
            settings=OpenAILLMService.Settings(model=behaviour),
        )
    if wire == "anthropic":
        return AnthropicLLMService(
            api_key="any",
            client=AsyncAnthropic(api_key="any", base_url=url or sim.anthropic_url),
            settings=AnthropicLLMService.Settings(model=behaviour),
        )
    if wire == "google":
        return GoogleLLMService(
            api_key="any",
            http_options=types.HttpOptions(
                base_url=url or sim.google_url,
                retry_options=types.HttpRetryOptions(attempts=1),  # as the README advises
            ),
            settings=GoogleLLMService.Settings(model=behaviour),
        )
    raise ValueError(f"wire must be one of {WIRES}, got {wire!r}")


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
