"""A picture of an answer: how long callers wait, with the tail drawn large."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.tools.analysis.whatif.answer import Answer

__all__ = ["check_picture", "plot"]

MOST_POINTS = 2000
LEAST_SECS = 1e-4
"""A logarithmic scale has no 0."""


def check_picture(path: str | Path) -> None:
    """See that a picture can be drawn, before it takes a minute to know what of.

    Args:
        path: The picture.

    Raises:
        ConfigurationError: If matplotlib is not installed, or it cannot be written there.
    """
    figure = _figure()
    known = figure.canvas.get_supported_filetypes()
    kind = Path(path).suffix.removeprefix(".").lower()
    if kind not in known:
        raise ConfigurationError(
            f"plot: {path} is of no kind that can be drawn: write .png, .svg or .pdf"
        )
    if not Path(path).parent.is_dir():
        raise ConfigurationError(f"plot: there is no folder {Path(path).parent}: make it first")


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as e:
        raise ConfigurationError("plot needs matplotlib: pip install 'pipecat-hedge[plot]'") from e
    return Figure(figsize=(8, 5), layout="constrained")


def plot(answer: Answer, path: str | Path) -> None:
    """Draw the distribution of each policy.

    Across: the wait, on a logarithmic scale. Up: the share of turns, so that each further nine of
    it (90, 99, 99.9 %) is as high as the one before.

    Args:
        answer: The answer.
        path: The picture; its ending says which kind (``.png``, ``.svg``, ``.pdf``).

    Raises:
        ConfigurationError: If matplotlib is not installed, or it cannot be written there.
    """
    check_picture(path)
    figure = _figure()
    axes = figure.add_subplot()
    for outcome in answer.outcomes:
        secs = np.maximum(np.sort(outcome.secs[np.isfinite(outcome.secs)]), LEAST_SECS)
        depth = -np.log10(1 - (np.arange(len(secs)) + 0.5) / len(outcome.secs))
        shown = np.unique(np.searchsorted(depth, np.linspace(0, depth[-1], MOST_POINTS)))
        shown = shown[shown < len(secs)]
        is_plain = outcome.policy == answer.outcomes[0].policy
        is_chosen = outcome.policy == answer.recommended
        label = "one request" if is_plain else outcome.policy
        axes.plot(
            secs[shown],
            depth[shown],
            color="black" if is_plain else None,
            linewidth=2.6 if is_chosen else 1.2,
            label=f"{label} (take this)" if is_chosen else label,
        )
    if answer.deadline_secs is not None:
        axes.axvline(answer.deadline_secs, color="grey", linestyle=":", label="deadline")
    axes.set_xscale("log")
    axes.set_xlabel("wait for the first token (s)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylabel("share of turns answered")
    nines = int(np.ceil(np.log10(max(len(answer.outcomes[0].secs), 10))))
    axes.set_ylim(0, nines)
    axes.set_yticks(range(nines + 1), ["0 %", "90 %", *(_nines(n) for n in range(2, nines + 1))])
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    axes.set_title("the wait of one request, and the wait that callers perceive", fontsize="medium")
    try:
        figure.savefig(path, dpi=150)
    except OSError as e:
        raise ConfigurationError(f"plot: {path} cannot be written: {e.strerror}") from e


def _nines(count: int) -> str:
    return "99 %" if count == 2 else f"99.{'9' * (count - 2)} %"
