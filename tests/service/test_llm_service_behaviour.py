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
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.anthropic.llm import AnthropicLLMService

from pipecat_hedge import HedgedLLMService, HedgePolicy
from pipecat_hedge.testing import Call, Error, Say, ScriptedLLMService, Wait
from tests.service.builders import Tool, asked, racing, said, scripted
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time


async def test_skip_tts_marks_answer_and_fallback() -> None:
    first = ScriptedLLMService([Wait(0.1), Say("Hi.")], [Error()])
    llms = first, ScriptedLLMService([Wait(1)], [Error()])
    policy = HedgePolicy.race(2, fallback_text="Sorry.")
    async with Line(racing(*llms, policy=policy)) as line:
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
        context = said()
        await asked(llm, context=context, after=[LLMContextAggregatorPair(context).assistant()])
        return [*context.messages]

    thinkers = [scripted(*thought, Say("Till nine.")) for _ in range(2)]
    expected = await remembered(thinkers[0])
    assert await remembered(racing(thinkers[1], scripted(Wait(1)))) == expected
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
    tool = Tool()
    scripts = [[Call("book_table")], [Call("cancel")], [Call("book_table"), Say("Hm.")]]
    context = said()
    async with Line(racing(ScriptedLLMService(*scripts), scripted(Wait(9)))) as line:
        for number, name in enumerate(["book_table", "cancel", "cancel"], start=1):
            schema = FunctionSchema(name, "A tool.", {}, [], handler=tool.run)
            context.set_tools(ToolsSchema([schema]))
            await line.ask(context=context)
            await line.until(lambda n=number: len(line.frames(FunctionCallResultFrame)) == n)
    assert [call.function_name for call in tool.calls] == ["book_table", "cancel"]


async def test_other_frames_pass_in_order() -> None:
    async with Line(racing(scripted(Say("Hi.")))) as line:
        await line.send(TTSSpeakFrame("One"), LLMContextFrame(said()), TTSSpeakFrame("Two"))
        await line.until(lambda: len(line.frames(TTSSpeakFrame)) == 2)
        kinds = (TTSSpeakFrame, LLMTextFrame)
        texts = [frame.text for _, frame in line.heard if isinstance(frame, kinds)]
    assert texts == ["One", "Hi.", "Two"]


async def test_skip_tts_of_a_member_does_not_count() -> None:
    """Whether text is spoken is the host's to say, as of a member that was used alone before."""
    member = scripted(Say("Yes."))
    member._skip_tts = True
    line = await asked(racing(member))
    assert [frame.skip_tts for frame in line.frames(LLMTextFrame)] == [None]
