"""Drills in small: real processes, real sockets, a real Redis where there is one."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pipecat_hedge import cli
from pipecat_hedge.race import HedgeError
from pipecat_hedge.tools.bench.drill.command import figures
from pipecat_hedge.tools.bench.drill.running import Fleet, run_drill
from pipecat_hedge.tools.bench.drill.scenarios import FIRST, PROVIDERS, VARIANTS, Drill, Event
from pipecat_hedge.tools.bench.redis_process import has_redis

pytestmark = pytest.mark.live

BARE, RETRY, HEDGED = VARIANTS
FLEET = Fleet(processes=2, sessions=5, think_secs=0.4, start_secs=3.0, tail_secs=1.0)
ALONE = replace(FLEET, processes=1, sessions=10)
"""As many callers in one process, where the number of processes shows nothing."""
DOWN = Drill(
    "down",
    "",
    (Event(2.0, "kill", FIRST), Event(5.0, "start", FIRST)),
    ends=True,
    hedged_secs=8.0,
    plain_secs=11.0,  # on a busy machine a provider takes seconds to start
    broken=FIRST,
    models=dict.fromkeys(PROVIDERS, "fixed?ttft=0.1&tps=1000"),
)


def test_the_bare_service_goes_down_with_its_provider():
    """Every turn is lost during the outage and answered otherwise; each is one request."""
    record = run_drill(DOWN, BARE, ALONE)
    found = figures(DOWN, BARE, record)
    away = [turn for turn in record.turns if 2.2 <= turn.at < 4.8]
    arrived, sent = record.arrived["first"], record.sent["first"]
    back = 5 + int((arrived[5:] > 0).argmax())  # it takes a moment to start
    here = [turn for turn in record.turns if turn.at < 1 or turn.at >= back + 1]
    assert away  # how many depends on the machine
    assert {(turn.outcome, turn.why) for turn in away} == {("lost", "silence")}
    assert any(turn.at < 1 for turn in here)
    assert any(turn.at > 5 for turn in here)
    assert {turn.outcome for turn in here} == {"answered"}
    assert found.requests_per_turn == pytest.approx(1, abs=0.03)
    assert sent[3:5].sum() > 0  # refused connections count as sent, and do not arrive
    assert arrived[3:5].sum() == 0
    assert record.sent["second"].sum() == 0
    assert record.busy_share is None or 0 < record.busy_share <= 1


def test_retries_multiply_the_load():
    """Up to three requests a turn to the provider that fails."""
    event = Event(2.0, "conditions", FIRST, {"fault": "503", "headers": 0})
    drill = replace(DOWN, events=(event,), ends=False, plain_secs=6.0)
    record = run_drill(drill, RETRY, ALONE)
    lost = [turn for turn in record.turns if turn.outcome == "lost" and turn.at >= 2]
    assert len(lost) > 5
    assert record.sent["first"][3:].sum() > 1.5 * record.began[3:].sum()


def test_the_hedged_service_loses_no_turn():
    record = run_drill(DOWN, HEDGED, FLEET)
    found = figures(DOWN, HEDGED, record)
    assert (found.lost, found.degraded) == (0, 0)
    away = [turn for turn in record.turns if 2.2 <= turn.at < 4.8]
    assert away  # how many depends on the machine
    for turn in away:
        assert [r.outcome for r in turn.requests if r.provider == "first"] in ([], ["failed"])
        assert any(r.outcome == "won" and r.provider != "first" for r in turn.requests)
    assert {turn.premium for turn in record.turns} == {True, False}


@pytest.mark.skipif(not has_redis(), reason="redis-server is not installed")
def test_a_lost_redis_and_a_killed_worker_disturb_no_other_caller():
    events = (Event(1.5, "kill_redis"), Event(3.0, "kill_worker"), Event(4.0, "start_redis"))
    drill = replace(DOWN, events=events, ends=False, hedged_secs=6.0, broken=())
    record = run_drill(drill, HEDGED, FLEET)
    assert {turn.outcome for turn in record.turns} == {"answered"}
    # The only premium caller belongs to the first worker, which is killed.
    assert any(turn.premium for turn in record.turns)
    assert not any(turn.premium for turn in record.turns if turn.at > 3.5)
    assert any(turn.at > 3.5 for turn in record.turns)


def test_an_interrupt_ends_every_process():
    seen: set[int] = set()

    def interrupt() -> None:
        seen.update(_children())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_drill(DOWN, HEDGED, FLEET, interrupt)
    assert len(seen) >= 2 + 3
    for pid in seen:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def _children() -> list[int]:
    threads = Path("/proc/self/task").iterdir()
    return [int(pid) for each in threads for pid in (each / "children").read_text().split()]


def test_a_worker_that_fails_is_an_error():
    with pytest.raises(HedgeError, match=r"a worker of the drill exited: .*budget"):
        run_drill(DOWN, replace(HEDGED, budget=-1.0), ALONE)


@pytest.mark.timeout(120)
def test_the_command_prints_figures_as_json(capsys: pytest.CaptureFixture[str]):
    arguments = ["--processes", "1", "--sessions", "4", "--think", "0.5", "--pace", "0.05"]
    assert cli.main(["drill", "calm", *arguments, "--variants", "bare", "--json"]) == 0
    out, err = capsys.readouterr()
    (row,) = json.loads(out)["figures"]
    assert (row["drill"], row["variant"], row["lost"]) == ("calm", "bare", 0)
    assert row["turns"] > 0
    told = re.findall(r"^calm, bare: (\d+) %$", err, re.M)  # in a pipe, instead of a bar
    assert told[0] == "0"
    assert len(told) > 2
