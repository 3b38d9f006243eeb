"""A policy of a user's own chooses the rule of each turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge import HedgePolicy
from pipecat_hedge.policy import OnlyOnFailure, Rule, TurnFacts
from pipecat_hedge.testing import Say, Wait
from tests.service.builders import asked, racing, scripted
from tests.support.line import Line
from tests.support.logged import logged

pytestmark = pytest.mark.virtual_time

TOOL = FunctionSchema("weather", "Tells the weather.", properties={}, required=[])


class OnlyWithTools:
    """Hedges a turn only if the model may call tools."""

    adaptive = HedgePolicy.adaptive().rule

    def __init__(self) -> None:
        self.turns: list[TurnFacts] = []

    def rule_for(self, facts: TurnFacts) -> Rule:
        self.turns.append(facts)
        return self.adaptive if facts.has_tools else OnlyOnFailure()


async def test_a_rule_may_hedge_only_turns_with_tools() -> None:
    rule = OnlyWithTools()
    slow, fast = (scripted(Wait(secs), Say("Yes."), model="gpt-4.1") for secs in (2.5, 0.1))
    llm = racing(slow, fast, policy=HedgePolicy(rule, "only with tools"))
    question = {"role": "user", "content": "Will it rain today?"}
    async with Line(llm) as line:
        for tools in ([], [TOOL]):
            await line.ask(context=LLMContext([question], tools=tools))  # pyright: ignore[reportArgumentType]
    assert [len(report.attempts) for report in line.reports] == [1, 2]
    assert [turn.has_tools for turn in rule.turns] == [False, True]
    assert rule.turns[0].order == ("a", "b")
    assert rule.turns[0].prompt_tokens
    assert set(rule.turns[0].known) == {"a", "b"}


async def test_silent_provider_gets_company_whatever_the_rule_says() -> None:
    slow, fast = (scripted(Wait(secs), Say("Yes.")) for secs in (9.0, 0.1))
    llm = racing(slow, fast, policy=HedgePolicy(OnlyWithTools(), "mine", silence_secs=4.0))
    async with Line(llm) as line:
        await line.ask()
    (report,) = line.reports
    reasons = [(attempt.launch_reason, attempt.launched_secs) for attempt in report.attempts]
    assert reasons == [("primary", 0.0), ("silence", pytest.approx(4.0))]


def rule_not_made(_: TurnFacts) -> Rule:
    raise KeyError("a")


@pytest.mark.parametrize("rule_for", [lambda _: None, lambda _: OnlyWithTools(), rule_not_made])
async def test_turn_without_a_usable_rule_is_answered_without_hedges(rule_for: Any) -> None:
    rule: Any = SimpleNamespace(rule_for=rule_for)
    policy = HedgePolicy(rule, "mine", silence_secs=None)
    with logged() as warnings:
        line = await asked(
            racing(scripted(Wait(4), Say("Yes.")), scripted(Say("No.")), policy=policy)
        )
    assert line.text == "Yes."
    assert any("policy mine: rule_for" in text for text in warnings)
