from __future__ import annotations

import random

import pytest

from pipecat_hedge.tools.simulator.behaviour import parse_model
from pipecat_hedge.tools.simulator.plan import Plan, plan
from pipecat_hedge.tools.simulator.prompt import Prompt, Turn
from pipecat_hedge.tools.simulator.timeline import Headers, Text, ToolStart

PROMPT = Prompt((Turn("user", "do you deliver"),), (), True, None, True, 3)
AFTER_TOOL = Prompt((*PROMPT.turns, Turn("tool", "yes")), ("look_up",), True, None, True, 3)


def planned(model: str, prompt: Prompt = PROMPT, seed: int = 1) -> Plan:
    return plan(parse_model(model), prompt, random.Random(seed))


def first_token_secs(one: Plan) -> float:
    return next(step.at_secs for step in one.steps if isinstance(step.act, Text))


def test_the_draw_does_not_depend_on_the_fault():
    """The same seed gives the same time to first token with a fault and without."""
    bare = first_token_secs(planned("jagged"))
    assert first_token_secs(planned("jagged?fault=stall")) == bare
    assert first_token_secs(planned("jagged?fault=529&rate=0")) == bare


def test_headers_come_halfway():
    """Status and headers are sent at half the time to first token, or when told to."""
    assert next(planned("fixed?ttft=1").steps).at_secs == 0.5
    assert next(planned("fixed?ttft=1&headers=0.1").steps).at_secs == 0.1
    step = next(planned("fixed?ttft=1&headers=9").steps)
    assert isinstance(step.act, Headers)
    assert step.at_secs == 1


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_rate_is_the_share_that_fails(rate: float):
    """Of 2,000 requests the share with the fault is the rate, within four sigma."""
    struck = sum(
        planned(f"jagged?fault=529&rate={rate}", seed=n).fault is not None for n in range(2000)
    )
    assert abs(struck / 2000 - rate) <= 4 * (rate * (1 - rate) / 2000) ** 0.5


def test_retry_after():
    """Sent with 429 by default, and with any refusal when asked for."""
    assert planned("fixed?fault=429").retry_after_secs == 1
    assert planned("fixed?fault=429&retry_after=7").retry_after_secs == 7
    assert planned("fixed?fault=529").retry_after_secs is None
    assert planned("fixed?fault=529&retry_after=0").retry_after_secs == 0


def test_a_forced_tool_is_called_once():
    """`tool=` calls the tool whatever was said, but speaks once the tool has returned."""
    acts = [step.act for step in planned("fixed?tool=look_up&args={}").steps]
    assert ToolStart("look_up") in acts
    again = [step.act for step in planned("fixed?tool=look_up", AFTER_TOOL).steps]
    assert not any(isinstance(act, ToolStart) for act in again)


def test_an_answer_of_ones_own():
    """`answer=` is said instead of the script."""
    acts = [step.act for step in planned("fixed?answer=Hello%20from%20A.").steps]
    assert "".join(act.text for act in acts if isinstance(act, Text)) == "Hello from A."


def test_all_at_once():
    """With `tps=inf` every token comes with the first."""
    times = {s.at_secs for s in planned("fixed?tps=inf").steps if isinstance(s.act, Text)}
    assert times == {0.05}
