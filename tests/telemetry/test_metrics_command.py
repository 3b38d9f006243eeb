"""``pipecat-hedge metrics``: a process of its own that tells of turn logs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from pipecat_hedge.policy.slo_outcome import Slo
from pipecat_hedge.race.reports import AttemptReport, TurnReport
from pipecat_hedge.telemetry import metrics_command
from pipecat_hedge.telemetry.exposition import VARIABLE

ATTEMPT = AttemptReport("a", "m", 0.0, "primary", 0.3, 1.0, "won", sent_secs=0.0)
TURN = TurnReport(1, "a", "answered", 0.3, 0.5, 1.0, (ATTEMPT,), tier="premium")


def line(turn: TurnReport = TURN) -> str:
    return json.dumps({"at": 1.0, "policy": "fallback", **dataclasses.asdict(turn)}) + "\n"


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    metrics_command.configure(parser)
    return metrics_command.run(parser.parse_args(arguments))


def test_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several logs are one, and what is no turn is counted; no gauge of a process is told."""
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    first.write_text(line() * 2)
    second.write_text(line() + "no turn\n")
    assert run(str(first), str(second), "--once", "--slo-ttft", "0.2") == 0
    told = capsys.readouterr().out
    assert (
        'pipecat_hedge_turns_total{degraded="false",outcome="answered",tier="premium"} 3.0' in told
    )
    assert 'pipecat_hedge_slo_missed_total{objective="ttft",tier="premium"} 3.0' in told
    assert 'pipecat_hedge_slo_missed_total{objective="ttfs",tier="premium"} 0.0' in told
    assert "pipecat_hedge_log_lines_skipped_total 1.0" in told
    assert "pipecat_hedge_sessions" not in told


def test_the_first_scrape_finds_the_log_read(tmp_path: Path) -> None:
    """Prometheus waits for ten seconds, and a log may be years long."""
    log = tmp_path / "turns.jsonl"
    log.write_text(line() * 3)
    registry = metrics_command.of_logs([log], Slo())
    log.unlink()
    labels = {"degraded": "false", "outcome": "answered", "tier": "premium"}
    assert registry.get_sample_value("pipecat_hedge_turns_total", labels) == 3


def test_served_while_turns_are_written(tmp_path: Path) -> None:
    """Each scrape tells of all turns so far; SIGTERM ends it."""
    log = tmp_path / "turns.jsonl"
    log.write_text(line())
    with subprocess.Popen(
        [sys.executable, "-m", "pipecat_hedge.cli", "metrics", str(log), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+/metrics", process.stdout.readline())
            assert found is not None
            for count in (1, 2):
                with urllib.request.urlopen(found[0], timeout=10) as answer:
                    text = answer.read().decode()
                assert f'tier="premium"}} {count}.0' in text
                with log.open("a") as file:
                    file.write(line())
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "name the turn logs"),
        (("a.jsonl", "--processes", "."), "name the turn logs"),
        (("missing.jsonl",), "there is no file missing.jsonl"),
        (("--processes", "missing"), "make an empty one"),
    ],
)
def test_what_cannot_be_read_is_refused(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2, and what to write."""
    assert run(*arguments, "--once") == 2
    assert told in capsys.readouterr().err


def test_logs_and_processes_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Turn logs would be counted into the folder of the processes that wrote them."""
    log = tmp_path / "turns.jsonl"
    log.write_text(line())
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert run(str(log), "--once") == 2
    assert "unset it" in capsys.readouterr().err


def test_the_processes_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty folder is nobody's yet."""
    assert run("--processes", str(tmp_path), "--once") == 0
    assert capsys.readouterr().out == ""
