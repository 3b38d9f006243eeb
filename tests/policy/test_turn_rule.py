"""A policy of a user's own chooses the rule of each turn."""

from __future__ import annotations

import pytest
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.policy import OnlyOnFailure, Rule, TurnFacts
from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

TOOL = FunctionSchema("weather", "Tells the weather.", properties={}, required=[])


class OnlyWithTools:
    """Hedges a turn only if the model may call tools."""

    usual = HedgePolicy.adaptive().rule

    def __init__(self) -> None:
        self.turns: list[TurnFacts] = []

    def rule_for(self, facts: TurnFacts) -> Rule:
        self.turns.append(facts)
        return self.usual if facts.has_tools else OnlyOnFailure()


async def test_a_rule_may_hedge_only_turns_with_tools() -> None:
    rule = OnlyWithTools()
    llm = HedgedLLMService(
        [
            Provider("slow", ScriptedLLMService([Wait(2.5), Say("Yes.")], model="gpt-4.1")),
            Provider("fast", ScriptedLLMService([Wait(0.1), Say("Yes.")], model="gpt-4.1")),
        ],
        policy=HedgePolicy(rule, "only with tools"),
    )
    question = {"role": "user", "content": "Will it rain today?"}
    async with Line(llm) as line:
        for tools in ([], [TOOL]):
            await line.ask(context=LLMContext([question], tools=tools))  # pyright: ignore[reportArgumentType]
    assert [len(report.attempts) for report in line.reports] == [1, 2]
    assert [turn.has_tools for turn in rule.turns] == [False, True]
    assert rule.turns[0].order == ("slow", "fast")
    assert rule.turns[0].prompt_tokens
    assert set(rule.turns[0].known) == {"slow", "fast"}
