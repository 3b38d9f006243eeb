from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pipecat_hedge.tools.simulator.faults import FAULTS, strike_after
from pipecat_hedge.tools.simulator.timeline import (
    Cut,
    End,
    Headers,
    Opened,
    Refusal,
    Reply,
    Reset,
    Scene,
    Silence,
    Step,
    Text,
    ToolCall,
    tokenize,
)

ANSWER = Reply(tokens=tokenize("Yes, we do. We deliver within three miles. It is free."))
SCENE = Scene(ANSWER, ttft_secs=0.2, headers_secs=0.1, interval_secs=0.01, delay_secs=3.0)
# What the matrix needs, besides what happens before a connection is there.
STATUSES = ("400", "401", "402", "403", "404", "422", "429", "500", "503", "529")
WANTED = (
    *STATUSES,
    *("reset", "hang", "headers_then_silence", "keepalives", "error_in_band", "malformed_sse"),
    "busy_in_band",
    *("empty", "whitespace", "reasoning_forever", "think_tags", "dribble", "stall", "cut"),
    *("cut_in_tool", "slow_close", "slow_headers"),
)


def steps(name: str, scene: Scene = SCENE) -> list[Step]:
    return list(itertools.islice(FAULTS[name].shape(scene), 200))


def test_the_table_is_complete():
    """Every fault of the matrix is in the table, under its own name."""
    assert set(FAULTS) == set(WANTED)
    assert all(name == fault.name and fault.summary for name, fault in FAULTS.items())


def test_every_fault_is_documented():
    """The documentation lists each fault with the line that the table has."""
    text = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text()
    for fault in FAULTS.values():
        assert f"| `{fault.name}` | {fault.summary} |" in text


@pytest.mark.parametrize("name", WANTED)
@pytest.mark.parametrize(
    "scene",
    [
        SCENE,
        Scene(Reply(), 0.0, 0.0, 0.0),
        Scene(Reply(tool=ToolCall("book_table", ("{", "}"))), 0.2, 0.1, 0.01, after_tokens=1),
    ],
    ids=["answer", "nothing at once", "tool"],
)
def test_steps_come_in_order_and_end_once(name: str, scene: Scene):
    """Times never go back, and what ends a response comes last or never."""
    played = steps(name, scene)
    times = [step.at_secs for step in played]
    assert times == sorted(times)
    ends = [isinstance(s.act, Refusal | Reset | Cut | Silence | End) for s in played]
    assert not any(ends[:-1])
    assert ends[-1] or len(played) == 200


def test_endless_faults_do_not_flood():
    """Keep-alives and reasoning without an interval still leave a millisecond between two."""
    at_once = Scene(ANSWER, 0.0, 0.0, 0.0)
    for name in ("keepalives", "reasoning_forever"):
        assert steps(name, at_once)[-1].at_secs > 0.19


def test_dribble_is_on_time_then_slow():
    """The first token comes when a healthy one would, the second `delay` later."""
    tokens = [step.at_secs for step in steps("dribble") if isinstance(step.act, Text)]
    assert tokens[:3] == pytest.approx([0.2, 3.2, 6.2])


def test_slow_close_ends_late():
    """The whole answer and its end are there on time; only the response stays open."""
    *_, finished, end = steps("slow_close")
    assert end.at_secs - finished.at_secs == pytest.approx(3.0)


def test_slow_headers_delay_everything():
    """Headers come `delay` later than they would."""
    headers = steps("slow_headers")[0]
    assert isinstance(headers.act, Headers)
    assert headers.at_secs == pytest.approx(3.1)


@pytest.mark.parametrize(
    ("reply", "after", "said"),
    [
        (ANSWER, None, "Yes, we do. We deliver"),
        (Reply(tokens=tokenize("Only this one sentence here.")), None, "Only this"),
        (ANSWER, 0, ""),
        (ANSWER, 1, "Yes,"),
    ],
)
def test_a_cut_strikes_in_mid_sentence(reply: Reply, after: int | None, said: str):
    """In the middle of the second sentence, of the only one, or where it is told to."""
    scene = Scene(reply, 0.2, 0.1, 0.01, after_tokens=after)
    assert strike_after(scene) == len(tokenize(said))
    text = "".join(step.act.text for step in steps("cut", scene) if isinstance(step.act, Text))
    assert text == said


def test_keepalives_are_never_content():
    """Keep-alives carry the opening event and nothing that could be an answer."""
    assert not [step for step in steps("keepalives") if isinstance(step.act, Text)]
    assert [step for step in steps("keepalives") if isinstance(step.act, Opened)]
