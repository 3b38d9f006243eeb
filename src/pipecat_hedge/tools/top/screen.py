"""The fleet on a terminal of any width and height. Pure: what is known goes in, a picture out.

Where there is less room there are fewer columns, and names end in dots; figures are never cut and
nothing is wrapped. The turns take the rows that are left.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipecat_hedge.policy.percentiles import percentile
from pipecat_hedge.tools.top import words
from pipecat_hedge.tools.top.fleet import Fleet

__all__ = ["screen"]

WIDE, MIDDLE, NARROW = 110, 76, 52
"""Columns from which on all is shown, nearly all, and the half."""
LEAST_TEXT = 4
RECENT_SECS = 300.0
LEAST_TURNS = 3
_OUTCOMES = {
    "answered": "green",
    "answered_with_tools": "green",
    "interrupted": "yellow",
    "failed": "red",
}
_SHORT = {"answered_with_tools": "tools"}


def screen(fleet: Fleet, width: int, height: int, now: float) -> RenderableType:
    """Draw it.

    Args:
        fleet: What is known.
        width: Columns.
        height: Rows.
        now: The time, in seconds since the epoch.
    """
    parts: list[tuple[RenderableType, int]] = [(_headline(fleet, now, width), 1)]
    parts += [(line, 1) for line in _away(fleet, now)]
    for made in (_promises(fleet, width), _providers(fleet, width)):
        if made is not None:
            table, rows = made
            parts += [(Text(), 1), (table, rows + 1)]
    parts += [(line, 1) for line in _budgets(fleet, now)]
    used = sum(rows for _, rows in parts)
    room = max(height - used - 2, LEAST_TURNS)
    parts += [(Text(), 1), (_turns(fleet, width, room), room)]
    return Group(*(part for part, _ in parts))


def _headline(fleet: Fleet, now: float, width: int) -> Text:
    recent = [turn for _, turn in fleet.turns() if now - turn["at"] <= RECENT_SECS]
    times = [turn["ttft_secs"] for turn in recent if turn["ttft_secs"] is not None]
    hedged = sum(any(a["launch_reason"] == "hedge" for a in turn["attempts"]) for turn in recent)
    there, count = len(fleet.answers), len(fleet.bots)
    title = "pipecat-hedge top" if width >= MIDDLE else "top"
    told = Text(title, style="bold", no_wrap=True, overflow="ellipsis")
    alone = (fleet.bots[0].answer or {}).get("name", "1 bot")
    bots = str(alone) if count == 1 else f"{there} of {count} bots"
    calls = f"{fleet.sessions} call{'' if fleet.sessions == 1 else 's'}"
    or_more = "" if fleet.knows_all_since(now - RECENT_SECS) else "+"
    facts = [bots, calls, f"{len(recent)}{or_more} turns in 5 min"]
    if recent:
        facts.append(f"{hedged / len(recent):.0%} hedged")
    if times and width >= MIDDLE:
        p50, p95 = percentile(times, 0.5), percentile(times, 0.95)
        facts.append(f"first token p50 {words.secs(p50)}, p95 {words.secs(p95)}")
    told.append("  " + " · ".join(facts), style="not bold")
    return told


def _away(fleet: Fleet, now: float) -> list[Text]:
    lines: list[Text] = []
    for bot in fleet.bots:
        if bot.away_since is not None:
            since = max(now - bot.away_since, 0.0)
            told = f"{bot.url} is away since {since:.0f} s: {bot.why}; asking again"
        elif bot.answer is None:
            told = f"{bot.url}: asking"
        else:
            continue
        style = "bold red" if bot.away_since is not None else "yellow"
        lines.append(Text(told, style=style, no_wrap=True, overflow="ellipsis"))
    return lines


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a table.

    Parameters:
        name: Its heading.
        is_text: Whether it is of words: these begin at the left, and give way where there is no
            room. Figures are never cut.
    """

    name: str
    is_text: bool = False


