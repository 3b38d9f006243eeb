"""A picture of a drill over time: what providers were sent, what callers heard, how they waited."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from pipecat_hedge.policy.percentiles import percentile
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.tools.bench.drill.plans import Drill
from pipecat_hedge.tools.bench.drill.records import Record

__all__ = ["check_drawing", "draw"]

WINDOW_SECS = 5
"""The percentiles are of the turns of so many seconds."""
PROVIDER_COLOURS = ("tab:blue", "tab:orange", "tab:green")
KINDS = (("answered", "#8fbf8f"), ("degraded", "#f2c14e"), ("lost", "#c0392b"))
WAIT_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
WIDTH, HEIGHT = 5.0, 8.0


def check_drawing() -> None:
    """See that a picture can be drawn, before it takes minutes to know what of.

    Raises:
        ConfigurationError: If matplotlib is not installed.
    """
    _figure(1)


def _figure(columns: int) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as e:
        raise ConfigurationError(
            "drill draws with matplotlib: pip install 'pipecat-hedge[tools]', or --no-pictures"
        ) from e
    return Figure(figsize=(WIDTH * columns + 0.5, HEIGHT), layout="constrained", facecolor="white")


def draw(drill: Drill, records: Sequence[Record], path: Path) -> None:
    """Draw the variants of a drill side by side.

    Args:
        drill: The drill.
        records: What came of it, one a variant.
        path: The picture, a PNG.
    """
    figure = _figure(len(records))
    rows: Any = figure.subplots(3, len(records), squeeze=False, sharex="col", sharey="row")
    for column, record in enumerate(records):
        top, middle, bottom = rows[:, column]
        top.set_title(record.variant, fontsize="medium")
        _draw_requests(top, record)
        _draw_outcomes(middle, record)
        _draw_waits(bottom, record)
        for axes in (top, middle, bottom):
            axes.grid(alpha=0.3)
            for at, label in ((drill.event_secs, "event"), (drill.return_secs, "return")):
                if at is not None and at < len(record.began):
                    axes.axvline(at, color="black", linestyle=":", label=label)
        bottom.set_xlabel("seconds")
    rows[0, 0].set_ylabel("requests sent per second")
    rows[1, 0].set_ylabel("turns begun per second")
    rows[2, 0].set_ylabel(f"time to first token (s), {WINDOW_SECS} s of turns")
    for axes in rows[:2, 0]:
        axes.set_ylim(bottom=0)
    for axes in rows[:, -1]:
        axes.legend(loc="upper right", fontsize="x-small")
    figure.suptitle(f"{drill.name}: {drill.summary}", fontsize="medium")
    figure.savefig(path, dpi=110)


def _draw_requests(axes: Any, record: Record) -> None:
    seconds = np.arange(len(record.began)) + 0.5
    for (name, counts), colour in zip(record.asked.items(), PROVIDER_COLOURS, strict=False):
        axes.plot(seconds, counts, color=colour, linewidth=1, label=name)


def _draw_outcomes(axes: Any, record: Record) -> None:
    secs = len(record.began)
    series = [np.zeros(secs, np.int64) for _ in KINDS]
    order = {kind: index for index, (kind, _) in enumerate(KINDS)}
    for turn in record.turns:
        series[order[turn.kind]][int(turn.at)] += 1
    axes.stackplot(
        np.arange(secs) + 0.5,
        *series,
        colors=[colour for _, colour in KINDS],
        labels=[kind for kind, _ in KINDS],
    )


def _draw_waits(axes: Any, record: Record) -> None:
    seconds = np.arange(WINDOW_SECS, len(record.began) + 1)
    waits: list[list[float]] = [[] for _ in record.began]
    for turn in record.turns:
        if turn.kind != "degraded":  # who heard the fallback text waited for no answer
            waits[int(turn.at)].append(min(turn.ttft_secs, WAIT_TICKS[-1]))
    for share, style in ((0.5, "-"), (0.95, "--")):
        shown = [
            percentile(list(chain(*waits[end - WINDOW_SECS : end])), share) or math.nan
            for end in seconds
        ]
        axes.plot(
            seconds, shown, style, color="tab:blue", linewidth=1.2, label=f"p{100 * share:.0f}"
        )
    axes.set_yscale("log")
    axes.set_yticks(WAIT_TICKS, [f"{tick:g}" for tick in WAIT_TICKS])
    axes.minorticks_off()
