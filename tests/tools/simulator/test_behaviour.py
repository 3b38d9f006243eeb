"""A model name, and what it makes a provider send and when; without a socket."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.providers import PROFILES
from pipecat_hedge.tools.simulator import BehaviourError, parse_model, tokenize
from pipecat_hedge.tools.simulator.behaviour import KEYS, Plan, override, plan
from pipecat_hedge.tools.simulator.script import Prompt, Turn
from pipecat_hedge.tools.simulator.timeline import (
    FAULTS,
    SPEECH_FAULTS,
    VOICE_FAULTS,
    ErrorStatus,
    Reply,
    Scene,
    Signal,
    Step,
    Text,
    ToolCall,
    ToolStart,
)

PROMPT = Prompt((Turn("user", "do you deliver"),))
AFTER_TOOL = Prompt((*PROMPT.turns, Turn("tool", "yes")), ("look_up",))
ANSWER = Reply(tokens=tokenize("Yes, we do. We deliver within three miles. It is free."))


def planned(model: str, prompt: Prompt = PROMPT, seed: int = 1) -> Plan:
    return plan(parse_model(model), prompt, random.Random(seed))


def steps(model: str, prompt: Prompt = PROMPT) -> list[Step]:
    return list(itertools.islice(planned(model, prompt).steps, 200))


def token_times(model: str) -> list[float]:
    return [step.at_secs for step in steps(model) if isinstance(step.act, Text)]


# ---- the model name

KEYS_AND_VALUES = [
    ("ttft", "1", 1),
    ("headers", "0.5", 0.5),
    ("tps", "inf", float("inf")),
    ("fault", "stall", FAULTS["stall"]),
    ("rate", "0.25", 0.25),
    ("after", "3", 3),
    ("delay", "2", 2),
    ("retry_after", "4", 4),
    ("requests_left", "5", 5),
    ("tokens_left", "900", 900),
    ("reset", "2.5", 2.5),
    ("answer", "Yes,%20we do & gladly.", "Yes, we do & gladly."),
    ("tool", "look_up", "look_up"),
    ("args", '{"a": 1, "b": 2}', {"a": 1, "b": 2}),
    ("region", "eu-west", "eu-west"),
    ("trace", "[[0.5, 0.6], [7]]", ((0.5, 0.6), (7,))),
    ("turn", "3", 3),
    ("slow", "2", 2),
]


@pytest.mark.parametrize(("begin", "separator"), ["?&", "@,"])
def test_every_key_sets_its_field(begin: str, separator: str) -> None:
    """In both spellings; a separator may stand in a value."""
    keys = separator.join(f"{key}={text}" for key, text, _ in KEYS_AND_VALUES)
    behaviour = parse_model(f"gpt-4.1{begin}{keys}")
    assert behaviour.profile == PROFILES["gpt-4.1"]
    found = [(key, getattr(behaviour, key)) for key in KEYS]
    assert found == [(key, value) for key, _, value in KEYS_AND_VALUES]


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
        ("ttft", "ttft: unknown key"),
        ("ttft=", "ttft: expected seconds to the first token, 0 or more, got ''"),
        ("ttft=inf", "ttft: expected"),
        ("tps=0", "tps: expected tokens per second, more than 0"),
        ("rate=1.5", "rate: expected share of requests"),
        ("after=1.5", "after: expected tokens before the fault"),
        ("slow=0", "slow: expected a factor"),
        ("answer=%20", "answer: expected the text to answer"),
        ("tool=", "tool: expected the name"),
        ("args=[1]", "args: expected a JSON object"),
        ("trace=[0.5]", "trace: expected a JSON list of turns, each a list of seconds"),
        ("trace=[[]]", "trace: expected"),
    ],
)
def test_bad_key_or_value_is_named(keys: str, message: str) -> None:
    with pytest.raises(BehaviourError) as raised:
        parse_model(f"fixed?{keys}")
    assert str(raised.value).startswith(message)
    assert raised.value.status == 400


# ---- what is sent, and when


@pytest.mark.parametrize(
    ("model", "times"),
    [
        ("fixed?tps=inf", [0.05, 0.05, 0.05]),
        ("fixed?ttft=1&tps=4&slow=2", [2.0, 2.5, 3.0]),
        ("fixed?ttft=1&fault=dribble&delay=3", [1, 4, 7]),
    ],
)
def test_tokens_come_when_the_keys_say(model: str, times: list[float]) -> None:
    assert token_times(model)[:3] == pytest.approx(times)


@pytest.mark.parametrize(
    ("keys", "secs"),
    [("", 0.5), ("&headers=0.1", 0.1), ("&headers=9", 1), ("&fault=slow_headers&delay=3", 3.5)],
)
def test_headers_come_halfway_unless_set(keys: str, secs: float) -> None:
    step = steps(f"fixed?ttft=1{keys}")[0]
    assert (step.at_secs, step.act) == (pytest.approx(secs), Signal.HEADERS)


def test_a_slow_close_ends_after_its_delay() -> None:
    *_, finished, end = steps("fixed?fault=slow_close&delay=3")
    assert end.at_secs - finished.at_secs == pytest.approx(3.0)


def test_a_fault_does_not_change_the_draw() -> None:
    bare = token_times("jagged")[0]
    assert token_times("jagged?fault=stall")[0] == token_times("jagged?fault=529&rate=0")[0] == bare


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_rate_is_the_share_with_the_fault(rate: float) -> None:
    model = f"jagged?fault=529&rate={rate}"
    count = sum(planned(model, seed=n).fault is not None for n in range(2000))
    assert abs(count / 2000 - rate) <= 4 * (rate * (1 - rate) / 2000) ** 0.5  # four sigma


@pytest.mark.parametrize(
    ("keys", "secs"),
    [("429", 1), ("429&retry_after=7", 7), ("529", None), ("529&retry_after=0", 0)],
)
def test_retry_after_comes_with_429_or_when_set(keys: str, secs: float | None) -> None:
    assert planned(f"fixed?fault={keys}").retry_after_secs == secs


def test_a_forced_tool_is_called_once() -> None:
    model = "fixed?tool=look_up&args={}"
    assert ToolStart("look_up") in [step.act for step in steps(model)]
    assert not any(isinstance(step.act, ToolStart) for step in steps(model, AFTER_TOOL))


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
    ends = [isinstance(s.act, ErrorStatus | Signal) and s.act is not Signal.HEADERS for s in played]
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


def test_every_fault_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "faults.md").read_text()
    for fault in (FAULTS | SPEECH_FAULTS | VOICE_FAULTS).values():
        assert f"| `{fault.name}` | {fault.summary} |" in text
