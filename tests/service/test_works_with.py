"""Pipecat's other parts around a hedged service: what docs/works-with.md lists."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pipecat.flows import FlowArgs, FlowManager, FlowsFunctionSchema, NodeConfig
from pipecat.frames.frames import (
    LLMRunFrame,
    LLMSummarizeContextFrame,
    OutputTransportMessageUrgentFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frameworks.rtvi import RTVIObserver, RTVIProcessor
from pipecat.services.llm_service import FunctionCallParams
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies

from pipecat_hedge import HedgedLLMService
from pipecat_hedge.testing import Call, Say, ScriptedLLMService, Step, Wait
from tests.service.builders import Inferring, racing, scripted
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time


def slow_and(*scripts: list[Step]) -> tuple[HedgedLLMService, ScriptedLLMService]:
    """A race of a slow service and one that plays these scripts; and the latter."""
    quick = ScriptedLLMService(*scripts)
    return racing(scripted(Wait(5), Say("Too late.")), quick), quick


async def test_flows_transitions_by_the_winners_tool_call() -> None:
    llm, quick = slow_and([Call("choose", {"dish": "fish"})], [Wait(0.1), Say("One fish, then.")])
    aggregators = LLMContextAggregatorPair(LLMContext())
    line = Line(llm, before=[aggregators.user()], after=[aggregators.assistant()])

    async def choose(args: FlowArgs, flow: FlowManager) -> tuple[dict[str, Any], NodeConfig]:
        return dict(args), NodeConfig(
            name="confirm",
            task_messages=[{"role": "developer", "content": "Confirm the order."}],
            functions=[],
        )

    first = NodeConfig(
        name="order",
        task_messages=[{"role": "developer", "content": "Take the order."}],
        functions=[
            FlowsFunctionSchema(
                name="choose",
                description="The dish",
                properties={"dish": {"type": "string"}},
                required=["dish"],
                handler=choose,
            )
        ],
    )
    async with line:
        flow = FlowManager(llm=llm, context_aggregator=aggregators, worker=line.worker)
        await flow.initialize(first)
        await line.report(2)
        assert flow.current_node == "confirm"
    assert line.text == "One fish, then."
    assert len(quick.contexts) == 2
    assert any("Confirm" in str(message) for message in quick.contexts[1].messages)


async def test_tool_turn_makes_two_reports() -> None:
    llm, _ = slow_and([Call("hours")], [Wait(0.1), Say("At nine.")])

    async def hours(params: FunctionCallParams) -> None:
        await params.result_callback({"opens": 9})

    llm.register_function("hours", hours)
    aggregators = LLMContextAggregatorPair(LLMContext([{"role": "user", "content": "When?"}]))
    async with Line(llm, before=[aggregators.user()], after=[aggregators.assistant()]) as line:
        await line.send(LLMRunFrame())
        await line.report(2)
    assert [report.outcome for report in line.reports] == ["answered_with_tools", "answered"]
    assert line.text == "At nine."


async def test_rtvi_reports_one_answer_per_turn() -> None:
    llm, _ = slow_and([Wait(0.1), Say("Hello."), Say(" Bye.")])
    rtvi = RTVIProcessor()
    async with Line(llm, before=[rtvi], observers=[RTVIObserver(rtvi)]) as line:
        await line.ask()
        await line.report()

        def sent(kind: str) -> list[dict[str, Any]]:
            messages = [f.message for f in line.frames(OutputTransportMessageUrgentFrame)]
            return [message for message in messages if message.get("type") == kind]

        await line.until(lambda: len(sent("bot-llm-stopped")) > 0)
    assert len(sent("bot-llm-started")) == len(sent("bot-llm-stopped")) == 1
    assert "".join(message["data"]["text"] for message in sent("bot-llm-text")) == "Hello. Bye."


async def test_user_turn_strategy_starts_a_race() -> None:
    llm, quick = slow_and([Wait(0.1), Say("Hello.")])
    stop = SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.2)
    aggregators = LLMContextAggregatorPair(
        LLMContext(),
        user_params=LLMUserAggregatorParams(user_turn_strategies=UserTurnStrategies(stop=[stop])),
    )
    async with Line(llm, before=[aggregators.user()], after=[aggregators.assistant()]) as line:
        await line.send(VADUserStartedSpeakingFrame())
        await line.send(TranscriptionFrame("Are you open?", "caller", "", finalized=True))
        await line.send(VADUserStoppedSpeakingFrame())
        await line.report()
    assert "Are you open?" in str(quick.contexts[0].messages[-1])
    assert line.text == "Hello."


async def test_context_is_summarised_by_a_race() -> None:
    llm = racing(Inferring("Never.", 1000), Inferring("They talked about fish.", 0.1))
    talk = [{"role": ("user", "assistant")[n % 2], "content": f"Fish {n}?"} for n in range(20)]
    context = LLMContext(talk)  # pyright: ignore[reportArgumentType]
    aggregators = LLMContextAggregatorPair(context)
    async with Line(llm, before=[aggregators.user()], after=[aggregators.assistant()]) as line:
        await line.send(LLMSummarizeContextFrame())
        async with asyncio.timeout(60):
            while "They talked about fish." not in str(context.messages):
                await asyncio.sleep(0.1)
    assert len(context.messages) < 20
