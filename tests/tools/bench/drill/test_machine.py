"""Who uses the processors, by what the system says."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipecat_hedge.tools.bench.drill import machine
from pipecat_hedge.tools.bench.drill.machine import Processors


def _say(folder: Path, busy: int, idle: int, own: int | None) -> None:
    guests = 10**9  # in the users' time already
    (folder / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 {guests} 0\ncpu0 1 2 3\n")
    process = folder / "42"
    process.mkdir(exist_ok=True)
    if own is None:
        (process / "stat").unlink()
    else:
        fields = " ".join(["0"] * 10)
        (process / "stat").write_text(f"42 (a (b) c) S {fields} {own} 3 0 0\n")


def test_shares_since_the_last_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of 100 ticks 60 were used, 40 of them by the process named; it counts once it is known."""
    monkeypatch.setattr(machine, "PROC", tmp_path)
    _say(tmp_path, 1000, 2000, 500)
    processors = Processors()
    _say(tmp_path, 1010, 2090, 510)
    assert processors.shares([42, 43]) == pytest.approx((0.1, 0.0))
    _say(tmp_path, 1070, 2130, 550)
    assert processors.shares([42, 43]) == pytest.approx((0.6, 0.4))
    _say(tmp_path, 1120, 2180, None)  # it has ended
    assert processors.shares([42]) == pytest.approx((0.5, 0.0))


def test_a_system_that_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nothing is known, and nothing breaks."""
    monkeypatch.setattr(machine, "PROC", tmp_path / "none")
    assert Processors().shares([42]) is None
