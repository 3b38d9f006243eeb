"""Settings, instructions and built-in tools reach members as they reach a bare service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import LLMUpdateSettingsFrame
from pipecat.pipeline.llm_with_backend import LLMWithBackend
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.settings import LLMSettings

from pipecat_hedge import HedgedLLMService
from tests.service.builders import Tool, racing, said
from tests.support.fake_vllm import FakeVLLM, fake_vllm
from tests.support.line import Line

Prompts = list[Any]
"""The instruction and the tools of each request."""


class Asked:
    """A line, its service and the server that its requests reach."""

    def __init__(self, fake: FakeVLLM, llm: Any, line: Line):
        self.llm, self.line, self._fake = llm, line, fake

    async def update(self, **settings: Any) -> None:
        await self.line.send(LLMUpdateSettingsFrame(delta=LLMSettings(**settings)))

    async def prompts(self, *tools: FunctionSchema) -> Prompts:
        """Run one turn."""
        self._fake.bodies.clear()
        context = said()
        if tools:
            context.set_tools([*tools])  # pyright: ignore[reportArgumentType]
        await self.line.ask(context=context)
        return [
            (body["messages"][0]["content"], [tool["function"] for tool in body.get("tools", ())])
            for body in self._fake.bodies
        ]


async def as_bare(
    ask: Callable[[Asked], Awaitable[Prompts]], prepare: Callable[[Any], object] = lambda llm: None
) -> Prompts:
    """The prompts of a bare service. Both members of a hedged one are asked the same."""
    settings = OpenAILLMService.Settings(model="tiny", system_instruction="You take orders.")
    found: list[Prompts] = []
    async with fake_vllm(silent_secs=0.2) as fake:  # so that both members are asked
        bare, *members = (
            OpenAILLMService(api_key="any", base_url=fake.url, settings=settings.copy())
            for _ in range(3)
        )
        for llm in (bare, racing(*members, warm=False)):
            prepare(llm)
            async with Line(llm) as line:
                found.append(await ask(Asked(fake, llm, line)))
        for each in (bare, *members):
            await each._client.close()
    assert found[1] == [prompt for prompt in found[0] for _ in members]
    return found[0]


@pytest.mark.parametrize("appended", ["", "Answer in German."])
async def test_new_instruction_keeps_turn_completion(appended: str) -> None:
    async def ask(asked: Asked) -> Prompts:
        await asked.update(filter_incomplete_user_turns=True)
        await asked.update(system_instruction="You take complaints.")
        return await asked.prompts()

    found = await as_bare(ask, lambda llm: appended and llm.append_system_instruction(appended))
    [(instruction, _)] = found
    assert instruction.startswith("You take complaints.")
    assert "○" in instruction
    assert appended in instruction


async def test_disabled_turn_completion_leaves_the_prompt() -> None:
    async def ask(asked: Asked) -> Prompts:
        for is_on in (True, False):
            await asked.update(filter_incomplete_user_turns=is_on)
        await asked.update(system_instruction="You take complaints.")
        return await asked.prompts()

    assert await as_bare(ask) == [("You take complaints.", [])]


async def test_member_instruction_keeps_turn_completion() -> None:
    async def ask(asked: Asked) -> Prompts:
        await asked.update(filter_incomplete_user_turns=True)
        if not isinstance(asked.llm, HedgedLLMService):
            return []
        one = asked.llm.providers[0].services[0]
        delta = LLMSettings(system_instruction="You take complaints.")
        await asked.line.send(LLMUpdateSettingsFrame(service=one, delta=delta))
        instructions = sorted(instruction for instruction, _ in await asked.prompts())
        assert [text.partition(".")[0][9:] for text in instructions] == ["complaints", "orders"]
        assert all("○" in text for text in instructions)
        return []

    await as_bare(ask)


async def test_backend_tools_are_offered_by_every_member() -> None:
    names: list[str] = []

    async def ask(asked: Asked) -> Prompts:
        offering = await asked.prompts()
        assert all(names[-1] in [tool["name"] for tool in tools] for _, tools in offering)
        asked.llm.get_llm_adapter().builtin_tools.clear()
        assert all(not tools for _, tools in await asked.prompts())
        return offering

    def prepare(llm: Any) -> None:
        names.append(LLMWithBackend(frontend=llm, backend="worker").tool.name)

    await as_bare(ask, prepare)


async def test_cancel_tools_are_offered_once() -> None:
    async def ask(asked: Asked) -> Prompts:
        schema = FunctionSchema("book", "Books.", {}, [])
        before = await asked.prompts(schema)
        assert all(len(tools) == 2 for _, tools in before)
        asked.llm.unregister_function("book")
        return [*before, *await asked.prompts(schema)]

    def prepare(llm: Any) -> None:
        options = {"cancel_on_interruption": False, "cancellable_by_llm": True}
        llm.register_function("book", Tool().run, **options)

    await as_bare(ask, prepare)
