"""The report for a terminal, and for programs as JSON."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from datetime import tzinfo
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipecat_hedge.tools.analysis.report.figures import Figures
from pipecat_hedge.tools.analysis.report.headlines import (
    EVERYBODY,
    OBJECTIVES,
    difference_told,
    effect_of,
    estimate,
    estimates_told,
    given_up_changes,
    headlines_of,
    unseen_told,
    waits_told,
)
from pipecat_hedge.tools.analysis.report.wording import UNKNOWN, count, secs, share, things, usd

__all__ = ["as_dict", "show"]

VERSION = 1
MOODS = {"bad": "red", "good": "green", "plain": "dim"}


def as_dict(figures: Figures) -> dict[str, Any]:
    """Every figure as plain values; what never happened or is not known is None.

    Args:
        figures: The figures.
    """
    return {"version": VERSION, **_plain(figures)}


def show(figures: Figures, console: Console, zone: tzinfo | None = None) -> None:
    """Print a summary.

    Args:
        figures: The figures.
        console: Where to.
        zone: The time zone of hours; None is this machine's own.
    """
    console.print(_heads(figures, zone), Text(), _callers(figures), _promises(figures))
    console.print(_providers(figures))
    if figures.comparison is not None:
        console.print(_compared(figures))
    if figures.slowest:
        console.print(_slowest(figures))
    if figures.replays is not None:
        console.print(_changes(figures))
    if figures.skipped:
        skipped = f"{things(figures.skipped, 'line')} skipped: {'; '.join(figures.named_skips)}"
        console.print(Text(skipped))


def _heads(figures: Figures, zone: tzinfo | None) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, max_width=16, overflow="ellipsis")
    grid.add_column()
    for head in headlines_of(figures, zone):
        grid.add_row(Text(head.topic, style=MOODS[head.mood]), Text(head.text))
    return grid


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for n, column in enumerate(columns):
        table.add_column(column, justify="right" if n else "left", overflow="fold")
    return table


def _callers(figures: Figures) -> RenderableType:
    table = _table("What callers heard", "to", "turns", "p50", "p95", "p99", "slowest")
    heard = figures.heard
    for name, waits, counted in (
        ("first token", heard.ttft, heard.ttft_all),
        ("first sentence", heard.ttfs, heard.ttfs_all),
        ("voice to voice", heard.voice_to_voice, heard.voice_to_voice_all),
    ):
        table.add_row(name, count(waits.count or None), *map(secs, waits_told(waits)))
        if given_up_changes(waits, counted):
            table.add_row("  counting who gave up", "", *map(estimate, estimates_told(counted)))
    return table


def _promises(figures: Figures) -> RenderableType:
    table = _table("What was promised", "promise", "limit", "promised", "kept", "budget left")
    for each in figures.promises:
        style = {True: "green", False: "red", None: None}[each.is_kept]
        table.add_row(
            Text(f"{OBJECTIVES[each.objective]}, {each.tier or EVERYBODY}"),
            f"{each.limit_secs:g} s",
            f"{100 * each.target:g} %",
            Text(share(each.overall.share), style=style or ""),
            share(each.budget_left, 0),
        )
    return table


def _providers(figures: Figures) -> RenderableType:
    table = _table(
        "Which providers", "provider", "requests", "won", "failed", "p50", "p95", "p99", "cost"
    )
    for each in figures.providers:
        table.add_row(
            Text(each.provider),
            count(each.requests),
            count(each.outcomes.get("won", 0)),
            count(each.failed),
            *(estimate(p) for p in (each.p50, each.p95, each.p99)),
            usd(each.spending.usd, at_least=each.spending.without_price > 0),
        )
    bill = figures.bill
    least = ">" if bill.is_least and bill.usd_per_success is not None else ""
    told = f"cost per successful turn: {least} {usd(bill.usd_per_success)}"
    return Group(table, Text(" ".join(told.split())), Text())


def _compared(figures: Figures) -> RenderableType:
    comparison = figures.comparison
    assert comparison is not None
    others = ", ".join(comparison.other_files)
    table = _table(f"Compared with {others}", "", "this", "other", "so it is")
    least = min(comparison.turns, comparison.other_turns)
    for each in comparison.differences:
        shown = {"secs": secs, "share": share, "usd": usd}.get(each.unit, _ratio)
        told = difference_told(each, least)
        style = {"better": "green", "worse": "red"}.get(told, "")
        table.add_row(each.name, shown(each.of_this), shown(each.of_other), Text(told, style))
    return table


def _ratio(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3f}"


def _slowest(figures: Figures) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.title, grid.title_justify, grid.title_style = "The slowest turns", "left", "bold"
    for turn in figures.slowest[:3]:
        grid.add_row(Text(secs(turn.waited_secs, at_least=turn.given_up)), Text(turn.told))
    return Group(grid, Text())


def _changes(figures: Figures) -> RenderableType:
    replays = figures.replays
    assert replays is not None
    grid = Table.grid(padding=(0, 2))
    grid.title, grid.title_justify, grid.title_style = "What would help most", "left", "bold"
    for number, change in enumerate(replays.changes, 1):
        text = Text(change.title, style="bold")
        text.append(f": {effect_of(change)}. {change.how}", style="not bold")
        grid.add_row(str(number), text)
    if not replays.changes:
        grid.add_row(Text(f"none of {replays.tried} changes that were tried shows a difference"))
    for sentence in unseen_told(replays):
        grid.add_row(*([""] if replays.changes else []), Text(sentence))
    return grid


def _plain(value: Any) -> Any:
    """A value as JSON has it, what follows from a dataclass's fields included."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        names += [n for n, _ in inspect.getmembers(type(value), lambda m: isinstance(m, property))]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
