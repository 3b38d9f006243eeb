"""Small charts for a page: lines and bars as SVG, everything that is read as HTML. Pure.

The problem: an SVG that fills a laptop's width shrinks its letters to nothing on a telephone. So
only the drawing stretches (its coordinates are percent of the plot, its strokes keep their width),
and ticks and titles are text of the page, put beside it by percent: they are as large everywhere,
can be selected, and are read aloud.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Axis", "Bar", "Line", "bars", "chart", "legend", "log_axis", "nines_axis"]

DECADES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
MOST_TICKS = 7
"""More do not fit beside each other on a telephone."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a plot.

    Parameters:
        title: What it is, with its unit.
        ticks: Places from 0 to 1, and what is written there.
    """

    title: str
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart.

    Parameters:
        name: What the legend calls it.
        points: Places from 0 to 1, across and up; a gap is a place that is not a number.
        kind: Its colour and dashes, from 0.
        is_step: Whether it is level from each point to the next.
    """

    name: str
    points: Sequence[tuple[float, float]]
    kind: int = 0
    is_step: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart.

    Parameters:
        left: Its place across, from 0 to 1.
        width: How wide it is, from 0 to 1.
        height: How high it is, from 0 to 1.
        is_bad: Whether it is one to look at.
        told: What it says, for whoever points at it.
    """

    left: float
    width: float
    height: float
    is_bad: bool
    told: str


class LogScale:
    """Places of figures on a logarithmic axis."""

    def __init__(self, low: float, high: float):
        """Take an axis.

        Args:
            low: Its least figure, above 0.
            high: Its greatest, above that.
        """
        self._low, self._span = math.log(low), math.log(high) - math.log(low)

    def __call__(self, value: float) -> float:
        """The place of a figure, from 0 to 1; what is beyond the axis is at its end."""
        if math.isnan(value):
            return value
        if value <= 0:
            return 0.0
        return min(max((math.log(value) - self._low) / self._span, 0.0), 1.0)


def log_axis(values: Sequence[float], title: str) -> tuple[LogScale, Axis]:
    """An axis on which a tenfold is as long anywhere.

    Args:
        values: What it must hold; what is not above 0 is left out.
        title: What it is, with its unit.
    """
    known = [v for v in values if v > 0 and math.isfinite(v)] or [0.1, 1.0]
    low = max((d for d in DECADES if d <= min(known)), default=DECADES[0])
    high = min((d for d in DECADES if d >= max(known)), default=DECADES[-1])
    if low >= high:
        low, high = low / 2, high * 2
    scale = LogScale(low, high)
    marks = [d for d in DECADES if low <= d <= high]
    if len(marks) > MOST_TICKS:
        marks = [d for d in marks if math.isclose(10 ** round(math.log10(d)), d)]
    return scale, Axis(title, tuple((scale(mark), f"{mark:g}") for mark in marks))


def nines_axis(count: int, title: str) -> tuple[float, Axis]:
    """An axis on which each further nine of a share is as high as the one before.

    Args:
        count: How many things the share is of: that many tell so many nines.
        title: What it is.

    Returns:
        How many nines it is high, and the axis.
    """
    nines = math.log10(max(count, 10))
    shares = [(0.0, "0"), (-math.log10(0.5), "50"), (1.0, "90")]
    shares += [(float(n), "99" if n == 2 else f"99.{'9' * (n - 2)}") for n in range(2, 9)]
    return nines, Axis(title, tuple((at / nines, f"{t} %") for at, t in shares if at <= nines))


def chart(
    lines: Sequence[Line],
    across: Axis,
    up: Axis,
    told: str,
    *,
    bands: Sequence[tuple[float, float]] = (),
    marks: Sequence[float] = (),
) -> str:
    """A chart of lines.

    Args:
        lines: The lines.
        across: The axis across.
        up: The axis up.
        told: What the chart shows, for whoever cannot see it.
        bands: Stretches across that are shaded, from 0 to 1.
        marks: Places across that are marked by an upright line.
    """
    drawn = [
        f'<rect class="band" x="{100 * left:.2f}" y="0" '
        f'width="{max(100 * (right - left), 0.4):.2f}" height="100"/>'
        for left, right in bands
    ]
    drawn += [_grid(across, up)]
    drawn += [
        f'<line class="mark" x1="{100 * at:.2f}" x2="{100 * at:.2f}" y1="0" y2="100"/>'
        for at in marks
    ]
    drawn += [f'<path class="k{line.kind}" d="{_path(line)}"/>' for line in lines]
    return _plot("".join(drawn), across, up, told, "plot")


def bars(drawn: Sequence[Bar], across: Axis, up: Axis, told: str, *, level: float) -> str:
    """A chart of bars.

    Args:
        drawn: The bars.
        across: The axis across.
        up: The axis up.
        told: What the chart shows, for whoever cannot see it.
        level: A place up, from 0 to 1, that is marked by a level line.
    """
    parts = [_grid(across, up)]
    parts += [
        f'<rect class="{"bad" if bar.is_bad else "fine"}" x="{100 * bar.left:.2f}" '
        f'y="{100 - 100 * bar.height:.2f}" width="{85 * bar.width:.2f}" '
        f'height="{100 * bar.height:.2f}"><title>{escape(bar.told)}</title></rect>'
        for bar in drawn
    ]
    at = 100 - 100 * level
    parts.append(f'<line class="mark" x1="0" x2="100" y1="{at:.2f}" y2="{at:.2f}"/>')
    return _plot("".join(parts), across, up, told, "plot low")


def legend(named: Sequence[tuple[str, str]]) -> str:
    """What is what in a chart.

    Args:
        named: A drawing's class (``k0`` … for lines, ``band``, ``mark``), and its name.
    """
    items = [
        f'<li><svg class="swatch" viewBox="0 0 100 100" preserveAspectRatio="none" '
        f'aria-hidden="true">{_swatch(kind)}</svg>{escape(name)}</li>'
        for kind, name in named
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _swatch(kind: str) -> str:
    if kind.startswith("k"):
        return f'<path class="{kind}" d="M0 50H100"/>'
    if kind == "mark":
        return '<line class="mark" x1="0" x2="100" y1="50" y2="50"/>'
    return f'<rect class="{kind}" x="0" y="10" width="100" height="80"/>'


def _plot(drawn: str, across: Axis, up: Axis, told: str, kind: str) -> str:
    xs = "".join(
        f'<span class="xt" style="left:{100 * at:.2f}%">{escape(name)}</span>'
        for at, name in across.ticks
    )
    ys = "".join(
        f'<span class="yt" style="bottom:{100 * at:.2f}%">{escape(name)}</span>'
        for at, name in up.ticks
    )
    return (
        f'<div class="ytitle">{escape(up.title)}</div><div class="{kind}">'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(told)}">{drawn}</svg>{ys}{xs}'
        f'<div class="xtitle">{escape(across.title)}</div></div>'
    )


def _grid(across: Axis, up: Axis) -> str:
    lines = [f"M{100 * at:.2f} 0V100" for at, _ in across.ticks]
    lines += [f"M0 {100 - 100 * at:.2f}H100" for at, _ in up.ticks]
    return f'<path class="grid" d="{"".join(lines)}"/>'


def _path(line: Line) -> str:
    parts, is_down, level = list[str](), False, 0.0
    for x, y in line.points:
        if math.isnan(x) or math.isnan(y):
            is_down = False
            continue
        at, height = 100 * x, 100 - 100 * y
        if not is_down:
            parts.append(f"M{at:.2f} {height:.2f}")
        elif line.is_step:
            parts.append(f"H{at:.2f}V{height:.2f}")
        else:
            parts.append(f"L{at:.2f} {height:.2f}")
        is_down, level = True, height
    if parts and is_down and len(line.points) == 1:
        parts.append(f"H100V{level:.2f}")
    return "".join(parts)
