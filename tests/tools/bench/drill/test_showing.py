"""Tables and pictures."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from pipecat_hedge.tools.bench.drill.figures import figures
from pipecat_hedge.tools.bench.drill.picture import draw
from pipecat_hedge.tools.bench.drill.plans import DRILLS
from pipecat_hedge.tools.bench.drill.tables import as_markdown, as_table

from .made_up import counts, record, steadily, turn

DOWN = DRILLS["down"]
TURNS = [turn(at, kind="lost" if 15 <= at < 16 else "answered") for at in steadily(155, 2)]
HEDGED = record(DOWN, TURNS, {"first": counts((155, 2)), "second": counts((155, 1))})
TOLD = replace(figures(DOWN, HEDGED), p99_secs=1.25, notice_secs=0.4, broken_share=0.0194)


def test_a_table_has_a_column_a_variant():
    """With every figure in words."""
    console = Console(width=100)
    with console.capture() as captured:
        console.print(as_table(DOWN, [replace(TOLD, variant="bare"), TOLD]))
    told = captured.get()
    for word in ("down: the first provider", "bare", "hedged", "1.25 s", "500 ms", "1.9%", "< 1 s"):
        assert word in told


def test_a_line_of_markdown_a_variant():
    """The drill is named once; what is not known is a dash."""
    bare = replace(TOLD, variant="bare", premium_p95_secs=math.inf)
    told = as_markdown([bare, TOLD, replace(TOLD, drill="hang", cpu_share=(0.9, 1.0))])
    *lines, _, machine = told.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| down", "| ", "| hang"]
    assert len({line.count("|") for line in lines}) == 1
    assert " 310 | 0 | 2 | 500 ms | " in lines[2]
    assert " - " in lines[2]
    assert "90% busy at most" in machine


def test_a_picture(tmp_path: Path):
    """One for all variants, also of those that lasted less long."""
    bare = record(DOWN, TURNS[:190], {"first": counts((95, 2)), "second": counts((95, 0))})
    draw(DOWN, [replace(bare, variant="bare"), HEDGED], tmp_path / "down.png")
    assert (tmp_path / "down.png").read_bytes().startswith(b"\x89PNG")
