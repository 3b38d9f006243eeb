"""Ten thousand turns with random faults."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.soak import faults

pytestmark = pytest.mark.slow


@pytest.mark.timeout(300)
def test_ten_thousand_turns_end_and_leak_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.soak", "--turns", "10000", "--settled-after", "2000"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    result = json.loads(ended.stdout)
    grown = result["bytes"] / result["settled_bytes"] - 1
    lost = result["heard"].get("lost", 0)
    with capsys.disabled():
        print(f"\n10000 turns, memory {grown:+.1%}: {result}")
    assert sum(result["heard"].values()) == 10_000
    assert lost == 0
    assert grown < 0.05
    assert set(result["faults"]) == set(faults())
