"""The hedged service behaves like a bare LLM service."""

from __future__ import annotations

import pytest
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    FunctionCallResultFrame,
    LLMConfigureOutputFrame,
    LLMContextFrame,
    LLMEnablePromptCachingFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    LLMThoughtEndFrame,
    LLMThoughtStartFrame,
    LLMThoughtTextFrame,
    TTSSpeakFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.llm_service import FunctionCallParams

from pipecat_hedge import HedgedLLMService, HedgePolicy
from pipecat_hedge.testing import Call, Error, Say, ScriptedLLMService, Wait
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time


def racing(*llms: ScriptedLLMService, fallback_text: str | None = None) -> HedgedLLMService:
    return HedgedLLMService(llms, policy=HedgePolicy.race(len(llms), fallback_text=fallback_text))


async def test_skip_tts_marks_answer_and_fallback() -> None:
    llm = racing(
        ScriptedLLMService([Say("Hi.")], [Error()]),
        ScriptedLLMService([Wait(1)], [Error()]),
        fallback_text="Sorry.",
    )
    async with Line(llm) as line:
        await line.send(LLMConfigureOutputFrame(skip_tts=True))
        await line.ask()
        await line.ask()
        await line.send(LLMConfigureOutputFrame(skip_tts=False))
        await line.ask()
    for kind in (LLMFullResponseStartFrame, LLMTextFrame, LLMFullResponseEndFrame):
        assert [frame.skip_tts for frame in line.frames(kind)] == [True, True, False]
    assert line.text == "Hi.Sorry.Sorry."


async def test_winner_thoughts_enter_the_context() -> None:
    thought = [
        LLMThoughtStartFrame(append_to_context=True, llm="anthropic"),
        LLMThoughtTextFrame("They want the hours."),
        LLMThoughtEndFrame(signature="EqQBCg=="),
    ]

    async def remembered(llm: HedgedLLMService | ScriptedLLMService) -> list[object]:
        context = LLMContext([{"role": "user", "content": "Hello?"}])
        async with Line(llm, after=[LLMContextAggregatorPair(context).assistant()]) as line:
            await line.ask(context=context)
        return [*context.messages]

    expected = await remembered(ScriptedLLMService([*thought, Say("Till nine.")]))
    thinker = ScriptedLLMService([*thought, Say("Till nine.")])
    assert await remembered(racing(thinker, ScriptedLLMService([Wait(1)]))) == expected
    assert "They want the hours." in str(expected)


async def test_prompt_caching_reaches_members() -> None:
    caching = AnthropicLLMService(api_key="any")
    llms = [ScriptedLLMService([Say("Hi.")]), caching]
    async with Line(HedgedLLMService(llms, warm=False)) as line:
        assert not caching.settings.enable_prompt_caching  # pyright: ignore[reportAttributeAccessIssue]
        await line.send(LLMEnablePromptCachingFrame(enable=True))
        await line.ask()
        assert caching.settings.enable_prompt_caching is True  # pyright: ignore[reportAttributeAccessIssue]
    await caching._client.close()


async def test_tools_can_change_during_a_session() -> None:
    ran: list[str] = []

    async def handler(params: FunctionCallParams) -> None:
        ran.append(params.function_name)
        await params.result_callback("done")

    def tool(name: str) -> ToolsSchema:
        return ToolsSchema([FunctionSchema(name, "A tool.", {}, [], handler=handler)])

    scripts = [[Call("book_table")], [Call("cancel")], [Call("book_table"), Say("Hm.")]]
    llm = racing(ScriptedLLMService(*scripts), ScriptedLLMService([Wait(9)]))
    context = LLMContext([{"role": "user", "content": "Hello?"}], tools=tool("book_table"))
    async with Line(llm) as line:
        for number, name in enumerate(["book_table", "cancel", "cancel"], start=1):
            context.set_tools(tool(name))
            await line.ask(context=context)
            await line.until(lambda n=number: len(line.frames(FunctionCallResultFrame)) == n)
    assert ran == ["book_table", "cancel"]


async def test_other_frames_pass_in_order() -> None:
    llm = racing(ScriptedLLMService([Say("Hi.")]))
    context = LLMContext([{"role": "user", "content": "Hello?"}])
    async with Line(llm) as line:
        await line.send(TTSSpeakFrame("One"), LLMContextFrame(context), TTSSpeakFrame("Two"))
        await line.until(lambda: len(line.frames(TTSSpeakFrame)) == 2)
        kinds = (TTSSpeakFrame, LLMTextFrame)
        told = [frame.text for _, frame in line.heard if isinstance(frame, kinds)]
    assert told == ["One", "Hi.", "Two"]
