"""The comparison over real sockets, in small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live


@pytest.mark.timeout(120)
def test_every_arrangement_is_measured(tmp_path: Path) -> None:
    """In a table and in a file, with what the providers counted."""
    out = tmp_path / "bench.json"
    arguments = ["--turns", "8", "--calls", "4", "--profile", "gpt-4.1", "--rounds", "2"]
    told = subprocess.run(
        [sys.executable, "-m", "pipecat_hedge.cli", "bench", *arguments, "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    ).stdout
    kept = json.loads(out.read_text())
    assert kept["commit"]
    rows = {row["arrangement"]: row for row in kept["measured"]}
    assert list(rows) == [
        "bare service",
        "LLMSwitcher, failover",
        "race(2)",
        "adaptive(5 %)",
        "adaptive(5 %), local second",
    ]
    for name, row in rows.items():
        assert name in told
        assert row["turns"] == 8
        assert row["unanswered"] == 0
        assert 0.2 < row["p50_secs"] <= row["p95_secs"] <= row["p99_secs"] <= row["max_secs"]
        assert kept["overhead"][name]["token_secs"] < 1e-3
    assert rows["bare service"]["extra_requests"] == 0
    assert rows["bare service"]["wasted_tokens"] == 0
    assert rows["race(2)"]["extra_requests"] == 1.0
    assert rows["race(2)"]["wasted_tokens"] > 0
    assert 0 <= rows["adaptive(5 %)"]["extra_requests"] < 1
    assert rows["race(2)"]["p50_secs"] < 1.2 * rows["bare service"]["p50_secs"]


def test_what_cannot_be_measured_is_an_error() -> None:
    """Fewer turns than calls."""
    told = subprocess.run(
        [sys.executable, "-m", "pipecat_hedge.cli", "bench", "--turns", "3", "--calls", "4"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.returncode == 2
    assert "--turns must be at least --calls" in told.stdout