def _table(columns: Sequence[_Column], rows: Sequence[Sequence[Text]], width: int) -> Table:
    """A table without lines that is no wider than the terminal."""
    widths = [
        max(cell_len(column.name), *(row[n].cell_len for row in rows))
        for n, column in enumerate(columns)
    ]
    excess = sum(widths) + len(widths) - 1 - width
    while excess > 0:
        gives_way = [n for n, c in enumerate(columns) if c.is_text and widths[n] > LEAST_TEXT]
        if not gives_way:
            break
        widest = max(gives_way, key=lambda n: widths[n])
        widths[widest] -= 1
        excess -= 1
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for column, columns_width in zip(columns, widths, strict=True):
        table.add_column(
            column.name,
            justify="left" if column.is_text else "right",
            width=columns_width,
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in rows:
        table.add_row(*row)
    return table


def _promises(fleet: Fleet, width: int) -> tuple[Table, int] | None:
    promises = fleet.promises()
    if not promises:
        return None
    last = len(promises[0].windows) - 1
    shown = range(last + 1) if width >= MIDDLE else [0]
    names = [words.window(window.window_secs) for window in promises[0].windows]
    columns = [
        _Column("promise", is_text=True),
        *([_Column("of")] if width >= NARROW else []),
        *(_Column(name) for name in ("kept", "budget")),
        *(_Column(f"burn {names[n]}" if n == shown[0] else names[n]) for n in shown),
        *([_Column("turns")] if width >= WIDE else []),
    ]
    rows: list[list[Text]] = []
    for status in promises:
        kept, left = status.attainment, status.budget_left
        is_kept = kept is None or kept >= status.share
        rows.append(
            [
                Text(f"{status.tier}: {words.objective(status)}"),
                *([Text(words.percent(status.share))] if width >= NARROW else []),
                Text(words.percent(kept), style="green" if is_kept else "bold red"),
                Text(words.percent(left), style=_style_of_left(left)),
                *(_burn(status.burns[n]) for n in shown),
                *([Text(f"{status.windows[-1].turns:,}")] if width >= WIDE else []),
            ]
        )
    return _table(columns, rows, width), len(promises)


def _style_of_left(left: float) -> str:
    return "bold red" if left < 0 else "yellow" if left < 0.25 else "green"


def _burn(burn: float | None) -> Text:
    if burn is None:
        return Text(words.burn(burn), style="dim")
    style = "bold red" if burn >= 6 else "yellow" if burn > 1 else "green"
    return Text(words.burn(burn), style=style)


def _providers(fleet: Fleet, width: int) -> tuple[Table, int] | None:
    providers = fleet.providers()
    if not providers:
        return None
    with_counts, with_all = width >= MIDDLE, width >= WIDE
    columns = [
        _Column("provider", is_text=True),
        _Column("state", is_text=True),
        *([_Column("p50")] if width >= NARROW else []),
        _Column("p95"),
        *([_Column("in flight")] if width >= NARROW else []),
        *([_Column("asked"), _Column("won")] if with_counts else []),
        *([_Column("closed")] if with_all else []),
        _Column("failed"),
    ]
    rows: list[list[Text]] = []
    for state in providers:
        told, style = _state(state)
        is_full = state["limit"] and state["in_flight"] >= state["limit"]
        in_flight = Text(f"{state['in_flight']} of {state['limit']}", "red" if is_full else "")
        counts = [Text(str(state[name])) for name in ("requests", "won")]
        rows.append(
            [
                Text(state["provider"]),
                Text(told, style),
                *([Text(words.secs(state["p50_secs"]))] if width >= NARROW else []),
                Text(words.secs(state["p95_secs"])),
                *([in_flight] if width >= NARROW else []),
                *(counts if with_counts else []),
                *([Text(str(state["superseded"]))] if with_all else []),
                Text(str(state["failed"]), "red" if state["failed"] else ""),
            ]
        )
    return _table(columns, rows, width), len(providers)


def _state(state: dict[str, Any]) -> tuple[str, str]:
    if state["is_excluded"]:
        return "left out", "bold red"
    if state["breaker"] == "open":
        return "left alone", "bold red"
    if state["breaker"] == "half_open":
        return "is tried", "yellow"
    if state["retry_after_secs"] > 0:
        return f"rests {math.ceil(state['retry_after_secs'])} s", "yellow"
    server = state.get("server")
    if server is not None and not server["is_up"]:
        return "server down", "bold red"
    if server is not None and server["waiting"]:
        return f"queue of {server['waiting']}", "yellow"
    return "usable", "green"


def _budgets(fleet: Fleet, now: float) -> list[Text]:
    lines: list[Text] = []
    recent = [turn for _, turn in fleet.turns() if now - turn["at"] <= RECENT_SECS]
    extra = sum(a["launch_reason"] in ("hedge", "stall") for t in recent for a in t["attempts"])
    for budget in fleet.budgets():
        balance = budget["balance"]
        owes = f"{-balance:.1f} owed" if balance < 0 else f"{balance:.1f} saved"
        told = f"budget {100 * budget['budget']:g} % of turns: {owes}, at most "
        told += f"{budget['most_credit']:.0f} requests"
        if recent:
            told += f", {100 * extra / len(recent):.0f} % spent in 5 min"
        style = "yellow" if balance < 0 else ""
        lines.append(Text(told, style=style, no_wrap=True, overflow="ellipsis"))
    return lines


def _turns(fleet: Fleet, width: int, room: int) -> RenderableType:
    turns = fleet.turns()[: max(room - 1, 1)]
    if not turns:
        is_there = bool(fleet.answers)
        return Text("no turn yet: talk to the bot" if is_there else "", style="dim")
    with_bot = len(fleet.bots) > 1
    with_call, with_all = width >= MIDDLE, width >= WIDE
    with_tier = with_all and any(turn["tier"] != "standard" for _, turn in turns)
    columns = [
        _Column("time"),
        *([_Column("bot")] if with_bot else []),
        *([_Column("call.turn")] if with_call else []),
        *([_Column("tier", is_text=True)] if with_tier else []),
        _Column("outcome", is_text=True),
        _Column("token"),
        *([_Column("sentence")] if with_all else []),
        *([_Column("heard")] if width >= NARROW else []),
        _Column("who was asked" if with_call else "winner", is_text=True),
    ]
    rows: list[list[Text]] = []
    for bot, turn in turns:
        outcome = str(_SHORT.get(turn["outcome"], turn["outcome"]))
        style = _OUTCOMES.get(turn["outcome"], "")
        if turn["is_degraded"]:
            outcome, style = "degraded", "bold red"
        asked = words.attempts(turn) if with_call else str(turn["winner"] or "none")
        rows.append(
            [
                Text(time.strftime("%H:%M:%S", time.localtime(turn["at"]))),
                *([Text(str(bot.label))] if with_bot else []),
                *([Text(f"{turn['session']}.{turn['turn']}")] if with_call else []),
                *([Text(turn["tier"])] if with_tier else []),
                Text(outcome, style),
                Text(words.secs(turn["ttft_secs"])),
                *([Text(words.secs(turn["ttfs_secs"]))] if with_all else []),
                *([Text(words.secs(turn["voice_to_voice_secs"]))] if width >= NARROW else []),
                Text(asked),
            ]
        )
    return _table(columns, rows, width)
