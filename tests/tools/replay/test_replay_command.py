"""``pipecat-hedge replay``, as it is called."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from pipecat_hedge.cli import main
from pipecat_hedge.tools.replay import RATE, command
from pipecat_hedge.tools.replay.conversation import TurnResult
from pipecat_hedge.tools.replay.run import Replay
from tests.tools.replay.scripted_bot import ScriptedBot

pytestmark = [pytest.mark.live, pytest.mark.realtime]


@pytest.fixture
def hello(tmp_path: Path) -> Path:
    """A recording of 0.4 s."""
    at = np.arange(round(0.4 * RATE)) / RATE
    path = tmp_path / "hello.wav"
    soundfile.write(path, 0.3 * np.sin(2 * np.pi * 440 * at), RATE)
    return path


async def called(*arguments: object) -> int:
    """Run the command as in a process of its own, in a thread with its own loop."""
    return await asyncio.to_thread(main, ["replay", *map(str, arguments)])


async def test_command_prints_a_table_and_writes_a_report(
    hello: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    async with ScriptedBot(speaks_secs=0.3) as bot:
        options = ("--url", bot.url, "--runs", 2, "--greeting", 0, "--report", out)
        assert await called(hello, *options) == 0
    printed = capsys.readouterr().out
    assert "voice to voice, as the caller hears it" in printed
    assert "hello" in printed
    assert f"report: {out / 'report.html'}" in printed
    rows = json.loads((out / "replay.json").read_text())
    assert [(row["recording"], row["run"]) for row in rows] == [("hello", 1), ("hello", 2)]
    assert all(0.3 < row["voice_to_voice_secs"] < 5 for row in rows)


async def test_unanswered_turn_is_exit_status_1(
    hello: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with ScriptedBot(answers=False) as bot:
        options = ("--url", bot.url, "--timeout", 0.8, "--greeting", 0, "--json")
        assert await called(hello, *options) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert row["error"] == "the bot was silent for 0.8 s"
    assert row["voice_to_voice_secs"] is None


async def test_interrupted_command_prints_the_complete_turns(
    hello: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def interrupted(wanted: Replay, on_turn: Callable[[TurnResult], None]) -> None:
        on_turn(TurnResult("hello", voice_to_voice_secs=0.8))
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "replay", interrupted)
    assert await called(hello, "--runs", 3, "--json") == 130
    out, err = capsys.readouterr()
    assert [row["voice_to_voice_secs"] for row in json.loads(out)] == [0.8]
    assert "interrupted; 1 of 3 turns are complete" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{hello}", "--url", "http://127.0.0.1:9"), "nothing answers at http://127.0.0.1:9/api"),
        (("{hello}", "--url", "127.0.0.1"), "url must be like http://127.0.0.1:7860"),
        (("{text}",), "not an audio file"),
        (("{missing}",), "missing.wav"),
        (("{hello}", "--runs", "0"), "runs must be at least 1, got 0"),
        (("{hello}", "--loss", "1.5"), "loss must be a share from 0 to below 1, got 1.5"),
        (("{hello}", "--interrupt-with", "{missing}"), "missing.wav"),
        (("{hello}", "--interrupt-with", "{folder}"), "is a folder, but exactly one recording"),
        (("{hello}", "--report", "{text}"), "cannot be written to"),
    ],
)
async def test_wrong_arguments_are_one_line_and_exit_status_2(
    arguments: tuple[str, ...],
    message: str,
    hello: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = tmp_path / "words.txt"
    text.write_text("words")
    names = {"hello": hello, "text": text, "missing": tmp_path / "missing.wav"}
    names["folder"] = tmp_path
    assert await called(*(argument.format(**names) for argument in arguments)) == 2
    printed = capsys.readouterr().err.replace("\n", " ")
    assert printed.startswith("pipecat-hedge replay: ")
    assert message in printed
