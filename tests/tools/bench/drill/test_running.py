"""Drills in small: real processes, real sockets, a real Redis where there is one."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from pipecat_hedge import cli
from pipecat_hedge.race.errors import HedgeError
from pipecat_hedge.tools.bench.drill.figures import figures
from pipecat_hedge.tools.bench.drill.plans import (
    ALL,
    FIRST,
    Drill,
    Kill,
    KillRedis,
    KillWorker,
    SetConditions,
    Start,
    StartRedis,
)
from pipecat_hedge.tools.bench.drill.redis_process import RedisProcess, has_redis
from pipecat_hedge.tools.bench.drill.running import Fleet, run_drill
from pipecat_hedge.tools.bench.drill.variants import VARIANTS, Variant
from pipecat_hedge.tools.bench.drill.worker import Task

pytestmark = [pytest.mark.live, pytest.mark.realtime]

FLEET = Fleet(processes=2, sessions=5, think_secs=0.4, settle_secs=3.0, tail_secs=1.0)
QUICK = dict.fromkeys(ALL, "fixed?ttft=0.1&tps=1000")
DOWN = Drill(
    "down",
    "",
    acts=((2.0, Kill(FIRST)), (5.0, Start(FIRST))),
    event_secs=2.0,
    return_secs=5.0,
    lasts_secs=8.0,
    plain_secs=8.0,
    broken=FIRST,
    profiles=QUICK,
)


def test_the_bare_service_goes_down_with_its_provider():
    """Every turn is lost while it is away, and answered before and after; each is one request."""
    record = run_drill(DOWN, VARIANTS["bare"], FLEET)
    told = figures(DOWN, record)
    away = [turn for turn in record.turns if 2.2 <= turn.at < 4.8]
    arrived, asked = record.arrived["first"], record.asked["first"]
    back = 5 + int((arrived[5:] > 0).argmax())  # it takes a moment to start
    here = [turn for turn in record.turns if turn.at < 1 or turn.at >= back + 1]
    assert len(away) > 10
    assert {(turn.kind, turn.why) for turn in away} == {("lost", "silence")}
    assert any(turn.at < 1 for turn in here)
    assert any(turn.at > 5 for turn in here)
    assert {turn.kind for turn in here} == {"answered"}
    assert told.requests_per_turn == pytest.approx(1, abs=0.03)
    # Its server counts what it was sent while it was there, and nothing while it was not.
    assert abs(int(arrived[:2].sum()) - int(asked[:2].sum())) <= 3
    assert arrived[3:5].sum() == 0
    assert asked[3:5].sum() > 10
    assert record.asked["second"].sum() == 0


def test_a_naive_retry_triples_the_load():
    """Where the bare service sends one request, this sends up to three to the same provider."""
    drill = replace(
        DOWN,
        acts=((2.0, SetConditions(FIRST, {"fault": "503", "headers": 0})),),
        return_secs=None,
        plain_secs=6.0,
    )
    record = run_drill(drill, VARIANTS["retry"], FLEET)
    lost = [turn for turn in record.turns if turn.kind == "lost" and turn.at >= 2]
    assert len(lost) > 5
    assert record.asked["first"][3:].sum() > 1.5 * record.began[3:].sum()


def test_the_hedged_service_loses_nobody():
    """Others answer while its first provider is away, and turns tell which."""
    record = run_drill(DOWN, VARIANTS["hedged"], FLEET)
    told = figures(DOWN, record)
    assert (told.lost, told.degraded) == (0, 0)
    away = [turn for turn in record.turns if 2.2 <= turn.at < 4.8]
    assert len(away) > 10
    for turn in away:
        assert [a.outcome for a in turn.asked if a.provider == "first"] in ([], ["failed"])
        assert any(a.outcome == "won" and a.provider != "first" for a in turn.asked)
    assert any(turn.is_premium for turn in record.turns)
    assert not all(turn.is_premium for turn in record.turns)
    assert 0 < told.lag_secs[1] < 5  # pyright: ignore[reportOptionalOperand, reportOperatorIssue]


@pytest.mark.skipif(not has_redis(), reason="redis-server is not installed")
def test_redis_goes_and_comes_and_a_process_dies():
    """Nobody of the others notices; the sessions of the dead one vanish."""
    drill = replace(
        DOWN,
        acts=((1.5, KillRedis()), (3.0, KillWorker()), (4.0, StartRedis())),
        event_secs=1.5,
        return_secs=None,
        lasts_secs=6.0,
        broken=(),
    )
    record = run_drill(drill, VARIANTS["hedged"], FLEET)
    assert {turn.kind for turn in record.turns} == {"answered"}
    # Of ten callers the first is premium, and was called from the first process.
    assert any(turn.is_premium for turn in record.turns)
    assert not any(turn.is_premium for turn in record.turns if turn.at > 3.5)
    assert any(turn.at > 3.5 for turn in record.turns)


@pytest.mark.skipif(not has_redis(), reason="redis-server is not installed")
def test_a_redis_of_ones_own():
    """It answers, hangs when told, is gone after ``kill -9``, and comes back empty."""

    def ask(redis: RedisProcess, words: bytes, secs: float = 5.0) -> bytes:
        with socket.create_connection(("127.0.0.1", redis.port), secs) as sock:
            sock.sendall(words + b"\r\n")
            return sock.recv(100)

    with RedisProcess() as redis:
        assert redis.url == f"redis://127.0.0.1:{redis.port}"
        assert ask(redis, b"SET a 1") == b"+OK\r\n"
        redis.hang()
        with pytest.raises(TimeoutError):
            ask(redis, b"GET a", 0.2)
        redis.go_on()
        assert redis.control.get("a") == "1"
        redis.kill()
        with pytest.raises(ConnectionRefusedError):
            ask(redis, b"GET a")
        redis.start()
        assert ask(redis, b"GET a") == b"$-1\r\n"
        assert redis.control.get("a") is None
    with pytest.raises(ConnectionRefusedError):
        ask(redis, b"PING")


def test_nothing_is_left_behind():
    """Whoever is interrupted leaves no process, no worker and no provider."""
    seen: set[int] = set()

    def interrupt() -> None:
        seen.update(_children())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_drill(DOWN, VARIANTS["hedged"], FLEET, interrupt)
    assert len(seen) >= 2 + 3
    assert not seen & set(_children())
    for pid in seen:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def _children() -> list[int]:
    threads = Path("/proc/self/task").iterdir()
    return [int(pid) for each in threads for pid in (each / "children").read_text().split()]


def test_a_worker_that_cannot_begin():
    """It is an error, and the others are ended."""
    impossible = replace(VARIANTS["hedged"], budget=-1.0)
    with pytest.raises(HedgeError, match=r"a worker of the drill has ended: .*budget"):
        run_drill(DOWN, impossible, FLEET)


def test_a_task_is_told_in_a_line():
    """And read again."""
    task = Task(1, 5, 0.4, 7, Variant("a", "hedged", 0.2), {"first": ("u", "m")}, "o", "r")
    assert Task.from_json(task.as_json()) == task


@pytest.mark.timeout(120)
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A table, a picture, the figures as JSON and Markdown; 0 if the checks hold."""
    arguments = ["--processes", "1", "--sessions", "4", "--think", "0.5", "--pace", "0.05"]
    out = tmp_path / "kept"
    assert cli.main(["drill", "calm", *arguments, "--variants", "bare", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "calm: nothing happens" in told
    kept = json.loads((out / "calm.json").read_text())
    (variant,) = kept["variants"].values()
    assert variant["figures"]["lost"] == 0
    assert sum(variant["by_second"]["began"]) >= variant["figures"]["turns"] > 0
    assert (out / "calm.png").stat().st_size > 1000
    assert (out / "drills.md").read_text().count("\n") == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fly"], "unknown drill 'fly'; known drills: calm, down, hang"),
        (["--variants", "bare,best"], "unknown variant 'best'; known variants: bare, retry"),
        (["--processes", "0"], "--processes must be more than 0, got 0"),
    ],
)
def test_what_cannot_be_run(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]):
    """One line that names it and what there is, and exit status 2."""
    assert cli.main(["drill", *arguments]) == 2
    assert words in capsys.readouterr().err
