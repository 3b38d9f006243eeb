"""``make benchmarks`` in small: two peers of this environment, a few turns."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from benchmarks import __main__ as command
from benchmarks.page import BEGIN, END, Figures, write
from benchmarks.peers import PEERS
from benchmarks.sections import Section

pytestmark = pytest.mark.live

SECTIONS = [Section("one", 1, 2), Section("calm", 2, 2), Section("529", 1, 2)]


@pytest.mark.timeout(120)
async def test_the_same_turns_reach_each_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "OUT", tmp_path)
    peers = [peer for peer in PEERS if peer.kind in ("llm bare", "llm race(2)")]
    lock, installed = asyncio.Lock(), Path(sys.executable).parent
    results = [await command.play(peer, SECTIONS, installed, lock) for peer in peers]
    bare, race = (Figures(result) for result in results)
    for figures in (bare, race):
        assert [turn["outcome"] for turn in figures.turns("calm")] == ["ok"] * 4
        waits = zip(figures.waits("calm", "first"), figures.waits("calm", "sentence"), strict=True)
        assert all(0 < first < sentence < 60 for first, sentence in waits)
    assert (bare.extra_requests(), race.extra_requests()) == (0, 1)
    assert bare.fault("529") == "**1 lost**"
    assert "lost" not in race.fault("529")

    page = tmp_path / "page.md"
    page.write_text(f"Before.\n{BEGIN}\nold\n{END}\nAfter.\n")
    write(page, peers, {"pipecat": "1.14.0"}, results)
    text = page.read_text()
    assert text.startswith("Before.")
    assert text.endswith("After.\n")
    assert "old" not in text
    assert all(text.count(f"| {peer.name} |") >= 4 for peer in peers)
    assert "race(2)" in (tmp_path / "images/page.svg").read_text()
