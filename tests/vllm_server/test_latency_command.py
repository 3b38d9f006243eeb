"""The command that measures a vLLM, on a small scale."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.vllm.server import VLLMProcess

pytestmark = pytest.mark.vllm


def test_each_client_is_measured_with_a_cold_and_a_warm_prefix(
    vllm: VLLMProcess, tmp_path: Path
) -> None:
    """In two processes, of which the second has no caller."""
    out = tmp_path / "rows.json"
    command = f"-m scripts.vllm.latency --base-url {vllm.base_url} --parts ladder --callers 1"
    more = f"--prompts 600 --rounds 1 --processes 2 --out {out}"
    subprocess.run([sys.executable, *f"{command} {more}".split()], check=True)
    found = json.loads(out.read_text())
    rows = {row["group"]: row for row in found["rows"]}
    assert [*rows] == [
        f"{c}, {p}" for c in ("plain", "pipecat", "service") for p in ("cold", "warm")
    ]
    for group, row in rows.items():
        assert (row["cached_tokens"] > 300) == group.endswith("warm")
        assert 0 < row["ttft_ms"]["p50"] < row["sentence_ms"]["p50"]
        assert row["n"] == (24 if group.endswith("warm") else 8)
    assert "share" in rows["service, warm"]
