"""A log file on a disk that may be full."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipecat_hedge import HedgePolicy
from pipecat_hedge.service.line_log import LineLog
from pipecat_hedge.testing import Say
from tests.service.builders import racing, scripted
from tests.support.line import Line


@pytest.mark.virtual_time
async def test_full_disk_warns_once_whatever_the_number_of_turns(
    tmp_path: Path, logged: list[str]
) -> None:
    log = tmp_path / "turns.jsonl"
    log.symlink_to("/dev/full")
    for _ in range(2):
        llm = racing(scripted(Say("Yes.")), policy=HedgePolicy.fallback(), turn_log=log)
        async with Line(llm) as line:
            for turn in range(3):
                await line.ask()
                await line.report(turn + 1)
    warnings = [each for each in logged if "cannot write" in each]
    assert warnings == [f"WARNING: cannot write to {log}, logged once: No space left on device"]


def test_disk_that_is_full_again_warns_again(tmp_path: Path, logged: list[str]) -> None:
    path = tmp_path / "log.jsonl"
    log = LineLog("log", path)
    for _ in range(2):
        path.symlink_to("/dev/full")
        log.append("lost")
        log.append("lost")
        path.unlink()
        log.append("kept")
        assert path.read_text() == "kept\n"
        path.unlink()
    assert len(logged) == 2


def test_half_a_character_is_written(tmp_path: Path) -> None:
    """A model's stream may be cut within one."""
    path = tmp_path / "log.jsonl"
    LineLog("log", path).append(json.dumps("Yes \ud83d", ensure_ascii=False))
    assert json.loads(path.read_text()) == "Yes \ud83d"
