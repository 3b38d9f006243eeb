"""Providers' texts and log contents stay private."""

from __future__ import annotations

import io
import json
import os
import stat
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger
from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge import (
    AllProvidersFailed,
    HedgedLLMService,
    HedgePolicy,
    Provider,
)
from pipecat_hedge.cli import main
from pipecat_hedge.policy import FileStore
from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.service.composition import default_store
from pipecat_hedge.service.line_log import LineLog
from pipecat_hedge.testing import Error, Say, ScriptedLLMService
from tests.support.line import Line

SECRET = "sk-live-1234 and what the caller said"


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Everything that is logged, at DEBUG too, with the values in tracebacks."""
    told = io.StringIO()
    sink = logger.add(told, level="DEBUG", format="{level}|{name}|{message}", diagnose=True)
    try:
        yield told
    finally:
        logger.remove(sink)


@pytest.mark.virtual_time
async def test_provider_text_is_logged_at_debug_only(logged: io.StringIO) -> None:
    llm = HedgedLLMService(
        [Provider(name, ScriptedLLMService([Error(SECRET)])) for name in "ab"],
        policy=HedgePolicy.race(2),
    )
    async with Line(llm) as line:
        await line.ask()
    [frame] = line.errors
    failure = frame.exception
    assert isinstance(failure, AllProvidersFailed)
    assert [(name, error.category) for name, error in failure.causes] == [
        ("a", "server"),
        ("b", "server"),
    ]
    told = [str(failure), repr(failure), repr(vars(failure)), frame.error, repr(frame)]
    told += traceback.format_exception(failure)
    assert SECRET not in "".join(told)
    try:
        raise failure
    except AllProvidersFailed:
        logger.exception("it failed")
    ours = [line for line in logged.getvalue().splitlines() if SECRET in line]
    assert ours, "nobody can find out what the provider said"
    assert all(line.startswith("DEBUG|pipecat_hedge") for line in ours if "pipecat_hedge" in line)


async def test_inference_text_is_logged_at_debug_only() -> None:
    class Fails(ScriptedLLMService):
        async def run_inference(self, context: LLMContext, **options: object) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
            raise ValueError(SECRET)

    llm = HedgedLLMService([Provider("a", Fails([Say("unused")]))])
    with pytest.raises(AllProvidersFailed) as caught:
        await llm.run_inference(LLMContext([]))
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in repr(vars(caught.value))


def test_logs_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        log = tmp_path / "turns.jsonl"
        LineLog("turn_log", log).append("{}")
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
        log.chmod(0o644)
        LineLog("turn_log", log).append("{}")
        assert stat.S_IMODE(log.stat().st_mode) == 0o644
        FileStore(tmp_path / "stats.json").save("{}")
        assert stat.S_IMODE((tmp_path / "stats.json").stat().st_mode) == 0o600
    finally:
        os.umask(before)


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_statistics_need_a_regular_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a pipe would block."""
    path = tmp_path / "stats"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path = Path(os.devnull)
    monkeypatch.setenv("PIPECAT_HEDGE_STATS", str(path))
    with pytest.raises(ConfigurationError, match=r"PIPECAT_HEDGE_STATS: .* is no regular file"):
        default_store()
    monkeypatch.setenv("PIPECAT_HEDGE_STATS", str(tmp_path / "new" / "stats.json"))
    assert default_store() is not None


CONTROLS = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202ename\u2028\r\n"


def test_control_characters_in_log_names_are_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "turns.jsonl"
    attempt = {
        "provider": f"p{CONTROLS}",
        "model": f"m{CONTROLS}",
        "launched_secs": 0.0,
        "launch_reason": "primary",
        "ttft_secs": 0.5,
        "ended_secs": 1.0,
        "outcome": "won",
    }
    turn = {
        "turn": 1,
        "winner": f"p{CONTROLS}",
        "outcome": "answered",
        "ttft_secs": 0.5,
        "ttfs_secs": 0.6,
        "duration_secs": 1.0,
        "attempts": [attempt],
        "session": f"s{CONTROLS}",
        "policy": f"policy{CONTROLS}",
    }
    log.write_text("".join(json.dumps(turn | {"turn": n}) + "\n" for n in range(40)))
    page = tmp_path / "report.html"
    for command in (
        ["report", str(log)],
        ["report", str(log), "--out", str(page)],
        ["whatif", str(log)],
    ):
        main(command)
        told = "".join(capsys.readouterr())
        assert "p]0;owned" in told or "--out" in command
        assert not [char for char in told if not char.isprintable() and char != "\n"]
    shown = page.read_text(encoding="utf-8")
    assert not [char for char in shown if not char.isprintable() and char not in "\n\t"]
