"""What may be raced, how it is named, and which arguments are rejected."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic import AsyncAnthropic
from pipecat.frames.frames import LLMServiceMetadataFrame
from pipecat.pipeline.llm_switcher import LLMSwitcher
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.responses.llm import (
    OpenAIResponsesLLMService,
)
from pipecat.services.settings import LLMSettings

from pipecat_hedge import HedgedLLMService, HedgeError, Provider
from pipecat_hedge.testing import Say, ScriptedLLMService


def scripted(**kwargs: Any) -> ScriptedLLMService:
    return ScriptedLLMService([Say("Hi.")], **kwargs)


def hedged(**options: Any) -> HedgedLLMService:
    return HedgedLLMService([scripted()], **options)


class SpeechToSpeech(ScriptedLLMService):
    def service_metadata_frame(self) -> LLMServiceMetadataFrame:
        return LLMServiceMetadataFrame(service_name=self.name, is_realtime_service=True)


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


def _in_another_race() -> list[ScriptedLLMService]:
    service = scripted()
    HedgedLLMService([service])
    return [service]


ONE = scripted()
BAD_LLMS = {
    "none": (list, "llms is empty"),
    "not a list": (scripted, "llms must be a list"),
    "not a service": (lambda: ["gpt-4.1"], r"llms\[0\] must be a Pipecat LLM service, got str"),
    "a class": (lambda: [scripted(), ScriptedLLMService], r"llms\[1\] is the class"),
    "the same instance twice": (lambda: [ONE, ONE], "twice"),
    "the same instance in two providers": (
        lambda: [Provider("a", ONE), Provider("b", [scripted(), ONE])],
        "twice",
    ),
    "one that is in another race": (_in_another_race, "already in a pipeline or in another race"),
    "speech to speech": (lambda: [SpeechToSpeech([])], "speech-to-speech"),
    "a conversation over a WebSocket": (
        lambda: [OpenAIResponsesLLMService(api_key="k")],
        "OpenAIResponsesHttpLLMService",
    ),
    "a race in a race": (lambda: [HedgedLLMService([scripted()])], "outer one"),
    "a switcher": (lambda: [LLMSwitcher([scripted()])], "one by one"),
    "two of a name": (
        lambda: [Provider("a", scripted()), Provider("a", scripted())],
        "names two providers alike",
    ),
}


@pytest.mark.parametrize(("llms", "message"), BAD_LLMS.values(), ids=BAD_LLMS)
async def test_unsuitable_services_are_rejected(llms: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        HedgedLLMService(llms())
    assert isinstance(caught.value, HedgeError)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Provider("", scripted()), "name must be a non-empty string"),
        (lambda: Provider(None, scripted()), "name must be a non-empty string"),  # pyright: ignore[reportArgumentType]
        (lambda: Provider("a", []), "services of provider 'a' is empty"),
        (lambda: Provider("a", "gpt"), "services of provider 'a' must be a Pipecat LLM service"),  # pyright: ignore[reportArgumentType]
        (lambda: Provider("a", None), "services of provider 'a' must be a Pipecat LLM service"),  # pyright: ignore[reportArgumentType]
        (lambda: Provider("a", scripted(), usd_per_mtok=(1, -1)), "usd_per_mtok of provider 'a'"),
        (lambda: Provider("a", scripted(), usd_per_mtok=3), "usd_per_mtok of provider 'a'"),  # pyright: ignore[reportArgumentType]
        (lambda: Provider("a", scripted(), breaker=3), "write Circuit"),  # pyright: ignore[reportArgumentType]
        (lambda: hedged(min_in_flight=0), "min_in_flight must be a whole number from 1, got 0"),
        (lambda: hedged(min_in_flight=True), "min_in_flight must be a whole number"),
        (lambda: hedged(max_in_flight=2.5), "max_in_flight must be a whole number from 1, got 2.5"),
        (
            lambda: hedged(min_in_flight=5, max_in_flight=4),
            "min_in_flight must not exceed max_in_flight, got 5 and 4",
        ),
        (lambda: hedged(turn_log="none/x"), "turn_log: there is no folder .*: make it first"),
        (lambda: hedged(drained_log="none/x"), "drained_log: there is no folder .*: make it first"),
        (lambda: hedged(policy="race"), "policy must be a HedgePolicy"),
        (lambda: hedged(settings=LLMSettings(model="gpt")), "settings.model cannot be shared"),
        (lambda: hedged(tier="gold"), "tier is not known, got 'gold': write 'premium'"),
        (lambda: hedged(admission="closed"), "admission is not known, got 'closed': write 'open'"),
    ],
)
async def test_invalid_arguments_name_the_remedy(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert isinstance(caught.value, HedgeError)


async def test_sdk_retries_are_switched_off() -> None:
    client = AsyncAnthropic(api_key="k")
    members: list[Any] = [
        OpenAILLMService(api_key="k"),
        AnthropicLLMService(api_key="k", client=client),
    ]
    HedgedLLMService(members)
    assert [m._client.max_retries for m in members] == [0, 0]
    assert client.max_retries == 2
