"""Several processes of one server: real ones, each with turns of its own, and one is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger
from prometheus_client.parser import text_string_to_metric_families

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.telemetry import exposition, prometheus_process
from pipecat_hedge.telemetry.exposition import expose, of_all_processes
from pipecat_hedge.telemetry.prometheus_process import ProcessBeat, has_ended
from tests.support.native_histograms import ACCEPT, buckets, families

ROOT = Path(__file__).parents[2]


class Worker:
    """A process that has held some turns."""

    def __init__(self, folder: Path, turns: int):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.metrics_worker", str(turns)],
            cwd=ROOT,
            env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def stop(self) -> None:
        """End its session, and wait until it has written down how things stand."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "idle\n"

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
    assert seen["budget_requests_per_turn['0.1']"] == 0.1
    closed = next(name for name in seen if name.startswith("breaker_state") and "'closed'" in name)
    assert seen[closed] == 3
    assert not any("exponential" in name for name in seen)
    native = families(expose(ACCEPT, of_all_processes(tmp_path))[0])
    (ttft,) = native["pipecat_hedge_turn_ttft_seconds"].metric
    assert ttft.histogram.zero_count + sum(buckets(ttft.histogram).values()) == 12
    assert ttft.histogram.sample_count == 12
    assert native["pipecat_hedge_turns_total"].type == 0
    workers[0].kill()
    assert read(tmp_path)["sessions[]"] == 2
    workers[1].end()
    assert read(tmp_path)["sessions[]"] == 1
    assert read(tmp_path)[turns] == 12


def test_how_things_stand_is_told_without_calls_too(workers: list[Worker], tmp_path: Path) -> None:
    """A session that has ended is not there until the next one begins."""
    for number, worker in enumerate(workers):
        assert read(tmp_path)["sessions[]"] == 3 - number
        worker.stop()
    assert read(tmp_path)["sessions[]"] == 0


def test_asked_from_another_container(
    workers: list[Worker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the processes' numbers are nobody's: who lives is seen all the same, and stays."""
    monkeypatch.setattr(exposition, "_is_alive", lambda _: False)
    workers[0].kill()
    assert read(tmp_path)["sessions[]"] == 2
    assert read(tmp_path)["sessions[]"] == 2
    assert len(list(tmp_path.glob("gauge_livesum_*.db"))) == 2


def test_two_who_ask_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other one has removed already is missed by nobody."""
    (tmp_path / "gauge_livesum_1.db").write_bytes(b"\x08" + bytes(7))

    def ended(folder: Path, _: int) -> bool:
        (folder / "gauge_livesum_1.db").unlink()
        return True

    monkeypatch.setattr(exposition, "has_ended", ended)
    assert read(tmp_path) == {}


def test_gauges_of_a_process_without_a_recorder(tmp_path: Path) -> None:
    """It has left no word: whether its number is alive decides, and nothing is removed."""
    for pid in (os.getpid(), 2**22 + 1):  # the second is more than there can be
        (tmp_path / f"gauge_livesum_{pid}.db").write_bytes(b"\x08" + bytes(7))
    read(tmp_path)
    assert len(list(tmp_path.glob("*.db"))) == 2
    assert has_ended(tmp_path, os.getpid()) is None


def test_a_forked_process_lives_for_itself(tmp_path: Path) -> None:
    """A worker does not keep the gauges of whoever started it, nor does it lack its own."""
    script = (
        "import os, sys, pathlib\n"
        "from pipecat_hedge.telemetry.prometheus_process import ProcessBeat\n"
        "beat = ProcessBeat(pathlib.Path(sys.argv[1]), lambda: None)\n"
        "if os.fork() == 0:\n"
        "    print(os.getpid(), beat._thread.is_alive(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child, beats = parent.stdout.readline().split()
        assert beats == "True"
        assert has_ended(tmp_path, parent.pid) is False
        parent.kill()
        parent.wait()
        assert has_ended(tmp_path, parent.pid) is True
        assert has_ended(tmp_path, int(child)) is False


def test_it_beats_until_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in between; and the process counts as alive until it ends."""
    monkeypatch.setattr(prometheus_process, "BEAT_SECS", 0.001)
    beaten = threading.Semaphore(0)

    def beat() -> None:
        beaten.release()
        raise OSError("the disk is full")

    mine = ProcessBeat(tmp_path, beat)
    assert beaten.acquire(timeout=10)
    assert beaten.acquire(timeout=10)
    mine.close()
    assert not mine._thread.is_alive()
    assert has_ended(tmp_path, os.getpid()) is False


def test_that_many_processes_make_scrapes_long_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to do instead."""
    monkeypatch.setattr(exposition, "MANY_PROCESSES", 3)
    said: list[str] = []
    sink = logger.add(lambda message: said.append(str(message)), level="WARNING")
    for pid in (1, 2, 3):
        assert not said
        (tmp_path / f"counter_{pid}.db").write_bytes(b"\x08" + bytes(7))
        read(tmp_path)
    read(tmp_path)
    logger.remove(sink)
    assert len(said) == 1
    assert "pipecat-hedge metrics turns.jsonl" in said[0]


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
