"""A replay's results: a table for the terminal, and a folder with a page and JSON.

``report.html`` is self-contained: no script, no file, no network. ``replay.json`` is an array with
one object per turn.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.formatting import TextTable, templates, text_of
from pipecat_hedge.tools.replay.conversation import FILLER_SECS, TurnResult
from pipecat_hedge.tools.replay.summary import summarise

if TYPE_CHECKING:
    from jinja2 import Environment

WIDTH = 860
"""A picture's width in pixels, as the next four."""
LANE = 56
"""The height of a wave."""
GAP = 8
"""The gap between waves."""
AXIS = 22
"""The height of the axis."""
LEFT = 52
"""The width of the labels."""
QUIETEST_DB = -54.0
"""The level drawn as silence; levels are drawn in decibels."""


def table(turns: Sequence[TurnResult], width: int | None = None) -> str:
    """Format percentiles by recording, the unanswered turns, and the pacing.

    Args:
        turns: The turns; not empty.
        width: Columns; None is those of the terminal.
    """
    summary = summarise(turns)
    heads = ["recording", "turns", "answered", "p50", "p95", "max"]
    rows = [
        [
            each.name,
            str(each.turns),
            str(each.answered),
            *map(_cell, (each.p50, each.p95, each.max)),
        ]
        for each in (*summary.recordings, summary.overall)
    ]
    if summary.overall.silent_p50 is not None:
        heads += ["silent p50", "silent max"]
        for row, each in zip(rows, (*summary.recordings, summary.overall), strict=True):
            row += [_cell(each.silent_p50), _cell(each.silent_max)]
    title = "voice to voice, as the caller hears it"
    lines = [text_of([title, TextTable(heads, rows)], width), ""]
    lines += [
        f"{turn.recording}, run {turn.run}, caller {turn.caller}: {turn.error}"
        for turn in turns
        if turn.error is not None
    ]
    if summary.stages:
        lines.append(f"medians from the caller's last sound: {_stages_line(summary.stages)}")
    return "\n".join([*lines, summary.pacing])


def _cell(secs: float | None) -> str:
    return "" if secs is None else _secs(secs)


def check_folder(folder: Path) -> None:
    """Check that a report can be written, before calls are made for it.

    Args:
        folder: The output folder; it is created.

    Raises:
        ConfigurationError: If it cannot be written, or jinja2 is missing.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as e:
        raise ConfigurationError(f"report: {folder} cannot be written to ({e.strerror})") from None
    _templates()


def write_report(folder: Path, turns: Sequence[TurnResult], about: str) -> None:
    """Write ``report.html`` and ``replay.json``.

    Args:
        folder: The output folder; see ``check_folder``.
        turns: The turns of a replay; not empty.
        about: A sentence that describes the replay.
    """
    rows = json.dumps([as_row(turn) for turn in turns], indent=1)
    (folder / "replay.json").write_text(rows + "\n", encoding="utf-8")
    slowest_first = sorted(
        turns,
        key=lambda turn: float("inf") if turn.error else turn.voice_to_voice_secs or 0.0,
        reverse=True,
    )
    page = (
        _templates()
        .get_template("report.html.jinja")
        .render(
            about=about,
            summary=summarise(turns),
            turns=[(turn, _drawing(turn), _notes(turn)) for turn in slowest_first],
        )
    )
    (folder / "report.html").write_text(page, encoding="utf-8")


def as_row(turn: TurnResult) -> dict[str, Any]:
    """Return a turn as plain values, without its waves."""
    fields = (f.name for f in dataclasses.fields(turn) if f.name != "waves")
    return {name: _rounded(getattr(turn, name)) for name in fields}


@cache
def _templates() -> Environment:
    found = templates("pipecat_hedge.tools.replay", "report", "replay")
    found.filters["secs"] = _secs
    found.filters["words"] = lambda name: name.replace("_", " ")
    return found


def _drawing(turn: TurnResult) -> dict[str, Any] | None:
    """Return the positions in a turn's picture, in pixels; None without audio."""
    waves = turn.waves
    if waves is None:
        return None

    def x(secs: float) -> float:
        share = min(max(secs / waves.secs, 0.0), 1.0)
        return round(LEFT + (WIDTH - LEFT - 8) * share, 1)

    def lane(name: str, values: npt.NDArray[np.float64], top: int) -> dict[str, Any]:
        decibels = 20 * np.log10(np.maximum(values, 1e-6))
        heights = np.clip(1 - decibels / QUIETEST_DB, 0.0, 1.0) * (LANE / 2 - 3) + 0.4
        at = np.linspace(x(0.0), x(waves.secs), len(values))
        middle = top + LANE / 2
        outline = np.concatenate((middle - heights, (middle + heights)[::-1]))
        points = zip(np.concatenate((at, at[::-1])), outline, strict=True)
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        return {"name": name, "path": f"M{path}Z", "middle": middle}

    latency = turn.voice_to_voice_secs
    answer_secs = None if latency is None else waves.spoken_secs + latency
    audible_secs = waves.audible_secs
    is_other_sound = audible_secs is not None and (
        answer_secs is None or answer_secs > audible_secs + FILLER_SECS
    )
    step = next(step for step in (0.5, 1, 2, 5, 10) if waves.secs / step <= 12)
    return {
        "width": WIDTH,
        "height": 2 * LANE + GAP + AXIS,
        "lane": LANE,
        "bottom": 2 * LANE + GAP,
        "lanes": [lane("caller", waves.caller, 0), lane("bot", waves.bot, LANE + GAP)],
        "ticks": [(x(n * step), f"{n * step:g} s") for n in range(int(waves.secs / step) + 1)],
        "spoken": x(waves.spoken_secs),
        "answer": None if answer_secs is None else x(answer_secs),
        "other_sound": x(audible_secs) if audible_secs is not None and is_other_sound else None,
        "stages": [
            (x(waves.spoken_secs + secs), f"{name.replace('_', ' ')} {_secs(secs)}")
            for name, secs in turn.stages.items()
        ],
    }


def _notes(turn: TurnResult) -> list[str]:
    """Return the notes below a turn's picture."""
    notes: list[str] = []
    if turn.understood_text:
        notes.append(f"understood: {turn.understood_text}")
    if turn.answer_text:
        notes.append(f"answered: {turn.answer_text}")
    if turn.stages:
        notes.append(f"stages, from the caller's last sound: {_stages_line(turn.stages)}")
    first, answer = turn.first_sound_secs, turn.voice_to_voice_secs
    if first is not None and answer is not None and answer - first > FILLER_SECS:
        notes.append(f"a filler was heard at {_secs(first)}")
    return notes


def _stages_line(stages: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_secs(secs)}" for name, secs in stages.items())


def _secs(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} s"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return value
