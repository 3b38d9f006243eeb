"""Coordinates for the report's inline SVG.

The SVG scales with the page but text must not: coordinates are per cent of the plot, and the
template places ticks and titles as HTML text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Axis", "Chart", "log_axis", "path"]

_MARKS = tuple(m * 10.0**e for e in range(-2, 4) for m in (1, 2, 5))
MAX_TICKS = 7


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a plot: its title with its unit, and its ticks in per cent of its length."""

    title: str
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart for the template.

    Parameters:
        title: The caption.
        description: A description for screen readers.
        lines: Each line's name and its SVG path.
        x: The horizontal axis.
        y: The vertical axis.
        bands: Shaded ranges, from and to, in per cent.
        band_name: The meaning of the shading.
    """

    title: str
    description: str
    lines: tuple[tuple[str, str], ...]
    x: Axis
    y: Axis
    bands: tuple[tuple[float, float], ...] = ()
    band_name: str = ""


def log_axis(values: Sequence[float], title: str) -> tuple[Callable[[float], float], Axis]:
    """Create a logarithmic axis.

    Args:
        values: The values to cover; those not above 0 are ignored.
        title: The title, with the unit.

    Returns:
        A function from a value to its position in per cent, and the axis.
    """
    known = [v for v in values if v > 0 and math.isfinite(v)] or [0.1, 1.0]
    low = max((m for m in _MARKS if m <= min(known)), default=_MARKS[0])
    high = min((m for m in _MARKS if m >= max(known)), default=_MARKS[-1])
    if low >= high:
        low, high = low / 2, high * 2

    def place(value: float) -> float:
        if not value > 0:
            return value if math.isnan(value) else 0.0
        at = 100 * math.log(value / low) / math.log(high / low)
        return min(max(at, 0.0), 100.0)

    marks = [m for m in _MARKS if low <= m <= high]
    if len(marks) > MAX_TICKS:
        marks = [m for m in marks if math.isclose(10 ** round(math.log10(m)), m)]
    return place, Axis(title, tuple((place(mark), f"{mark:g}") for mark in marks))


def path(points: Sequence[tuple[float, float]], *, is_step: bool = False) -> str:
    """Return an SVG path through points in per cent, y upwards; NaN makes a gap.

    Args:
        points: The points.
        is_step: Whether the line is horizontal from each point to the next.
    """
    parts, is_down = list[str](), False
    for x, y in points:
        if math.isnan(x) or math.isnan(y):
            is_down = False
            continue
        onward = "H{:.2f}V{:.2f}" if is_step else "L{:.2f} {:.2f}"
        form = onward if is_down else "M{:.2f} {:.2f}"
        parts.append(form.format(x, 100 - y))
        is_down = True
    return "".join(parts)
