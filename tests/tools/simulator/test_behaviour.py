"""A model name, and what it makes a provider send and when; without a socket."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policy import PROFILES
from pipecat_hedge.tools.simulator import BehaviourError, parse_model
from pipecat_hedge.tools.simulator.behaviour import KEYS, Plan, override, plan
from pipecat_hedge.tools.simulator.script import Prompt, Turn
from pipecat_hedge.tools.simulator.timeline import (
    FAULTS,
    Refusal,
    Reply,
    Scene,
    Signal,
    Step,
    Text,
    ToolCall,
    ToolStart,
    tokenize,
)

PROMPT = Prompt((Turn("user", "do you deliver"),))
AFTER_TOOL = Prompt((*PROMPT.turns, Turn("tool", "yes")), ("look_up",))
ANSWER = Reply(tokens=tokenize("Yes, we do. We deliver within three miles. It is free."))
SCENE = Scene(ANSWER, ttft_secs=0.2, headers_secs=0.1, interval_secs=0.01, delay_secs=3.0)


def planned(model: str, prompt: Prompt = PROMPT, seed: int = 1) -> Plan:
    return plan(parse_model(model), prompt, random.Random(seed))


def steps(model: str, prompt: Prompt = PROMPT) -> list[Step]:
    return list(itertools.islice(planned(model, prompt).steps, 200))


def token_times(model: str) -> list[float]:
    return [step.at_secs for step in steps(model) if isinstance(step.act, Text)]


@pytest.mark.parametrize("model", ["gpt-4.1?ttft=0.05&fault=529", "gpt-4.1@ttft=0.05,fault=529"])
def test_both_spellings_are_read(model: str) -> None:
    behaviour = parse_model(model)
    assert (behaviour.profile, behaviour.ttft) == (PROFILES["gpt-4.1"], 0.05)
    assert behaviour.fault is FAULTS["529"]


def test_every_key_sets_its_field() -> None:
    values = {
        "ttft": 1,
        "headers": 0.5,
        "tps": float("inf"),
        "rate": 0.25,
        "after": 3,
        "delay": 2,
        "retry_after": 4,
        "requests_left": 5,
        "tokens_left": 900,
        "reset": 2.5,
        "slow": 2,
        "answer": "Hello from A.",
        "tool": "look_up",
        "args": {"a": 1},
    }
    behaviour = parse_model(
        "fixed?ttft=1&headers=0.5&tps=inf&fault=stall&rate=0.25&after=3&delay=2&retry_after=4"
        "&requests_left=5&tokens_left=900&reset=2.5&slow=2"
        "&answer=Hello%20from%20A.&tool=look_up&args=%7B%22a%22%3A1%7D"
    )
    assert {key: getattr(behaviour, key) for key in values} == values
    assert behaviour.fault is FAULTS["stall"]
    assert {*values, "fault"} == set(KEYS)


def test_separators_may_stand_in_values() -> None:
    behaviour = parse_model('fixed@answer=Yes, we do & gladly.,args={"a": 1, "b": 2}')
    assert behaviour.answer == "Yes, we do & gladly."
    assert behaviour.args == {"a": 1, "b": 2}


def test_override_keeps_the_other_keys() -> None:
    behaviour = override(parse_model("fixed?ttft=1&fault=cut"), "fault=stall")
    assert (behaviour.ttft, behaviour.fault) == (1, FAULTS["stall"])


@pytest.mark.parametrize("model", ["gpt-9", "", "?ttft=1"])
def test_unknown_profile_is_a_404_that_lists_the_known(model: str) -> None:
    with pytest.raises(BehaviourError, match="model: unknown profile") as raised:
        parse_model(model)
    assert raised.value.status == 404
    assert all(name in str(raised.value) for name in PROFILES)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("fault=oops", "fault: unknown fault 'oops'; known faults: 400, 401"),
        ("tftt=1", "tftt: unknown key; known keys: ttft, headers, tps"),
        ("profile=fixed", "profile: unknown key"),
        ("ttft", "ttft: unknown key"),
        ("ttft=", "ttft: expected seconds to the first token, 0 or more, got ''"),
        ("ttft=-1", "ttft: expected"),
        ("ttft=nan", "ttft: expected"),
        ("ttft=inf", "ttft: expected"),
        ("tps=0", "tps: expected tokens per second, more than 0"),
        ("rate=1.5", "rate: expected share of requests"),
        ("after=1.5", "after: expected tokens before the fault"),
        ("after=-1", "after: expected"),
        ("slow=0", "slow: expected a factor"),
        ("answer=%20", "answer: expected the text to answer"),
        ("tool=", "tool: expected the name"),
        ("args=[1]", "args: expected a JSON object"),
        ("args={", "args: expected a JSON object"),
    ],
)
def test_bad_key_or_value_is_named(keys: str, message: str) -> None:
    with pytest.raises(BehaviourError) as raised:
        parse_model(f"fixed?{keys}")
    assert str(raised.value).startswith(message)
    assert raised.value.status == 400


def test_every_fault_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "faults.md").read_text()
    for fault in FAULTS.values():
        assert f"| `{fault.name}` | {fault.summary} |" in text


def test_a_fault_does_not_change_the_draw() -> None:
    bare = token_times("jagged")[0]
    assert token_times("jagged?fault=stall")[0] == bare
    assert token_times("jagged?fault=529&rate=0")[0] == bare


def test_headers_come_halfway_unless_set() -> None:
    assert steps("fixed?ttft=1")[0] == Step(0.5, Signal.HEADERS)
    assert steps("fixed?ttft=1&headers=0.1")[0].at_secs == 0.1
    assert steps("fixed?ttft=1&headers=9")[0].at_secs == 1


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_rate_is_the_share_with_the_fault(rate: float) -> None:
    model = f"jagged?fault=529&rate={rate}"
    count = sum(planned(model, seed=n).fault is not None for n in range(2000))
    assert abs(count / 2000 - rate) <= 4 * (rate * (1 - rate) / 2000) ** 0.5  # four sigma


def test_retry_after_comes_with_429_or_when_set() -> None:
    assert planned("fixed?fault=429").retry_after_secs == 1
    assert planned("fixed?fault=429&retry_after=7").retry_after_secs == 7
    assert planned("fixed?fault=529").retry_after_secs is None
    assert planned("fixed?fault=529&retry_after=0").retry_after_secs == 0


def test_a_forced_tool_is_called_once() -> None:
    model = "fixed?tool=look_up&args={}"
    assert ToolStart("look_up") in [step.act for step in steps(model)]
    assert not any(isinstance(step.act, ToolStart) for step in steps(model, AFTER_TOOL))


def test_times_follow_the_keys() -> None:
    assert set(token_times("fixed?tps=inf")) == {0.05}
    assert token_times("fixed?ttft=1&tps=4&slow=2")[:3] == pytest.approx([2.0, 2.5, 3.0])
    assert token_times("fixed?ttft=1&fault=dribble&delay=3")[:3] == pytest.approx([1, 4, 7])
    assert steps("fixed?ttft=1&fault=slow_headers&delay=3")[0].at_secs == pytest.approx(3.5)
    *_, finished, end = steps("fixed?fault=slow_close&delay=3")
    assert end.at_secs - finished.at_secs == pytest.approx(3.0)


@given(
    name=st.sampled_from(sorted(FAULTS)),
    reply=st.sampled_from([ANSWER, Reply(), Reply(tool=ToolCall("book_table", ("{", "}")))]),
    ttft_secs=st.floats(0, 5),
    interval_secs=st.floats(0, 1),
    delay_secs=st.floats(0, 5),
    after=st.none() | st.integers(0, 20),
)
def test_steps_are_in_order_and_end_once(
    name: str,
    reply: Reply,
    ttft_secs: float,
    interval_secs: float,
    delay_secs: float,
    after: int | None,
) -> None:
    """Times never go back; what ends a response is last; what never ends does not flood."""
    scene = Scene(reply, ttft_secs, ttft_secs / 2, interval_secs, after, delay_secs)
    played = list(itertools.islice(FAULTS[name].shape(scene), 200))
    times = [step.at_secs for step in played]
    assert times == sorted(times)
    ends = [isinstance(s.act, Refusal | Signal) and s.act is not Signal.HEADERS for s in played]
    assert not any(ends[:-1])
    assert ends[-1] or (len(played) == 200 and times[-1] - times[2] > 0.19)


@pytest.mark.parametrize(
    ("reply", "after", "text"),
    [
        (ANSWER, None, "Yes, we do. We deliver"),
        (Reply(tokens=tokenize("Only this one sentence here.")), None, "Only this"),
        (ANSWER, 0, ""),
        (ANSWER, 1, "Yes,"),
    ],
)
def test_a_cut_strikes_in_mid_sentence(reply: Reply, after: int | None, text: str) -> None:
    scene = Scene(reply, 0.2, 0.1, 0.01, after_tokens=after)
    acts = [step.act for step in FAULTS["cut"].shape(scene)]
    assert "".join(act.text for act in acts if isinstance(act, Text)) == text
    assert acts[-1] is Signal.CUT
