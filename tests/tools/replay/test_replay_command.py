"""``pipecat-hedge replay``, as it is called."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from pipecat_hedge.tools.replay import RATE, Replay, TurnResult, command
from tests.tools.conftest import Ran
from tests.tools.replay.scripted_bot import ScriptedBot

pytestmark = [pytest.mark.live, pytest.mark.realtime]


@pytest.fixture
def hello(tmp_path: Path) -> Path:
    """A recording of 0.4 s."""
    at = np.arange(round(0.4 * RATE)) / RATE
    path = tmp_path / "hello.wav"
    soundfile.write(path, 0.3 * np.sin(2 * np.pi * 440 * at), RATE)
    return path


async def test_command_prints_a_table_and_writes_a_report(
    hello: Path, tmp_path: Path, ran: Callable[..., Ran]
) -> None:
    out = tmp_path / "out"
    async with ScriptedBot(speaks_secs=0.3) as bot:
        options = ("--url", bot.url, "--runs", 2, "--greeting", 0, "--report", out)
        status, printed, _ = await asyncio.to_thread(ran, "replay", hello, *options)
    assert status == 0
    for text in ("voice to voice, as the caller hears it", "hello", f"report: {out}/report.html"):
        assert text in printed
    rows = json.loads((out / "replay.json").read_text())
    assert [(row["recording"], row["run"]) for row in rows] == [("hello", 1), ("hello", 2)]
    assert all(0.3 < row["voice_to_voice_secs"] < 5 for row in rows)


def test_unanswered_turn_is_exit_status_1(
    hello: Path, monkeypatch: pytest.MonkeyPatch, ran: Callable[..., Ran]
) -> None:
    async def unanswered(wanted: Replay, on_turn: Callable[[TurnResult], None]) -> None:
        assert (wanted.url, wanted.greeting_secs) == ("http://here", 0)
        error = f"the bot was silent for {wanted.timeout_secs:g} s"
        on_turn(TurnResult("hello", error=error))

    monkeypatch.setattr(command, "replay", unanswered)
    options = ("--url", "http://here", "--timeout", 0.8, "--greeting", 0, "--json")
    status, printed, _ = ran("replay", hello, *options)
    (row,) = json.loads(printed)
    assert (status, row["error"]) == (1, "the bot was silent for 0.8 s")
    assert row["voice_to_voice_secs"] is None


def test_interrupted_command_prints_the_complete_turns(
    hello: Path, monkeypatch: pytest.MonkeyPatch, ran: Callable[..., Ran]
) -> None:
    async def interrupted(wanted: Replay, on_turn: Callable[[TurnResult], None]) -> None:
        on_turn(TurnResult("hello", voice_to_voice_secs=0.8))
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "replay", interrupted)
    status, out, err = ran("replay", hello, "--runs", 3, "--json")
    assert status == 130
    assert [row["voice_to_voice_secs"] for row in json.loads(out)] == [0.8]
    assert "interrupted; 1 of 3 turns are complete" in err
