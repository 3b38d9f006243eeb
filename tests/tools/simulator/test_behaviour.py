from __future__ import annotations

import pytest

from pipecat_hedge.policy.profiles import PROFILES
from pipecat_hedge.tools.simulator.behaviour import BehaviourError, override, parse_model
from pipecat_hedge.tools.simulator.faults import FAULTS


@pytest.mark.parametrize("name", PROFILES)
def test_a_bare_profile(name: str):
    """A model name without keys is the profile as published."""
    behaviour = parse_model(name)
    assert behaviour.profile is PROFILES[name]
    assert (behaviour.ttft, behaviour.fault, behaviour.rate) == (None, None, 1.0)


@pytest.mark.parametrize("model", ["gpt-4.1?ttft=0.05&fault=529", "gpt-4.1@ttft=0.05,fault=529"])
def test_both_spellings(model: str):
    """`?` with `&` and `@` with `,` say the same."""
    behaviour = parse_model(model)
    assert (behaviour.profile.name, behaviour.ttft) == ("gpt-4.1", 0.05)
    assert behaviour.fault is FAULTS["529"]


def test_every_key():
    """Every key is read into its field."""
    behaviour = parse_model(
        "fixed?ttft=1&headers=0.5&tps=inf&fault=stall&rate=0.25&after=3&delay=2&retry_after=4"
        "&requests_left=5&tokens_left=900&reset=2.5"
        "&answer=Hello%20from%20A.&tool=look_up&args=%7B%22a%22%3A1%7D"
    )
    assert (behaviour.ttft, behaviour.headers, behaviour.tps) == (1, 0.5, float("inf"))
    assert (behaviour.rate, behaviour.after, behaviour.delay) == (0.25, 3, 2)
    assert (behaviour.requests_left, behaviour.tokens_left, behaviour.reset) == (5, 900, 2.5)
    assert (behaviour.retry_after, behaviour.answer) == (4, "Hello from A.")
    assert (behaviour.tool, behaviour.args) == ("look_up", {"a": 1})


def test_separators_inside_values():
    """A separator counts only before a key: answers may have commas, and JSON too."""
    behaviour = parse_model('fixed@answer=Yes, we do & gladly.,args={"a": 1, "b": 2}')
    assert behaviour.answer == "Yes, we do & gladly."
    assert behaviour.args == {"a": 1, "b": 2}


def test_override_keeps_the_rest():
    """Keys from elsewhere replace their own fields only."""
    behaviour = override(parse_model("fixed?ttft=1&fault=cut"), "fault=stall")
    assert behaviour.ttft == 1
    assert behaviour.fault is FAULTS["stall"]


@pytest.mark.parametrize("model", ["gpt-9", "", "?ttft=1"])
def test_unknown_profile(model: str):
    """An unknown profile is a 404 that lists the known ones."""
    with pytest.raises(BehaviourError, match="model: unknown profile") as raised:
        parse_model(model)
    assert raised.value.status == 404
    assert all(name in str(raised.value) for name in PROFILES)


def test_unknown_fault():
    """An unknown fault is a 400 that lists the known ones."""
    with pytest.raises(BehaviourError, match="fault: unknown fault 'oops'") as raised:
        parse_model("fixed?fault=oops")
    assert raised.value.status == 400
    assert all(name in str(raised.value) for name in FAULTS)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("tftt=1", "tftt: unknown key; known keys: ttft, headers, tps"),
        ("ttft", "ttft: unknown key"),
        ("ttft=", "ttft: expected seconds to the first token, 0 or more, got ''"),
        ("ttft=-1", "ttft: expected"),
        ("ttft=nan", "ttft: expected"),
        ("ttft=inf", "ttft: expected"),
        ("tps=0", "tps: expected tokens per second, more than 0"),
        ("rate=1.5", "rate: expected share of requests"),
        ("after=1.5", "after: expected tokens before the fault"),
        ("after=-1", "after: expected"),
        ("answer=%20", "answer: expected the text to say"),
        ("tool=", "tool: expected the name"),
        ("args=[1]", "args: expected a JSON object"),
        ("args={", "args: expected a JSON object"),
    ],
)
def test_bad_keys_and_values(keys: str, message: str):
    """A bad key or value is a 400 that names the field and what it may be."""
    with pytest.raises(BehaviourError) as raised:
        parse_model(f"fixed?{keys}")
    assert str(raised.value).startswith(message)
    assert raised.value.status == 400
