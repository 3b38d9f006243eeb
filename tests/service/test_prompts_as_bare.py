"""Settings, instructions and built-in tools reach members as they reach a bare service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import LLMUpdateSettingsFrame
from pipecat.pipeline.llm_with_backend import LLMWithBackend
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.llm_service import FunctionCallParams, LLMService
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.settings import LLMSettings

from pipecat_hedge import HedgedLLMService, HedgePolicy
from tests.support.fake_vllm import FakeVLLM, fake_vllm
from tests.support.line import Line


def member(fake: FakeVLLM) -> OpenAILLMService:
    settings = OpenAILLMService.Settings(model="tiny", system_instruction="You take orders.")
    return OpenAILLMService(api_key="any", base_url=fake.url, settings=settings)


@asynccontextmanager
async def services() -> AsyncIterator[tuple[FakeVLLM, dict[str, LLMService[Any]]]]:
    """A bare service, and one of two members that both get requests."""
    async with fake_vllm(silent_secs=0.2) as fake:  # so that both are asked
        bare, *members = (member(fake) for _ in range(3))
        hedged = HedgedLLMService(members, policy=HedgePolicy.race(2), warm=False)
        yield fake, {"bare": bare, "hedged": hedged}
        for each in (bare, *members):
            await each._client.close()


async def prompts(fake: FakeVLLM, line: Line, context: LLMContext) -> list[Any]:
    """Run one turn and return each request's instruction and tools."""
    fake.bodies.clear()
    await line.ask(context=context)
    return [
        (body["messages"][0], [tool["function"] for tool in body.get("tools", ())])
        for body in fake.bodies
    ]


async def as_bare(frames: list[LLMUpdateSettingsFrame], *, appended: str | None = None) -> Any:
    """The prompt after some settings frames, equal to the bare service's."""
    asked: dict[str, list[Any]] = {}
    async with services() as (fake, both):
        for name, llm in both.items():
            if appended is not None:
                llm.append_system_instruction(appended)
            async with Line(llm) as line:
                for frame in frames:
                    await line.send(frame)
                context = LLMContext([{"role": "user", "content": "Hi."}])
                asked[name] = await prompts(fake, line, context)
    assert asked["hedged"] == asked["bare"] * 2
    return asked["bare"][0]


def update(**settings: Any) -> LLMUpdateSettingsFrame:
    return LLMUpdateSettingsFrame(delta=LLMSettings(**settings))


@pytest.mark.parametrize("appended", [None, "Answer in German."])
async def test_new_instruction_keeps_turn_completion(appended: str | None) -> None:
    frames = [
        update(filter_incomplete_user_turns=True),
        update(system_instruction="You take complaints."),
    ]
    told, _ = await as_bare(frames, appended=appended)
    assert told["content"].startswith("You take complaints.")
    assert "○" in told["content"]
    assert (appended or "") in told["content"]


async def test_disabled_turn_completion_leaves_the_prompt() -> None:
    frames = [update(filter_incomplete_user_turns=on) for on in (True, False)]
    told, _ = await as_bare([*frames, update(system_instruction="You take complaints.")])
    assert told["content"] == "You take complaints."


async def test_member_instruction_keeps_turn_completion() -> None:
    async with services() as (fake, both):
        hedged = both["hedged"]
        assert isinstance(hedged, HedgedLLMService)
        async with Line(hedged) as line:
            await line.send(update(filter_incomplete_user_turns=True))
            one = hedged.providers[0].services[0]
            delta = LLMSettings(system_instruction="You take complaints.")
            await line.send(LLMUpdateSettingsFrame(service=one, delta=delta))
            context = LLMContext([{"role": "user", "content": "Hi."}])
            asked = await prompts(fake, line, context)
    told = sorted(instruction["content"] for instruction, _ in asked)
    assert [text.partition(".")[0] for text in told] == ["You take complaints", "You take orders"]
    assert all("○" in text for text in told)


async def test_backend_tools_are_offered_by_every_member() -> None:
    asked: dict[str, list[Any]] = {}
    tools: set[str] = set()
    async with services() as (fake, both):
        for name, llm in both.items():
            tools.add(LLMWithBackend(frontend=llm, backend="worker").tool.name)
            async with Line(llm) as line:
                context = LLMContext([{"role": "user", "content": "Hi."}])
                asked[name] = await prompts(fake, line, context)
                llm.get_llm_adapter().builtin_tools.clear()
                assert all(not offered for _, offered in await prompts(fake, line, context))
    assert asked["hedged"] == asked["bare"] * 2
    assert tools <= {tool["name"] for tool in asked["bare"][0][1]}


async def test_cancel_tools_are_offered_once() -> None:
    async def book(params: FunctionCallParams) -> None:
        await params.result_callback("booked")

    asked: dict[str, list[Any]] = {}
    async with services() as (fake, both):
        for name, llm in both.items():
            llm.register_function(
                "book", book, cancel_on_interruption=False, cancellable_by_llm=True
            )
            async with Line(llm) as line:
                schema = FunctionSchema("book", "Books.", {}, [])
                context = LLMContext([{"role": "user", "content": "Hi."}])
                context.set_tools([schema])  # pyright: ignore[reportArgumentType]
                asked[name] = await prompts(fake, line, context)
                llm.unregister_function("book")
                asked[f"{name} later"] = await prompts(fake, line, context)
    assert asked["hedged"] == asked["bare"] * 2
    assert asked["hedged later"] == asked["bare later"] * 2
    assert len(asked["bare"][0][1]) == 2
