"""A turn with tools is one: what is said before them, while they run, and after."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import (
    FunctionCallCancelFrame,
    FunctionCallFromLLM,
    FunctionCallInProgressFrame,
    FunctionCallResultFrame,
    FunctionCallResultProperties,
    FunctionCallsStartedFrame,
    LLMFullResponseStartFrame,
    TTSSpeakFrame,
    UserStartedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.llm_service import FunctionCallParams, LLMService

from pipecat_hedge.testing import Call, Say, ScriptedLLMService, Step, Wait
from pipecat_hedge.voice.awaited_tools import AwaitedTools
from pipecat_hedge.voice.turn_timeline import TurnLatency
from tests.voice.test_turn_latency import ANSWER, Phone, hedged

pytestmark = pytest.mark.virtual_time

CALLS: list[Step] = [Wait(0.3), Call("look_up")]
ANNOUNCES: list[Step] = [Wait(0.3), Say("Let me look. "), Call("look_up")]
Made = Callable[..., LLMService[Any]]
both = pytest.mark.parametrize("make", [hedged, ScriptedLLMService])


async def called(
    llm: LLMService[Any],
    say: TTSSpeakFrame | None = None,
    *,
    run_llm: bool | None = None,
    then: Callable[[Phone], Awaitable[None]] | None = None,
    after_secs: float = 10.0,
) -> list[TurnLatency]:
    """A caller asks what a tool of three seconds knows; ``say`` is said as it begins."""

    async def look_up(params: FunctionCallParams) -> None:
        if say is not None:
            await llm.queue_frame(say)
        await asyncio.sleep(3.0)
        properties = FunctionCallResultProperties(run_llm=run_llm)
        await params.result_callback({"open": True}, properties=properties)

    phone = Phone(llm, remembers=True)
    tool = FunctionSchema("look_up", "Looks up.", {}, [], handler=look_up)
    phone.context.set_tools([tool])
    async with phone:
        await phone.speak(context=phone.context)
        await asyncio.sleep(after_secs)
        if then is not None:
            await then(phone)
    return phone.told


@both
@pytest.mark.parametrize("append_to_context", [True, False, None])
async def test_line_before_a_tool_is_no_answer(make: Made, append_to_context: bool | None) -> None:
    line = None
    if append_to_context is not None:
        line = TTSSpeakFrame("Let me check.", append_to_context=append_to_context)
    (turn,) = await called(make(CALLS, ANSWER), line)
    assert turn.anchor == "user_silence"
    if line is None:
        assert turn.filler_end_secs is None
    else:
        assert turn.first_sound_secs == pytest.approx(0.3 + 0.3 + 0.1, abs=0.01)
        assert turn.filler_end_secs == pytest.approx(0.3 + 0.3 + 0.1 + 0.1, abs=0.05)
    assert turn.first_tts_audio_secs == pytest.approx(0.3 + 0.3 + 3.0 + 0.8, abs=0.01)
    assert turn.voice_to_voice_secs == pytest.approx(0.3 + 0.3 + 3.0 + 0.8, abs=0.01)
    if make is hedged:
        assert [r.outcome for r in turn.reports] == ["answered_with_tools", "answered"]


@both
async def test_llms_text_before_its_tool_is_an_answer(make: Made) -> None:
    """The record goes on to the end of the answer after the tool."""
    (turn,) = await called(make(ANNOUNCES, ANSWER))
    assert turn.voice_to_voice_secs == pytest.approx(0.3 + 0.3 + 0.1, abs=0.01)
    assert turn.first_token_secs == pytest.approx(0.3 + 0.3, abs=0.01)
    assert turn.first_sentence_secs == pytest.approx(0.3 + 0.3, abs=0.01)
    assert not turn.interrupted
    if make is hedged:
        assert [r.outcome for r in turn.reports] == ["answered_with_tools", "answered"]
        assert turn.asked_secs == pytest.approx((0.3, 3.6), abs=0.01)


@both
async def test_result_that_asks_for_no_answer_ends_the_turn(make: Made) -> None:
    async def speak(phone: Phone) -> None:
        assert [turn.interrupted for turn in phone.told] == [False]
        await phone.speak()
        await phone.answered()

    first, second = await called(make(ANNOUNCES, ANSWER), run_llm=False, then=speak)
    assert first.voice_to_voice_secs == pytest.approx(0.7, abs=0.01)
    assert second.voice_to_voice_secs == pytest.approx(1.1, abs=0.01)


@both
async def test_speech_after_a_final_line_interrupts_nothing(make: Made) -> None:
    async def speak(phone: Phone) -> None:
        await phone.line.send(UserStartedSpeakingFrame())
        await asyncio.sleep(1.0)

    (turn,) = await called(make(CALLS), TTSSpeakFrame("Goodbye."), run_llm=False, then=speak)
    assert turn.first_answer_secs is None
    assert turn.first_sound_secs == pytest.approx(0.7, abs=0.01)
    assert not turn.interrupted


@both
async def test_speech_while_a_tool_runs_interrupts_the_turn(make: Made) -> None:
    async def speak(phone: Phone) -> None:
        assert phone.told == []
        await phone.line.send(UserStartedSpeakingFrame())
        await asyncio.sleep(0.5)

    (turn,) = await called(make(ANNOUNCES, ANSWER), then=speak, after_secs=2.0)
    assert turn.interrupted
    assert turn.voice_to_voice_secs == pytest.approx(0.7, abs=0.01)


# ---- what is waited for


def started(*ids: str) -> FunctionCallsStartedFrame:
    context = LLMContext()
    return FunctionCallsStartedFrame([FunctionCallFromLLM("f", id_, {}, context) for id_ in ids])


def running(id_: str, *, waits: bool = True) -> FunctionCallInProgressFrame:
    return FunctionCallInProgressFrame("f", id_, {}, cancel_on_interruption=waits)


def result(id_: str, value: Any = "x", **options: Any) -> FunctionCallResultFrame:
    properties = FunctionCallResultProperties(**options) if options else None
    return FunctionCallResultFrame("f", id_, {}, value, properties=properties)


def cancelled(id_: str, *, run_llm: bool) -> FunctionCallCancelFrame:
    return FunctionCallCancelFrame("f", id_, run_llm=run_llm)


ASKED = LLMFullResponseStartFrame


@pytest.mark.parametrize(
    ("frames", "waits"),
    [
        pytest.param([], False, id="no tools"),
        pytest.param([started("a")], True, id="called"),
        pytest.param([started("a"), result("a")], True, id="the LLM has yet to be asked"),
        pytest.param([started("a"), result("a"), ASKED()], False, id="it has been"),
        pytest.param([started("a"), result("a", None)], False, id="an empty result asks nothing"),
        pytest.param([started("a"), result("a", run_llm=False)], False, id="told not to ask"),
        pytest.param([started("a", "b"), result("a", None)], True, id="one of two"),
        pytest.param([started("a", "b"), result("a"), ASKED()], True, id="asked between the two"),
        pytest.param([running("a")], True, id="never announced"),
        pytest.param([started("a"), running("a", waits=False)], False, id="runs beside"),
        pytest.param([running("a", waits=False), result("a", is_final=False)], True, id="so far"),
        pytest.param([running("a", waits=False), result("a")], True, id="it asks, though beside"),
        pytest.param([started("a"), cancelled("a", run_llm=False)], False, id="cancelled"),
        pytest.param([started("a"), cancelled("a", run_llm=True)], True, id="timed out"),
        pytest.param([result("a"), cancelled("b", run_llm=True)], False, id="of another turn"),
    ],
)
def test_tools_are_awaited(frames: list[Any], waits: bool) -> None:
    """Until every tool has returned, and the LLM has been asked again if one wants it to be."""
    tools = AwaitedTools()
    for frame in frames:
        tools.take(frame)
    assert bool(tools) is waits
