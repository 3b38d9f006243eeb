"""Charts: coordinates for the report's inline SVG, and the matplotlib plot of ``whatif --plot``.

The SVG scales with the page but text must not: coordinates are per cent of the plot, and the
template places ticks and titles as HTML text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipecat_hedge.race import ConfigurationError, missing_extra
from pipecat_hedge.tools.analysis.replay_policies import Outcome

__all__ = ["Axis", "Chart", "check_picture", "log_axis", "path", "plot_distributions"]

_MARKS = tuple(m * 10.0**e for e in range(-2, 4) for m in (1, 2, 5))
MAX_TICKS, MAX_POINTS = 7, 2000


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


def check_picture(picture: Path) -> None:
    """Check that a picture can be drawn, before the replay.

    Args:
        picture: The file; its suffix is the format.

    Raises:
        ConfigurationError: If matplotlib is not installed, or the file cannot be written.
    """
    kinds = _figure().canvas.get_supported_filetypes()
    if picture.suffix.removeprefix(".").lower() not in kinds:
        raise ConfigurationError(f"plot: unknown format of {picture}: write .png, .svg or .pdf")
    if not picture.parent.is_dir():
        raise ConfigurationError(f"plot: there is no folder {picture.parent}: create it first")


def plot_distributions(
    outcomes: Sequence[Outcome], recommended: str, deadline_secs: float | None, picture: Path
) -> None:
    """Plot the distribution of waits under each policy, with an enlarged tail.

    Args:
        outcomes: The policies, the one without hedging first.
        recommended: The name of the recommended one.
        deadline_secs: The deadline to mark, or None.
        picture: The file; its suffix is the format.

    Raises:
        ConfigurationError: If it cannot be written.
    """
    figure = _figure()
    axes = figure.add_subplot()
    for number, outcome in enumerate(outcomes):
        secs = np.maximum(np.sort(outcome.secs[np.isfinite(outcome.secs)]), 1e-4)
        depth = -np.log10(1 - (np.arange(len(secs)) + 0.5) / len(outcome.secs))
        shown = np.searchsorted(depth, np.linspace(0, depth[-1], MAX_POINTS))
        shown = np.unique(shown[shown < len(secs)])
        is_chosen = outcome.policy == recommended
        axes.plot(
            secs[shown],
            depth[shown],
            color=None if number else "black",
            linewidth=2.6 if is_chosen else 1.2,
            label=f"{outcome.policy} (recommended)" if is_chosen else outcome.policy,
        )
    if deadline_secs is not None:
        axes.axvline(deadline_secs, color="grey", linestyle=":", label="deadline")
    nines = math.ceil(math.log10(max(len(outcomes[0].secs), 10)))
    axes.set(xscale="log", xlabel="wait for the first token (s)", ylabel="share of turns answered")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(0, nines)
    axes.set_yticks(range(nines + 1), [f"{100 * (1 - 10.0**-n):g} %" for n in range(nines + 1)])
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    try:
        figure.savefig(picture, dpi=150)
    except OSError as e:
        raise ConfigurationError(f"plot: {picture} cannot be written: {e.strerror}") from e


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra("plot", "matplotlib", "tools") from None
    return Figure(figsize=(8, 5), layout="constrained")
