"""Renders the fleet for a terminal of any size. Pure.

Narrow terminals show fewer columns, and texts are cut with an ellipsis, figures never. The turns
fill the remaining rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipecat_hedge.telemetry import SloStatus
from pipecat_hedge.tools.formatting import OBJECTIVES, UNKNOWN, secs
from pipecat_hedge.tools.top.feed import Bot, Fleet, Provider, Turn, printable

RECENT_SECS = 300.0
MIN_TURN_ROWS = 3
_STYLES = {
    "answered": "green",
    "answered_with_tools": "green",
    "interrupted": "yellow",
    "failed": "red",
}
_REASONS = {
    "hedge": "hedge",
    "failure": "replacement",
    "silence": "after a silence",
    "stall": "after a stall",
}


def screen(fleet: Fleet, width: int, height: int, now: float) -> RenderableType:
    """Render the fleet.

    Args:
        fleet: The bots.
        width: Columns.
        height: Rows.
        now: Seconds since the epoch.
    """
    recent = [turn for _, turn in fleet.turns() if now - turn.at <= RECENT_SECS]
    parts: list[RenderableType] = [*_headline(fleet, recent, now, width)]
    parts += [line for bot in fleet.bots if not bot.is_answering for line in _missing(bot, now)]
    rows = len(parts)
    for table in (_slos(fleet.slos(), width), _providers(fleet.providers(), width)):
        if table.row_count:
            parts += [Text(), table]
            rows += table.row_count + 2
    extra = sum(a.launch_reason == "hedge" for turn in recent for a in turn.attempts)
    spent = f", {extra / len(recent):.0%} spent in 5 min" if recent else ""
    for budget in fleet.budgets():
        state = "debt" if budget.balance < 0 else "credit"
        text = f"budget {100 * budget.budget:g} % of turns: {abs(budget.balance):.1f} {state}"
        text += f", at most {budget.most_credit:.0f} requests{spent}"
        parts.append(_line(text, "yellow" if budget.balance < 0 else ""))
        rows += 1
    room = max(height - rows - 3, MIN_TURN_ROWS)
    return Group(*parts, Text(), _turns(fleet, width, room))


def turn_line(label: str, turn: Turn) -> str:
    """Render a turn in one line, for a pipe or a file."""
    outcome = turn.outcome + ("" if turn.degraded_reason is None else " degraded")
    parts = [
        f"{_clock(turn)} {label} call {turn.session} turn {turn.turn} {turn.tier}: {outcome}",
        f"winner {turn.winner or 'none'}",
        f"first token {secs(turn.ttft_secs)}",
        f"sentence {secs(turn.ttfs_secs)}",
        f"voice to voice {secs(turn.voice_to_voice_secs)}",
        *([f"transcript {_transcript(turn)[0]}"] if turn.transcripts else []),
        *([f"first sound {_first_sound(turn)[0]}"] if turn.spoken else []),
        _attempts(turn),
    ]
    return printable(", ".join(parts))


def _missing(bot: Bot, now: float) -> list[Text]:
    if bot.away_since is None:
        return [_line(f"{bot.url}: connecting", "yellow")]
    away_secs = max(now - bot.away_since, 0.0)
    return [
        _line(f"{bot.url} is away for {away_secs:.0f} s; reconnecting", "bold red"),
        _line(f"  {bot.error}", "bold red"),
    ]


def _headline(fleet: Fleet, recent: Sequence[Turn], now: float, width: int) -> list[Text]:
    """What is true of all, in as many lines as it takes."""
    sessions = sum(snapshot.sessions for snapshot in fleet.snapshots)
    first = fleet.bots[0].snapshot
    name = "1 bot" if first is None else first.name
    if len(fleet.bots) > 1:
        name = f"{len(fleet.snapshots)} of {len(fleet.bots)} bots"
    is_complete = all(bot.complete_since < now - RECENT_SECS for bot in fleet.bots)
    parts = [name, f"{sessions} call{'' if sessions == 1 else 's'}"]
    parts.append(f"{len(recent)}{'' if is_complete else '+'} turns in 5 min")
    if recent:
        hedged = sum(any(a.launch_reason == "hedge" for a in turn.attempts) for turn in recent)
        parts.append(f"{hedged / len(recent):.0%} hedged")
    if times := sorted(turn.ttft_secs for turn in recent if turn.ttft_secs is not None):
        p50, p95 = (times[math.ceil(share * len(times)) - 1] for share in (0.5, 0.95))
        parts.append(f"first token p50 {secs(p50)}, p95 {secs(p95)}")
    lines = ["top  " + parts[0]]
    for part in parts[1:]:
        if len(longer := f"{lines[-1]} · {part}") <= width:
            lines[-1] = longer
        else:
            lines.append(" " * 5 + part)
    return [_line(line, "bold") for line in lines]


def _slos(slos: Sequence[SloStatus], width: int) -> Table:
    windows = slos[0].windows if slos else ()
    columns: list[_Column[SloStatus]] = [
        ("SLO", 0, True, lambda s: f"{s.tier}: {OBJECTIVES[s.objective]} ≤ {s.within_secs:g} s"),
        ("target", 52, False, lambda s: _percent(s.share)),
        ("kept", 0, False, _kept),
        ("budget", 0, False, lambda s: (_percent(s.budget_left), _bad(s.budget_left < 0))),
    ]
    for n, window in enumerate(windows):
        name = f"burn {_window(window.window_secs)}"
        columns.append((name, 76 if n else 0, False, lambda s, n=n: _burn(s.burns[n])))
    return _table(columns, slos, width)


def _kept(slo: SloStatus) -> tuple[str, str]:
    kept = slo.attainment
    return _percent(kept), _bad(kept is not None and kept < slo.share)


def _burn(burn: float | None) -> tuple[str, str]:
    return (UNKNOWN, "") if burn is None else (f"{burn:.1f}×", "bold red" if burn > 1 else "")


def _bad(is_bad: bool) -> str:
    return "bold red" if is_bad else "green"


def _providers(providers: Sequence[Provider], width: int) -> Table:
    columns: list[_Column[Provider]] = [
        ("provider", 0, True, lambda p: p.provider),
        ("state", 0, True, _state),
        ("p50", 52, False, lambda p: secs(p.p50_secs)),
        ("p95", 0, False, lambda p: secs(p.p95_secs)),
        ("in flight", 52, False, _in_flight),
        ("requests", 76, False, lambda p: str(p.requests)),
        ("won", 76, False, lambda p: str(p.won)),
        ("superseded", 110, False, lambda p: str(p.superseded)),
        ("failed", 0, False, lambda p: (str(p.failed), "red" if p.failed else "")),
    ]
    return _table(columns, providers, width)


def _in_flight(provider: Provider) -> tuple[str, str]:
    is_full = 0 < provider.limit <= provider.in_flight
    return f"{provider.in_flight} of {provider.limit}", "red" if is_full else ""


def _state(provider: Provider) -> tuple[str, str]:
    if provider.is_last:
        return "last", "yellow"
    if provider.breaker != "closed":
        style = "bold red" if provider.breaker == "open" else "yellow"
        return f"breaker {provider.breaker.replace('_', ' ')}", style
    if provider.retry_after_secs > 0:
        return f"retry in {math.ceil(provider.retry_after_secs)} s", "yellow"
    if provider.server is not None and not provider.server.is_up:
        return "server down", "bold red"
    if provider.server is not None and provider.server.waiting:
        return f"queue of {provider.server.waiting}", "yellow"
    return "usable", "green"


def _turns(fleet: Fleet, width: int, room: int) -> RenderableType:
    turns = fleet.turns()[:room]
    if not turns:
        return Text(
            "no turn yet: talk to the bot or ask the proxy" if fleet.snapshots else "", "dim"
        )
    has_transcripts = any(turn.transcripts for _, turn in turns)
    has_speech = any(turn.spoken for _, turn in turns)
    has_voice = any(turn.voice_to_voice_secs is not None for _, turn in turns)
    columns: list[_Column[tuple[Bot, Turn]]] = [
        ("time", 0, False, lambda t: _clock(t[1])),
        ("bot", _from(0, len(fleet.bots) > 1), False, lambda t: str(t[0].number)),
        ("call.turn", 76, False, lambda t: f"{t[1].session}.{t[1].turn}"),
        ("tier", 110, True, lambda t: t[1].tier),
        ("outcome", 0, True, lambda t: _outcome(t[1])),
        ("token", 0, False, lambda t: secs(t[1].ttft_secs)),
        ("sentence", 110, False, lambda t: secs(t[1].ttfs_secs)),
        ("voice", _from(52, has_voice), False, lambda t: secs(t[1].voice_to_voice_secs)),
        ("transcript", _from(132, has_transcripts), False, lambda t: _transcript(t[1])),
        ("first sound", _from(132, has_speech), False, lambda t: _first_sound(t[1])),
        ("attempts", 76, True, lambda t: _attempts(t[1]))
        if width >= 76
        else ("winner", 0, True, lambda t: t[1].winner or "none"),
    ]
    return _table(columns, turns, width)


def _from(width: int, is_shown: bool) -> float:
    """Return the least width for a column."""
    return width if is_shown else math.inf


def _transcript(turn: Turn) -> tuple[str, str]:
    """Show the wait for the last transcript, and whether another recogniser was needed."""
    if not turn.transcripts:
        return UNKNOWN, ""
    marks = ["rescued"] * any(t.is_rescued for t in turn.transcripts)
    marks += ["replaced"] * any(t.was_replaced for t in turn.transcripts)
    return " ".join([secs(turn.transcripts[-1].transcript_secs), *marks]), _help(bool(marks))


def _first_sound(turn: Turn) -> tuple[str, str]:
    """Show the wait for the voice, and how many sentences others have spoken, or none has."""
    if (spoken := turn.spoken) is None:
        return UNKNOWN, ""
    counts = {"rescued": spoken.rescued, "left out": spoken.left_out}
    marks = [f"{number} {name}" for name, number in counts.items() if number]
    return " ".join([secs(spoken.first_sound_secs), *marks]), _help(bool(marks))


def _help(was_needed: bool) -> str:
    return "yellow" if was_needed else ""


def _outcome(turn: Turn) -> tuple[str, str]:
    if turn.degraded_reason is not None:
        return "degraded", "bold red"
    return turn.outcome.removeprefix("answered_with_"), _STYLES.get(turn.outcome, "")


T = TypeVar("T")
_Column: TypeAlias = tuple[str, float, bool, Callable[[T], str | tuple[str, str]]]
"""A heading, the least width of the terminal, whether it is text, and the cell of a row."""


def _table(columns: Sequence[_Column[T]], rows: Sequence[T], width: int) -> Table:
    """Build a table of the columns that fit this width."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    shown = [column for column in columns if width >= column[1]]
    for name, _, is_text, _ in shown:
        # rich shrinks only columns that may wrap; the texts themselves do not wrap.
        table.add_column(_line(name), justify="left" if is_text else "right", no_wrap=not is_text)
    for row in rows:
        cells = [cell(row) for _, _, _, cell in shown]
        table.add_row(*(_line(c) if isinstance(c, str) else _line(*c) for c in cells))
    return table


def _line(text: str, style: str = "") -> Text:
    return Text(printable(text), style, no_wrap=True, overflow="ellipsis")


def _attempts(turn: Turn) -> str:
    texts: list[str] = []
    for attempt in turn.attempts:
        text = f"{attempt.provider} {attempt.outcome}"
        if attempt.error_category is not None:
            text += f" ({attempt.error_category.replace('_', ' ')})"
        if attempt.launch_reason != "primary":
            reason = _REASONS.get(attempt.launch_reason, attempt.launch_reason)
            text += f", {reason} at {secs(attempt.launched_secs)}"
        texts.append(text)
    return "; ".join(texts) or "no attempt"


def _clock(turn: Turn) -> str:
    return time.strftime("%H:%M:%S", time.localtime(turn.at))


def _percent(share: float | None) -> str:
    if share is None:
        return UNKNOWN
    text = f"{100 * share:.1f}".removesuffix(".0")
    return "> 99.9 %" if text == "100" and share < 1 else f"{text} %"


def _window(window_secs: float) -> str:
    for unit, length in (("d", 86_400), ("min", 60)):
        if window_secs >= length and window_secs % length == 0:
            return f"{window_secs / length:.0f} {unit}"
    return f"{window_secs:g} s"
