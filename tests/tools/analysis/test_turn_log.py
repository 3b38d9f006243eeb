"""Turn logs read back while they are written."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge import HedgedLLMService, HedgePolicy
from pipecat_hedge.race.reports import AttemptReport, FillerReport, StageReport, TurnReport
from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from pipecat_hedge.tools.analysis.turn_log import TurnLog, as_turn
from tests.support.line import Line

secs = st.floats(0, 60)
maybe_secs = st.none() | secs
attempts = st.builds(
    AttemptReport,
    provider=st.text(max_size=5),
    model=st.none() | st.text(max_size=5),
    launched_secs=secs,
    launch_reason=st.sampled_from(["primary", "hedge", "failure", "stall"]),
    ttft_secs=maybe_secs,
    ended_secs=secs,
    outcome=st.sampled_from(["won", "superseded", "failed", "interrupted"]),
    sent_secs=maybe_secs,
    stages=st.none() | st.builds(StageReport, new_connection=st.booleans(), tcp_secs=maybe_secs),
)
turns = st.builds(
    TurnReport,
    turn=st.integers(1, 9),
    winner=st.none() | st.text(max_size=5),
    outcome=st.sampled_from(["answered", "failed"]),
    ttft_secs=maybe_secs,
    ttfs_secs=maybe_secs,
    duration_secs=secs,
    attempts=st.lists(attempts, max_size=3).map(tuple),
    filler=st.none() | st.builds(FillerReport, st.just("slow"), maybe_secs, st.text(max_size=5)),
)


@given(turns)
def test_what_is_written_is_read(turn: TurnReport) -> None:
    """A line is the same turn again, whatever else it tells."""
    line = json.dumps({"at": 1.0, "policy": "race(2)", **dataclasses.asdict(turn)})
    assert as_turn(json.loads(line)) == turn


def test_an_older_log_lacks_fields_and_a_newer_one_has_more() -> None:
    """Neither keeps a turn from being read."""
    attempt = {
        "provider": "a",
        "model": None,
        "launched_secs": 0.0,
        "launch_reason": "primary",
        "ttft_secs": 0.3,
        "ended_secs": 0.5,
        "outcome": "won",
        "of_a_later_release": 1,
    }
    turn = as_turn(
        {
            "turn": 1,
            "winner": "a",
            "outcome": "answered",
            "ttft_secs": 0.3,
            "ttfs_secs": None,
            "duration_secs": 0.5,
            "attempts": [attempt],
            "of_a_later_release": [],
        }
    )
    assert turn.tier == "standard"
    assert turn.attempts[0].sent_secs is None


@pytest.mark.virtual_time
async def test_a_log_is_read_on(tmp_path: Path) -> None:
    """What came since the last time; a line that is being written waits, a bad one is counted."""
    path = tmp_path / "turns.jsonl"
    log = TurnLog(path)
    assert list(log.new_turns()) == []  # it is not there yet
    llm = HedgedLLMService(
        [ScriptedLLMService([Wait(0.1), Say("Yes.")])], policy=HedgePolicy.race(1), turn_log=path
    )
    async with Line(llm) as line:
        for number in (1, 2):
            await line.ask()
            report = await line.report(number)
            assert list(log.new_turns()) == [report]
    with path.open("a") as file:
        file.write('{"turn": 3}\nno json\n[1]\n\n{"half')
    assert list(log.new_turns()) == []
    assert log.skipped == 3
    assert list(log.new_turns()) == []
    assert log.skipped == 3


def test_a_log_that_was_rotated_is_read_from_its_beginning(tmp_path: Path) -> None:
    """Be it replaced or cut off."""
    path = tmp_path / "turns.jsonl"
    turn = TurnReport(1, None, "failed", None, None, 0.1, ())
    line = json.dumps(dataclasses.asdict(turn)) + "\n"
    log = TurnLog(path)
    path.write_text(line * 2)
    assert len(list(log.new_turns())) == 2
    path.write_text(line)
    assert len(list(log.new_turns())) == 1
    new = tmp_path / "new.jsonl"
    new.write_text(line * 3)
    new.replace(path)
    assert len(list(log.new_turns())) == 3


def test_what_was_written_before_a_log_was_renamed(tmp_path: Path) -> None:
    """The lines between the last look and the rotation count too, and once."""
    path = tmp_path / "turns.jsonl"
    line = json.dumps(dataclasses.asdict(TurnReport(1, None, "failed", None, None, 0.1, ()))) + "\n"
    log = TurnLog(path)
    path.write_text(line)
    assert len(list(log.new_turns())) == 1
    with path.open("a") as file:
        file.write(line * 2)
    (tmp_path / "turns-older.jsonl").write_text(line * 9)
    path.rename(tmp_path / "turns.jsonl.1")
    assert len(list(log.new_turns())) == 2
    assert list(log.new_turns()) == []
    path.write_text(line * 4)
    assert len(list(log.new_turns())) == 4
    assert list(log.new_turns()) == []
