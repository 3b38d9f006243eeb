"""What may be raced, how it is named, and which arguments are rejected."""

from __future__ import annotations

from typing import Any

from anthropic import AsyncAnthropic
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.openai.llm import OpenAILLMService

from pipecat_hedge import HedgedLLMService, Provider
from pipecat_hedge.testing import Say, ScriptedLLMService


def scripted(**kwargs: Any) -> ScriptedLLMService:
    return ScriptedLLMService([Say("Hi.")], **kwargs)


def hedged(**options: Any) -> HedgedLLMService:
    return HedgedLLMService([scripted()], **options)


async def test_bare_service_is_named_by_kind_and_model() -> None:
    llm = HedgedLLMService(
        [
            OpenAILLMService(api_key="k", settings=OpenAILLMService.Settings(model="gpt-4.1")),
            Provider("mine", scripted()),
            OpenAILLMService(api_key="k", settings=OpenAILLMService.Settings(model="gpt-4.1")),
            scripted(model=""),
        ]
    )
    assert [p.name for p in llm.providers] == [
        "openai:gpt-4.1",
        "mine",
        "openai:gpt-4.1#2",
        "scripted",
    ]
    assert llm.policy.name == "adaptive(10 %)"


async def test_sdk_retries_are_switched_off() -> None:
    client = AsyncAnthropic(api_key="k")
    members: list[Any] = [
        OpenAILLMService(api_key="k"),
        AnthropicLLMService(api_key="k", client=client),
    ]
    HedgedLLMService(members)
    assert [m._client.max_retries for m in members] == [0, 0]
    assert client.max_retries == 2
