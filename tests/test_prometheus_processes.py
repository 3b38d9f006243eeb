"""Several processes of one server: real ones, each with turns of its own, and one is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipecat_hedge import exposition
from pipecat_hedge.errors import ConfigurationError
from pipecat_hedge.exposition import expose, of_all_processes

ROOT = Path(__file__).parents[1]


class Worker:
    """A process that has held some turns."""

    def __init__(self, folder: Path, turns: int):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.metrics_worker", str(turns)],
            cwd=ROOT,
            env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def end(self) -> None:
        self.process.communicate(timeout=20)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[Worker]]:
    started = [Worker(tmp_path, turns) for turns in (3, 4, 5)]
    try:
        for worker in started:
            worker.wait_until_ready()
        yield started
    finally:
        for worker in started:
            if worker.process.poll() is None:
                worker.kill()


def read(folder: Path) -> dict[str, float]:
    """Every series by its name and labels; the sums of what all processes wrote."""
    text = expose("", of_all_processes(folder))[0].decode()
    return {
        s.name.removeprefix("pipecat_hedge_") + str(sorted(s.labels.values())): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_all_processes_are_counted_whoever_is_asked(workers: list[Worker], tmp_path: Path) -> None:
    """Counters outlive their process; the gauges of one that has ended or was killed do not."""
    turns = "turns_total['answered', 'false', 'standard']"
    seen = read(tmp_path)
    assert seen[turns] == 12
    assert seen["turn_ttft_seconds_count['answered', 'scripted', 'standard']"] == 12
    assert seen["slo_turns_total['standard', 'ttft']"] == 12
    assert seen["slo_share_ratio['standard']"] == 0.95
    assert seen["sessions[]"] == 3
    assert seen["budget_requests_per_turn['scripted']"] == 0.1
    closed = next(name for name in seen if name.startswith("breaker_state") and "'closed'" in name)
    assert seen[closed] == 3
    workers[0].kill()
    assert read(tmp_path)["sessions[]"] == 2
    workers[1].end()
    assert read(tmp_path)["sessions[]"] == 1
    assert read(tmp_path)[turns] == 12


def test_a_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said at the start, with the remedy, by its variable's name."""
    monkeypatch.setenv(exposition.VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match=r"PROMETHEUS_MULTIPROC_DIR.*make an empty one"):
        expose()


def test_whichever_process_is_asked_answers_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is served by default is the folder's, where there is one."""
    assert b"python_info" in expose()[0]
    monkeypatch.setenv(exposition.VARIABLE, str(tmp_path))
    assert expose()[0] == b""
