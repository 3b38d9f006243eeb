"""The report of a replay: one page that can be sent to a colleague, the turns as JSON, pictures.

``report.html`` needs nothing else: no script, no file, no network. ``replay.json`` is an array with
an object a turn. It holds what was said, as the page does: they are the caller's own recordings.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.tools.replay.conversation import FILLER_SECS, HeardTurn
from pipecat_hedge.tools.replay.picture import STYLE, picture
from pipecat_hedge.tools.replay.summary import Figures, Summary, summarise

__all__ = ["as_row", "check_folder", "report_html", "write_report"]

_PAGE = """\
:root { color-scheme: light dark; --ink: #1d2733; --dim: #66727f; --paper: #fff; --line: #d7dde3;
  --bad: #b4231a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --dim: #98a4b0; --paper: #161b21;
  --line: #323b45; --bad: #ff8a7d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2.5rem; }
p.about { color: var(--dim); margin-top: .2rem; } .bad { color: var(--bad); font-weight: 600; }
.figures { display: flex; flex-wrap: wrap; gap: 2rem; margin: 1.5rem 0; }
.figures div { min-width: 5rem; } .figures b { display: block; font-size: 1.7rem; }
.figures span, td.dim, .said { color: var(--dim); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere;
  min-width: 9rem; }
details { border-bottom: 1px solid var(--line); padding: .6rem 0; } summary { cursor: pointer; }
.said { margin: .2rem 0 0; } svg { margin-top: .5rem; min-width: 40rem; }
"""


def check_folder(folder: Path) -> None:
    """See that a report can be written, before a call is made for it.

    Args:
        folder: Where to; it is made.

    Raises:
        ConfigurationError: If it cannot be.
    """
    try:
        (folder / "pictures").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as e:
        raise ConfigurationError(f"report: {folder} cannot be written to ({e.strerror})") from None


def write_report(folder: Path, turns: Sequence[HeardTurn], about: str) -> None:
    """Write ``report.html``, ``replay.json`` and a picture a turn.

    Args:
        folder: Where to.
        turns: The turns of a replay; not empty.
        about: What was replayed into what, in a sentence.
    """
    pictures = folder / "pictures"
    pictures.mkdir(exist_ok=True)
    for stale in pictures.glob("[0-9][0-9][0-9]-*.svg"):
        stale.unlink()
    rows = list[dict[str, Any]]()
    for number, turn in enumerate(turns, 1):
        name = f"{number:03d}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', turn.recording)}.svg"
        (pictures / name).write_text(picture(turn, alone=True), encoding="utf-8")
        rows.append({**as_row(turn), "picture": f"pictures/{name}"})
    (folder / "replay.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(report_html(turns, about), encoding="utf-8")


def as_row(turn: HeardTurn) -> dict[str, Any]:
    """A turn as plain values, its picture left out.

    Args:
        turn: The turn.
    """
    fields = (f.name for f in dataclasses.fields(turn) if f.name != "waves")
    return {name: _rounded(getattr(turn, name)) for name in fields}


def report_html(turns: Sequence[HeardTurn], about: str) -> str:
    """The page.

    Args:
        turns: The turns of a replay; not empty.
        about: What was replayed into what, in a sentence.
    """
    summary = summarise(turns)
    kind = "" if summary.pacing.kept_up else ' class="bad"'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Voice-to-voice latency</title><style>{_PAGE}{STYLE}</style></head><body>"
        f'<h1>Voice-to-voice latency</h1><p class="about">{escape(about)}</p>'
        f"{_headline(summary)}<p{kind}>{escape(summary.pacing.told.capitalize())}.</p>"
        f"{_where(summary)}<h2>By recording</h2>{_table(summary)}"
        '<h2>Turns</h2><p class="about">The caller above, the bot below; the gap between them is '
        "marked. Levels are in decibels. Dotted: what the bot's messages tell of its stages.</p>"
        f"{''.join(_turn(turn) for turn in _slowest_first(turns))}</body></html>\n"
    )


def _headline(summary: Summary) -> str:
    all_of_them = summary.everything
    figures = [
        ("p50", _secs(all_of_them.p50)),
        ("p95", _secs(all_of_them.p95)),
        ("max", _secs(all_of_them.most)),
        ("answered", f"{all_of_them.answered} of {all_of_them.turns}"),
    ]
    if all_of_them.silent_p50 is not None:
        figures.append(("silent when interrupted, p50", _secs(all_of_them.silent_p50)))
    shown = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for name, value in figures)
    return f'<div class="figures">{shown}</div>'


def _where(summary: Summary) -> str:
    if not summary.stages:
        return ""
    names = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in summary.stages)
    cells = "".join(f"<td>{secs:.2f} s</td>" for secs in summary.stages.values())
    return (
        '<h2>Where the time goes</h2><p class="about">Medians of the turns that were answered, '
        "from the caller's last sound, as the bot tells.</p>"
        f'<div class="wide"><table><tr>{names}</tr><tr>{cells}</tr></table></div>'
    )


def _table(summary: Summary) -> str:
    with_silence = summary.everything.silent_p50 is not None
    head = ["recording", "turns", "answered", "p50", "p95", "max"]
    head += ["silent p50", "silent max"] if with_silence else []

    def row(figures: Figures) -> str:
        cells = [
            escape(figures.name),
            str(figures.turns),
            str(figures.answered),
            *(_secs(value) for value in (figures.p50, figures.p95, figures.most)),
        ]
        if with_silence:
            silent = figures.silent_p50, figures.silent_most
            cells += ["" if secs is None else _secs(secs) for secs in silent]
        return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"

    names = "".join(f"<th>{name}</th>" for name in head)
    rows = "".join(row(figures) for figures in (*summary.recordings, summary.everything))
    return f'<div class="wide"><table><tr>{names}</tr>{rows}</table></div>'


def _turn(turn: HeardTurn) -> str:
    heard = _secs(turn.voice_to_voice_secs) if turn.error is None else escape(turn.error)
    kind = "" if turn.error is None else ' class="bad"'
    where = f"run {turn.run}, caller {turn.caller}"
    said = [
        f'<p class="said">{name}: {escape(text)}</p>'
        for name, text in (("understood", turn.understood_text), ("answered", turn.answer_text))
        if text
    ]
    stages = ", ".join(
        f"{name.replace('_', ' ')} {secs:.2f} s" for name, secs in turn.stages.items()
    )
    if stages:
        said.append(f'<p class="said">stages, from the caller\'s last sound: {escape(stages)}</p>')
    if recorded := _recorded(turn.record or {}):
        said.append(f'<p class="said">the bot\'s own record: {escape(recorded)}</p>')
    first, answer = turn.first_sound_secs, turn.voice_to_voice_secs
    if first is not None and answer is not None and answer - first > FILLER_SECS:
        said.append(f'<p class="said">a filler was heard at {_secs(first)}</p>')
    return (
        f"<details open><summary>{escape(turn.recording)}, {where}: <b{kind}>{heard}</b></summary>"
        f'<div class="wide">{picture(turn)}</div>{"".join(said)}</details>'
    )


def _recorded(record: dict[str, Any]) -> str:
    """Who answered and who was asked, as the example bot and whoever follows it tell."""
    parts: list[str] = []
    if isinstance(secs := record.get("ttft_secs"), (int, float)):
        parts.append(f"first token after {secs:.2f} s")
    if isinstance(winner := record.get("winner"), str):
        parts.append(f"winner {winner}")
    attempts = record.get("attempts")
    for attempt in attempts if isinstance(attempts, list) else []:
        if isinstance(attempt, dict) and {"provider", "outcome"} <= attempt.keys():
            parts.append(f"{attempt['provider']} {attempt['outcome']}")
    return ", ".join(parts)


def _slowest_first(turns: Sequence[HeardTurn]) -> list[HeardTurn]:
    def rank(turn: HeardTurn) -> float:
        return float("inf") if turn.error is not None else turn.voice_to_voice_secs or 0.0

    return sorted(turns, key=rank, reverse=True)


def _secs(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} s"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return value
