"""The comparison over real sockets and the costs, in small."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

from pipecat_hedge.tools.bench.bench import ARRANGEMENTS

pytestmark = pytest.mark.live


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run(
        [sys.executable, "-m", "pipecat_hedge.cli", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.timeout(120)
def test_every_arrangement_sees_the_same_trace_and_is_costed(tmp_path: Path) -> None:
    """Two turns of ten take 1.2 s: those that were asked first."""
    lines = [f"{9 - n},{1.2 if n > 7 else 0.1}" for n in range(10)]
    (tmp_path / "trace.csv").write_text("\n".join(["at,hosted_secs", *lines]))
    found = bench("--trace", str(tmp_path / "trace.csv"), "--calls", "1", "--rounds", "3", "--json")
    assert found.returncode == 0, found.stderr
    assert re.search(r"^\S+: 50 %$", found.stderr, re.M)
    assert re.search(r"^processor time: 100 %$", found.stderr, re.M)
    kept = json.loads(found.stdout)
    rows = {row["arrangement"]: row for row in kept["compared"]}
    assert list(rows) == list(ARRANGEMENTS)
    for row in rows.values():
        assert (row["turns"], row["unanswered"]) == (10, 0)
        assert 0 < row["p50_secs"] <= row["p95_secs"] <= row["p99_secs"] <= row["max_secs"]
    for name in ("bare service", "LLMSwitcher, failover", "fallback()"):
        assert rows[name]["extra_requests"] == 0
        assert rows[name]["p50_secs"] == pytest.approx(0.1, abs=0.3)
        assert rows[name]["max_secs"] == pytest.approx(1.2, abs=0.4)
    race = rows["race(2)"]
    assert rows["bare service"]["wasted_tokens"] == 0
    assert 0 < race["extra_requests"] <= 1  # a busy event loop sends fewer hedges
    assert race["wasted_tokens"] > 0
    assert 0 <= rows["adaptive(5 %)"]["extra_requests"] < 1

    costs = {
        unit: {cost["arrangement"]: cost for cost in group}
        for unit, group in groupby(kept["costs"], lambda cost: cost["unit"])
    }
    for measured in costs.values():
        assert list(measured) == [
            "bare service",
            "LLMSwitcher, failover",
            "race(2)",
            "adaptive(5 %)",
            "adaptive, with metrics",
            "adaptive, with spans",
        ]
        assert measured["bare service"]["over_bare"] == 1
        assert measured["LLMSwitcher, failover"]["over_failover"] == 1
        assert measured["bare service"]["median_secs"] > 0
    for name, turn in costs["turn"].items():
        # a token does not pay for what is done once a turn
        assert costs["token"][name]["median_secs"] < turn["median_secs"]
    assert costs["turn"]["adaptive(5 %)"]["over_bare"] > 1
