"""The table of what was heard, for a person to read."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from pipecat_hedge.tools.replay.conversation import HeardTurn
from pipecat_hedge.tools.replay.summary import Figures, summarise

__all__ = ["print_table"]


def print_table(turns: Sequence[HeardTurn], console: Console) -> None:
    """Print percentiles by recording, what was not answered, and whether to believe it.

    Args:
        turns: What was heard; not empty.
        console: Where to print.
    """
    summary = summarise(turns)
    with_silence = summary.everything.silent_p50 is not None
    table = Table(title="voice to voice, as the caller hears it", title_justify="left")
    table.add_column("recording", overflow="fold")
    for name in ("turns", "answered", "p50", "p95", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    if with_silence:
        for name in ("silent p50", "silent max"):
            table.add_column(name, justify="right", no_wrap=True)

    def add(figures: Figures) -> None:
        values = [figures.p50, figures.p95, figures.most]
        values += [figures.silent_p50, figures.silent_most] if with_silence else []
        shown = ["" if value is None else f"{value:.2f} s" for value in values]
        table.add_row(figures.name, str(figures.turns), str(figures.answered), *shown)

    for figures in summary.recordings:
        add(figures)
    table.add_section()
    add(summary.everything)
    console.print(table)
    for turn in turns:
        if turn.error is not None:
            where = f"{turn.recording}, run {turn.run}, caller {turn.caller}"
            console.print(f"{where}: {turn.error}", markup=False)
    if summary.stages:
        console.print(f"medians from the caller's last sound: {summary.stages_told}", markup=False)
    console.print(summary.pacing.told, markup=False)
